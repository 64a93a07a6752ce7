//! One stream of a connection: read and written like a socket, closed for writing by a shutdown.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

use super::frame::Reset;
use super::headers::Headers;
use super::outbox::OutgoingFrame;
use super::shared::{End, Piece, Shared};

/// A write is cut into frames of at most this much, so that no stream keeps another waiting for long.
const MAX_FRAME_DATA_BYTES: usize = 32 * 1024;

/// Reading returns what arrived, then the end, or an error if the peer reset the stream (`ConnectionReset`) or the
/// connection broke (`ConnectionAborted`). `shutdown` sends FIN. Dropping it before both sides have ended resets it,
/// after what was written.
pub struct Stream {
    id: u32,
    headers: Headers,
    inbound: mpsc::Receiver<Piece>,
    current: Option<Piece>,
    shared: Arc<Shared>,
    fin_sent: bool,
}

impl Stream {
    pub(super) fn new(
        id: u32,
        headers: Headers,
        inbound: mpsc::Receiver<Piece>,
        shared: Arc<Shared>,
    ) -> Self {
        Stream {
            id,
            headers,
            inbound,
            current: None,
            shared,
            fin_sent: false,
        }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// What it was opened with.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Resets the stream with this reason.
    pub fn reset(self, reset: Reset) {
        self.shared.forget(self.id, Some(reset));
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if let Some(piece) = &mut self.current {
                let length = piece.bytes.len().min(buf.remaining());
                buf.put_slice(&piece.bytes[..length]);
                piece.bytes.advance(length);
                if piece.bytes.is_empty() {
                    self.current = None;
                }
                return Poll::Ready(Ok(()));
            }
            match self.inbound.poll_recv(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(piece)) => self.current = Some(piece).filter(|p| !p.bytes.is_empty()),
                Poll::Ready(None) => {
                    return Poll::Ready(match self.shared.end(self.id) {
                        End::Fin => Ok(()),
                        End::Reset => Err(io::ErrorKind::ConnectionReset.into()),
                        End::Open => Err(io::ErrorKind::ConnectionAborted.into()),
                    });
                }
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.fin_sent || self.shared.reset(self.id).is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let data = &data[..data.len().min(MAX_FRAME_DATA_BYTES)];
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let queued = self.shared.outbox.poll_data(cx, self.id, data);
        queued.map(|result| {
            result
                .map(|()| data.len())
                .map_err(|_| io::ErrorKind::BrokenPipe.into())
        })
    }

    /// Writes are sent in the background; the peer is not awaited.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.fin_sent {
            self.fin_sent = true;
            let fin = OutgoingFrame::Data {
                stream: self.id,
                bytes: Bytes::new(),
                fin: true,
            };
            if self.shared.reset(self.id).is_none() && self.shared.outbox.push(fin).is_err() {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let both_ended = self.fin_sent && self.shared.end(self.id) == End::Fin;
        self.shared
            .forget(self.id, (!both_ended).then_some(Reset::Cancel));
    }
}
