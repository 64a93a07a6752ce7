//! A WebSocket as a plain two-way stream of bytes: message boundaries have no meaning. kubectl sends SPDY this way,
//! through proxies without SPDY support.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{normal_closure, server};

/// A write is cut into messages of at most this much.
const MAX_SENT_BYTES: usize = 32 * 1024;

/// Bytes in binary messages. Shutting it down sends a close message.
pub struct Tunnel<T> {
    socket: WebSocketStream<T>,
    current: Bytes,
    close_sent: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Tunnel<T> {
    pub async fn start(io: T) -> Self {
        Tunnel {
            socket: server(io).await,
            current: Bytes::new(),
            close_sent: false,
        }
    }
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.current.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                None | Some(Err(Error::ConnectionClosed)) | Some(Ok(Message::Close(_))) => {
                    return Poll::Ready(Ok(()));
                }
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                Some(Ok(Message::Binary(bytes))) => self.current = bytes,
                Some(Ok(Message::Text(_))) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
            }
        }
        let length = self.current.len().min(buf.remaining());
        buf.put_slice(&self.current[..length]);
        self.current.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io_error)?;
        let data = &data[..data.len().min(MAX_SENT_BYTES)];
        let message = Message::Binary(Bytes::copy_from_slice(data));
        Pin::new(&mut self.socket).start_send(message).map_err(io_error)?;
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io_error)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.close_sent {
            ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(io_error)?;
            let goodbye = Message::Close(Some(normal_closure()));
            Pin::new(&mut self.socket).start_send(goodbye).map_err(io_error)?;
            self.close_sent = true;
        }
        Pin::new(&mut self.socket).poll_flush(cx).map_err(io_error)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_tungstenite::tungstenite::protocol::Role;

    use super::*;

    #[tokio::test]
    async fn bytes_pass_through_however_they_are_cut() {
        let (client, io) = tokio::io::duplex(1 << 12);
        let mut tunnel = Tunnel::start(io).await;
        let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
        use futures::{SinkExt, StreamExt};
        let both = async {
            for cut in [&b"ab"[..], b"", b"cdef"] {
                client
                    .send(Message::Binary(Bytes::copy_from_slice(cut)))
                    .await
                    .unwrap();
            }
            client.send(Message::Ping(Bytes::new())).await.unwrap();
            let mut answer = Vec::new();
            while answer.len() < 100_000 {
                match client.next().await.unwrap().unwrap() {
                    Message::Binary(bytes) => answer.extend_from_slice(&bytes),
                    Message::Pong(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            client.close(None).await.unwrap();
            answer
        };
        let serve = async {
            let mut read = vec![0; 6];
            tunnel.read_exact(&mut read).await.unwrap();
            assert_eq!(read, b"abcdef");
            tunnel.write_all(&[5; 100_000]).await.unwrap();
            tunnel.flush().await.unwrap();
            assert_eq!(tunnel.read(&mut read).await.unwrap(), 0);
        };
        let (answer, ()) = tokio::join!(both, serve);
        assert!(answer.iter().all(|b| *b == 5));
    }
}
