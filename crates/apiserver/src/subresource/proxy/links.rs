//! Rewrites the links in proxied HTML pages: paths from the backend's root get the proxy's path as prefix.
//!
//! A page is forwarded byte for byte except for the values of attributes with such links.

/// The proxy and backend of a page.
pub(super) struct Page<'a> {
    /// The path of this server under which the backend's root is proxied, without a trailing slash.
    pub root: &'a str,
    /// The backend's `host:port`.
    pub backend: &'a str,
    /// The host of the client's request.
    pub request_host: &'a str,
}

/// Attributes with a link, by element: those of HTML 4 and 5 in kube-apiserver (atomsToAttrs).
const LINK_ATTRIBUTES: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Elements whose content is text, even if it contains tags.
const RAW_TEXT_ELEMENTS: [&str; 8] = [
    "script", "style", "textarea", "title", "iframe", "noembed", "noframes", "xmp",
];

impl Page<'_> {
    /// The link through the proxy; `None` if it does not change.
    pub fn link(&self, link: &str) -> Option<String> {
        let (scheme, rest) = match link.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (Some(scheme), rest),
            _ => (None, link),
        };
        let (host, rest) = match rest.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
            // Such as mailto: or data:.
            None if scheme.is_some() => return None,
            None => ("", rest),
        };
        if !host.is_empty() && host != self.backend && host != self.request_host {
            return None;
        }
        let (path, more) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        if !path.starts_with('/') {
            return None;
        }
        let path = match path.starts_with(self.root) {
            true => path.to_string(),
            false => join(self.root, path),
        };
        let through = format!("{path}{more}");
        // A link to the host of the request keeps it; other rewritten links are relative to this server.
        let kept = match scheme {
            _ if host.is_empty() || host != self.request_host => String::new(),
            Some(scheme) => format!("{scheme}://{host}"),
            None => format!("//{host}"),
        };
        let through = kept + &through;
        (through != link).then_some(through)
    }

    /// The page with its links through the proxy.
    pub fn rewrite(&self, page: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(page.len() + page.len() / 16);
        let mut at = 0;
        while let Some(open) = find(page, at, b"<") {
            out.extend_from_slice(&page[at..open]);
            at = match page.get(open + 1) {
                Some(c) if c.is_ascii_alphabetic() => self.write_tag(page, open, &mut out),
                Some(b'!') if page[open..].starts_with(b"<!--") => {
                    let end = find(page, open + 4, b"-->").map_or(page.len(), |end| end + 3);
                    out.extend_from_slice(&page[open..end]);
                    end
                }
                Some(b'!' | b'?' | b'/') => {
                    let end = find(page, open, b">").map_or(page.len(), |end| end + 1);
                    out.extend_from_slice(&page[open..end]);
                    end
                }
                _ => {
                    out.push(b'<');
                    open + 1
                }
            };
        }
        out.extend_from_slice(&page[at..]);
        out
    }

    /// Writes the tag that begins at `open`, and the content of raw text elements. Returns its end.
    fn write_tag(&self, page: &[u8], open: usize, out: &mut Vec<u8>) -> usize {
        let until = |from: usize, ends: &dyn Fn(u8) -> bool| {
            let rest = page.get(from..).unwrap_or_default();
            rest.iter()
                .position(|c| ends(*c))
                .map_or(page.len(), |n| from + n)
        };
        let blank = |c: u8| c.is_ascii_whitespace();
        let mut at = until(open + 1, &|c| blank(c) || c == b'/' || c == b'>');
        let name = String::from_utf8_lossy(&page[open + 1..at]).to_ascii_lowercase();
        let attributes = LINK_ATTRIBUTES
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(&[][..], |(_, a)| a);
        let mut written = open;
        loop {
            at = until(at, &|c| !blank(c) && c != b'/');
            match page.get(at) {
                None => break,
                Some(b'>') => {
                    at += 1;
                    break;
                }
                Some(_) => {}
            }
            let begin = at;
            // A name may begin with an equals sign, so at least one byte is always read.
            at = until(at + 1, &|c| blank(c) || matches!(c, b'=' | b'>' | b'/'));
            let attribute = String::from_utf8_lossy(&page[begin..at]).to_ascii_lowercase();
            let equals = until(at, &|c| !blank(c));
            if page.get(equals) != Some(&b'=') {
                continue;
            }
            let first = until(equals + 1, &|c| !blank(c));
            let (value, end) = match page.get(first) {
                Some(quote @ (b'"' | b'\'')) => {
                    let close = until(first + 1, &|c| c == *quote);
                    (first + 1..close, (close + 1).min(page.len()))
                }
                _ => {
                    let close = until(first, &|c| blank(c) || c == b'>');
                    (first..close, close)
                }
            };
            at = end;
            let link = std::str::from_utf8(&page[value]).ok();
            let link = link.filter(|_| attributes.contains(&attribute.as_str()));
            if let Some(through) = link.and_then(|link| self.link(link.trim())) {
                out.extend_from_slice(&page[written..first]);
                out.push(b'"');
                out.extend_from_slice(escaped(&through).as_bytes());
                out.push(b'"');
                written = end;
            }
        }
        if RAW_TEXT_ELEMENTS.contains(&name.as_str()) {
            at = end_of_text(page, at, &name);
        }
        out.extend_from_slice(&page[written..at]);
        at
    }
}

fn is_scheme(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic())
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Joins both paths, without empty and dot segments.
pub(super) fn join(root: &str, path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in root.split('/').chain(path.split('/')) {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    let end = if path.ends_with('/') && !segments.is_empty() {
        "/"
    } else {
        ""
    };
    format!("/{}{end}", segments.join("/"))
}

/// Escapes the characters that could end the attribute. Existing escapes stay.
fn escaped(link: &str) -> String {
    link.replace('"', "&#34;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn find(page: &[u8], from: usize, pattern: &[u8]) -> Option<usize> {
    let rest = page.get(from..)?;
    rest.windows(pattern.len())
        .position(|w| w == pattern)
        .map(|n| from + n)
}

/// The start of the end tag of a raw text element.
fn end_of_text(page: &[u8], from: usize, name: &str) -> usize {
    let mut at = from;
    while let Some(open) = find(page, at, b"</") {
        let after = page.get(open + 2..).unwrap_or_default();
        if after
            .get(..name.len())
            .is_some_and(|n| n.eq_ignore_ascii_case(name.as_bytes()))
        {
            return open;
        }
        at = open + 2;
    }
    page.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Page<'static> = Page {
        root: "/api/v1/namespaces/n/services/s/proxy",
        backend: "10.0.0.1:8080",
        request_host: "localhost:8001",
    };

    #[test]
    fn links_from_the_root_are_prefixed_with_the_proxys_path() {
        let root = PAGE.root;
        for (link, expected) in [
            ("/", Some(format!("{root}/"))),
            ("/a/b?x=/y#z", Some(format!("{root}/a/b?x=/y#z"))),
            ("/a/../b//c/", Some(format!("{root}/b/c/"))),
            ("http://10.0.0.1:8080/a", Some(format!("{root}/a"))),
            ("//10.0.0.1:8080/a", Some(format!("{root}/a"))),
            (
                "http://localhost:8001/a",
                Some(format!("http://localhost:8001{root}/a")),
            ),
            ("a/b", None),
            ("", None),
            ("#top", None),
            ("?q", None),
            ("http://10.0.0.1:8080", None),
            ("http://elsewhere/a", None),
            ("mailto:a@b", None),
            ("/api/v1/namespaces/n/services/s/proxy/a", None),
        ] {
            assert_eq!(PAGE.link(link), expected, "{link}");
        }
    }

    #[test]
    fn only_links_of_a_page_change() {
        let root = PAGE.root;
        for (page, expected) in [
            ("", String::new()),
            ("plain < text > here", "plain < text > here".into()),
            (
                r#"<!DOCTYPE html><A  class=x HREF='/a'>b</A>"#,
                format!(r#"<!DOCTYPE html><A  class=x HREF="{root}/a">b</A>"#),
            ),
            ("<img src=/a.png>", format!(r#"<img src="{root}/a.png">"#)),
            (
                "<img src = /a.png alt>",
                format!(r#"<img src = "{root}/a.png" alt>"#),
            ),
            (
                "<br/><link href=\"/x\"/>",
                format!("<br/><link href=\"{root}/x\"/>"),
            ),
            ("<p href=/a>", "<p href=/a>".into()),
            ("<!-- <a href=/a> -->", "<!-- <a href=/a> -->".into()),
            (
                "<script src=/a>'<a href=/b>'</script><a href=/c>",
                format!("<script src=\"{root}/a\">'<a href=/b>'</script><a href=\"{root}/c\">"),
            ),
            ("<a href=\"/a", format!("<a href=\"{root}/a\"")),
            ("<a href", "<a href".into()),
            ("<a =/x><", "<a =/x><".into()),
            (
                "<a href=\"/a?b&amp;c\">",
                format!("<a href=\"{root}/a?b&amp;c\">"),
            ),
        ] {
            let found = PAGE.rewrite(page.as_bytes());
            assert_eq!(String::from_utf8_lossy(&found), expected, "{page}");
        }
    }
}
