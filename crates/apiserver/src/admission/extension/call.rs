//! Calls a webhook: over TLS, at its URL or at its service's endpoints, which are reached without any proxy.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::admissionregistration::v1::{ServiceReference, WebhookClientConfig};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::{Object, k8s_openapi, registry};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::Service;

use crate::cache::Cache;
use crate::cache::change::Filter;
use crate::tls::link::Link;
use crate::tls::outgoing;

/// The longest answer that is read, in bytes: as long as any object.
const ANSWER_MAX_BYTES: usize = 3 * 1024 * 1024;
const HTTPS_PORT: u16 = 443;
/// Connections that are kept for each endpoint of a webhook, and for how long: client-go's and Go's own limits.
const IDLE_MAX: usize = 25;
const IDLE_LIMIT: Duration = Duration::from_secs(90);
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Where a webhook is called.
struct Endpoint {
    /// As errors name it.
    url: String,
    path: String,
    /// What its certificate must be for.
    host: String,
    /// Host and port that are dialled.
    address: String,
}

/// The webhook's answer to `review`, or why there is none, in Kubernetes' words. `query` is what its URL has behind the
/// path.
pub(crate) async fn call_webhook(
    cache: &Cache,
    config: &WebhookClientConfig,
    client: Result<WebhookClient, String>,
    (timeout, query): (Duration, Option<String>),
    review: &Value,
) -> Result<Value, String> {
    let endpoint = Endpoint::of(cache, config, query.as_deref())?;
    let posted = |why: &str| format!("Post {:?}: {why}", endpoint.url);
    let client = client.map_err(|why| posted(&why))?;
    let body = Bytes::from(review.to_string());
    match tokio::time::timeout(timeout, client.post(&endpoint, body)).await {
        Err(_) => Err(posted("context deadline exceeded")),
        Ok(Err(Failure::Transport(why))) => Err(posted(&why)),
        Ok(Err(Failure::Answer(why))) => Err(why),
        Ok(Ok(answer)) => Ok(answer),
    }
}

fn service_host(service: &ServiceReference) -> String {
    format!("{}.{}.svc", service.name, service.namespace)
}

/// A URL as configurations have it.
struct Url<'a> {
    host: &'a str,
    address: String,
    path: &'a str,
}

impl<'a> Url<'a> {
    fn parse(url: &'a str) -> Result<Self, String> {
        let rest = url
            .strip_prefix("https://")
            .ok_or_else(|| format!("{url:?} is no https URL"))?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, address) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                (host, authority.to_string())
            }
            _ => (authority, format!("{authority}:{HTTPS_PORT}")),
        };
        Ok(Url {
            host: host.trim_matches(['[', ']']),
            address,
            path: path.trim_start_matches('/'),
        })
    }
}

impl Endpoint {
    fn of(cache: &Cache, config: &WebhookClientConfig, query: Option<&str>) -> Result<Self, String> {
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        if let Some(service) = &config.service {
            let port = service
                .port
                .and_then(|p| u16::try_from(p).ok())
                .unwrap_or(HTTPS_PORT);
            let path = service
                .path
                .as_deref()
                .unwrap_or_default()
                .trim_start_matches('/');
            let host = service_host(service);
            return Ok(Endpoint {
                url: format!("https://{host}:{port}/{path}{query}"),
                path: format!("/{path}{query}"),
                address: endpoint(cache, &service.namespace, &service.name, port)?,
                host,
            });
        }
        let given = config.url.as_deref().unwrap_or_default();
        let url = Url::parse(given)?;
        Ok(Endpoint {
            url: format!("{given}{query}"),
            path: format!("/{}{query}", url.path),
            host: url.host.to_string(),
            address: url.address,
        })
    }
}

/// An address at which the service's port is served.
fn endpoint(cache: &Cache, namespace: &str, name: &str, port: u16) -> Result<String, String> {
    let object = cache.get(&registry::SERVICE, namespace, name);
    let object = object.ok_or_else(|| format!("service {name:?} not found"))?;
    let slices = cache
        .of(&registry::ENDPOINT_SLICE)
        .map(|cache| cache.list(&Filter::everything(&registry::ENDPOINT_SLICE, namespace)))
        .unwrap_or_default();
    let of_it = |slice: &&Arc<Object>| {
        let labels = slice.metadata().labels.as_ref();
        labels
            .and_then(|l| l.get(SERVICE_LABEL))
            .is_some_and(|of| of == name)
    };
    let slices = slices
        .iter()
        .filter(of_it)
        .filter_map(|slice| slice.get::<EndpointSlice>());
    let service = object.get::<core::Service>().cloned().unwrap_or_default();
    endpoint_of(&service, slices, port).map_err(|why| format!("{why} service {name:?}"))
}

/// The first endpoint that is ready at which this port of the service is served.
fn endpoint_of<'a>(
    service: &core::Service,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port: u16,
) -> Result<String, String> {
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        return Ok(format!("{}:{port}", spec.external_name.unwrap_or_default()));
    }
    let ports = spec.ports.unwrap_or_default();
    let service_port = ports.iter().find(|p| p.port == i32::from(port));
    let service_port = service_port.ok_or_else(|| format!("no service port {port} found for"))?;
    let wanted = service_port.name.as_deref().unwrap_or_default();
    for slice in slices {
        let mut slice_ports = slice.ports.iter().flatten();
        let target = slice_ports.find(|p| p.name.as_deref().unwrap_or_default() == wanted);
        let number = target.and_then(|p| p.port);
        let ready = slice.endpoints.iter().flatten().find(|e| {
            let ready = e.conditions.as_ref().and_then(|c| c.ready);
            ready != Some(false) && !e.addresses.is_empty()
        });
        if let (Some(number), Some(address)) = (number, ready.and_then(|e| e.addresses.first())) {
            return Ok(match address.contains(':') {
                true => format!("[{address}]:{number}"),
                false => format!("{address}:{number}"),
            });
        }
    }
    Err("no endpoints available for".into())
}

/// Calls one webhook as it is configured. Its connections are kept for the next call (as kube-apiserver's are): a call
/// over a kept connection costs no TLS handshake.
#[derive(Clone)]
pub(crate) struct WebhookClient(Client<Connector, Full<Bytes>>);

impl WebhookClient {
    /// Trusts the configuration's bundle; the system's authorities where there is none.
    pub fn new(config: &WebhookClientConfig) -> Result<Self, String> {
        let bundle = config.ca_bundle.as_ref().map_or(&[][..], |b| &b.0);
        let trusted = outgoing::authorities(bundle)?;
        let tls = outgoing::trusting(trusted);
        let tls = tls.map_err(|e| format!("unable to load root certificates: {e}"))?;
        let host = match &config.service {
            Some(service) => service_host(service),
            None => Url::parse(config.url.as_deref().unwrap_or_default())?
                .host
                .to_string(),
        };
        let name = ServerName::try_from(host).map_err(|e| e.to_string())?;
        let connector = Connector { tls, name };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_MAX)
            .pool_idle_timeout(IDLE_LIMIT)
            .build(connector);
        Ok(WebhookClient(client))
    }

    async fn post(&self, to: &Endpoint, body: Bytes) -> Result<Value, Failure> {
        let transport = |e: &dyn std::fmt::Display| Failure::Transport(e.to_string());
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("https://{}{}", to.address, to.path))
            .header(HOST, &to.host)
            .header(USER_AGENT, "kube-apiserver-admission")
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| transport(&e))?;
        let answer = self.0.request(request).await;
        let answer = answer.map_err(|e| Failure::Transport(innermost(&e)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_MAX_BYTES).collect().await;
        let body = body.map_err(|e| transport(&e))?.to_bytes();
        if !status.is_success() {
            return Err(Failure::Answer(refused(status, &body)));
        }
        serde_json::from_slice(&body).map_err(|e| {
            Failure::Answer(format!(
                "couldn't get version/kind; json parse error: {e}; the webhook said {:?}",
                String::from_utf8_lossy(body.get(..200).unwrap_or(&body))
            ))
        })
    }
}

#[derive(Clone)]
struct Connector {
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("dial tcp {0}: connect: {why}", why = dialled(.1))]
    Dial(String, io::Error),
    #[error("tls: failed to verify certificate: {0}")]
    Tls(io::Error),
}

impl Service<Uri> for Connector {
    type Response = Link<TcpStream>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let address = uri.authority().map(|a| a.as_str()).unwrap_or_default();
            let stream = TcpStream::connect(address).await;
            let stream = stream.map_err(|e| ConnectError::Dial(address.to_string(), e))?;
            // A call is one small write that waits for its answer.
            stream
                .set_nodelay(true)
                .map_err(|e| ConnectError::Dial(address.to_string(), e))?;
            let stream = TlsConnector::from(connector.tls)
                .connect(connector.name, stream)
                .await
                .map_err(ConnectError::Tls)?;
            Ok(Link::new(stream))
        })
    }
}

/// The innermost source of a client's error.
pub(crate) fn innermost(error: &ClientError) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

enum Failure {
    /// There was no answer.
    Transport(String),
    /// There was one, but not as a webhook answers.
    Answer(String),
}

/// Why a connection failed, in Go's words.
pub(crate) fn dialled(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        _ => error.to_string(),
    }
}

/// An HTTP error in client-go's words.
fn refused(status: http::StatusCode, body: &[u8]) -> String {
    let said = serde_json::from_slice::<Value>(body).ok();
    let said = said.as_ref().and_then(|v| v.get("message")?.as_str());
    match (said, status.as_u16()) {
        (Some(message), _) => message.to_string(),
        (None, 404) => "the server could not find the requested resource".into(),
        (None, 401) => "Unauthorized".into(),
        (None, 403) => format!("forbidden: {}", String::from_utf8_lossy(body).trim()),
        (None, 500) => format!(
            "an error on the server ({:?}) has prevented the request from succeeding",
            String::from_utf8_lossy(body).trim()
        ),
        (None, code) => {
            format!("the server responded with the status code {code} but did not return more information")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_services_port_is_found_at_an_endpoint_that_is_ready() {
        let service = json!({"spec": {"ports": [{"name": "web", "port": 80}, {"name": "https", "port": 443, "targetPort": "tls"}]}});
        let service: core::Service = serde_json::from_value(service).unwrap();
        let slice = |ready: bool, address: &str| -> EndpointSlice {
            let slice = json!({"addressType": "IPv4", "ports": [{"name": "web", "port": 8080}, {"name": "https", "port": 8443}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": ready}}]});
            serde_json::from_value(slice).unwrap()
        };
        let (unready, v4, v6) = (
            slice(false, "10.0.0.1"),
            slice(true, "10.0.0.2"),
            slice(true, "fd00::1"),
        );
        for (slices, port, want) in [
            (vec![&unready, &v4], 443, Ok("10.0.0.2:8443")),
            (vec![&v6, &v4], 80, Ok("[fd00::1]:8080")),
            (vec![&unready], 443, Err("no endpoints available for")),
            (vec![&v4], 8443, Err("no service port 8443 found for")),
        ] {
            let found = endpoint_of(&service, slices.into_iter(), port);
            assert_eq!(found.as_deref().map_err(String::as_str), want);
        }
        let outside = json!({"spec": {"type": "ExternalName", "externalName": "hook.example.com"}});
        let outside: core::Service = serde_json::from_value(outside).unwrap();
        let found = endpoint_of(&outside, std::iter::empty(), 443);
        assert_eq!(found.as_deref(), Ok("hook.example.com:443"));
    }
}
