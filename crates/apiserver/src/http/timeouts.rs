//! How long the server waits for one client: for its handshake, its requests, and for it to read responses.
//!
//! A client that exceeds a timeout loses its connection, and its seat, list or watch is released. Logs and other streams of pods are sent as
//! slowly as their reader likes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::body::{Body, BoxError};

/// The timeouts of a connection. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the TLS handshake, and for the preface of HTTP/2 after it.
    pub handshake: Duration,
    /// For a request's head over HTTP/1.1, and for the next request on a kept connection.
    pub head: Duration,
    /// For the next piece of a request's body.
    pub body: Duration,
    /// For a client to read the next piece of a response.
    pub response: Duration,
    /// An idle HTTP/2 client is pinged after this time, and its connection closed if it does not answer within the same time.
    pub keep_alive: Duration,
    /// For a client to authenticate. Health checks by anonymous clients on a kept connection have to connect again after
    /// this time.
    pub unauthenticated: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts {
            handshake: Duration::from_secs(10),
            // As in kube-apiserver.
            head: Duration::from_secs(32),
            // Shorter than a request's timeout, so that its seat is free before.
            body: Duration::from_secs(20),
            response: Duration::from_secs(60),
            keep_alive: Duration::from_secs(30),
            unauthenticated: Duration::from_secs(120),
        }
    }
}

/// The stream of a connection: reading fails when the first bytes are late, writing when the client does not read.
pub struct TimeoutStream<S> {
    io: S,
    first: Option<FirstBytes>,
    response: Duration,
    /// Runs while a write waits.
    write_timer: Option<Pin<Box<Sleep>>>,
    no_write_timeout: Arc<AtomicBool>,
}

/// How many bytes must be received until when.
struct FirstBytes {
    bytes: usize,
    until: Pin<Box<Sleep>>,
}

impl<S> TimeoutStream<S> {
    /// `first` bytes must be received within the handshake's timeout. Once `no_write_timeout`, writes have no timeout.
    pub fn new(io: S, timeouts: &Timeouts, first: usize, no_write_timeout: Arc<AtomicBool>) -> Self {
        let first = (first > 0).then(|| FirstBytes {
            bytes: first,
            until: Box::pin(tokio::time::sleep(timeouts.handshake)),
        });
        TimeoutStream {
            io,
            first,
            response: timeouts.response,
            write_timer: None,
            no_write_timeout,
        }
    }

    /// The result of a write: one that waits too long is an error.
    fn check_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() || self.no_write_timeout.load(Ordering::Relaxed) {
            self.write_timer = None;
            return written;
        }
        let limit = self.response;
        let write_timer = self
            .write_timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(write_timer.as_mut().poll(cx));
        Poll::Ready(Err(timed_out("the client does not read the response")))
    }
}

fn timed_out(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl<S: AsyncRead + Unpin> AsyncRead for TimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if let Some(first) = &mut self.first {
            first.bytes = first.bytes.saturating_sub(buffer.filled().len() - before);
            if first.bytes == 0 {
                self.first = None;
            } else if read.is_pending() {
                ready!(first.until.as_mut().poll(cx));
                return Poll::Ready(Err(timed_out("the client sends no HTTP/2 preface")));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimeoutStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.check_write_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.check_write_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.check_write_timeout(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.check_write_timeout(cx, shut)
    }
}

/// A response's frames are passed on in pieces of at most twice this, which is what a stream holds for a client that does not
/// read.
const PIECE_BYTES: usize = 64 * 1024;
/// Smaller responses have no timeout: one that is not read holds no more than its stream does anyway.
const SMALL_BYTES: u64 = 16 * 1024;

/// The body of a response over HTTP/2, whose connection is closed (`close`) if the client does not read more of it within `limit`.
///
/// Only the client's flow-control window shows that it does not read, and while it is closed a body is not even polled. So a
/// task of its own checks whether between two ticks no piece was sent although there is one.
pub fn close_when_stalled(body: Body, limit: Duration, close: &CancellationToken) -> Body {
    if body.size_hint().exact().is_some_and(|n| n <= SMALL_BYTES) {
        return body;
    }
    let progress = Arc::new(AtomicU64::new(0));
    let (sent, close) = (progress.clone(), close.clone());
    let watchdog = tokio::spawn(async move {
        let mut next = Instant::now();
        let mut before = None;
        loop {
            next += limit;
            tokio::time::sleep_until(next).await;
            let now = sent.load(Ordering::Relaxed);
            let waits_for_client = now & IDLE == 0;
            if waits_for_client && before == Some(now) {
                tracing::debug!("a client does not read the response");
                return close.cancel();
            }
            before = Some(now);
        }
    });
    let body = StallGuardedBody {
        body,
        rest: Bytes::new(),
        progress,
        _watchdog: AbortOnDropHandle::new(watchdog),
    };
    body.boxed_unsync()
}

/// Set while the body has no data: the client is not late.
const IDLE: u64 = 1;
/// Added for each piece that was sent.
const PIECE_SENT: u64 = 2;

struct StallGuardedBody {
    body: Body,
    rest: Bytes,
    progress: Arc<AtomicU64>,
    _watchdog: AbortOnDropHandle<()>,
}

impl StallGuardedBody {
    fn record_progress(&self, idle: bool) {
        let progress = self.progress.load(Ordering::Relaxed).wrapping_add(PIECE_SENT) & !IDLE;
        self.progress.store(progress | u64::from(idle), Ordering::Relaxed);
    }
}

impl HttpBody for StallGuardedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            self.record_progress(polled.is_pending());
            match ready!(polled).transpose()? {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
            }
        } else {
            self.record_progress(false);
        }
        if rest.len() > 2 * PIECE_BYTES {
            let piece = rest.split_to(PIECE_BYTES);
            self.rest = rest;
            rest = piece;
        }
        Poll::Ready(Some(Ok(Frame::data(rest))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        match hint.exact() {
            Some(exact) => SizeHint::with_exact(exact.saturating_add(rest)),
            None => {
                hint.set_lower(hint.lower().saturating_add(rest));
                hint
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::full;
    use super::*;

    #[tokio::test]
    async fn a_large_response_is_sent_completely_and_in_pieces() {
        for n in [0, 1, PIECE_BYTES, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1, 1_000_000] {
            let bytes: Bytes = (0..n).map(|i| (i % 251) as u8).collect();
            let close = CancellationToken::new();
            let mut body = close_when_stalled(full(bytes.clone()), Duration::from_secs(60), &close);
            let mut whole = Vec::new();
            while !body.is_end_stream() {
                assert_eq!(body.size_hint().exact(), Some((n - whole.len()) as u64), "{n}");
                let Some(frame) = body.frame().await else { break };
                let data = frame.unwrap().into_data().unwrap();
                assert!(data.len() <= 2 * PIECE_BYTES, "{n}");
                whole.extend_from_slice(&data);
            }
            assert_eq!(whole, bytes, "{n}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_is_aborted_when_it_is_not_read_but_not_when_there_is_nothing_to_read() {
        let limit = Duration::from_secs(10);
        let quiet = CancellationToken::new();
        let nothing = http_body_util::StreamBody::new(futures::stream::pending()).boxed_unsync();
        let mut nothing = close_when_stalled(nothing, limit, &quiet);
        assert!(tokio::time::timeout(5 * limit, nothing.frame()).await.is_err());
        assert!(!quiet.is_cancelled());

        let timed_out = CancellationToken::new();
        let mut taken = close_when_stalled(full(vec![0; 1_000_000]), limit, &timed_out);
        taken.frame().await.unwrap().unwrap();
        let begun = Instant::now();
        timed_out.cancelled().await;
        let took = begun.elapsed();
        assert!(limit <= took && took <= 2 * limit, "{took:?}");

        let slow = CancellationToken::new();
        let mut taken = close_when_stalled(full(vec![0; 1_000_000]), limit, &slow);
        while taken.frame().await.is_some() {
            tokio::time::sleep(limit * 9 / 10).await;
        }
        assert!(!slow.is_cancelled());
    }
}
