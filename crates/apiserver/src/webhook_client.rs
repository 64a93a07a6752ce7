//! Calls a webhook over TLS, at its URL or at an endpoint of its Service.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::admissionregistration::v1::{ServiceReference, WebhookClientConfig};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::well_known::SERVICE_NAME;
use knarr_api::{Object, k8s_openapi, registry};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::cache::Cache;
use crate::cache::change::Filter;
use crate::tls::pool::{Connector, Dial, innermost_error};
use crate::tls::{TlsError, client};

/// The largest response that is read: as large as any object.
const RESPONSE_MAX_BYTES: usize = 3 * 1024 * 1024;
const HTTPS_PORT: u16 = 443;
/// Idle connections that are kept for each endpoint of a webhook, and for how long: the limits of client-go and net/http.
const IDLE_MAX: usize = 25;
const IDLE_LIMIT: Duration = Duration::from_secs(90);

/// The address of a webhook.
struct Endpoint {
    /// The URL in error messages.
    url: String,
    path: String,
    /// The host name that its certificate must be valid for.
    host: String,
    /// Host and port to dial.
    address: String,
}

/// Why a call of a webhook failed, in kube-apiserver's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// There was no response.
    #[error("Post {url:?}: {failure}")]
    Post { url: String, failure: PostFailure },
    /// There was a response, but not the expected document.
    #[error("{0}")]
    Response(String),
}

/// Why a webhook has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndpointError {
    #[error("{0:?} is not an https URL")]
    NotHttps(String),
    #[error("service {0:?} not found")]
    NoService(String),
    #[error("no service port {port} found for service {service:?}")]
    NoPort { port: u16, service: String },
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
}

/// Why there was no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostFailure {
    #[error("context deadline exceeded")]
    Timeout,
    #[error(transparent)]
    Client(ClientError),
    #[error("{0}")]
    Transport(String),
}

/// Why a webhook's client configuration cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    CaBundle(TlsError),
    #[error("unable to load root certificates: {0}")]
    Tls(#[source] TlsError),
    #[error(transparent)]
    Url(#[from] EndpointError),
    #[error("{0}")]
    ServerName(String),
}

/// The webhook's response to `review`. `query` is the query of its URL.
pub(crate) async fn call_webhook(
    cache: &Cache,
    config: &WebhookClientConfig,
    client: Result<WebhookClient, ClientError>,
    (timeout, query): (Duration, Option<String>),
    review: &Value,
) -> Result<Value, CallError> {
    let endpoint = Endpoint::of(cache, config, query.as_deref())?;
    let post_error = |failure| CallError::Post {
        url: endpoint.url.clone(),
        failure,
    };
    let client = client.map_err(|error| post_error(PostFailure::Client(error)))?;
    let request = client.post(&endpoint, Bytes::from(review.to_string()));
    let timed_out = |_| post_error(PostFailure::Timeout);
    tokio::time::timeout(timeout, request).await.map_err(timed_out)?
}

fn service_host(service: &ServiceReference) -> String {
    format!("{}.{}.svc", service.name, service.namespace)
}

/// The URL of a webhook's clientConfig.
struct Url<'a> {
    host: &'a str,
    address: String,
    path: &'a str,
}

impl<'a> Url<'a> {
    fn parse(url: &'a str) -> Result<Self, EndpointError> {
        let rest = url
            .strip_prefix("https://")
            .ok_or_else(|| EndpointError::NotHttps(url.to_string()))?;
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
    fn of(cache: &Cache, config: &WebhookClientConfig, query: Option<&str>) -> Result<Self, EndpointError> {
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
                address: service_endpoint(cache, &service.namespace, &service.name, port)?,
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

/// An address at which the Service's port is served.
fn service_endpoint(cache: &Cache, namespace: &str, name: &str, port: u16) -> Result<String, EndpointError> {
    let object = cache.get(&registry::SERVICE, namespace, name);
    let object = object.ok_or_else(|| EndpointError::NoService(name.to_string()))?;
    let slices = cache
        .of(&registry::ENDPOINT_SLICE)
        .map(|cache| cache.list(&Filter::everything(&registry::ENDPOINT_SLICE, namespace)))
        .unwrap_or_default();
    let of_service = |slice: &&Arc<Object>| {
        let labels = slice.metadata().labels.as_ref();
        labels
            .and_then(|l| l.get(SERVICE_NAME))
            .is_some_and(|of| of == name)
    };
    let slices = slices
        .iter()
        .filter(of_service)
        .filter_map(|slice| slice.get::<EndpointSlice>());
    let service = object.get::<core::Service>().cloned().unwrap_or_default();
    first_ready_endpoint(&service, slices, port)
}

/// The first ready endpoint of this port of the Service.
fn first_ready_endpoint<'a>(
    service: &core::Service,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    port: u16,
) -> Result<String, EndpointError> {
    let name = || service.metadata.name.clone().unwrap_or_default();
    let spec = service.spec.clone().unwrap_or_default();
    if spec.type_.as_deref() == Some("ExternalName") {
        return Ok(format!("{}:{port}", spec.external_name.unwrap_or_default()));
    }
    let ports = spec.ports.unwrap_or_default();
    let service_port = ports.iter().find(|p| p.port == i32::from(port));
    let service_port = service_port.ok_or_else(|| EndpointError::NoPort {
        port,
        service: name(),
    })?;
    let port_name = service_port.name.as_deref().unwrap_or_default();
    for slice in slices {
        let mut slice_ports = slice.ports.iter().flatten();
        let target = slice_ports.find(|p| p.name.as_deref().unwrap_or_default() == port_name);
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
    Err(EndpointError::NoEndpoints(name()))
}

/// A client for one webhook's clientConfig. Idle connections are kept for the next call, as in kube-apiserver: a call over
/// a kept connection needs no TLS handshake.
#[derive(Clone)]
pub(crate) struct WebhookClient(Client<Connector<TcpDialer>, Full<Bytes>>);

impl WebhookClient {
    /// Trusts the CAs of `caBundle`; the system's CAs if it is empty.
    pub fn new(config: &WebhookClientConfig) -> Result<Self, ClientError> {
        let bundle = config.ca_bundle.as_ref().map_or(&[][..], |b| &b.0);
        let trusted = client::ca_certificates(bundle).map_err(ClientError::CaBundle)?;
        let tls = client::config(trusted).map_err(ClientError::Tls)?;
        let host = match &config.service {
            Some(service) => service_host(service),
            None => Url::parse(config.url.as_deref().unwrap_or_default())?
                .host
                .to_string(),
        };
        let name = ServerName::try_from(host).map_err(|e| ClientError::ServerName(e.to_string()))?;
        let connector = Connector {
            dialer: TcpDialer,
            tls,
            server_name: name,
            // The call has a timeout.
            timeout: None,
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_MAX)
            .pool_idle_timeout(IDLE_LIMIT)
            .build(connector);
        Ok(WebhookClient(client))
    }

    async fn post(&self, to: &Endpoint, body: Bytes) -> Result<Value, CallError> {
        let no_response = |why: String| CallError::Post {
            url: to.url.clone(),
            failure: PostFailure::Transport(why),
        };
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("https://{}{}", to.address, to.path))
            .header(HOST, &to.host)
            .header(USER_AGENT, "kube-apiserver-admission")
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| no_response(e.to_string()))?;
        let response = self.0.request(request).await;
        let response = response.map_err(|e| no_response(innermost_error(&e)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), RESPONSE_MAX_BYTES)
            .collect()
            .await;
        let body = body.map_err(|e| no_response(e.to_string()))?.to_bytes();
        if !status.is_success() {
            return Err(CallError::Response(http_error(status, &body)));
        }
        serde_json::from_slice(&body).map_err(|e| {
            CallError::Response(format!(
                "couldn't get version/kind; json parse error: {e}; the response was {:?}",
                String::from_utf8_lossy(body.get(..200).unwrap_or(&body))
            ))
        })
    }
}

/// Dials over TCP; the host may be a name.
#[derive(Clone)]
struct TcpDialer;

impl Dial for TcpDialer {
    type Stream = TcpStream;

    fn dial(&self, address: String) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            // A call is one small write that waits for its response.
            stream.set_nodelay(true)?;
            Ok(stream)
        })
    }
}

/// The message of an HTTP error as client-go builds it.
fn http_error(status: http::StatusCode, body: &[u8]) -> String {
    let message = serde_json::from_slice::<Value>(body).ok();
    let message = message.as_ref().and_then(|v| v.get("message")?.as_str());
    match (message, status.as_u16()) {
        (Some(text), _) => text.to_string(),
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
        let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "web", "port": 80}, {"name": "https", "port": 443, "targetPort": "tls"}]}});
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
            (
                vec![&unready],
                443,
                Err("no endpoints available for service \"hook\"".to_string()),
            ),
            (
                vec![&v4],
                8443,
                Err("no service port 8443 found for service \"hook\"".to_string()),
            ),
        ] {
            let found = first_ready_endpoint(&service, slices.into_iter(), port);
            assert_eq!(found.as_deref().map_err(ToString::to_string), want);
        }
        let outside = json!({"spec": {"type": "ExternalName", "externalName": "hook.example.com"}});
        let outside: core::Service = serde_json::from_value(outside).unwrap();
        let found = first_ready_endpoint(&outside, std::iter::empty(), 443);
        assert_eq!(found.as_deref(), Ok("hook.example.com:443"));
    }
}
