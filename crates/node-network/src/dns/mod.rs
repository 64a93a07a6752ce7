//! The cluster DNS server of a node: answers on the cluster DNS addresses, from what is known here.
//!
//! [`start`] puts the addresses on the loopback interface, listens and watches the API. Names of the cluster are
//! answered locally ([`udp`], [`tcp`], [`responder`]), other names by upstream servers ([`forwarder`]). It needs no
//! connection tracking: [`notrack_rules`].

pub mod addresses;
mod cache;
mod exchange;
mod forwarder;
pub mod knowledge;
mod metrics;
mod responder;
mod tcp;
mod udp;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_api::registry::{CONFIG_MAP, NAMESPACE};
use knarr_client::Api;
use knarr_client::informer::{self, Scope};
use knarr_network::dns::name::{Name, NameError};
use knarr_network::dns::resolv_conf::ResolvConf;
use knarr_network::dns::zone::Zone;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::warn;

use crate::catalog::Shared;
use forwarder::Forwarder;
use knowledge::{CONFIG_NAME, CONFIG_NAMESPACE, Configuration, Knowledge, Namespaces};
use metrics::Metrics;
use responder::Responder;

pub use addresses::AddressError;

/// The namespace of the pod that has this address and the default search list: `dnsPolicy: ClusterFirst`, not on the host's
/// network, without `dnsConfig`. `None` for all others: their search lists are not known.
pub type NamespaceOf = Arc<dyn Fn(IpAddr) -> Option<Arc<str>> + Send + Sync>;

/// As CoreDNS' kubernetes plugin.
pub const TTL_SECONDS: u32 = 5;
/// Threads for one address; more would compete with the pods whose questions they answer.
const THREADS_MAX: usize = 4;
/// How soon changes of resolv.conf are seen.
const RESOLV_CONF_EVERY: Duration = Duration::from_secs(10);
const RESOLV_CONF_BYTES_MAX: u64 = 64 << 10;

/// What the server is started with.
#[derive(Clone)]
pub struct Config {
    /// The cluster DNS addresses, one or two.
    pub addresses: Vec<IpAddr>,
    /// 53.
    pub port: u16,
    /// Without a dot at the end: `cluster.local`.
    pub cluster_domain: String,
    /// [`TTL_SECONDS`].
    pub ttl_seconds: u32,
    /// The kubelet's `resolvConf`: its name servers answer other names, its search domains are in pods' search lists.
    pub resolv_conf: PathBuf,
    /// Search lists of pods are followed in one step where this is set and knows the client.
    pub namespace_of: Option<NamespaceOf>,
    /// The serial of the zone at the start; the time in seconds, so that it grows from run to run.
    pub serial: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("invalid cluster domain {domain:?}")]
    Domain {
        domain: String,
        #[source]
        source: NameError,
    },
    #[error("the cluster domain is too long")]
    LongDomain,
    #[error("cannot put the cluster DNS addresses on the loopback interface")]
    Address(#[from] AddressError),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// The running server. Dropping it stops it; the addresses stay on the loopback interface until [`addresses::remove`], so
/// that a restart is short.
pub struct Server {
    responder: Arc<Responder>,
    _listeners: Vec<udp::Listener>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// The answer to `/metrics`, in Prometheus' text format under CoreDNS' names.
    pub fn metrics(&self) -> String {
        self.responder
            .metrics
            .text(self.responder.forwarder.cache_counts())
    }

    /// The answer to `/health`: the server answers.
    pub fn health(&self) -> &'static str {
        "OK"
    }

    /// The answer to `/ready`: whether names of the cluster have been listed. Before that they are answered with SERVFAIL.
    pub fn is_ready(&self) -> bool {
        self.responder.knowledge.is_synced()
    }
}

/// Starts the server in the network namespace of the calling thread. `api` may watch namespaces and the ConfigMap
/// `kube-system/knarr-dns`, whose keys `knarr_network::dns::forward` describes.
pub async fn start(config: Config, api: Arc<dyn Api>, catalog: Arc<Shared>) -> Result<Server, StartError> {
    let domain = Name::parse(&config.cluster_domain).map_err(|source| StartError::Domain {
        domain: config.cluster_domain.clone(),
        source,
    })?;
    let zone =
        Zone::new(domain, config.ttl_seconds, config.addresses.clone()).ok_or(StartError::LongDomain)?;
    let own: Vec<SocketAddr> = config
        .addresses
        .iter()
        .map(|ip| SocketAddr::new(*ip, config.port))
        .collect();
    let mut changes = catalog.subscribe();
    let knowledge = Arc::new(Knowledge::new(zone, catalog, own.clone(), config.serial));
    let metrics = Arc::new(Metrics::new());
    let forwarder = Forwarder::new(metrics.clone());
    let namespace_of = config.namespace_of.clone();
    let responder = Arc::new(Responder::new(
        knowledge.clone(),
        forwarder,
        metrics,
        namespace_of,
    ));
    read_resolv_conf(&config.resolv_conf, &knowledge).await;

    addresses::add(&config.addresses).await?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
    let connections = Arc::new(tcp::Connections::default());
    let mut tasks = JoinSet::new();
    let mut listeners = Vec::new();
    for address in own {
        let failed = |source| StartError::Listen { address, source };
        let listener = udp::Listener::start(address, threads, &responder, &Handle::current());
        listeners.push(listener.map_err(failed)?);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        tasks.spawn(tcp::serve(listener, responder.clone(), connections.clone()));
    }

    let reader = knowledge.clone();
    tasks.spawn(async move {
        while let Some(changes) = changes.changes().await {
            reader.take_changes(&changes);
        }
    });
    let namespaces = Arc::new(Namespaces(knowledge.clone()));
    tasks.spawn(informer::run(
        api.clone(),
        NAMESPACE.clone(),
        Scope::default(),
        namespaces,
    ));
    let only = Scope {
        namespace: CONFIG_NAMESPACE.to_string(),
        field_selector: format!("metadata.name={CONFIG_NAME}"),
        ..Scope::default()
    };
    let configuration = Arc::new(Configuration(knowledge.clone()));
    tasks.spawn(informer::run(api, CONFIG_MAP.clone(), only, configuration));
    tasks.spawn(follow_routes(config.resolv_conf, responder.clone()));
    Ok(Server {
        responder,
        _listeners: listeners,
        _tasks: tasks,
    })
}

/// Reads resolv.conf periodically, and clears the cache where servers have changed.
async fn follow_routes(path: PathBuf, responder: Arc<Responder>) {
    let mut known = 0;
    loop {
        read_resolv_conf(&path, &responder.knowledge).await;
        let routes = responder.knowledge.routes();
        if routes.generation != known {
            known = routes.generation;
            responder.forwarder.clear();
            responder.forwarder.probe_for_loops(&routes).await;
        }
        tokio::time::sleep(RESOLV_CONF_EVERY).await;
    }
}

async fn read_resolv_conf(path: &Path, knowledge: &Knowledge) {
    let read = async {
        let mut text = String::new();
        let file = tokio::fs::File::open(path).await?;
        file.take(RESOLV_CONF_BYTES_MAX).read_to_string(&mut text).await?;
        Ok::<_, io::Error>(text)
    };
    match read.await {
        Ok(text) => knowledge.set_resolv_conf(ResolvConf::parse(&text)),
        // The previous settings stay in force.
        Err(error) => warn!(path = %path.display(), %error, "cannot read the node's resolv.conf"),
    }
}

/// A script for `nft -f` that keeps questions and answers out of connection tracking. Without effect for pods whose policies
/// match on established connections: answers come from the node, which policies always let in.
pub fn notrack_rules(table: &str, addresses: &[IpAddr], port: u16) -> String {
    let rules = |direction: &str| -> String {
        let lines = addresses.iter().map(|address| {
            let family = if address.is_ipv4() { "ip" } else { "ip6" };
            let side = if direction == "daddr" { "dport" } else { "sport" };
            ["udp", "tcp"]
                .map(|protocol| {
                    format!("    {family} {direction} {address} {protocol} {side} {port} notrack\n")
                })
                .concat()
        });
        lines.collect()
    };
    let chain = |hook: &str| {
        format!(
            "  chain {hook} {{\n    type filter hook {hook} priority raw;\n{}{}  }}\n",
            rules("daddr"),
            rules("saddr"),
        )
    };
    format!(
        "table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n{}{}}}\n",
        chain("prerouting"),
        chain("output"),
    )
}
