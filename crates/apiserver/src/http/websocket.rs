//! Watches and logs over WebSockets, for clients that request it (mostly browsers): a log as its bytes arrive, a watch with one event per message.
//! Messages from the client are ignored.
//!
//! Source: Kubernetes' `binary.k8s.io` and `base64.binary.k8s.io` subprotocols, and its watches over WebSockets.

use std::ops::ControlFlow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use http::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use knarr_apimachinery::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::create_response;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};
use tracing::debug;

use super::Http;
use super::body::{Body, full};
use super::header;

const BINARY: &str = "binary.k8s.io";
const BASE64: &str = "base64.binary.k8s.io";

/// The largest message from a client; its contents are ignored.
const MESSAGE_MAX_BYTES: usize = 64 * 1024;

/// How the bytes of a response become messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// As they come.
    Binary,
    /// The same, in base64, as text.
    Base64,
    /// One line, one message, as text.
    Lines,
}

/// A WebSocket upgrade that a client requested.
pub struct WebSocketUpgrade {
    handshake: Response<()>,
    framing: Framing,
}

impl WebSocketUpgrade {
    /// Parses the request's upgrade; removes it from the request, so that no later handler accepts it too.
    ///
    /// # Errors
    /// 400 for an invalid handshake, 403 if no requested subprotocol is known (as in kube-apiserver).
    pub fn from_request(http: &mut Http) -> Result<Option<WebSocketUpgrade>, Error> {
        let streamed = http.info.verb == "watch" || http.info.subresource == "log";
        if !streamed || !header::requests_upgrade(&http.headers, "websocket")? {
            return Ok(None);
        }
        let mut request = Request::new(());
        *request.headers_mut() = http.headers.clone();
        let mut handshake = create_response(&request)
            .map_err(|e| Error::bad_request(format!("the WebSocket handshake is not valid: {e}")))?;
        let framing = if http.info.verb == "watch" {
            Framing::Lines
        } else {
            let offered = header::elements(&http.headers, &SEC_WEBSOCKET_PROTOCOL)?;
            let known = offered.iter().find(|p| [BINARY, BASE64].contains(p));
            match known {
                None if offered.is_empty() => Framing::Binary,
                None => {
                    return Err(Error::new(
                        403,
                        "Forbidden",
                        format!(
                            "requested protocol(s) are not supported: {offered:?}; supports {BINARY}, {BASE64}"
                        ),
                    ));
                }
                Some(&protocol) => {
                    let value = HeaderValue::from_str(protocol).map_err(Error::internal)?;
                    handshake.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, value);
                    if protocol == BASE64 {
                        Framing::Base64
                    } else {
                        Framing::Binary
                    }
                }
            }
        };
        http.headers.remove(UPGRADE);
        http.headers.remove(CONNECTION);
        Ok(Some(WebSocketUpgrade { handshake, framing }))
    }

    /// Sends the response over the WebSocket; an error is returned unchanged.
    pub fn send_over(self, http: &mut Http, response: Response<Body>) -> Response<Body> {
        if response.status() != StatusCode::OK {
            return response;
        }
        let upgraded = hyper::upgrade::on(&mut http.request);
        let framing = self.framing;
        tokio::spawn(async move {
            match upgraded.await {
                Ok(io) => {
                    let limits = WebSocketConfig::default()
                        .max_message_size(Some(MESSAGE_MAX_BYTES))
                        .max_frame_size(Some(MESSAGE_MAX_BYTES));
                    let io = TokioIo::new(io);
                    let socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(limits)).await;
                    if let Err(e) = send(socket, response.into_body(), framing).await {
                        debug!("a WebSocket stream failed: {e}");
                    }
                }
                Err(e) => debug!("a WebSocket upgrade failed: {e}"),
            }
        });
        self.handshake.map(|()| full(Bytes::new()))
    }
}

/// Sends until the response ends or the client disconnects.
async fn send<T: AsyncRead + AsyncWrite + Unpin>(
    socket: WebSocketStream<T>,
    mut body: Body,
    framing: Framing,
) -> Result<(), tungstenite::Error> {
    let (mut sink, mut client) = socket.split();
    // Reports that the stream has begun.
    match framing {
        Framing::Binary => sink.send(Message::Binary(Bytes::new())).await?,
        Framing::Base64 => sink.send(Message::text("")).await?,
        Framing::Lines => {}
    }
    let mut begun = BytesMut::new();
    loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            message = client.next() => match is_connected(message) {
                ControlFlow::Continue(()) => continue,
                ControlFlow::Break(()) => return Ok(()),
            },
        };
        let Some(frame) = frame else { break };
        let data = match frame.map(|f| f.into_data()) {
            Ok(Ok(data)) => data,
            Ok(Err(_trailers)) => continue,
            Err(e) => {
                debug!("the response that is sent over a WebSocket failed: {e}");
                break;
            }
        };
        match framing {
            Framing::Binary => sink.send(Message::Binary(data)).await?,
            Framing::Base64 => sink.send(Message::text(BASE64_STANDARD.encode(&data))).await?,
            Framing::Lines => {
                begun.extend_from_slice(&data);
                while let Some(end) = begun.iter().position(|b| *b == b'\n') {
                    let line = begun.split_to(end + 1).freeze();
                    let text = tungstenite::Utf8Bytes::try_from(line.slice(..end));
                    match text {
                        Ok(text) => sink.send(Message::Text(text)).await?,
                        Err(_) => sink.send(Message::Binary(line.slice(..end))).await?,
                    }
                }
            }
        }
    }
    sink.close().await
}

/// Whether the client is still connected.
fn is_connected(message: Option<Result<Message, tungstenite::Error>>) -> ControlFlow<()> {
    match message {
        Some(Ok(Message::Close(_)) | Err(_)) | None => ControlFlow::Break(()),
        Some(Ok(_)) => ControlFlow::Continue(()),
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    /// The messages that a client gets for a response with these pieces.
    async fn messages(pieces: &'static [&'static str], framing: Framing) -> Vec<Message> {
        let frames = pieces
            .iter()
            .map(|p| Ok(Frame::data(Bytes::from_static(p.as_bytes()))));
        let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
        let (near, far) = tokio::io::duplex(1024);
        let server = WebSocketStream::from_raw_socket(near, Role::Server, None).await;
        let client = WebSocketStream::from_raw_socket(far, Role::Client, None).await;
        let got = client.take_while(|m| std::future::ready(matches!(m, Ok(m) if !m.is_close())));
        let (sent, got) = tokio::join!(send(server, body, framing), got.collect::<Vec<_>>());
        sent.unwrap();
        got.into_iter().map(Result::unwrap).collect()
    }

    #[tokio::test]
    async fn a_log_begins_with_an_empty_message_and_comes_as_it_is() {
        let pieces = &["one\nt", "wo\n"];
        let binary = |text: &'static str| Message::Binary(Bytes::from_static(text.as_bytes()));
        assert_eq!(
            messages(pieces, Framing::Binary).await,
            [binary(""), binary("one\nt"), binary("wo\n")]
        );
        assert_eq!(
            messages(pieces, Framing::Base64).await,
            [
                Message::text(""),
                Message::text("b25lCnQ="),
                Message::text("d28K")
            ]
        );
    }

    #[tokio::test]
    async fn an_event_of_a_watch_is_a_message() {
        assert_eq!(
            messages(&["{1}\n{2}\n{", "3}\n"], Framing::Lines).await,
            [Message::text("{1}"), Message::text("{2}"), Message::text("{3}")]
        );
    }

    #[tokio::test]
    async fn a_client_that_disconnects_ends_the_stream() {
        let body = StreamBody::new(stream::pending()).boxed_unsync();
        let (near, far) = tokio::io::duplex(1024);
        let server = WebSocketStream::from_raw_socket(near, Role::Server, None).await;
        drop(far);
        send(server, body, Framing::Lines).await.unwrap();
    }
}
