//! `pods/proxy`, `services/proxy` and `nodes/proxy`: HTTP proxied to a pod, to one of the pods behind a Service, or to a node,
//! upgrades to WebSocket included.
//!
//! Only addresses that pods and nodes can have are dialed: no loopback and link-local addresses, which a client that may write
//! a pod's status could set; and behind a Service only pods. The client's credentials are not forwarded. Request bodies are
//! buffered, with the size limit of other requests; responses are streamed, except for HTML pages, whose links are rewritten.

mod links;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{DeflateDecoder, GzDecoder};
use flate2::write::DeflateEncoder;
use futures::StreamExt;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, LOCATION, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Node, Pod, Service};
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_client::Conn;
use rustls::pki_types::ServerName;

use self::links::Page;
use super::node_stream::{Connector, ForwardedHeaders, ProxyError};
use crate::http::Http;
use crate::http::body::{Body, BoxError, full, gzip};
use crate::http::response::HandlerResponse;
use crate::request::Target;
use crate::tls::pool::dial_error;
use crate::tls::{self, TlsError};

/// The timeout of a connection to a pod with its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The largest page whose links are rewritten, compressed and uncompressed.
const PAGE_MAX_BYTES: usize = 8 * 1024 * 1024;
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// CORS headers are set by this server only.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// The name in a proxy URL: `[scheme:]name[:port]` (SplitSchemeNamePort).
#[derive(Debug, PartialEq, Eq)]
struct SchemeNamePort<'a> {
    https: bool,
    name: &'a str,
    port: &'a str,
}

impl<'a> SchemeNamePort<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (https, name, port) = match parts.as_slice() {
            [name] => (false, *name, ""),
            [name, port] => (false, *name, *port),
            ["" | "http", name, port] => (false, *name, *port),
            ["https", name, port] => (true, *name, *port),
            _ => return None,
        };
        (!name.is_empty()).then_some(SchemeNamePort { https, name, port })
    }
}

/// The backend of a proxied request.
enum Backend {
    /// A node's kubelet, over the node's own connection.
    Kubelet(String),
    Address {
        ip: IpAddr,
        /// The requested port; empty for the scheme's default.
        port: String,
        https: bool,
    },
}

impl Backend {
    /// `host` or `host:port`.
    fn host(&self) -> String {
        match self {
            Backend::Kubelet(node) => node.clone(),
            Backend::Address { ip, port, .. } => {
                let ip = match ip {
                    IpAddr::V4(v4) => v4.to_string(),
                    IpAddr::V6(v6) => format!("[{v6}]"),
                };
                if port.is_empty() {
                    ip
                } else {
                    format!("{ip}:{port}")
                }
            }
        }
    }
}

/// Why a backend is not reached, in the words of Go's `net` package.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error("{0}")]
    Node(std::io::Error),
    #[error("dial tcp: lookup tcp/{0}: unknown port")]
    UnknownPort(String),
    #[error("dial tcp {address}: connect: {}", dial_error(.error))]
    Dial {
        address: SocketAddr,
        error: std::io::Error,
    },
    #[error(transparent)]
    TlsConfig(#[from] TlsError),
    #[error("tls: {0}")]
    Tls(std::io::Error),
    #[error("dial tcp {0}: i/o timeout")]
    Timeout(SocketAddr),
}

impl Connector {
    /// Proxies a request. `path` is the path behind the proxy: empty, or beginning with a slash.
    pub(super) async fn proxy(
        &self,
        http: &mut Http,
        target: &Target<'_>,
        path: &str,
    ) -> Result<HandlerResponse, Error> {
        let what = target.kind.singular();
        let requested = SchemeNamePort::parse(target.name)
            .ok_or_else(|| Error::bad_request(format!("invalid {what} request {:?}", target.name)))?;
        let backend_address = if *target.kind == registry::POD {
            self.pod_backend(target.namespace, &requested)?
        } else if *target.kind == registry::SERVICE {
            self.service_backend(target.namespace, target.name, &requested)?
        } else {
            self.node_backend(&requested)?
        };
        let upgrades = http.headers.contains_key(UPGRADE);
        if path.is_empty() && !upgrades && matches!(http.method, Method::GET | Method::HEAD) {
            return Ok(HandlerResponse::Raw(redirect_to_root(http)?));
        }
        // kube-apiserver has different errors for upgrade requests.
        let failed = |why: String| match upgrades {
            true => Error::new(500, "", format!("error dialing backend: {why}")),
            false => Error::unavailable(format!("error trying to reach service: {why}")),
        };
        let stream = self.connect(&backend_address).await;
        let stream = stream.map_err(|e| failed(e.to_string()))?;
        let own = http.request.uri().path().to_string();
        let root = own.strip_suffix(path).unwrap_or(&own);
        let client = http.client.map(|ip| ip.to_string());
        set_header(&mut http.headers, &FORWARDED_FOR, client, true);
        if !upgrades {
            set_header(
                &mut http.headers,
                &FORWARDED_URI,
                Some(links::join(root, path)),
                false,
            );
        }
        let query = http.request.uri().query();
        let query = query.map_or(String::new(), |q| format!("?{q}"));
        let path_and_query = if path.is_empty() {
            format!("/{query}")
        } else {
            format!("{path}{query}")
        };
        let backend = backend_address.host();
        let request_host = match http.header(HOST) {
            "" => http.request.uri().authority().map_or("", |a| a.as_str()),
            host => host,
        };
        let request_host = request_host.to_string();
        let host = if request_host.is_empty() {
            &backend
        } else {
            &request_host
        };
        let mut response = self
            .proxy_request(http, stream, host, &path_and_query, ForwardedHeaders::All)
            .await
            .map_err(|e| match e {
                ProxyError::Backend(e) => failed(e.to_string()),
                ProxyError::Client(e) => e,
            })?;
        if upgrades {
            return Ok(HandlerResponse::Raw(response));
        }
        for name in CORS {
            response.headers_mut().remove(name);
        }
        let page = Page {
            root,
            backend: &backend,
            request_host: &request_host,
        };
        rewrite_links(&page, response).await.map(HandlerResponse::Raw)
    }

    async fn connect(&self, backend_address: &Backend) -> Result<Box<dyn Conn>, ConnectError> {
        let (ip, port, https) = match backend_address {
            Backend::Kubelet(node) => return self.nodes.dial(node).await.map_err(ConnectError::Node),
            Backend::Address { ip, port, https } => (*ip, port.as_str(), *https),
        };
        let port: u16 = match (port, https) {
            ("", true) => 443,
            ("", false) => 80,
            (port, _) => port
                .parse()
                .map_err(|_| ConnectError::UnknownPort(port.to_string()))?,
        };
        let address = SocketAddr::new(ip, port);
        let connect = async {
            let stream = self.nodes.dial_address(address).await;
            let stream = stream.map_err(|error| ConnectError::Dial { address, error })?;
            if !https {
                return Ok(stream);
            }
            let tls = tls::connector(None, None)?;
            let stream = tls.connect(ServerName::from(ip), stream).await;
            let stream = stream.map_err(ConnectError::Tls)?;
            Ok(Box::new(stream) as Box<dyn Conn>)
        };
        tokio::time::timeout(CONNECT_LIMIT, connect)
            .await
            .map_err(|_| ConnectError::Timeout(address))?
    }

    fn pod_backend(&self, namespace: &str, requested: &SchemeNamePort<'_>) -> Result<Backend, Error> {
        let object = self
            .pipeline
            .get(&Target::main(&registry::POD, namespace, requested.name))?;
        let pod = object.get::<Pod>();
        let containers = pod.and_then(|p| p.spec.as_ref()).map(|s| &s.containers);
        let first = containers
            .into_iter()
            .flatten()
            .find_map(|c| c.ports.as_ref()?.first().map(|p| p.container_port.to_string()));
        let ip = pod.and_then(|p| p.status.as_ref()?.pod_ip.as_deref());
        Ok(Backend::Address {
            ip: dialable_address(ip.unwrap_or(""))?,
            port: match requested.port {
                "" => first.unwrap_or_default(),
                port => port.to_string(),
            },
            https: requested.https,
        })
    }

    /// One of the ready pods behind the Service. `id` is the name in the URL.
    fn service_backend(
        &self,
        namespace: &str,
        id: &str,
        requested: &SchemeNamePort<'_>,
    ) -> Result<Backend, Error> {
        let mut port_name = requested.port.to_string();
        if let Ok(number) = requested.port.parse::<i64>() {
            let object = self
                .pipeline
                .get(&Target::main(&registry::SERVICE, namespace, requested.name))?;
            let spec = object.get::<Service>().and_then(|s| s.spec.as_ref());
            let mut ports = spec.and_then(|s| s.ports.as_ref()).into_iter().flatten();
            let Some(port) = ports.find(|p| i64::from(p.port) == number) else {
                return Err(Error::unavailable(format!(
                    "no service port {number} found for service {:?}",
                    requested.name
                )));
            };
            port_name = port.name.clone().unwrap_or_default();
        }
        let object = self
            .pipeline
            .get(&Target::main(&registry::ENDPOINTS, namespace, requested.name))?;
        let subsets = object.get::<Endpoints>().and_then(|e| e.subsets.as_ref());
        let mut all: Vec<(&EndpointAddress, i32)> = Vec::new();
        for subset in subsets.into_iter().flatten() {
            let mut ports = subset.ports.iter().flatten();
            if let Some(port) = ports.find(|p| p.name.as_deref().unwrap_or("") == port_name) {
                all.extend(subset.addresses.iter().flatten().map(|a| (a, port.port)));
            }
        }
        let mut random = [0; 4];
        self.pipeline.entropy.fill(&mut random);
        let first = usize::try_from(u32::from_le_bytes(random)).unwrap_or(0);
        let first = first.checked_rem(all.len()).unwrap_or(0);
        all.rotate_left(first);
        for (address, port) in all {
            if self.is_pod_address(namespace, address) {
                return Ok(Backend::Address {
                    ip: dialable_address(&address.ip)?,
                    port: port.to_string(),
                    https: requested.https,
                });
            }
        }
        let none = if subsets.is_none_or(Vec::is_empty) {
            requested.name
        } else {
            id
        };
        Err(Error::unavailable(format!(
            "no endpoints available for service {none:?}"
        )))
    }

    /// Whether the address is that of its targetRef, a pod in the namespace.
    fn is_pod_address(&self, namespace: &str, address: &EndpointAddress) -> bool {
        let Some(to) = &address.target_ref else {
            return false;
        };
        if to.namespace.as_deref() != Some(namespace) {
            return false;
        }
        let name = to.name.as_deref().unwrap_or("");
        let pod = self.pipeline.cache.get(&registry::POD, namespace, name);
        let ips = pod
            .as_ref()
            .and_then(|p| p.get::<Pod>()?.status.as_ref()?.pod_ips.as_ref());
        ips.into_iter().flatten().any(|ip| ip.ip == address.ip)
    }

    /// The node's kubelet, or another port of the node if one is requested.
    fn node_backend(&self, requested: &SchemeNamePort<'_>) -> Result<Backend, Error> {
        let object = self
            .pipeline
            .get(&Target::main(&registry::NODE, "", requested.name))?;
        let status = object.get::<Node>().and_then(|n| n.status.as_ref());
        let endpoints = status.and_then(|s| s.daemon_endpoints.as_ref());
        let kubelet = endpoints
            .and_then(|e| e.kubelet_endpoint.as_ref())
            .map(|e| e.port.to_string());
        if requested.port.is_empty() || kubelet.as_deref() == Some(requested.port) {
            return Ok(Backend::Kubelet(requested.name.to_string()));
        }
        let mut addresses = status.and_then(|s| s.addresses.as_ref()).into_iter().flatten();
        let internal = addresses.find(|a| a.type_ == "InternalIP");
        Ok(Backend::Address {
            ip: dialable_address(internal.map_or("", |a| a.address.as_str()))?,
            port: requested.port.to_string(),
            https: requested.https,
        })
    }
}

/// Sets a header, with `append` after its existing value.
fn set_header(headers: &mut HeaderMap, name: &HeaderName, value: Option<String>, append: bool) {
    let before = headers.get(name).filter(|_| append).and_then(|v| v.to_str().ok());
    let value = match (before, value) {
        (Some(before), Some(value)) => format!("{before}, {value}"),
        (_, Some(value)) => value,
        (_, None) => return,
    };
    // A value that is not valid in a header is dropped.
    if let Ok(value) = HeaderValue::from_str(&value) {
        headers.insert(name, value);
    }
}

/// The response with its links through the proxy.
async fn rewrite_links(page: &Page<'_>, response: Response<Body>) -> Result<Response<Body>, Error> {
    let (mut head, body) = response.into_parts();
    if let Some(location) = head.headers.get(LOCATION).and_then(|l| l.to_str().ok()) {
        if let Some(through) = page.link(location) {
            let through = HeaderValue::from_str(&through).map_err(Error::internal)?;
            head.headers.insert(LOCATION, through);
        }
        return Ok(Response::from_parts(head, body));
    }
    let text = |name: HeaderName| head.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("");
    let html = text(CONTENT_TYPE)
        .split(';')
        .next()
        .is_some_and(|t| t.trim() == "text/html");
    let encoding = match text(CONTENT_ENCODING) {
        "" => ContentEncoding::Identity,
        "gzip" => ContentEncoding::Gzip,
        "deflate" => ContentEncoding::Deflate,
        // A response with another encoding is forwarded unchanged.
        _ => return Ok(Response::from_parts(head, body)),
    };
    if !html {
        return Ok(Response::from_parts(head, body));
    }
    let (bytes, rest) = read_up_to_limit(body).await?;
    if let Some(rest) = rest {
        let begun = futures::stream::once(async move { Ok::<_, BoxError>(Frame::data(bytes)) });
        let body = StreamBody::new(begun.chain(rest.into_data_stream().map(|d| d.map(Frame::data))));
        return Ok(Response::from_parts(head, body.boxed_unsync()));
    }
    // A page that does not decompress is forwarded unchanged.
    let rewritten = encoding
        .decode(&bytes)
        .and_then(|plain| encoding.encode(&page.rewrite(&plain)));
    let bytes = match rewritten {
        Ok(rewritten) => Bytes::from(rewritten),
        Err(e) => {
            tracing::debug!("cannot rewrite the links of a proxied page: {e}");
            bytes
        }
    };
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, full(bytes)))
}

/// Reads a body up to [`PAGE_MAX_BYTES`]. For a larger one also the unread rest.
async fn read_up_to_limit(mut body: Body) -> Result<(Bytes, Option<Body>), Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Error::unavailable(format!("error trying to reach service: {e}")))?;
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
        if bytes.len() > PAGE_MAX_BYTES {
            return Ok((bytes.into(), Some(body)));
        }
    }
    Ok((bytes.into(), None))
}

/// The content encoding of a page.
enum ContentEncoding {
    Identity,
    Gzip,
    Deflate,
}

impl ContentEncoding {
    fn decode(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let limit = PAGE_MAX_BYTES as u64 + 1;
        let mut plain = Vec::new();
        let length = match self {
            ContentEncoding::Identity => return Ok(bytes.to_vec()),
            ContentEncoding::Gzip => {
                io::Read::read_to_end(&mut io::Read::take(GzDecoder::new(bytes), limit), &mut plain)?
            }
            ContentEncoding::Deflate => {
                io::Read::read_to_end(&mut io::Read::take(DeflateDecoder::new(bytes), limit), &mut plain)?
            }
        };
        if length > PAGE_MAX_BYTES {
            return Err(io::Error::other("the page is too large"));
        }
        Ok(plain)
    }

    fn encode(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            ContentEncoding::Identity => Ok(plain.to_vec()),
            ContentEncoding::Gzip => gzip(plain),
            ContentEncoding::Deflate => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                io::Write::write_all(&mut encoder, plain)?;
                encoder.finish()
            }
        }
    }
}

/// Redirects to the backend's root with a trailing slash, so that relative links of its pages resolve.
fn redirect_to_root(http: &Http) -> Result<Response<Body>, Error> {
    let query = http.request.uri().query();
    let query = query.map_or(String::new(), |q| format!("?{q}"));
    let to = format!("{}/{query}", http.request.uri().path());
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let to = HeaderValue::from_str(&to).map_err(Error::internal)?;
    response.headers_mut().insert(LOCATION, to);
    Ok(response)
}

/// The address, if it may be dialed.
fn dialable_address(ip: &str) -> Result<IpAddr, Error> {
    let ip = ip.parse().ok().filter(|ip| is_dialable(*ip));
    ip.ok_or_else(|| Error::bad_request("address not allowed"))
}

/// Whether it can be a pod's or a node's address: neither loopback, link-local, unspecified nor multicast.
pub(crate) fn is_dialable(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some_and(|v4| !is_dialable(v4.into()))
        }
    };
    !(local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_scheme_and_a_port() {
        let requested = |https, name, port| Some(SchemeNamePort { https, name, port });
        for (text, expected) in [
            ("web", requested(false, "web", "")),
            ("web:80", requested(false, "web", "80")),
            ("web:http-alt", requested(false, "web", "http-alt")),
            ("http:web:80", requested(false, "web", "80")),
            ("https:web:", requested(true, "web", "")),
            ("https:web:443", requested(true, "web", "443")),
            ("ftp:web:21", None),
            (":", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(SchemeNamePort::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn loopback_and_link_local_addresses_are_not_dialed() {
        for (ip, expected) in [
            ("10.244.0.5", true),
            ("fd00::5", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.1.1", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("localhost", false),
            ("", false),
        ] {
            assert_eq!(dialable_address(ip).is_ok(), expected, "{ip}");
        }
    }

    #[test]
    fn a_page_keeps_its_encoding_and_its_decompressed_size_is_limited() {
        let page = "<a href=/b>".repeat(100);
        for encoding in [
            ContentEncoding::Identity,
            ContentEncoding::Gzip,
            ContentEncoding::Deflate,
        ] {
            let encoded = encoding.encode(page.as_bytes()).unwrap();
            assert_eq!(encoding.decode(&encoded).unwrap(), page.as_bytes());
        }
        let bomb = ContentEncoding::Gzip
            .encode(&vec![b'a'; PAGE_MAX_BYTES + 1])
            .unwrap();
        assert!(ContentEncoding::Gzip.decode(&bomb).is_err());
        assert!(ContentEncoding::Gzip.decode(b"no gzip").is_err());
    }
}
