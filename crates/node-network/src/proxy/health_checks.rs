//! Answers on the `healthCheckNodePort` of Services: whether this node has endpoints of its own, so that load balancers
//! send connections only where `externalTrafficPolicy: Local` lets them through.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use k8s_openapi::api::core::v1::ObjectReference;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::NodeName;
use knarr_client::events::{EventRecorder, EventType};
use knarr_network::catalog::ServiceKey;
use knarr_network::proxy::{Family, HealthCheck};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket, sockopt,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::warn;

use super::Config;
use super::health::{Health, json};
use super::http_server;

/// Before a port in use is tried again: at first soon, as the Service that had it may just have been deleted.
const SOON: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(2);
const BACKLOG: i32 = 128;

/// Endpoints on this node, by the family that the question comes in.
#[derive(Default)]
struct Counts {
    v4: AtomicUsize,
    v6: AtomicUsize,
}

struct Server {
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

/// A server for each Service that has the port.
pub(super) struct HealthChecks {
    node_name: NodeName,
    events: EventRecorder,
    health: Arc<Health>,
    /// By Service and port: another port is another server.
    servers: BTreeMap<(ServiceKey, u16), Server>,
}

impl HealthChecks {
    pub fn new(config: &Config, events: EventRecorder, health: Arc<Health>) -> Self {
        HealthChecks {
            node_name: config.node_name.clone(),
            events,
            health,
            servers: BTreeMap::new(),
        }
    }

    /// These are all there are.
    pub fn sync(&mut self, checks: Vec<(ServiceKey, HealthCheck)>) {
        let mut before = std::mem::take(&mut self.servers);
        // Removed ones free their ports before new ones bind.
        before.retain(|(key, port), _| checks.iter().any(|(k, check)| k == key && check.port == *port));
        for (key, check) in checks {
            let place = (key, check.port);
            let server = before.remove(&place);
            let server = server.unwrap_or_else(|| self.start(&place.0, check.port));
            server.counts.v4.store(check.local_v4, Ordering::Relaxed);
            server.counts.v6.store(check.local_v6, Ordering::Relaxed);
            self.servers.insert(place, server);
        }
    }

    fn start(&self, key: &ServiceKey, port: u16) -> Server {
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        for family in Family::ALL {
            tasks.spawn(serve(Question {
                key: key.clone(),
                port,
                family,
                counts: counts.clone(),
                node_name: self.node_name.clone(),
                events: self.events.clone(),
                health: self.health.clone(),
            }));
        }
        Server {
            counts,
            _tasks: tasks,
        }
    }
}

/// What one listener answers.
struct Question {
    key: ServiceKey,
    port: u16,
    family: Family,
    counts: Arc<Counts>,
    node_name: NodeName,
    events: EventRecorder,
    health: Arc<Health>,
}

impl Question {
    fn answer(&self) -> Response<Full<Bytes>> {
        let count = match self.family {
            Family::V4 => &self.counts.v4,
            Family::V6 => &self.counts.v6,
        };
        let count = count.load(Ordering::Relaxed);
        let is_healthy = self.health.is_healthy();
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{}\",\n\t\t\"name\": \"{}\"\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {is_healthy}\n}}",
            self.key.namespace, self.key.name,
        );
        let status = match count > 0 && is_healthy {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        let mut response = json(status, body);
        let weight = HeaderName::from_static("x-load-balancing-endpoint-weight");
        response.headers_mut().insert(weight, HeaderValue::from(count));
        response
    }

    fn cannot_listen(&self, error: &std::io::Error) {
        let (node, port) = (&self.node_name, self.port);
        let message = format!(
            "node {node} failed to start healthcheck \"{}\" on port {port}: {error}",
            self.key
        );
        warn!("{message}, trying again");
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Service".into()),
            namespace: Some(self.key.namespace.to_string()),
            name: Some(self.key.name.to_string()),
            ..ObjectReference::default()
        };
        let reason = "FailedToStartServiceHealthcheck";
        self.events.event(&about, EventType::Warning, reason, message);
    }
}

async fn serve(question: Question) {
    let mut failures = 0_u32;
    let listener = loop {
        match listen_on(question.family, question.port) {
            Ok(listener) => break listener,
            // A host without IPv6.
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => return,
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures == 2 {
                    question.cannot_listen(&error);
                }
                sleep(if failures == 1 { SOON } else { RETRY }).await;
            }
        }
    };
    http_server::serve(listener, Arc::new(move |_: &_| question.answer())).await;
}

/// On all addresses of one family.
fn listen_on(family: Family, port: u16) -> std::io::Result<TcpListener> {
    let (domain, address) = match family {
        Family::V4 => (AddressFamily::Inet, IpAddr::from(Ipv4Addr::UNSPECIFIED)),
        Family::V6 => (AddressFamily::Inet6, IpAddr::from(Ipv6Addr::UNSPECIFIED)),
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(domain, SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if family == Family::V6 {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    let address = SockaddrStorage::from(SocketAddr::new(address, port));
    bind(std::os::fd::AsRawFd::as_raw_fd(&fd), &address)?;
    listen(&fd, Backlog::new(BACKLOG)?)?;
    TcpListener::from_std(std::net::TcpListener::from(fd))
}
