//! Responses over HTTP: objects, lists, watches and errors in the negotiated form.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, VARY, WARNING};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Status, StatusDetails};
use k8s_openapi::jiff::Timestamp;
use knarr_api::{Kind, Object, k8s_openapi};
use knarr_apimachinery::{Error, codec};
use knarr_strategy::table_response;
use serde_json::{Value, json};

use super::accept::{Media, MediaTypeOptions, Shape};
use super::body::{Body, BoxError, GZIP_FROM_BYTES, ListBody, full, gzip};
use crate::cache::change::frame;
use crate::pipeline::read::ListResult;
use crate::request::warnings::Warnings;
use crate::watch::{Item, Watcher};

/// What a handler returns, before the negotiated form is applied.
pub enum HandlerResponse {
    Object(StatusCode, Arc<Object>),
    List(Kind, ListResult),
    /// A document that is not an object of a kind, such as a Status or a Scale.
    Document(StatusCode, Value),
    Watch(Watcher),
    /// A complete HTTP response.
    Raw(Response<Body>),
}

/// How one client gets its responses.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseFormat {
    pub media_type: MediaTypeOptions,
    pub gzip: bool,
    pub now: Timestamp,
}

impl HandlerResponse {
    pub fn render(self, format: ResponseFormat) -> Result<Response<Body>, Error> {
        match self {
            HandlerResponse::Raw(response) => Ok(response),
            HandlerResponse::Document(code, value) => {
                let bytes = serde_json::to_vec(&value).map_err(Error::internal)?;
                bytes_response(code, bytes.into(), format)
            }
            HandlerResponse::Object(code, object) => {
                let bytes = match format.media_type.shape {
                    Shape::Full => object.json().clone(),
                    Shape::Metadata => {
                        metadata_only(object.typed().metadata(), format.media_type.beta)?.into()
                    }
                    Shape::MetadataList => {
                        return Err(shape_mismatch(
                            "PartialObjectMetadataList",
                            "object",
                            object.kind(),
                        ));
                    }
                    Shape::Table(include) => {
                        let version = object.revision().to_string();
                        let head = table_response::Head {
                            resource_version: &version,
                            beta: format.media_type.beta,
                            ..table_response::Head::default()
                        };
                        let objects = std::slice::from_ref(&object);
                        table_response::render_with(object.kind(), objects, include, format.now, &head)?
                            .into()
                    }
                };
                bytes_response(code, bytes, format)
            }
            HandlerResponse::List(kind, listed) => list(&kind, listed, format),
            HandlerResponse::Watch(watcher) => Ok(watch(watcher, format)),
        }
    }
}

/// An error as a `Status` response.
pub fn error_response(error: &Error, format: ResponseFormat) -> Response<Body> {
    let code = StatusCode::from_u16(error.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let format = ResponseFormat {
        media_type: MediaTypeOptions {
            shape: Shape::Full,
            ..format.media_type
        },
        ..format
    };
    let rendered = serde_json::to_vec(error.status())
        .map_err(Error::internal)
        .and_then(|bytes| bytes_response(code, bytes.into(), format));
    let mut response = rendered.unwrap_or_else(|e| {
        let mut response = Response::new(full(e.message().to_string()));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    });
    if let Some(seconds) = error
        .status()
        .details
        .as_ref()
        .and_then(|d| d.retry_after_seconds)
    {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// The `Status` of a success.
pub fn success(code: Option<i32>, details: Option<StatusDetails>) -> Result<Value, Error> {
    serde_json::to_value(Status {
        status: Some("Success".into()),
        code,
        details,
        ..Status::default()
    })
    .map_err(Error::internal)
}

/// Adds a `Warning` header for each warning.
pub fn add_warnings(response: &mut Response<Body>, warnings: &Warnings) {
    for warning in warnings.shown() {
        let quoted: String = warning
            .chars()
            .filter(|c| !c.is_control())
            .flat_map(|c| {
                if c == '"' || c == '\\' {
                    vec!['\\', c]
                } else {
                    vec![c]
                }
            })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// A response of plain text.
pub fn text(code: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

fn bytes_response(code: StatusCode, json: Bytes, format: ResponseFormat) -> Result<Response<Body>, Error> {
    let bytes = in_media(json, format.media_type)?;
    let (bytes, compressed) = if format.gzip && bytes.len() >= GZIP_FROM_BYTES {
        (Bytes::from(gzip(&bytes).map_err(Error::internal)?), true)
    } else {
        (bytes, false)
    };
    Ok(with_headers(
        code,
        full(bytes),
        format.media_type.media.content_type(),
        compressed,
    ))
}

fn with_headers(
    code: StatusCode,
    body: Body,
    content_type: &'static str,
    compressed: bool,
) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        http::header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    if compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

fn in_media(json: Bytes, media_type: MediaTypeOptions) -> Result<Bytes, Error> {
    match (media_type.media, media_type.pretty) {
        (Media::Json, false) => Ok(json),
        (Media::Json, true) => {
            let value: Value = serde_json::from_slice(&json).map_err(Error::internal)?;
            serde_json::to_vec_pretty(&value)
                .map(Into::into)
                .map_err(Error::internal)
        }
        (Media::Yaml, _) => {
            let value: Value = serde_json::from_slice(&json).map_err(Error::internal)?;
            serde_saphyr::to_string(&value)
                .map(Into::into)
                .map_err(Error::internal)
        }
    }
}

fn shape_mismatch(requested: &str, what: &str, kind: &Kind) -> Error {
    let group = match kind.group().split('.').next() {
        None | Some("") => "core",
        Some(group) => group,
    };
    let (article, suffix) = if what == "list" {
        ("a list", "List")
    } else {
        ("not a list", "")
    };
    Error::new(
        406,
        "NotAcceptable",
        format!(
            "you requested {requested}, but the requested object is {article} (*{group}.{}{suffix})",
            kind.kind()
        ),
    )
}

/// `always_continues`: the field `continue` is present even if it is empty, as in unstructured lists.
fn list_meta(listed: &ListResult, always_continues: bool) -> Value {
    let mut meta = json!({"resourceVersion": listed.revision.to_string()});
    if always_continues || !listed.continue_token.is_empty() {
        meta["continue"] = listed.continue_token.clone().into();
    }
    if let Some(remaining) = listed.remaining {
        meta["remainingItemCount"] = remaining.into();
    }
    meta
}

fn list(kind: &Kind, listed: ListResult, format: ResponseFormat) -> Result<Response<Body>, Error> {
    let is_custom = kind.ops.custom().is_some();
    let meta = list_meta(&listed, is_custom && format.media_type.shape == Shape::Full);
    match format.media_type.shape {
        Shape::Metadata => Err(shape_mismatch("PartialObjectMetadata", "list", kind)),
        Shape::Table(include) => {
            let version = listed.revision.to_string();
            let head = table_response::Head {
                resource_version: &version,
                continue_token: &listed.continue_token,
                remaining_item_count: listed.remaining,
                no_headers: false,
                beta: format.media_type.beta,
            };
            let bytes = table_response::render_with(kind, &listed.items, include, format.now, &head)?;
            bytes_response(StatusCode::OK, bytes.into(), format)
        }
        Shape::MetadataList => {
            let mut bytes = format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"{}","metadata":{meta},"items":"#,
                table_response::meta_version(format.media_type.beta)
            )
            .into_bytes();
            if listed.items.is_empty() {
                bytes.extend_from_slice(b"null}");
                return bytes_response(StatusCode::OK, bytes.into(), format);
            }
            bytes.push(b'[');
            for (i, object) in listed.items.iter().enumerate() {
                if i > 0 {
                    bytes.push(b',');
                }
                bytes.extend_from_slice(&metadata_only(object.typed().metadata(), format.media_type.beta)?);
            }
            bytes.extend_from_slice(b"]}");
            bytes_response(StatusCode::OK, bytes.into(), format)
        }
        Shape::Full => {
            let head = format!(
                r#"{{"kind":"{}List","apiVersion":"{}","metadata":{meta},"items":["#,
                kind.kind(),
                kind.api_version()
            );
            if format.media_type.media == Media::Json && !format.media_type.pretty {
                let body = ListBody::new(head.into_bytes(), listed.items, is_custom, format.gzip);
                let compressed = body.is_compressed();
                return Ok(with_headers(
                    StatusCode::OK,
                    body.boxed_unsync(),
                    "application/json",
                    compressed,
                ));
            }
            let mut items = Vec::with_capacity(listed.items.len());
            for object in &listed.items {
                let mut value: Value = serde_json::from_slice(object.json()).map_err(Error::internal)?;
                if let Some(map) = value.as_object_mut().filter(|_| !is_custom) {
                    map.remove("kind");
                    map.remove("apiVersion");
                }
                items.push(value);
            }
            let document = json!({
                "kind": format!("{}List", kind.kind()), "apiVersion": kind.api_version(), "metadata": meta, "items": items,
            });
            bytes_response(
                StatusCode::OK,
                serde_json::to_vec(&document).map_err(Error::internal)?.into(),
                format,
            )
        }
    }
}

fn metadata_only(meta: &ObjectMeta, beta: bool) -> Result<Vec<u8>, Error> {
    let version = table_response::meta_version(beta);
    let mut bytes =
        format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"{version}","metadata":"#).into_bytes();
    codec::write(meta, &mut bytes).map_err(Error::internal)?;
    bytes.push(b'}');
    Ok(bytes)
}

fn watch(watcher: Watcher, format: ResponseFormat) -> Response<Body> {
    let state = Some(Feed {
        watcher,
        format,
        columns_sent: false,
    });
    let frames = stream::unfold(state, |state| async move {
        let mut feed = state?;
        let (piece, has_more) = feed.piece().await?;
        Some((Ok::<_, BoxError>(Frame::data(piece)), has_more.then_some(feed)))
    });
    with_headers(
        StatusCode::OK,
        StreamBody::new(frames).boxed_unsync(),
        "application/json",
        false,
    )
}

/// An `ERROR` event, which is the last of a watch.
pub fn error_line(error: &Error) -> Bytes {
    match serde_json::to_vec(error.status()) {
        Ok(status) => frame("ERROR", &status),
        Err(_) => Bytes::new(),
    }
}

/// A watch that consists of one `ERROR` event: expired history is reported inside the stream.
pub fn watch_error_response(error: &Error) -> Response<Body> {
    with_headers(StatusCode::OK, full(error_line(error)), "application/json", false)
}

struct Feed {
    watcher: Watcher,
    format: ResponseFormat,
    columns_sent: bool,
}

/// Events that are ready are sent in pieces of about this size.
const PIECE_BYTES: usize = 32 * 1024;

impl Feed {
    /// The next events as lines, and whether more may follow. All events that are ready are sent at once: a write and a
    /// TLS record for each would be most of the cost. The task yields before it collects them, so a busy server sends
    /// more at once and an idle one sends without delay. A single event is sent as it is shared, without a copy.
    async fn piece(&mut self) -> Option<(Bytes, bool)> {
        let mut lines: Vec<Bytes> = Vec::new();
        let mut bytes = 0;
        let mut has_more = true;
        while has_more && bytes < PIECE_BYTES {
            let item = if lines.is_empty() {
                let first = self.watcher.next().await?;
                tokio::task::yield_now().await;
                first
            } else {
                match self.watcher.try_next() {
                    Some(item) => item,
                    None => break,
                }
            };
            let line = match self.line(item) {
                Ok(Some(line)) => line,
                Ok(None) => continue,
                Err(e) => {
                    has_more = false;
                    error_line(&e)
                }
            };
            bytes += line.len();
            lines.push(line);
        }
        self.watcher.sent(lines.len());
        let piece = match <[Bytes; 1]>::try_from(lines) {
            Ok([one]) => one,
            Err(many) => many.concat().into(),
        };
        Some((piece, has_more))
    }

    fn line(&mut self, item: Item) -> Result<Option<Bytes>, Error> {
        let kind = self.watcher.filter.kind.clone();
        match item {
            Item::Bookmark {
                revision,
                initial_events_end,
            } => {
                let mut meta = ObjectMeta {
                    resource_version: Some(revision.to_string()),
                    ..ObjectMeta::default()
                };
                if initial_events_end {
                    meta.annotations =
                        Some([("k8s.io/initial-events-end".to_string(), "true".to_string())].into());
                }
                let object = match self.format.media_type.shape {
                    Shape::Full => {
                        let document =
                            json!({"kind": kind.kind(), "apiVersion": kind.api_version(), "metadata": meta});
                        serde_json::to_vec(&document).map_err(Error::internal)?
                    }
                    Shape::Metadata => metadata_only(&meta, self.format.media_type.beta)?,
                    Shape::MetadataList => return Ok(None),
                    Shape::Table(_) => {
                        let mut empty = kind
                            .ops
                            .decode(b"{}")
                            .map_err(|e| Error::internal(e.message))?
                            .object;
                        *empty.metadata_mut() = meta;
                        self.table(
                            &Arc::new(Object::from_typed(&kind, empty)),
                            table_response::Include::Metadata,
                        )?
                    }
                };
                Ok(Some(frame("BOOKMARK", &object)))
            }
            Item::Failed(error) => Err(error),
            Item::Event(event_type, object, change) => {
                let same_kind = *object.kind() == kind;
                if self.format.media_type.shape == Shape::Full
                    && same_kind
                    && self.format.media_type.media == Media::Json
                {
                    return Ok(Some(match change {
                        Some(change) => change.frame(event_type),
                        None => frame(event_type.as_str(), object.json()),
                    }));
                }
                let object = knarr_api::convert::object(&object, &kind)?;
                let bytes = match self.format.media_type.shape {
                    Shape::Full => object.json().to_vec(),
                    Shape::Metadata => metadata_only(object.typed().metadata(), self.format.media_type.beta)?,
                    Shape::MetadataList => return Ok(None),
                    Shape::Table(include) => self.table(&object, include)?,
                };
                Ok(Some(frame(event_type.as_str(), &bytes)))
            }
        }
    }

    /// Only the first Table of a watch has column definitions.
    fn table(&mut self, object: &Arc<Object>, include: table_response::Include) -> Result<Vec<u8>, Error> {
        let version = object.revision().to_string();
        let head = table_response::Head {
            resource_version: &version,
            no_headers: std::mem::replace(&mut self.columns_sent, true),
            beta: self.format.media_type.beta,
            ..table_response::Head::default()
        };
        let objects = std::slice::from_ref(object);
        table_response::render_with(object.kind(), objects, include, self.format.now, &head)
    }
}
