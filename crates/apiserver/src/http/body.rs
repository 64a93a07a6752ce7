//! Response bodies: complete ones, lists sent in pieces of encoded objects, event streams, gzip.

use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use knarr_api::Object;

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Responses from this size on are compressed for clients that accept it, as in kube-apiserver.
pub const GZIP_FROM_BYTES: usize = 128 * 1024;
/// A list is sent in pieces of about this size.
const PIECE_BYTES: usize = 64 * 1024;

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// Why a request body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the request body is too large")]
    TooLarge,
    #[error("Timeout: the rest of the request body was not received in time")]
    Late,
    #[error("the request body could not be read: {0}")]
    Broken(BoxError),
}

/// Reads a request body of at most `max_bytes`, each piece within `piece_timeout` of the one before.
pub async fn read_all<B>(body: B, max_bytes: usize, piece_timeout: Duration) -> Result<Bytes, BodyError>
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    let mut body = Limited::new(body, max_bytes);
    let mut first = Bytes::new();
    // Allocated only for bodies that come in several pieces.
    let mut all = Vec::new();
    loop {
        let frame = tokio::time::timeout(piece_timeout, body.frame()).await;
        match frame.map_err(|_| BodyError::Late)? {
            None if all.is_empty() => return Ok(first),
            None => return Ok(all.into()),
            Some(Err(e)) if e.is::<LengthLimitError>() => return Err(BodyError::TooLarge),
            Some(Err(e)) => return Err(BodyError::Broken(e)),
            Some(Ok(frame)) => {
                let Ok(data) = frame.into_data() else { continue };
                if first.is_empty() {
                    first = data;
                } else {
                    if all.is_empty() {
                        all.extend_from_slice(&first);
                    }
                    all.extend_from_slice(&data);
                }
            }
        }
    }
}

/// A body with a guard that is dropped together with it: when the body was sent or is abandoned.
struct WithGuard<G> {
    body: Body,
    _guard: G,
}

impl<G: Unpin> HttpBody for WithGuard<G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Keeps `guard` until the body was sent or is abandoned.
pub fn guarded<G: Send + Unpin + 'static>(body: Body, guard: G) -> Body {
    WithGuard { body, _guard: guard }.boxed_unsync()
}

pub fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// A list: its head, the objects' encodings and its end. Items of lists of built-in kinds have no type, as in Go's
/// typed lists; those of custom kinds do, as in unstructured lists.
pub struct ListBody {
    head: Option<Bytes>,
    items: std::vec::IntoIter<Arc<Object>>,
    with_type: bool,
    first: bool,
    finished: bool,
    left: u64,
    gzip: Option<GzEncoder<Vec<u8>>>,
}

impl ListBody {
    /// `head` ends with `"items":[`.
    pub fn new(head: Vec<u8>, items: Vec<Arc<Object>>, with_type: bool, compress: bool) -> Self {
        let commas = items.len().saturating_sub(1);
        let size_of = |object: &Arc<Object>| match with_type {
            true => object.json().len(),
            false => object.json_without_type().len() + 1,
        };
        let sizes: usize = items.iter().map(size_of).sum();
        let size = head.len() + sizes + commas + END.len();
        let gzip =
            (compress && size >= GZIP_FROM_BYTES).then(|| GzEncoder::new(Vec::new(), Compression::fast()));
        ListBody {
            head: Some(head.into()),
            items: items.into_iter(),
            with_type,
            first: true,
            finished: false,
            left: size as u64,
            gzip,
        }
    }

    pub fn is_compressed(&self) -> bool {
        self.gzip.is_some()
    }

    /// The next piece before compression.
    fn piece(&mut self) -> Option<Bytes> {
        if self.finished {
            return None;
        }
        let mut piece = Vec::with_capacity(PIECE_BYTES + PIECE_BYTES / 4);
        if let Some(head) = self.head.take() {
            piece.extend_from_slice(&head);
        }
        while piece.len() < PIECE_BYTES {
            let Some(object) = self.items.next() else {
                piece.extend_from_slice(END);
                self.finished = true;
                break;
            };
            if !self.first {
                piece.push(b',');
            }
            self.first = false;
            if self.with_type {
                piece.extend_from_slice(object.json());
            } else {
                piece.push(b'{');
                piece.extend_from_slice(object.json_without_type());
            }
        }
        Some(piece.into())
    }
}

const END: &[u8] = b"]}";

impl HttpBody for ListBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Some(piece) = self.piece() else {
                return Poll::Ready(match self.gzip.take().map(GzEncoder::finish) {
                    None => None,
                    Some(Ok(rest)) => Some(Ok(Frame::data(rest.into()))),
                    Some(Err(e)) => Some(Err(e.into())),
                });
            };
            let Some(gzip) = &mut self.gzip else {
                self.left = self.left.saturating_sub(piece.len() as u64);
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            };
            if let Err(e) = gzip.write_all(&piece) {
                return Poll::Ready(Some(Err(e.into())));
            }
            let out = std::mem::take(gzip.get_mut());
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out.into()))));
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.gzip.is_some() {
            SizeHint::default()
        } else {
            SizeHint::with_exact(self.left)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_api::k8s_openapi::api::core::v1::ConfigMap;
    use knarr_api::registry::CONFIG_MAP;
    use std::io::Read;

    fn objects(n: usize) -> Vec<Arc<Object>> {
        let make = |i| {
            let mut typed = ConfigMap::default();
            typed.metadata.name = Some(format!("config-map-with-a-long-name-{i}"));
            Arc::new(Object::from_typed(&CONFIG_MAP, Box::new(typed)))
        };
        (0..n).map(make).collect()
    }

    #[tokio::test]
    async fn a_list_is_one_document_of_the_size_it_announces() {
        for n in [0, 1, 2, 5000] {
            let body = ListBody::new(br#"{"items":["#.to_vec(), objects(n), false, false);
            let announced = body.size_hint().exact().unwrap();
            let bytes = body.collect().await.unwrap().to_bytes();
            assert_eq!(bytes.len() as u64, announced);
            let document: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(document["items"].as_array().unwrap().len(), n);
            assert!(n == 0 || document["items"][0]["kind"].is_null());
        }
    }

    #[tokio::test]
    async fn a_large_list_is_compressed_for_clients_that_accept_it() {
        let body = ListBody::new(br#"{"items":["#.to_vec(), objects(5000), false, true);
        assert!(body.is_compressed());
        let bytes = body.collect().await.unwrap().to_bytes();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..])
            .read_to_string(&mut text)
            .unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["items"].as_array().unwrap().len(), 5000);
        assert!(!ListBody::new(Vec::new(), objects(2), false, true).is_compressed());
    }
}
