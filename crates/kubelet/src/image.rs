//! Image references as users write them: `nginx`, `registry:5000/team/app:1.2@sha256:…`.

/// Why a text is no reference, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    #[error("couldn't parse image name {reference:?}: invalid reference format")]
    Format { reference: String },
    #[error(
        "couldn't parse image name {reference:?}: invalid reference format: repository name ({repository}) must be \
         lowercase"
    )]
    Uppercase { reference: String, repository: String },
}

/// The reference with its defaults written out (registry, `library/`, `:latest`).
pub fn normalize(reference: &str) -> Result<String, InvalidReference> {
    let (domain, rest) = match reference.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':']) || first == "localhost" || first.to_lowercase() != first =>
        {
            (first.to_string(), rest.to_string())
        }
        Some(_) => ("docker.io".to_string(), reference.to_string()),
        None => ("docker.io".to_string(), format!("library/{reference}")),
    };
    let (named, digest) = match rest.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (rest.as_str(), None),
    };
    let (path, tag) = match named.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (named, None),
    };
    if path.to_lowercase() != path {
        return Err(InvalidReference::Uppercase {
            reference: reference.into(),
            repository: path.into(),
        });
    }
    let bad_path = path.split('/').any(|part| !is_path_component(part));
    let bad_tag = tag.is_some_and(|tag| !is_tag(tag));
    let bad_digest = digest.is_some_and(|digest| !is_digest(digest));
    if bad_path || bad_tag || bad_digest || !is_domain(&domain) || path.len() + domain.len() > 255 {
        return Err(InvalidReference::Format {
            reference: reference.into(),
        });
    }
    Ok(match (tag, digest) {
        (None, None) => format!("{domain}/{path}:latest"),
        (Some(tag), None) => format!("{domain}/{path}:{tag}"),
        (None, Some(digest)) => format!("{domain}/{path}@{digest}"),
        (Some(tag), Some(digest)) => format!("{domain}/{path}:{tag}@{digest}"),
    })
}

fn alnum(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Letters and digits, joined by one `.`, one or two `_`, or any number of `-`.
fn is_path_component(part: &str) -> bool {
    let (Some(first), Some(last)) = (part.chars().next(), part.chars().last()) else {
        return false;
    };
    let joined = part
        .split(alnum)
        .all(|joint| matches!(joint, "" | "." | "_" | "__") || joint.chars().all(|c| c == '-'));
    alnum(first) && alnum(last) && joined
}

fn is_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.len() <= 128
        && tag.chars().next().is_some_and(word)
        && tag.chars().all(|c| word(c) || c == '.' || c == '-')
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
    })
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = domain.split_once(':').unwrap_or((domain, "0"));
    !host.is_empty()
        && host
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-')
        && !port.is_empty()
        && port.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_written_out() {
        let digest = format!("sha256:{}", "a".repeat(64));
        // With `docker.io` and `library/` 255 characters.
        let longest = "a".repeat(238);
        for (given, want) in [
            ("busybox", "docker.io/library/busybox:latest".to_string()),
            ("team/app:1", "docker.io/team/app:1".into()),
            ("127.0.0.1:1/nope:1", "127.0.0.1:1/nope:1".into()),
            ("localhost/x", "localhost/x:latest".into()),
            (
                "my-registry.example/x:_1.2-rc",
                "my-registry.example/x:_1.2-rc".into(),
            ),
            (longest.as_str(), format!("docker.io/library/{longest}:latest")),
            ("a/b_c__d-e.f", "docker.io/a/b_c__d-e.f:latest".into()),
            (&format!("x@{digest}"), format!("docker.io/library/x@{digest}")),
        ] {
            assert_eq!(normalize(given), Ok(want), "{given}");
        }
    }

    #[test]
    fn l4_an_invalid_name_is_rejected_with_upstreams_message() {
        assert_eq!(
            normalize("UPPER:bad:name").unwrap_err().to_string(),
            "couldn't parse image name \"UPPER:bad:name\": invalid reference format: repository name (library/UPPER) must be lowercase"
        );
        let too_long = "a".repeat(239);
        for bad in [
            "",
            "a..b",
            "a:",
            "x@sha256:1",
            "a//b",
            "host:port/x",
            "a/-b",
            "x:-1",
            "x:1+2",
            ":5000/x",
            "host.example:/x",
            "a_b.example/x",
            too_long.as_str(),
        ] {
            assert!(
                matches!(normalize(bad), Err(InvalidReference::Format { .. })),
                "{bad}"
            );
        }
    }
}
