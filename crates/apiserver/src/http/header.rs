//! Reads request headers. All code that needs a header's value gets it from here, so that one request is not read in
//! two ways.
//!
//! A header that identifies the client or the request is never ignored: one that is not UTF-8, or that is given twice where
//! one value is allowed, is an error (SPEC A1).

use std::borrow::Cow;

use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, UPGRADE, USER_AGENT};
use http::{HeaderMap, HeaderValue};
use knarr_apimachinery::Error;

/// A value as text. Kubernetes accepts UTF-8, as Go's strings hold any bytes.
pub fn text<'a>(name: &HeaderName, value: &'a HeaderValue) -> Result<&'a str, Error> {
    std::str::from_utf8(value.as_bytes())
        .map_err(|_| Error::bad_request(format!("header {name} is not valid UTF-8")))
}

/// The value of a header that may be given once.
pub fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Error> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Error::bad_request(format!(
            "header {name} is given more than once"
        )));
    }
    text(name, value).map(Some)
}

/// The elements of a comma-separated header, which may be given several times.
pub fn elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Vec<&'a str>, Error> {
    let mut all = Vec::new();
    for value in headers.get_all(name) {
        let value = text(name, value)?;
        all.extend(value.split(',').map(str::trim).filter(|e| !e.is_empty()));
    }
    Ok(all)
}

/// Whether the request asks to upgrade to this protocol.
pub fn requests_upgrade(headers: &HeaderMap, protocol: &str) -> Result<bool, Error> {
    let offered = elements(headers, &UPGRADE)?;
    Ok(offered.iter().any(|offer| offer.eq_ignore_ascii_case(protocol)))
}

/// The client's name for itself. It is used for field managers and the audit log and grants no rights, so bytes that
/// are not UTF-8 are replaced.
pub fn user_agent(headers: &HeaderMap) -> Cow<'_, str> {
    let value = headers.get(USER_AGENT).map_or(&[][..], HeaderValue::as_bytes);
    String::from_utf8_lossy(value)
}

/// Rejects headers that cannot be read, before anything is done for the request.
///
/// Kubernetes takes the first of several values. kube-apiserver does not decompress request bodies either; it answers that
/// such a body is not JSON.
pub fn check(headers: &HeaderMap) -> Result<(), Error> {
    single(headers, &CONTENT_TYPE)?;
    elements(headers, &ACCEPT)?;
    elements(headers, &UPGRADE)?;
    let encodings = elements(headers, &CONTENT_ENCODING)?;
    if let Some(encoding) = encodings.iter().find(|e| !e.eq_ignore_ascii_case("identity")) {
        return Err(Error::new(
            415,
            "UnsupportedMediaType",
            format!("request bodies in Content-Encoding {encoding:?} are not supported"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn a1_headers_that_cannot_be_read_are_rejected() {
        for (pairs, code) in [
            (&[("content-type", &b"application/json"[..])][..], None),
            (&[("content-type", b"application/j\xc3\xb6")], None),
            (&[("content-type", b"application/j\xff")], Some(400)),
            (&[("content-type", b"a/b"), ("content-type", b"a/b")], Some(400)),
            (&[("accept", b"a/b"), ("accept", b"c/d")], None),
            (&[("accept", b"\xff")], Some(400)),
            (&[("upgrade", b"web\xffsocket")], Some(400)),
            (&[("content-encoding", b"identity")], None),
            (&[("content-encoding", b"identity, gzip")], Some(415)),
            (&[("user-agent", b"\xff")], None),
        ] {
            let found = check(&headers(pairs)).err().map(|e| e.code());
            assert_eq!(found, code, "{pairs:?}");
        }
    }

    #[test]
    fn elements_come_from_all_values_of_a_header() {
        let all = headers(&[("upgrade", b"h2c, "), ("upgrade", b"WebSocket")]);
        assert_eq!(elements(&all, &UPGRADE).unwrap(), ["h2c", "WebSocket"]);
        assert!(requests_upgrade(&all, "websocket").unwrap());
        assert!(!requests_upgrade(&all, "h2").unwrap());
    }

    #[test]
    fn a_user_agent_is_read_whatever_it_is() {
        assert_eq!(user_agent(&headers(&[("user-agent", b"k\xc3\xb6/1")])), "kö/1");
        assert_eq!(user_agent(&headers(&[("user-agent", b"k\xff/1")])), "k\u{fffd}/1");
        assert_eq!(user_agent(&headers(&[])), "");
    }
}
