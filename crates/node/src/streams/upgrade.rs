//! Upgrades of HTTP requests: which protocol the client requests, and the `101` response.

use http::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Response, StatusCode};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

pub(super) const SPDY: &str = "SPDY/3.1";
pub(super) const STREAM_PROTOCOL: &str = "x-stream-protocol-version";
const ACCEPTED_STREAM_PROTOCOLS: &str = "x-accepted-stream-protocol-versions";
const WEBSOCKET_VERSION: &str = "13";

/// What both sides agreed on. `protocol` is one of those handed in; none if the client named none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upgrade {
    Spdy {
        protocol: Option<&'static str>,
    },
    WebSocket {
        protocol: Option<&'static str>,
        accept: String,
    },
}

/// Why there is no upgrade.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    #[error("Upgrade request required")]
    NotAnUpgrade,
    #[error(
        "unable to upgrade: missing upgrade headers in request: no valid Sec-WebSocket-Key with version 13"
    )]
    Handshake,
    #[error(
        "unable to upgrade: unable to negotiate protocol: client supports {client:?}, server accepts {server:?}"
    )]
    Protocol {
        client: Vec<String>,
        server: &'static [&'static str],
    },
}

impl UpgradeError {
    /// The answer's head; its body is the error's text.
    pub fn response(&self) -> http::response::Builder {
        match self {
            UpgradeError::NotAnUpgrade | UpgradeError::Handshake => {
                Response::builder().status(StatusCode::BAD_REQUEST)
            }
            UpgradeError::Protocol { server, .. } => server.iter().fold(
                Response::builder().status(StatusCode::FORBIDDEN),
                |response, protocol| response.header(ACCEPTED_STREAM_PROTOCOLS, *protocol),
            ),
        }
    }
}

/// Agrees on the first protocol of the client's that is known here.
pub fn negotiate(
    headers: &HeaderMap,
    spdy: &'static [&'static str],
    websocket: &'static [&'static str],
) -> Result<Upgrade, UpgradeError> {
    if !list(headers, CONNECTION.as_str()).any(|token| token.eq_ignore_ascii_case("upgrade")) {
        return Err(UpgradeError::NotAnUpgrade);
    }
    let negotiated =
        |name: &str| list(headers, UPGRADE.as_str()).any(|token| token.eq_ignore_ascii_case(name));
    if negotiated("websocket") {
        let key = headers
            .get(SEC_WEBSOCKET_KEY)
            .filter(|key| !key.is_empty())
            .ok_or(UpgradeError::Handshake)?;
        if headers
            .get(SEC_WEBSOCKET_VERSION)
            .is_none_or(|version| version != WEBSOCKET_VERSION)
        {
            return Err(UpgradeError::Handshake);
        }
        let protocol = first_known(headers, SEC_WEBSOCKET_PROTOCOL.as_str(), websocket)?;
        return Ok(Upgrade::WebSocket {
            protocol,
            accept: derive_accept_key(key.as_bytes()),
        });
    }
    if negotiated(SPDY) {
        return Ok(Upgrade::Spdy {
            protocol: first_known(headers, STREAM_PROTOCOL, spdy)?,
        });
    }
    Err(UpgradeError::NotAnUpgrade)
}

impl Upgrade {
    /// The head of the `101` that agrees.
    pub fn response(&self) -> http::response::Builder {
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(CONNECTION, HeaderValue::from_static("Upgrade"));
        let (response, protocol, name) = match self {
            Upgrade::Spdy { protocol } => (response.header(UPGRADE, SPDY), protocol, STREAM_PROTOCOL),
            Upgrade::WebSocket { protocol, accept } => (
                response
                    .header(UPGRADE, "websocket")
                    .header(SEC_WEBSOCKET_ACCEPT, accept),
                protocol,
                SEC_WEBSOCKET_PROTOCOL.as_str(),
            ),
        };
        match protocol {
            Some(protocol) => response.header(name, *protocol),
            None => response,
        }
    }
}

/// The elements of a header that may be repeated or hold a list.
fn list<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

fn first_known(
    headers: &HeaderMap,
    name: &str,
    server: &'static [&'static str],
) -> Result<Option<&'static str>, UpgradeError> {
    let client: Vec<&str> = list(headers, name).collect();
    if client.is_empty() {
        return Ok(None);
    }
    let known = client.iter().find_map(|c| server.iter().find(|s| s == &c));
    known
        .map(|protocol| Some(*protocol))
        .ok_or_else(|| UpgradeError::Protocol {
            client: client.iter().map(ToString::to_string).collect(),
            server,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["v5", "v4", "v1"];

    fn negotiated(headers: &[(&'static str, &'static str)]) -> Result<Upgrade, UpgradeError> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        negotiate(&map, KNOWN, KNOWN)
    }

    #[test]
    fn spdy_takes_the_clients_first_choice_that_is_known() {
        for (offered, agreed) in [
            (&[][..], Ok(None)),
            (&["v4", "v1"], Ok(Some("v4"))),
            (&["v9", "v1", "v4"], Ok(Some("v1"))),
            (&["v9, v4,v1"], Ok(Some("v4"))),
            (
                &["v9"],
                Err(UpgradeError::Protocol {
                    client: vec!["v9".into()],
                    server: KNOWN,
                }),
            ),
        ] {
            let mut headers = vec![("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
            headers.extend(offered.iter().map(|o| (STREAM_PROTOCOL, *o)));
            assert_eq!(
                negotiated(&headers),
                agreed.map(|protocol| Upgrade::Spdy { protocol }),
                "{offered:?}"
            );
        }
    }

    /// Key and answer are those of RFC 6455, section 1.3.
    #[test]
    fn websocket_proves_that_it_read_the_key() {
        let upgrade = negotiated(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "v5, v4"),
        ])
        .unwrap();
        let response = upgrade.response().body(()).unwrap();
        assert_eq!(response.status(), 101);
        assert_eq!(
            response.headers()["sec-websocket-accept"],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(response.headers()["sec-websocket-protocol"], "v5");
    }

    #[test]
    fn a_request_that_is_no_upgrade_is_rejected() {
        for (headers, error) in [
            (&[][..], UpgradeError::NotAnUpgrade),
            (&[("upgrade", "websocket")], UpgradeError::NotAnUpgrade),
            (
                &[("connection", "upgrade"), ("upgrade", "h2c")],
                UpgradeError::NotAnUpgrade,
            ),
            (
                &[("connection", "upgrade"), ("upgrade", "websocket")],
                UpgradeError::Handshake,
            ),
        ] {
            assert_eq!(negotiated(headers), Err(error), "{headers:?}");
        }
    }
}
