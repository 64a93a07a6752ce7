//! Proxied bodies: not limited in size, but in time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::http::body::{Body, BoxError};

/// The timeout of a body.
#[derive(Clone, Copy, Debug)]
pub(super) enum BodyTimeout {
    /// From one frame to the next.
    PerFrame(Duration),
    /// From now to the end of the body.
    Total(Duration),
}

struct TimeoutBody<B> {
    body: B,
    timeout: BodyTimeout,
    sleep: Pin<Box<Sleep>>,
    message: &'static str,
}

/// The body, which fails with `message` when it takes longer than `timeout`.
pub(super) fn with_timeout<B>(body: B, timeout: BodyTimeout, message: &'static str) -> Body
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let (BodyTimeout::PerFrame(duration) | BodyTimeout::Total(duration)) = timeout;
    TimeoutBody {
        body,
        timeout,
        sleep: Box::pin(tokio::time::sleep(duration)),
        message,
    }
    .boxed_unsync()
}

impl<B> HttpBody for TimeoutBody<B>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let BodyTimeout::PerFrame(duration) = self.timeout {
                self.sleep.as_mut().reset(Instant::now() + duration);
            }
            return Poll::Ready(frame.map(|f| f.map_err(Into::into)));
        }
        let message = self.message;
        self.sleep.as_mut().poll(cx).map(|()| {
            Some(Err(
                std::io::Error::new(std::io::ErrorKind::TimedOut, message).into()
            ))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt, stream};
    use http_body_util::StreamBody;

    use super::*;

    /// One frame per second, without end.
    fn endless() -> impl HttpBody<Data = Bytes, Error = BoxError> + Unpin {
        let frames = stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x")))
        });
        StreamBody::new(Box::pin(frames))
    }

    #[tokio::test(start_paused = true)]
    async fn n3_a_body_fails_after_its_timeout() {
        let mut total = with_timeout(endless(), BodyTimeout::Total(Duration::from_millis(4500)), "late");
        let mut frames = 0;
        let error = loop {
            match total.frame().await.unwrap() {
                Ok(_) => frames += 1,
                Err(e) => break e.to_string(),
            }
        };
        assert_eq!((frames, error.as_str()), (4, "late"));
        let mut in_time = with_timeout(
            endless(),
            BodyTimeout::PerFrame(Duration::from_millis(1500)),
            "late",
        );
        for _ in 0..100 {
            in_time.frame().await.unwrap().unwrap();
        }
        let mut slow = with_timeout(
            endless(),
            BodyTimeout::PerFrame(Duration::from_millis(500)),
            "late",
        );
        assert!(slow.frame().await.unwrap().is_err());
    }
}
