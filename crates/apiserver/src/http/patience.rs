//! How long the server waits for one client: for its handshake, its words, its ears.
//!
//! Whoever is late loses his connection and nothing else happens: what he held (a seat, a list, a watch) is free, and
//! nobody waited for him meanwhile. Logs and what else pods stream are read at their reader's pace, however slow.

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

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For the TLS handshake, and for the first words of HTTP/2 after it.
    pub handshake: Duration,
    /// For a request's head over HTTP/1.1, and for the next request on a connection that is kept.
    pub head: Duration,
    /// For the next piece of a request's body.
    pub body: Duration,
    /// For a client to take the next piece of an answer.
    pub answer: Duration,
    /// A silent HTTP/2 client is asked for a sign of life so often, and dropped when it gives none for as long again.
    pub keep_alive: Duration,
    /// For a client to authenticate. Health checks by anonymous clients on a connection that is kept begin a new one after
    /// this time.
    pub unauthenticated: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            handshake: Duration::from_secs(10),
            // As kube-apiserver's.
            head: Duration::from_secs(32),
            // Less than a request may take, so that its seat is free before.
            body: Duration::from_secs(20),
            answer: Duration::from_secs(60),
            keep_alive: Duration::from_secs(30),
            unauthenticated: Duration::from_secs(120),
        }
    }
}

/// The stream of a connection: reading fails when its first bytes are late, writing when the client takes nothing.
pub struct Patient<S> {
    io: S,
    first: Option<First>,
    answer: Duration,
    /// Runs while a write waits.
    waits: Option<Pin<Box<Sleep>>>,
    unhurried: Arc<AtomicBool>,
}

/// So many bytes must come until then.
struct First {
    bytes: usize,
    until: Pin<Box<Sleep>>,
}

impl<S> Patient<S> {
    /// `first` bytes must come within the handshake's time. Once `unhurried`, writing waits without end.
    pub fn new(io: S, patience: &Patience, first: usize, unhurried: Arc<AtomicBool>) -> Self {
        let first = (first > 0).then(|| First {
            bytes: first,
            until: Box::pin(tokio::time::sleep(patience.handshake)),
        });
        Patient {
            io,
            first,
            answer: patience.answer,
            waits: None,
            unhurried,
        }
    }

    /// What a write comes to: one that waits too long is an error.
    fn judged<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() || self.unhurried.load(Ordering::Relaxed) {
            self.waits = None;
            return written;
        }
        let limit = self.answer;
        let waits = self
            .waits
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        ready!(waits.as_mut().poll(cx));
        Poll::Ready(Err(late("the client does not read what it asked for")))
    }
}

fn late(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
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
                return Poll::Ready(Err(late("the client says nothing")));
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.judged(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.judged(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.judged(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.judged(cx, shut)
    }
}

/// An answer's frames are handed on in pieces of at most twice this: what a stream holds for a client that does not
/// read.
const PIECE_BYTES: usize = 64 * 1024;
/// Smaller answers are not looked after: one that is not taken holds no more than its stream does anyway.
const SMALL_BYTES: u64 = 16 * 1024;

/// An HTTP/2 stream's answer, given up with its connection (`gives_up`) if for a while nobody takes more of it.
///
/// Only the client's window says that it does not read, and while it is closed a body is not even asked. So
/// somebody else looks after it: whether between two looks nothing went out though there is something.
pub fn looked_after(body: Body, limit: Duration, gives_up: &CancellationToken) -> Body {
    if body.size_hint().exact().is_some_and(|n| n <= SMALL_BYTES) {
        return body;
    }
    let steps = Arc::new(AtomicU64::new(0));
    let (seen, gives_up) = (steps.clone(), gives_up.clone());
    let looks = tokio::spawn(async move {
        let mut next = Instant::now();
        let mut before = None;
        loop {
            next += limit;
            tokio::time::sleep_until(next).await;
            let now = seen.load(Ordering::Relaxed);
            let waits_for_client = now & IDLE == 0;
            if waits_for_client && before == Some(now) {
                tracing::debug!("a client does not read what it asked for");
                return gives_up.cancel();
            }
            before = Some(now);
        }
    });
    let body = LookedAfter {
        body,
        rest: Bytes::new(),
        steps,
        _looks: AbortOnDropHandle::new(looks),
    };
    body.boxed_unsync()
}

/// Set while the body has nothing to tell: nobody is late.
const IDLE: u64 = 1;
/// Added for each piece that went out.
const STEP: u64 = 2;

struct LookedAfter {
    body: Body,
    rest: Bytes,
    steps: Arc<AtomicU64>,
    _looks: AbortOnDropHandle<()>,
}

impl LookedAfter {
    fn step(&self, idle: bool) {
        let steps = self.steps.load(Ordering::Relaxed).wrapping_add(STEP) & !IDLE;
        self.steps.store(steps | u64::from(idle), Ordering::Relaxed);
    }
}

impl HttpBody for LookedAfter {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut rest = std::mem::take(&mut self.rest);
        if rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(cx);
            self.step(polled.is_pending());
            match ready!(polled).transpose()? {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
            }
        } else {
            self.step(false);
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
    async fn a_large_answer_goes_out_whole_and_in_pieces() {
        for n in [0, 1, PIECE_BYTES, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1, 1_000_000] {
            let bytes: Bytes = (0..n).map(|i| (i % 251) as u8).collect();
            let gives_up = CancellationToken::new();
            let mut body = looked_after(full(bytes.clone()), Duration::from_secs(60), &gives_up);
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
    async fn an_answer_is_given_up_when_it_is_not_taken_but_not_when_there_is_nothing_to_take() {
        let limit = Duration::from_secs(10);
        let quiet = CancellationToken::new();
        let nothing = http_body_util::StreamBody::new(futures::stream::pending()).boxed_unsync();
        let mut nothing = looked_after(nothing, limit, &quiet);
        assert!(tokio::time::timeout(5 * limit, nothing.frame()).await.is_err());
        assert!(!quiet.is_cancelled());

        let late = CancellationToken::new();
        let mut taken = looked_after(full(vec![0; 1_000_000]), limit, &late);
        taken.frame().await.unwrap().unwrap();
        let begun = Instant::now();
        late.cancelled().await;
        let took = begun.elapsed();
        assert!(limit <= took && took <= 2 * limit, "{took:?}");

        let slow = CancellationToken::new();
        let mut taken = looked_after(full(vec![0; 1_000_000]), limit, &slow);
        while taken.frame().await.is_some() {
            tokio::time::sleep(limit * 9 / 10).await;
        }
        assert!(!slow.is_cancelled());
    }
}
