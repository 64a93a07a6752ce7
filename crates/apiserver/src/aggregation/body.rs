//! Bodies that pass through: as large as they are, and bounded in time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::http::body::{Body, BoxError};

/// How long a body may take.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    /// From one piece to the next.
    Piece(Duration),
    /// From now to its end.
    Whole(Duration),
}

struct Timed<B> {
    body: B,
    limit: Limit,
    wait: Pin<Box<Sleep>>,
    late: &'static str,
}

/// The body, which fails with `late` when it takes longer than `limit`.
pub(super) fn timed<B>(body: B, limit: Limit, late: &'static str) -> Body
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let (Limit::Piece(duration) | Limit::Whole(duration)) = limit;
    Timed {
        body,
        limit,
        wait: Box::pin(tokio::time::sleep(duration)),
        late,
    }
    .boxed_unsync()
}

impl<B> HttpBody for Timed<B>
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
            if let Limit::Piece(duration) = self.limit {
                self.wait.as_mut().reset(Instant::now() + duration);
            }
            return Poll::Ready(frame.map(|f| f.map_err(Into::into)));
        }
        let late = self.late;
        self.wait
            .as_mut()
            .poll(cx)
            .map(|()| Some(Err(std::io::Error::new(std::io::ErrorKind::TimedOut, late).into())))
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

    /// A piece a second, for ever.
    fn endless() -> impl HttpBody<Data = Bytes, Error = BoxError> + Unpin {
        let pieces = stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x")))
        });
        StreamBody::new(Box::pin(pieces))
    }

    #[tokio::test(start_paused = true)]
    async fn n3_a_body_ends_when_its_time_is_over() {
        let mut whole = timed(endless(), Limit::Whole(Duration::from_millis(4500)), "late");
        let mut pieces = 0;
        let error = loop {
            match whole.frame().await.unwrap() {
                Ok(_) => pieces += 1,
                Err(e) => break e.to_string(),
            }
        };
        assert_eq!((pieces, error.as_str()), (4, "late"));
        let mut paced = timed(endless(), Limit::Piece(Duration::from_millis(1500)), "late");
        for _ in 0..100 {
            paced.frame().await.unwrap().unwrap();
        }
        let mut slow = timed(endless(), Limit::Piece(Duration::from_millis(500)), "late");
        assert!(slow.frame().await.unwrap().is_err());
    }
}
