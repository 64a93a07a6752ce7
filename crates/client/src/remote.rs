//! [`Api`] over HTTPS, for components on other nodes, with kube-rs' client and a kubeconfig or a credential, which can
//! be rotated while requests are in flight.
//!
//! Requests and responses are JSON; objects are decoded once, by their kind. Nothing is retried here: informers
//! list and watch again, and writers decide again from the state that they then read.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderValue, Method, Request};
use http_body_util::BodyExt;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use knarr_api::deletion::Propagation;
use knarr_api::{AnyObject, Kind, Object, k8s_openapi};
use knarr_apimachinery::codec::DecodeError;
use knarr_apimachinery::{Error, Result};
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use parking_lot::RwLock;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::api::{Api, DeleteOptions, List, ListOptions, Patch, WatchEvent, WatchOptions, WatchStream};
use crate::metrics::rest_client::RestClientMetrics;
use crate::term::{self, Term};
use crate::trace_context;

/// Objects a page when a list has no limit.
const PAGE: usize = 500;
/// The longest line of a watch: no object is larger, as no request body is.
const LINE_MAX_BYTES: usize = 8 * 1024 * 1024;

/// A cluster that is reached over the network.
pub struct RemoteApi {
    connection: Arc<Connection>,
    /// The term of its writes, as the value of the header.
    term: Option<HeaderValue>,
}

/// The server, and the credential for it.
struct Connection {
    /// A new client is made of it when the credential is rotated.
    config: kube::Config,
    client: RwLock<kube::Client>,
    server: String,
    metrics: Option<RestClientMetrics>,
}

/// The credential by which the API server authenticates the client.
#[derive(Clone)]
pub enum Credential {
    Token(String),
    Certificate {
        certificate_pem: String,
        key_pem: String,
    },
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credential::Token(_) => "Token(…)",
            Credential::Certificate { .. } => "Certificate(…)",
        })
    }
}

impl Credential {
    fn auth_info(&self) -> AuthInfo {
        match self {
            Credential::Token(token) => AuthInfo {
                token: Some(token.clone().into()),
                ..AuthInfo::default()
            },
            Credential::Certificate {
                certificate_pem,
                key_pem,
            } => AuthInfo {
                client_certificate_data: Some(STANDARD.encode(certificate_pem)),
                client_key_data: Some(STANDARD.encode(key_pem).into()),
                ..AuthInfo::default()
            },
        }
    }
}

impl RemoteApi {
    /// The cluster and user of the kubeconfig's current context. The error names what is wrong with the file.
    pub async fn from_kubeconfig(path: &Path) -> std::result::Result<Self, kube::Error> {
        let read = async {
            let file = Kubeconfig::read_from(path)?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await
        };
        let config = read.await.map_err(|e| kube::Error::Service(Box::new(e)))?;
        Self::from_config(config)
    }

    /// The cluster at this URL, verified with these CAs (DER), with this credential.
    pub fn new(
        server: http::Uri,
        authorities: Vec<Vec<u8>>,
        credential: &Credential,
    ) -> std::result::Result<Self, kube::Error> {
        let mut config = kube::Config::new(server);
        config.root_cert = Some(authorities);
        config.auth_info = credential.auth_info();
        Self::from_config(config)
    }

    fn from_config(mut config: kube::Config) -> std::result::Result<Self, kube::Error> {
        // A watch may have no events for a long time; callers that wait for a response have a timeout of their own.
        config.read_timeout = None;
        let connection = Connection {
            server: config.cluster_url.to_string().trim_end_matches('/').to_string(),
            client: RwLock::new(kube::Client::try_from(config.clone())?),
            config,
            metrics: None,
        };
        Ok(RemoteApi {
            connection: Arc::new(connection),
            term: None,
        })
    }

    /// Counts the requests. To be called before the first.
    #[must_use]
    pub fn with_metrics(mut self, metrics: RestClientMetrics) -> Self {
        if let Some(connection) = Arc::get_mut(&mut self.connection) {
            connection.metrics = Some(metrics);
        }
        self
    }

    /// What counts the requests, for another client of the same process.
    pub fn metrics(&self) -> Option<&RestClientMetrics> {
        self.connection.metrics.as_ref()
    }

    /// Makes requests with this credential from now on. Those in flight, such as watches, keep the former one.
    pub fn set_credential(&self, credential: &Credential) -> std::result::Result<(), kube::Error> {
        let mut config = self.connection.config.clone();
        config.auth_info = credential.auth_info();
        let client = kube::Client::try_from(config)?;
        *self.connection.client.write() = client;
        Ok(())
    }

    /// The URL of the API server.
    pub fn server(&self) -> &str {
        &self.connection.server
    }

    /// The CAs (DER) that the API server's certificate is verified with.
    pub fn certificate_authorities(&self) -> &[Vec<u8>] {
        self.connection.config.root_cert.as_deref().unwrap_or_default()
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<http::Response<Body>> {
        let begun = Instant::now();
        let verb = method.clone();
        let mut request = Request::builder().method(method).uri(path);
        if let Some(term) = &self.term {
            request = request.header(term::HEADER, term);
        }
        let request = if body.is_empty() {
            request
        } else {
            request.header(http::header::CONTENT_TYPE, content_type)
        };
        let mut request = request.body(Body::from(body)).map_err(Error::internal)?;
        trace_context::inject(request.headers_mut());
        let client = self.connection.client.read().clone();
        let response = client.send(request).await;
        if let Some(metrics) = &self.connection.metrics {
            let host = self.connection.config.cluster_url.authority();
            let host = host.map_or("", |authority| authority.as_str());
            let code = response.as_ref().ok().map(|response| response.status().as_u16());
            metrics.count(host, verb.as_str(), code, begun.elapsed());
        }
        let response = response
            .map_err(|e| Error::unavailable(format!("{} cannot be reached: {e}", self.connection.server)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let body = collect(response).await?;
        Err(match serde_json::from_slice::<Status>(&body) {
            Ok(status) => Error::from(status),
            Err(_) => Error::new(code, "", String::from_utf8_lossy(&body)),
        })
    }

    async fn json<T: DeserializeOwned>(&self, method: Method, path: &str, body: Vec<u8>) -> Result<T> {
        let response = self.send(method, path, "application/json", body).await?;
        serde_json::from_slice(&collect(response).await?)
            .map_err(|e| Error::internal(format!("the response cannot be read: {e}")))
    }

    async fn object(
        &self,
        kind: &Kind,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Arc<Object>> {
        let response = self.send(method, path, content_type, body).await?;
        decode(kind, &collect(response).await?)
    }
}

async fn collect(response: http::Response<Body>) -> Result<Bytes> {
    let body = response.into_body().collect().await;
    body.map(|b| b.to_bytes())
        .map_err(|e| Error::unavailable(format!("the response broke off: {e}")))
}

fn undecodable(kind: &Kind, e: &DecodeError) -> Error {
    Error::internal(format!(
        "the server sent a {} that cannot be decoded: {e}",
        kind.kind()
    ))
}

fn decode(kind: &Kind, json: &[u8]) -> Result<Arc<Object>> {
    let decoded = kind.ops.decode(json).map_err(|e| undecodable(kind, &e))?;
    Ok(Arc::new(Object::from_typed(kind, decoded.object)))
}

/// `/api/v1/namespaces/ns/pods/name/sub`; empty parts are left out.
fn path(kind: &Kind, namespace: &str, name: &str, subresource: &str) -> String {
    let mut path = match kind.group() {
        "" => format!("/api/{}", kind.version()),
        group => format!("/apis/{group}/{}", kind.version()),
    };
    let namespaces = if namespace.is_empty() || !kind.namespaced() {
        ["", ""]
    } else {
        ["namespaces", namespace]
    };
    for part in [namespaces[0], namespaces[1], kind.plural(), name, subresource] {
        if !part.is_empty() {
            path.push('/');
            path += part;
        }
    }
    path
}

/// Appends `?a=b&c=d`, percent-encoded, leaving empty values out.
fn query(path: String, pairs: &[(&str, &str)]) -> String {
    let given = pairs.iter().filter(|(_, value)| !value.is_empty());
    given.fold(path, |path, (name, value)| {
        let sign = if path.contains('?') { '&' } else { '?' };
        format!(
            "{path}{sign}{name}={}",
            percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC)
        )
    })
}

fn encode(object: &dyn AnyObject) -> Vec<u8> {
    let mut body = Vec::with_capacity(1024);
    object.encode_into(&mut body);
    body
}

/// A list in its wire form; items are decoded by their kind.
#[derive(Deserialize)]
struct WireList<'a> {
    #[serde(default)]
    metadata: WireListMeta,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    continue_token: String,
}

#[derive(Deserialize)]
struct WireEvent<'a> {
    #[serde(rename = "type")]
    event: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct WireBookmark {
    metadata: WireListMeta,
}

fn event(kind: &Kind, line: &[u8]) -> Result<WatchEvent> {
    let bad = |e: serde_json::Error| {
        Error::internal(format!("the server sent a watch event that cannot be read: {e}"))
    };
    let wire: WireEvent = serde_json::from_slice(line).map_err(bad)?;
    let json = wire.object.get().as_bytes();
    match wire.event {
        "ADDED" => Ok(WatchEvent::Added(decode(kind, json)?)),
        "MODIFIED" => Ok(WatchEvent::Modified(decode(kind, json)?)),
        "DELETED" => Ok(WatchEvent::Deleted(decode(kind, json)?)),
        "BOOKMARK" => {
            let bookmark: WireBookmark = serde_json::from_slice(json).map_err(bad)?;
            let version = &bookmark.metadata.resource_version;
            version
                .parse()
                .map(WatchEvent::Bookmark)
                .map_err(|_| Error::internal(format!("a bookmark at {version:?}")))
        }
        "ERROR" => Err(Error::from(serde_json::from_slice::<Status>(json).map_err(bad)?)),
        other => Err(Error::internal(format!(
            "a watch event of unknown type {other:?}"
        ))),
    }
}

/// Splits chunks into lines.
fn lines(chunks: impl Stream<Item = Result<Bytes>> + Send) -> impl Stream<Item = Result<Bytes>> + Send {
    stream::try_unfold(
        (Box::pin(chunks), BytesMut::new()),
        |(mut chunks, mut buffer)| async move {
            let mut searched = 0;
            loop {
                if let Some(end) = buffer[searched..].iter().position(|b| *b == b'\n') {
                    let line = buffer.split_to(searched + end).freeze();
                    buffer.advance(1);
                    return Ok(Some((line, (chunks, buffer))));
                }
                searched = buffer.len();
                if searched > LINE_MAX_BYTES {
                    return Err(Error::internal(format!(
                        "a watch event of more than {LINE_MAX_BYTES} bytes"
                    )));
                }
                match chunks.try_next().await? {
                    Some(chunk) => buffer.extend_from_slice(&chunk),
                    None => return Ok(None),
                }
            }
        },
    )
}

#[async_trait]
impl Api for RemoteApi {
    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Api> {
        Arc::new(RemoteApi {
            connection: self.connection.clone(),
            term: Some(term.to_header()),
        })
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Arc<Object>> {
        self.object(
            kind,
            Method::GET,
            &path(kind, namespace, name, ""),
            "",
            Vec::new(),
        )
        .await
    }

    async fn list(&self, kind: &Kind, options: ListOptions) -> Result<List> {
        let mut list = List {
            continue_token: options.continue_token.clone(),
            ..List::default()
        };
        loop {
            let limit = if options.limit == 0 { PAGE } else { options.limit };
            let pairs = [
                ("labelSelector", options.label_selector.as_str()),
                ("fieldSelector", &options.field_selector),
                ("limit", &limit.to_string()),
                ("continue", &list.continue_token),
            ];
            let path = query(path(kind, &options.namespace, "", ""), &pairs);
            let body = collect(self.send(Method::GET, &path, "", Vec::new()).await?).await?;
            let bad = |e| Error::internal(format!("the server sent a list that cannot be read: {e}"));
            let wire: WireList = serde_json::from_slice(&body).map_err(bad)?;
            list.resource_version = wire.metadata.resource_version.parse().unwrap_or(0);
            list.continue_token = wire.metadata.continue_token;
            for item in wire.items {
                list.items.push(decode(kind, item.get().as_bytes())?);
            }
            if options.limit != 0 || list.continue_token.is_empty() {
                return Ok(list);
            }
        }
    }

    async fn watch(&self, kind: &Kind, options: WatchOptions) -> Result<WatchStream> {
        let after = options.after.map(|v| v.to_string()).unwrap_or_default();
        let initial = if options.after.is_none() { "true" } else { "" };
        let pairs = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("labelSelector", &options.label_selector),
            ("fieldSelector", &options.field_selector),
            ("resourceVersion", &after),
            ("sendInitialEvents", initial),
            (
                "resourceVersionMatch",
                if initial.is_empty() { "" } else { "NotOlderThan" },
            ),
        ];
        let path = query(path(kind, &options.namespace, "", ""), &pairs);
        let response = self.send(Method::GET, &path, "", Vec::new()).await?;
        let chunks = response.into_body().into_data_stream();
        let chunks = chunks.map_err(|e| Error::unavailable(format!("the watch broke off: {e}")));
        let kind = kind.clone();
        Ok(lines(chunks).map(move |line| event(&kind, &line?)).boxed())
    }

    async fn create(&self, kind: &Kind, object: Box<dyn AnyObject>) -> Result<Arc<Object>> {
        let namespace = object.metadata().namespace.clone().unwrap_or_default();
        let path = path(kind, &namespace, "", "");
        self.object(kind, Method::POST, &path, "application/json", encode(&*object))
            .await
    }

    async fn update(
        &self,
        kind: &Kind,
        object: Box<dyn AnyObject>,
        subresource: &str,
    ) -> Result<Arc<Object>> {
        let meta = object.metadata();
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or(""),
            meta.name.as_deref().unwrap_or(""),
        );
        let path = path(kind, namespace, name, subresource);
        self.object(kind, Method::PUT, &path, "application/json", encode(&*object))
            .await
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        patch: Patch,
    ) -> Result<Arc<Object>> {
        let (content_type, body) = match &patch {
            Patch::Json(body) => ("application/json-patch+json", body),
            Patch::Merge(body) => ("application/merge-patch+json", body),
            Patch::Strategic(body) => ("application/strategic-merge-patch+json", body),
        };
        let path = path(kind, namespace, name, subresource);
        self.object(kind, Method::PATCH, &path, content_type, body.to_string().into())
            .await
    }

    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: DeleteOptions,
    ) -> Result<Arc<Object>> {
        let propagation = options.propagation.map(|p| match p {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        });
        let seen = &options.preconditions;
        let body = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": options.grace_period_seconds,
            "propagationPolicy": propagation,
            "preconditions": { "uid": seen.uid, "resourceVersion": seen.resource_version },
        });
        // The response is the object if it still exists, or a Status if it was removed.
        let path = path(kind, namespace, name, "");
        let before = self.get(kind, namespace, name).await?;
        let response = self
            .send(Method::DELETE, &path, "application/json", body.to_string().into())
            .await?;
        let body = collect(response).await?;
        match serde_json::from_slice::<Status>(&body) {
            Ok(status) if status.status.as_deref() == Some("Success") => Ok(before),
            _ => decode(kind, &body),
        }
    }

    async fn scale(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Scale> {
        let path = path(kind, namespace, name, "scale");
        self.json(Method::GET, &path, Vec::new()).await
    }

    async fn update_scale(&self, kind: &Kind, scale: Scale) -> Result<Scale> {
        let meta = &scale.metadata;
        let (namespace, name) = (
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let path = path(kind, namespace, name, "scale");
        let body = serde_json::to_vec(&scale).map_err(Error::internal)?;
        self.json(Method::PUT, &path, body).await
    }

    async fn get_raw(&self, path: &str) -> Result<Value> {
        self.json(Method::GET, path, Vec::new()).await
    }

    async fn create_subresource(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: Value,
    ) -> Result<Value> {
        let path = path(kind, namespace, name, subresource);
        self.json(Method::POST, &path, body.to_string().into()).await
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::registry::{DEPLOYMENT, NODE, POD};

    use super::*;

    #[test]
    fn paths_name_group_namespace_and_subresource() {
        assert_eq!(
            path(&POD, "a", "b", "status"),
            "/api/v1/namespaces/a/pods/b/status"
        );
        assert_eq!(path(&DEPLOYMENT, "", "", ""), "/apis/apps/v1/deployments");
        assert_eq!(path(&NODE, "ignored", "n", ""), "/api/v1/nodes/n");
        assert_eq!(
            query("/x".into(), &[("a", "b=c,d"), ("e", ""), ("f", "g")]),
            "/x?a=b%3Dc%2Cd&f=g"
        );
    }

    #[tokio::test]
    async fn a_watch_is_cut_into_lines_wherever_its_chunks_end() {
        let chunks = ["ab", "c\nd", "\n\nef\n"].map(|c| Ok(Bytes::from(c)));
        let found: Vec<Bytes> = lines(stream::iter(chunks)).try_collect().await.unwrap();
        assert_eq!(found, ["abc", "d", "", "ef"]);
    }

    #[test]
    fn an_error_event_is_the_error() {
        let line = br#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}"#;
        assert!(event(&POD, line).unwrap_err().is_expired());
        let line = br#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12"}}}"#;
        assert!(matches!(event(&POD, line), Ok(WatchEvent::Bookmark(12))));
    }
}
