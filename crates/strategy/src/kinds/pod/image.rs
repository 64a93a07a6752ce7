//! References to images, as far as defaults depend on them (distribution's reference grammar).

/// `Always` for an image with the tag `latest` or without tag and digest; `IfNotPresent` for every other one, also
/// for an invalid reference.
pub(super) fn pull_policy(image: &str) -> &'static str {
    match tag(image) {
        Some("latest") => "Always",
        _ => "IfNotPresent",
    }
}

/// The tag of a reference: `latest` if it has neither tag nor digest; `None` if it has only a digest or is invalid.
fn tag(image: &str) -> Option<&str> {
    // A 64-digit hexadecimal image ID is not a valid name.
    if image.len() == 64
        && image
            .bytes()
            .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    {
        return None;
    }
    let (domain, remainder) = match image.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':']) || first == "localhost" || first.to_lowercase() != first =>
        {
            (Some(first), rest)
        }
        _ => (None, image),
    };
    if domain.is_some_and(|d| !is_domain(d)) {
        return None;
    }
    let (named, digest) = match remainder.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (remainder, None),
    };
    let (path, tag) = match named.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (named, None),
    };
    let valid = path.split('/').all(is_path_component)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
        && domain.map_or("docker.io/library/".len(), |d| d.len() + 1) + path.len() <= 255;
    match (valid, tag, digest) {
        (false, ..) => None,
        (_, Some(tag), _) => Some(tag),
        (_, None, None) => Some("latest"),
        (_, None, Some(_)) => None,
    }
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rsplit_once(':') {
        Some((host, port)) if !domain.ends_with(']') => (host, Some(port)),
        _ => (domain, None),
    };
    let label = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
    };
    let v6 = host
        .strip_prefix('[')
        .and_then(|h| h.strip_suffix(']'))
        .is_some_and(|h| !h.is_empty() && h.bytes().all(|c| c.is_ascii_hexdigit() || c == b':'));
    (v6 || host.split('.').all(label))
        && port.is_none_or(|p| !p.is_empty() && p.bytes().all(|c| c.is_ascii_digit()))
}

/// Lower case letters and digits, with `.`, `_`, `__` or dashes between.
fn is_path_component(component: &str) -> bool {
    let alnum = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let mut rest = component;
    loop {
        let after = rest.trim_start_matches(alnum);
        if after.len() == rest.len() {
            return false;
        }
        if after.is_empty() {
            return true;
        }
        let next = after.trim_start_matches(|c: char| !alnum(c));
        let separator = &after[..after.len() - next.len()];
        let valid = matches!(separator, "." | "_" | "__") || separator.bytes().all(|c| c == b'-');
        if !valid {
            return false;
        }
        rest = next;
    }
}

fn is_tag(tag: &str) -> bool {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|c| word(c) || c == b'.' || c == b'-')
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.split(['-', '_', '+', '.']).all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphabetic())
                && part.bytes().all(|c| c.is_ascii_alphanumeric())
        }) && hex.len() >= 32
            && hex.bytes().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::pull_policy;

    #[test]
    fn only_latest_is_always_pulled() {
        let digest = format!("busybox@sha256:{}", "a".repeat(64));
        let both = format!("busybox:latest@sha256:{}", "a".repeat(64));
        for (image, want) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("registry.example:5000/a/b", "Always"),
            ("registry.example:5000/a/b:1", "IfNotPresent"),
            ("localhost/a", "Always"),
            ("a__b/c--d/e.f", "Always"),
            (digest.as_str(), "IfNotPresent"),
            (both.as_str(), "Always"),
            ("", "IfNotPresent"),
            (" img", "IfNotPresent"),
            ("BusyBox", "IfNotPresent"),
            ("a..b", "IfNotPresent"),
            (&"a".repeat(64), "IfNotPresent"),
            ("a:", "IfNotPresent"),
            ("é", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), want, "{image}");
        }
    }
}
