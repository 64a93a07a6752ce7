//! The bearer token of a request: in `Authorization`, or as a WebSocket subprotocol, as browsers send it.
//!
//! A malformed token is an error (401): the request is not served as anonymous. Kubernetes ignores what follows the token in
//! the header; here such a header is rejected. Other schemes are no credential, as in Kubernetes. The API server and
//! kubelets both read tokens with this module.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, HeaderValue};
use knarr_apimachinery::Error;

use crate::http::header;

/// The subprotocol that carries a token (apiserver `authentication/request/websocket`).
const WEBSOCKET_BEARER: &str = "base64url.bearer.authorization.k8s.io.";

/// The token, if the request has one.
///
/// # Errors
/// 401 if the token is malformed.
pub fn token(headers: &HeaderMap) -> Result<Option<Cow<'_, str>>, Error> {
    let rejected = |_| Error::unauthorized();
    if let Some(value) = header::single(headers, &AUTHORIZATION).map_err(rejected)? {
        let mut words = value.split_ascii_whitespace();
        if words
            .next()
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("bearer"))
        {
            return match (words.next(), words.next()) {
                (Some(token), None) => Ok(Some(token.into())),
                _ => Err(Error::unauthorized()),
            };
        }
    }
    if !header::requests_upgrade(headers, "websocket").map_err(rejected)? {
        return Ok(None);
    }
    let offered = header::elements(headers, &SEC_WEBSOCKET_PROTOCOL).map_err(rejected)?;
    let mut tokens = offered.iter().filter_map(|p| p.strip_prefix(WEBSOCKET_BEARER));
    match (tokens.next(), tokens.next()) {
        (None, _) => Ok(None),
        // The client must offer another subprotocol too, which the server can select.
        (Some(encoded), None) if offered.len() > 1 => decoded(encoded)
            .map(|token| Some(token.into()))
            .ok_or_else(Error::unauthorized),
        _ => Err(Error::unauthorized()),
    }
}

fn decoded(encoded: &str) -> Option<String> {
    let token = URL_SAFE_NO_PAD.decode(encoded).ok()?;
    String::from_utf8(token).ok().filter(|token| !token.is_empty())
}

/// Removes the token from the subprotocols, so that it is neither chosen nor passed on to a pod or a node.
pub(crate) fn remove_subprotocol(headers: &mut HeaderMap) {
    let of_token = |value: &HeaderValue| {
        let value = value.as_bytes();
        value
            .windows(WEBSOCKET_BEARER.len())
            .any(|w| w == WEBSOCKET_BEARER.as_bytes())
    };
    if !headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(of_token) {
        return;
    }
    let kept: Vec<HeaderValue> = match header::elements(headers, &SEC_WEBSOCKET_PROTOCOL) {
        Ok(offered) => offered
            .iter()
            .filter(|protocol| !protocol.starts_with(WEBSOCKET_BEARER))
            .filter_map(|protocol| HeaderValue::from_str(protocol).ok())
            .collect(),
        Err(_) => Vec::new(),
    };
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    for protocol in kept {
        headers.append(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
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
    fn a1_a_token_is_read_or_the_request_is_rejected() {
        const UPGRADE: (&str, &[u8]) = ("upgrade", b"websocket");
        let protocol = |value: &'static [u8]| ("sec-websocket-protocol", value);
        let rejected = Err(401);
        for (pairs, expected) in [
            (&[][..], Ok(None)),
            (&[("authorization", b"" as &[u8])], Ok(None)),
            (&[("authorization", b"Bearer t0ken")], Ok(Some("t0ken"))),
            (&[("authorization", b"bearer  t0ken ")], Ok(Some("t0ken"))),
            (&[("authorization", b"BEARER t0ken")], Ok(Some("t0ken"))),
            (&[("authorization", b"Bearer")], rejected),
            (&[("authorization", b"Bearer ")], rejected),
            (&[("authorization", b"Bearer t0ken more")], rejected),
            (&[("authorization", b"Bearer t0ken\xff")], rejected),
            (&[("authorization", b"Basic dDprZW4=")], Ok(None)),
            (&[("authorization", b"BearerX y")], Ok(None)),
            (
                &[("authorization", b"Bearer a"), ("authorization", b"Bearer b")],
                rejected,
            ),
            (
                &[
                    UPGRADE,
                    protocol(b"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.dDBrZW4"),
                ],
                Ok(Some("t0ken")),
            ),
            // The request is not a WebSocket upgrade.
            (
                &[protocol(
                    b"v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.dDBrZW4",
                )],
                Ok(None),
            ),
            (&[UPGRADE, protocol(b"v4.channel.k8s.io")], Ok(None)),
            (
                &[
                    UPGRADE,
                    protocol(b"base64url.bearer.authorization.k8s.io.dDBrZW4"),
                ],
                rejected,
            ),
            (
                &[
                    UPGRADE,
                    protocol(b"a, base64url.bearer.authorization.k8s.io.dDBrZW4="),
                ],
                rejected,
            ),
            (
                &[UPGRADE, protocol(b"a, base64url.bearer.authorization.k8s.io.")],
                rejected,
            ),
            (
                &[UPGRADE, protocol(b"a, base64url.bearer.authorization.k8s.io._w")],
                rejected,
            ),
            (
                &[
                    UPGRADE,
                    protocol(b"a, base64url.bearer.authorization.k8s.io.YQ"),
                    protocol(b"base64url.bearer.authorization.k8s.io.Yg"),
                ],
                rejected,
            ),
        ] {
            let headers = headers(pairs);
            let found = token(&headers).map_err(|e| e.code());
            assert_eq!(
                found.as_ref().map(Option::as_deref),
                expected.as_ref().map(|t| *t),
                "{pairs:?}"
            );
        }
    }

    #[test]
    fn a1_a_token_is_not_passed_on_as_a_subprotocol() {
        let mut all = headers(&[
            (
                "sec-websocket-protocol",
                b"a, base64url.bearer.authorization.k8s.io.YQ",
            ),
            ("sec-websocket-protocol", b"b"),
        ]);
        remove_subprotocol(&mut all);
        let left: Vec<_> = all.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
        assert_eq!(left, ["a", "b"]);
    }
}
