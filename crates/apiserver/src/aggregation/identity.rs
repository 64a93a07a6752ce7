//! The headers that name the user to an extension API server (request header authentication), and the client's headers that
//! are forwarded.

use http::header::{CONNECTION, HeaderName, UPGRADE};
use http::{HeaderMap, HeaderValue};
use knarr_apimachinery::Error;

use crate::user::User;

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA_PREFIX: &str = "x-remote-extra-";

/// Client headers that are not forwarded: hop-by-hop headers and credentials.
const NOT_FORWARDED: [&str; 12] = [
    "authorization",
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A client's headers without credentials, impersonation and hop-by-hop headers.
///
/// For an upgrade request the `Upgrade` header is forwarded, with `Connection: Upgrade` and no other connection options.
pub(super) fn forwarded_headers(from: &HeaderMap, upgrades: bool) -> HeaderMap {
    let named: Vec<String> = from
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut to = HeaderMap::with_capacity(from.len() + 8);
    for (name, value) in from {
        let text = name.as_str();
        let excluded = NOT_FORWARDED.contains(&text)
            || text.starts_with("impersonate-")
            || text.starts_with("x-remote-")
            || named.iter().any(|n| n == text);
        if !excluded {
            to.append(name.clone(), value.clone());
        }
    }
    if upgrades {
        for value in from.get_all(UPGRADE) {
            to.append(UPGRADE, value.clone());
        }
        to.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    to
}

/// Sets the user's `X-Remote-*` headers. An error for a user that cannot be represented in headers.
pub(super) fn set_user_headers(headers: &mut HeaderMap, user: &User) -> Result<(), Error> {
    let value = |text: &str| {
        HeaderValue::from_str(text)
            .or_else(|_| HeaderValue::from_bytes(text.as_bytes()))
            .map_err(|_| Error::internal(format!("the user {:?} cannot be named in a header", user.name)))
    };
    headers.insert(USER, value(&user.name)?);
    if !user.uid.is_empty() {
        headers.insert(UID, value(&user.uid)?);
    }
    for group in &user.groups {
        headers.append(GROUP, value(group)?);
    }
    for (key, values) in &user.extra {
        let name = format!("{EXTRA_PREFIX}{}", escape_header_key(key));
        let name = HeaderName::try_from(name).map_err(Error::internal)?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

/// A key as part of a header's name: bytes that are not valid in a token are percent-encoded, as in client-go.
fn escape_header_key(key: &str) -> String {
    let mut out = String::with_capacity(key.len());
    for byte in key.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => out.push(byte.into()),
            b'!' | b'#' | b'$' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|'
            | b'~' => {
                out.push(byte.into());
            }
            other => out += &format!("%{other:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_credentials_identities_and_hop_by_hop_headers_are_not_forwarded() {
        let mut from = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer secret"),
            ("x-remote-user", "root"),
            ("x-remote-group", "system:masters"),
            ("x-remote-extra-scopes", "all"),
            ("x-remote-uid", "0"),
            ("impersonate-user", "root"),
            ("impersonate-extra-a", "b"),
            ("connection", "Upgrade, X-Hop, keep-alive"),
            ("x-hop", "1"),
            ("upgrade", "SPDY/3.1"),
            ("te", "trailers"),
            ("content-length", "7"),
            ("accept", "application/json"),
            ("x-stream-protocol-version", "v4"),
        ] {
            from.append(name, HeaderValue::from_static(value));
        }
        let forwarded = |upgrades| {
            let headers = forwarded_headers(&from, upgrades);
            let mut all: Vec<String> = headers
                .iter()
                .map(|(n, v)| format!("{n}: {}", v.to_str().unwrap()))
                .collect();
            all.sort();
            all
        };
        assert_eq!(
            forwarded(false),
            ["accept: application/json", "x-stream-protocol-version: v4"]
        );
        assert_eq!(
            forwarded(true),
            [
                "accept: application/json",
                "connection: Upgrade",
                "upgrade: SPDY/3.1",
                "x-stream-protocol-version: v4"
            ]
        );
    }

    #[test]
    fn users_are_named_as_client_go_names_them() {
        let mut user = User::new("jane/ü", ["a", "b"]);
        user.uid = "u-1".into();
        user.extra
            .insert("example.com/Scope%x".into(), vec!["1".into(), "2".into()]);
        let mut headers = HeaderMap::new();
        set_user_headers(&mut headers, &user).unwrap();
        let all = |name: &str| -> Vec<String> {
            let values = headers.get_all(name).iter();
            values
                .map(|v| String::from_utf8(v.as_bytes().to_vec()).unwrap())
                .collect()
        };
        assert_eq!(all("x-remote-user"), ["jane/ü"]);
        assert_eq!(all("x-remote-uid"), ["u-1"]);
        assert_eq!(all("x-remote-group"), ["a", "b"]);
        assert_eq!(all("x-remote-extra-example.com%2fscope%25x"), ["1", "2"]);
        assert!(set_user_headers(&mut headers, &User::new("a\nb", [""; 0])).is_err());
    }
}
