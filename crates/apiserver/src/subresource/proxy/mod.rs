//! `pods/proxy`, `services/proxy` and `nodes/proxy`: HTTP carried to a pod, to one of the pods behind a Service, or to
//! a node, and what becomes of it back, WebSockets included.
//!
//! Only addresses that pods and nodes of a network can have are dialled: neither this machine's own (loopback) nor
//! link-local ones, which whoever writes a pod's status could name; and behind a Service only pods. A client's
//! credentials stay here. Bodies that are sent are held whole, and so no larger than any other request's; answers
//! stream, but for pages, whose links are mended.

mod links;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
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
use knarr_api::{Error, k8s_openapi, registry};
use knarr_client::Conn;
use rustls::pki_types::ServerName;

use self::links::Page;
use super::node_stream::{Failed, Passes};
use crate::admission::extension::dialled;
use crate::http::Http;
use crate::http::answer::Answer;
use crate::http::body::{Body, BoxError, full, gzip};
use crate::pipeline::Target;
use crate::server::Server;
use crate::tls;

/// How long a connection to a pod may take, with its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Larger pages pass with their links as they are, in bytes; before they are unpacked and after.
const PAGE_MAX_BYTES: usize = 8 * 1024 * 1024;
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
/// What a browser may do with an answer is this server's to say.
const CORS: [&str; 4] = [
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

/// `[scheme:]name[:port]`.
#[derive(Debug, PartialEq, Eq)]
struct Asked<'a> {
    https: bool,
    name: &'a str,
    port: &'a str,
}

impl<'a> Asked<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (https, name, port) = match parts.as_slice() {
            [name] => (false, *name, ""),
            [name, port] => (false, *name, *port),
            ["" | "http", name, port] => (false, *name, *port),
            ["https", name, port] => (true, *name, *port),
            _ => return None,
        };
        (!name.is_empty()).then_some(Asked { https, name, port })
    }
}

/// What is dialled.
enum Place {
    /// A node's kubelet, however it is reached.
    Kubelet(String),
    Address {
        ip: IpAddr,
        /// As it was asked for; empty: the scheme's.
        port: String,
        https: bool,
    },
}

impl Place {
    /// `host` or `host:port`.
    fn host(&self) -> String {
        match self {
            Place::Kubelet(node) => node.clone(),
            Place::Address { ip, port, .. } => {
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

impl Server {
    /// `path` is what is asked of whatever is behind the proxy: empty, or from its first slash on.
    pub(super) async fn proxy(
        self: &Arc<Self>,
        http: &mut Http,
        target: &Target<'_>,
        path: &str,
    ) -> Result<Answer, Error> {
        let what = target.kind.singular();
        let asked = Asked::parse(target.name)
            .ok_or_else(|| Error::bad_request(format!("invalid {what} request {:?}", target.name)))?;
        let place = if *target.kind == registry::POD {
            self.pod_place(target.namespace, &asked)?
        } else if *target.kind == registry::SERVICE {
            self.service_place(target.namespace, target.name, &asked)?
        } else {
            self.node_place(&asked)?
        };
        let upgrades = http.headers.contains_key(UPGRADE);
        if path.is_empty() && !upgrades && matches!(http.method, Method::GET | Method::HEAD) {
            return Ok(Answer::Raw(to_the_root(http)?));
        }
        // kube-apiserver says the two differently.
        let failed = |why: String| match upgrades {
            true => Error::new(500, "", format!("error dialing backend: {why}")),
            false => Error::unavailable(format!("error trying to reach service: {why}")),
        };
        let stream = self.connect(&place).await.map_err(&failed)?;
        let own = http.request.uri().path().to_string();
        let root = own.strip_suffix(path).unwrap_or(&own);
        let client = http.client.map(|ip| ip.to_string());
        tell(&mut http.headers, &FORWARDED_FOR, client, true);
        if !upgrades {
            tell(
                &mut http.headers,
                &FORWARDED_URI,
                Some(links::join(root, path)),
                false,
            );
        }
        let query = http.request.uri().query();
        let query = query.map_or(String::new(), |q| format!("?{q}"));
        let wanted = if path.is_empty() {
            format!("/{query}")
        } else {
            format!("{path}{query}")
        };
        let backend = place.host();
        let asked_host = match http.header(HOST) {
            "" => http.request.uri().authority().map_or("", |a| a.as_str()),
            host => host,
        };
        let asked_host = asked_host.to_string();
        let host = if asked_host.is_empty() {
            &backend
        } else {
            &asked_host
        };
        let mut response = self
            .exchange(http, stream, host, &wanted, Passes::Everything)
            .await
            .map_err(|e| match e {
                Failed::Far(e) => failed(e.to_string()),
                Failed::Near(e) => e,
            })?;
        if upgrades {
            return Ok(Answer::Raw(response));
        }
        for name in CORS {
            response.headers_mut().remove(name);
        }
        let page = Page {
            root,
            backend: &backend,
            asked: &asked_host,
        };
        mended(&page, response).await.map(Answer::Raw)
    }

    async fn connect(&self, place: &Place) -> Result<Box<dyn Conn>, String> {
        let (ip, port, https) = match place {
            Place::Kubelet(node) => return self.nodes.dial(node).await.map_err(|e| e.to_string()),
            Place::Address { ip, port, https } => (*ip, port.as_str(), *https),
        };
        let port: u16 = match (port, https) {
            ("", true) => 443,
            ("", false) => 80,
            (port, _) => port
                .parse()
                .map_err(|_| format!("dial tcp: lookup tcp/{port}: unknown port"))?,
        };
        let address = SocketAddr::new(ip, port);
        let connect = async {
            let stream = self.nodes.dial_address(address).await;
            let stream = stream.map_err(|e| format!("dial tcp {address}: connect: {}", dialled(&e)))?;
            if !https {
                return Ok(stream);
            }
            let tls = tls::connector(None, None)?;
            let stream = tls.connect(ServerName::from(ip), stream).await;
            let stream = stream.map_err(|e| format!("tls: {e}"))?;
            Ok(Box::new(stream) as Box<dyn Conn>)
        };
        tokio::time::timeout(CONNECT_LIMIT, connect)
            .await
            .map_err(|_| format!("dial tcp {address}: i/o timeout"))?
    }

    fn pod_place(&self, namespace: &str, asked: &Asked<'_>) -> Result<Place, Error> {
        let object = self.get(&Target::main(&registry::POD, namespace, asked.name))?;
        let pod = object.get::<Pod>();
        let containers = pod.and_then(|p| p.spec.as_ref()).map(|s| &s.containers);
        let first = containers
            .into_iter()
            .flatten()
            .find_map(|c| c.ports.as_ref()?.first().map(|p| p.container_port.to_string()));
        let ip = pod.and_then(|p| p.status.as_ref()?.pod_ip.as_deref());
        Ok(Place::Address {
            ip: allowed(ip.unwrap_or(""))?,
            port: match asked.port {
                "" => first.unwrap_or_default(),
                port => port.to_string(),
            },
            https: asked.https,
        })
    }

    /// One of the pods behind the Service that are ready. `id` is what was asked for.
    fn service_place(&self, namespace: &str, id: &str, asked: &Asked<'_>) -> Result<Place, Error> {
        let mut port_name = asked.port.to_string();
        if let Ok(number) = asked.port.parse::<i64>() {
            let object = self.get(&Target::main(&registry::SERVICE, namespace, asked.name))?;
            let spec = object.get::<Service>().and_then(|s| s.spec.as_ref());
            let mut ports = spec.and_then(|s| s.ports.as_ref()).into_iter().flatten();
            let Some(port) = ports.find(|p| i64::from(p.port) == number) else {
                return Err(Error::unavailable(format!(
                    "no service port {number} found for service {:?}",
                    asked.name
                )));
            };
            port_name = port.name.clone().unwrap_or_default();
        }
        let object = self.get(&Target::main(&registry::ENDPOINTS, namespace, asked.name))?;
        let subsets = object.get::<Endpoints>().and_then(|e| e.subsets.as_ref());
        let mut all: Vec<(&EndpointAddress, i32)> = Vec::new();
        for subset in subsets.into_iter().flatten() {
            let mut ports = subset.ports.iter().flatten();
            if let Some(port) = ports.find(|p| p.name.as_deref().unwrap_or("") == port_name) {
                all.extend(subset.addresses.iter().flatten().map(|a| (a, port.port)));
            }
        }
        let mut lot = [0; 4];
        self.entropy.fill(&mut lot);
        let first = usize::try_from(u32::from_le_bytes(lot)).unwrap_or(0);
        let first = first.checked_rem(all.len()).unwrap_or(0);
        all.rotate_left(first);
        for (address, port) in all {
            if self.is_of_a_pod(namespace, address) {
                return Ok(Place::Address {
                    ip: allowed(&address.ip)?,
                    port: port.to_string(),
                    https: asked.https,
                });
            }
        }
        let none = if subsets.is_none_or(Vec::is_empty) {
            asked.name
        } else {
            id
        };
        Err(Error::unavailable(format!(
            "no endpoints available for service {none:?}"
        )))
    }

    /// Whether the address is that of the pod it says, which is in the namespace.
    fn is_of_a_pod(&self, namespace: &str, address: &EndpointAddress) -> bool {
        let Some(to) = &address.target_ref else {
            return false;
        };
        if to.namespace.as_deref() != Some(namespace) {
            return false;
        }
        let name = to.name.as_deref().unwrap_or("");
        let pod = self.cache.get(&registry::POD, namespace, name);
        let ips = pod
            .as_ref()
            .and_then(|p| p.get::<Pod>()?.status.as_ref()?.pod_ips.as_ref());
        ips.into_iter().flatten().any(|ip| ip.ip == address.ip)
    }

    /// The kubelet, unless another of the node's ports is asked for.
    fn node_place(&self, asked: &Asked<'_>) -> Result<Place, Error> {
        let object = self.get(&Target::main(&registry::NODE, "", asked.name))?;
        let status = object.get::<Node>().and_then(|n| n.status.as_ref());
        let endpoints = status.and_then(|s| s.daemon_endpoints.as_ref());
        let kubelet = endpoints
            .and_then(|e| e.kubelet_endpoint.as_ref())
            .map(|e| e.port.to_string());
        if asked.port.is_empty() || kubelet.as_deref() == Some(asked.port) {
            return Ok(Place::Kubelet(asked.name.to_string()));
        }
        let mut addresses = status.and_then(|s| s.addresses.as_ref()).into_iter().flatten();
        let internal = addresses.find(|a| a.type_ == "InternalIP");
        Ok(Place::Address {
            ip: allowed(internal.map_or("", |a| a.address.as_str()))?,
            port: asked.port.to_string(),
            https: asked.https,
        })
    }
}

/// Says something in a header, behind what others said there if they are to be heard, too.
fn tell(headers: &mut HeaderMap, name: &HeaderName, said: Option<String>, append: bool) {
    let before = headers.get(name).filter(|_| append).and_then(|v| v.to_str().ok());
    let said = match (before, said) {
        (Some(before), Some(said)) => format!("{before}, {said}"),
        (_, Some(said)) => said,
        (_, None) => return,
    };
    // What is no header is not said.
    if let Ok(said) = HeaderValue::from_str(&said) {
        headers.insert(name, said);
    }
}

/// The answer with its links as they are through the proxy.
async fn mended(page: &Page<'_>, response: Response<Body>) -> Result<Response<Body>, Error> {
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
    let packing = match text(CONTENT_ENCODING) {
        "" => Packing::None,
        "gzip" => Packing::Gzip,
        "deflate" => Packing::Deflate,
        // What cannot be read passes as it is.
        _ => return Ok(Response::from_parts(head, body)),
    };
    if !html {
        return Ok(Response::from_parts(head, body));
    }
    let (bytes, rest) = beginning(body).await?;
    if let Some(rest) = rest {
        let begun = futures::stream::once(async move { Ok::<_, BoxError>(Frame::data(bytes)) });
        let body = StreamBody::new(begun.chain(rest.into_data_stream().map(|d| d.map(Frame::data))));
        return Ok(Response::from_parts(head, body.boxed_unsync()));
    }
    // A page that does not unpack is passed on as it is: the client will see what is wrong with it.
    let rewritten = packing
        .unpacked(&bytes)
        .and_then(|plain| packing.packed(&page.rewrite(&plain)));
    let bytes = match rewritten {
        Ok(rewritten) => Bytes::from(rewritten),
        Err(e) => {
            tracing::debug!("the links of a page behind a proxy stay as they are: {e}");
            bytes
        }
    };
    head.headers.remove(CONTENT_LENGTH);
    Ok(Response::from_parts(head, full(bytes)))
}

/// A body that is not too large; of another its beginning, and the rest.
async fn beginning(mut body: Body) -> Result<(Bytes, Option<Body>), Error> {
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

/// How a page is packed.
enum Packing {
    None,
    Gzip,
    Deflate,
}

impl Packing {
    fn unpacked(&self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let limit = PAGE_MAX_BYTES as u64 + 1;
        let mut plain = Vec::new();
        let length = match self {
            Packing::None => return Ok(bytes.to_vec()),
            Packing::Gzip => {
                io::Read::read_to_end(&mut io::Read::take(GzDecoder::new(bytes), limit), &mut plain)?
            }
            Packing::Deflate => {
                io::Read::read_to_end(&mut io::Read::take(DeflateDecoder::new(bytes), limit), &mut plain)?
            }
        };
        if length > PAGE_MAX_BYTES {
            return Err(io::Error::other("the page is too large"));
        }
        Ok(plain)
    }

    fn packed(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        match self {
            Packing::None => Ok(plain.to_vec()),
            Packing::Gzip => gzip(plain),
            Packing::Deflate => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                io::Write::write_all(&mut encoder, plain)?;
                encoder.finish()
            }
        }
    }
}

/// Pages refer to others beside them: the root of what is behind a proxy ends with a slash.
fn to_the_root(http: &Http) -> Result<Response<Body>, Error> {
    let query = http.request.uri().query();
    let query = query.map_or(String::new(), |q| format!("?{q}"));
    let to = format!("{}/{query}", http.request.uri().path());
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    let to = HeaderValue::from_str(&to).map_err(Error::internal)?;
    response.headers_mut().insert(LOCATION, to);
    Ok(response)
}

/// The address, if it may be dialled.
fn allowed(ip: &str) -> Result<IpAddr, Error> {
    let ip = ip.parse().ok().filter(|ip| is_of_a_network(*ip));
    ip.ok_or_else(|| Error::bad_request("address not allowed"))
}

/// Whether it can be a pod's or a node's: neither this machine's own nor link-local.
pub(crate) fn is_of_a_network(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some_and(|v4| !is_of_a_network(v4.into()))
        }
    };
    !(local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_scheme_and_a_port() {
        let asked = |https, name, port| Some(Asked { https, name, port });
        for (text, expected) in [
            ("web", asked(false, "web", "")),
            ("web:80", asked(false, "web", "80")),
            ("web:http-alt", asked(false, "web", "http-alt")),
            ("http:web:80", asked(false, "web", "80")),
            ("https:web:", asked(true, "web", "")),
            ("https:web:443", asked(true, "web", "443")),
            ("ftp:web:21", None),
            (":", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(Asked::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn neither_this_machine_nor_its_neighbours_are_dialled() {
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
            assert_eq!(allowed(ip).is_ok(), expected, "{ip}");
        }
    }

    #[test]
    fn a_page_is_packed_as_it_was_and_none_unpacks_beyond_bounds() {
        let page = "<a href=/b>".repeat(100);
        for packing in [Packing::None, Packing::Gzip, Packing::Deflate] {
            let packed = packing.packed(page.as_bytes()).unwrap();
            assert_eq!(packing.unpacked(&packed).unwrap(), page.as_bytes());
        }
        let bomb = Packing::Gzip.packed(&vec![b'a'; PAGE_MAX_BYTES + 1]).unwrap();
        assert!(Packing::Gzip.unpacked(&bomb).is_err());
        assert!(Packing::Gzip.unpacked(b"no gzip").is_err());
    }
}
