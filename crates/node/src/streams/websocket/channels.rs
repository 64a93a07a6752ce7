//! The `channel.k8s.io` subprotocols: every message starts with the number of its channel.
//!
//! In the binary forms the number is a byte. In the base64 forms messages are text: the number as a digit, then
//! base64. v5 adds channel 255, whose messages name a channel that the client will send no more on.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::SplitStream;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::io::StreamReader;
use tokio_util::sync::{CancellationToken, PollSender};
use tokio_util::task::AbortOnDropHandle;

use super::{normal_closure, server};
use crate::streams::{PING_PERIOD, Reader, Writer};

/// The channel whose messages close others.
const CLOSE_CHANNEL: u8 = 255;
/// Messages that wait for a channel's reader; they may be large.
const MAX_UNREAD_MESSAGES: usize = 2;
/// Messages that wait to be sent, each of at most [`MAX_SENT_BYTES`].
const MAX_UNSENT_MESSAGES: usize = 8;
/// A write is cut into messages of at most this much.
const MAX_SENT_BYTES: usize = 32 * 1024;
/// How long a client may take to close after us.
const LINGER: Duration = Duration::from_secs(2);
/// How long what is queued may take to be sent at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The encoding of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// Text with base64 instead of bytes.
    pub base64: bool,
    /// v5: the client can close a channel.
    pub close_signal: bool,
}

impl Form {
    fn encode(self, channel: u8, data: &[u8]) -> Message {
        if self.base64 {
            let mut text = String::with_capacity(1 + data.len().div_ceil(3) * 4);
            text.push(char::from(b'0' + channel));
            BASE64_STANDARD.encode_string(data, &mut text);
            return Message::Text(text.into());
        }
        let mut bytes = BytesMut::with_capacity(1 + data.len());
        bytes.put_u8(channel);
        bytes.put_slice(data);
        Message::Binary(bytes.freeze())
    }

    /// `None` for what is no channel message; an error for base64 that is none.
    fn decode(self, message: Message) -> Result<Option<(u8, Bytes)>, base64::DecodeError> {
        let bytes = match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => return Ok(None),
        };
        let Some(first) = bytes.first().copied() else {
            return Ok(None);
        };
        let rest = bytes.slice(1..);
        if self.base64 {
            return Ok(Some((
                first.wrapping_sub(b'0'),
                BASE64_STANDARD.decode(rest)?.into(),
            )));
        }
        Ok(Some((first, rest)))
    }
}

/// A connection of channels. Dropping it closes it; [`Channels::close`] waits until what was written is out.
pub struct Channels {
    form: Form,
    out: mpsc::Sender<Message>,
    unread: HashMap<u8, mpsc::Receiver<Bytes>>,
    closed: CancellationToken,
    reading: AbortOnDropHandle<()>,
    writing: JoinHandle<()>,
}

impl Channels {
    /// Starts the protocol on `io`. Only `readable` channels are read from the client; others are ignored.
    pub async fn start<T>(io: T, form: Form, readable: impl IntoIterator<Item = u8>) -> Channels
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (mut sink, stream) = server(io).await.split();
        let (out, mut queue) = mpsc::channel::<Message>(MAX_UNSENT_MESSAGES);
        let closed = CancellationToken::new();
        let (mut inbound, mut unread) = (HashMap::new(), HashMap::new());
        for channel in readable {
            let (tx, rx) = mpsc::channel::<Bytes>(MAX_UNREAD_MESSAGES);
            inbound.insert(channel, tx);
            unread.insert(channel, rx);
        }
        let reading = AbortOnDropHandle::new(crate::task::spawn({
            let closed = closed.clone();
            async move {
                read_messages(stream, form, inbound).await;
                closed.cancel();
            }
        }));
        let writing = crate::task::spawn({
            let closed = closed.clone();
            async move {
                loop {
                    let message = match tokio::time::timeout(PING_PERIOD, queue.recv()).await {
                        Ok(Some(message)) => message,
                        Ok(None) => break,
                        Err(_) => Message::Ping(Bytes::new()),
                    };
                    if let Err(error) = sink.send(message).await {
                        tracing::debug!(%error, "WebSocket cannot be written");
                        closed.cancel();
                        return;
                    }
                }
                // The client may have disconnected already.
                let _ = sink.send(Message::Close(Some(normal_closure()))).await;
            }
        });
        Channels {
            form,
            out,
            unread,
            closed,
            reading,
            writing,
        }
    }

    /// The client's side of a channel that was listed in [`Channels::start`]; once.
    pub fn reader(&mut self, channel: u8) -> Option<Reader> {
        let messages = self.unread.remove(&channel)?;
        let pieces = futures::stream::unfold(messages, |mut messages| async move {
            Some((io::Result::Ok(messages.recv().await?), messages))
        });
        Some(Box::new(StreamReader::new(Box::pin(pieces))))
    }

    /// Our side of a channel. No form can signal its end, except by closing all channels.
    pub fn writer(&self, channel: u8) -> Writer {
        Box::new(ChannelWriter {
            channel,
            form: self.form,
            out: PollSender::new(self.out.clone()),
        })
    }

    /// An empty message, which shows the client that the connection is open.
    pub async fn greet(&self, channel: u8) {
        // A disconnected client is noticed elsewhere.
        let _ = self.out.send(self.form.encode(channel, &[])).await;
    }

    /// Resolves when the client has disconnected.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Sends what is queued and closes. All writers must be dropped before.
    pub async fn close(self) {
        let Channels {
            out,
            unread,
            closed,
            reading,
            writing,
            ..
        } = self;
        drop((out, unread));
        let abort = writing.abort_handle();
        match tokio::time::timeout(CLOSE_TIMEOUT, writing).await {
            Ok(_) => drop(tokio::time::timeout(LINGER, closed.cancelled()).await),
            Err(_) => abort.abort(),
        }
        drop(reading);
    }
}

async fn read_messages<T: AsyncRead + AsyncWrite + Unpin>(
    mut stream: SplitStream<WebSocketStream<T>>,
    form: Form,
    mut inbound: HashMap<u8, mpsc::Sender<Bytes>>,
) {
    while let Some(message) = stream.next().await {
        let message = match message {
            Ok(message) => message,
            Err(error) => return tracing::debug!(%error, "WebSocket ended"),
        };
        match form.decode(message) {
            Ok(None) => {}
            Ok(Some((CLOSE_CHANNEL, channel))) if form.close_signal => {
                if let Some(channel) = channel.first() {
                    inbound.remove(channel);
                }
            }
            Ok(Some((channel, data))) => {
                if let Some(inbound) = inbound.get(&channel) {
                    // An error means that the reader was dropped.
                    let _ = inbound.send(data).await;
                }
            }
            Err(error) => return tracing::debug!(%error, "WebSocket message is not base64"),
        }
    }
}

struct ChannelWriter {
    channel: u8,
    form: Form,
    out: PollSender<Message>,
}

impl AsyncWrite for ChannelWriter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let broken = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        std::task::ready!(self.out.poll_reserve(cx)).map_err(broken)?;
        let data = &data[..data.len().min(MAX_SENT_BYTES)];
        let message = self.form.encode(self.channel, data);
        self.out.send_item(message).map_err(broken)?;
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_their_channel_in_every_form() {
        let binary = Form::default();
        let base64 = Form {
            base64: true,
            ..Form::default()
        };
        assert_eq!(
            binary.encode(1, b"hi"),
            Message::Binary(Bytes::from_static(b"\x01hi"))
        );
        assert_eq!(base64.encode(1, b"hi"), Message::Text("1aGk=".into()));
        for form in [binary, base64] {
            for (channel, data) in [(0, &b"some text"[..]), (4, b""), (3, &[0, 255, 1])] {
                let decoded = form.decode(form.encode(channel, data)).unwrap();
                assert_eq!(decoded, Some((channel, Bytes::copy_from_slice(data))), "{form:?}");
            }
        }
    }

    #[test]
    fn what_carries_no_channel_is_passed_over() {
        let form = Form {
            base64: true,
            ..Form::default()
        };
        assert_eq!(form.decode(Message::Ping(Bytes::from_static(b"1"))), Ok(None));
        assert_eq!(form.decode(Message::Binary(Bytes::new())), Ok(None));
        assert!(form.decode(Message::Text("0not base64!".into())).is_err());
    }
}
