//! Kubernetes' URL library: the parts of absolute URLs and paths.

use std::collections::BTreeMap;

use cel::Env;
use cel::common::types::{STRING_TYPE, Type};
use cel::objects::Opaque;

use super::library::{Declared, Library, call, inside, opaque, string, text};
use super::of_map;
use super::{Cel, EvaluationError};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Url {
    scheme: String,
    /// With the port.
    host: String,
    path: String,
    query: String,
}

const NAME: &str = "kubernetes.URL";

impl Opaque for Url {
    fn runtime_type_name(&self) -> &str {
        NAME
    }
}

impl Url {
    /// As Go's `url.ParseRequestURI`: an absolute URL or an absolute path.
    fn parse(given: &str) -> Result<Url, EvaluationError> {
        let wrong = |why: &str| {
            EvaluationError::Failed(format!(
                "URL parse error during conversion from string: parse {given:?}: {why}"
            ))
        };
        if given.is_empty() {
            return Err(wrong("empty url"));
        }
        if given.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err(wrong("net/url: invalid control character in URL"));
        }
        let (scheme, rest) = match given.split_once(':') {
            Some((scheme, rest)) if is_scheme(scheme) => (scheme.to_ascii_lowercase(), rest),
            Some(("", _)) => return Err(wrong("missing protocol scheme")),
            _ => (String::new(), given),
        };
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !before.starts_with('/') {
            return Err(wrong("invalid URI for request"));
        }
        let (authority, path) = match before.strip_prefix("//") {
            Some(rest) if !scheme.is_empty() => {
                let end = rest.find('/').unwrap_or(rest.len());
                rest.split_at(end)
            }
            _ => ("", before),
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        if host.contains(' ') {
            return Err(wrong("invalid character \" \" in host name"));
        }
        Ok(Url {
            scheme,
            host: host.to_string(),
            path: path.replace(' ', "%20"),
            query: query.to_string(),
        })
    }

    /// The host without its port and brackets, and the port.
    fn host_and_port(&self) -> (&str, &str) {
        let (host, port) = match self.host.strip_prefix('[').and_then(|h| h.split_once(']')) {
            Some((host, rest)) => (host, rest.strip_prefix(':').unwrap_or("")),
            None => self.host.rsplit_once(':').unwrap_or((&self.host, "")),
        };
        (host, port)
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

/// Decodes `%41` and `+`; what is no escape stays as it is.
fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escape = (byte == b'%').then(|| after.get(..2)).flatten();
        let escape = escape.and_then(|hex| std::str::from_utf8(hex).ok());
        match (byte, escape.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (_, Some(byte)) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
                continue;
            }
            (b'+', None) => out.push(b' '),
            (byte, None) => out.push(byte),
        }
        rest = after;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn queries(query: &str) -> Cel {
    let mut all: BTreeMap<String, Vec<Cel>> = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        all.entry(unescaped(name))
            .or_default()
            .push(string(unescaped(value)));
    }
    of_map(
        all.into_iter()
            .map(|(name, values)| (name, Cel::List(values.into()))),
    )
}

pub fn declare(env: &mut Env) -> Declared {
    let of = Type::new_opaque_type(NAME);
    env.add_type(of.to_owned())?;
    let mut library = Library(env);
    library.global("url", &[STRING_TYPE], |args| {
        call(args, |[given]| Ok(opaque(Url::parse(text(&given)?)?)))
    })?;
    library.global("isURL", &[STRING_TYPE], |args| {
        call(args, |[given]| Ok(Cel::Bool(Url::parse(text(&given)?).is_ok())))
    })?;
    library.member("getScheme", &of, &[], |args| {
        call(args, |[url]| Ok(string(inside::<Url>(&url)?.scheme)))
    })?;
    library.member("getHost", &of, &[], |args| {
        call(args, |[url]| Ok(string(inside::<Url>(&url)?.host)))
    })?;
    library.member("getHostname", &of, &[], |args| {
        call(args, |[url]| Ok(string(inside::<Url>(&url)?.host_and_port().0)))
    })?;
    library.member("getPort", &of, &[], |args| {
        call(args, |[url]| Ok(string(inside::<Url>(&url)?.host_and_port().1)))
    })?;
    library.member("getEscapedPath", &of, &[], |args| {
        call(args, |[url]| Ok(string(inside::<Url>(&url)?.path)))
    })?;
    library.member("getQuery", &of, &[], |args| {
        call(args, |[url]| Ok(queries(&inside::<Url>(&url)?.query)))
    })
}
