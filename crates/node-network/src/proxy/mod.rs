//! The service proxy of a node: Services of the catalog become elements of nftables maps (SPEC N2, N3, N4).
//!
//! What elements those are is decided in [`knarr_network::proxy`]. Here
//!
//! - `driver` follows the catalog and the Node, and reports what the kernel has reached ([`ServiceProxy::reached`]); a
//!   change alone is committed at once, changes gather while a commit runs;
//! - `kernel` commits. On start, and after any error, it reads its tables back and commits the difference at one
//!   moment: there is no flush and no gap. Every few seconds it checks whether another program has changed the ruleset,
//!   and every few minutes, if so, it compares every element;
//! - `compare` reports whether the tables are as they should be, for users; it writes nothing;
//! - `stale_flows` deletes the conntrack entries of UDP clients whose endpoint was removed;
//! - `health_checks` answers on the `healthCheckNodePort` of Services, `health` on `/healthz` and `/livez` as
//!   kube-proxy;
//! - `metrics` counts under kube-proxy's names.
//!
//! The tables stay when the proxy exits, so that Services keep working while knarr restarts; [`remove`] deletes them.

mod compare;
mod driver;
mod health;
mod health_checks;
mod http_server;
mod kernel;
mod metrics;
mod node;
mod stale_flows;
mod sysctl;
mod transaction;

use std::net::SocketAddr;
use std::sync::Arc;

use knarr_client::events::EventRecorder;
use knarr_client::{Api, Clock};
use knarr_network::proxy;
use knarr_nftables::Nftables;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::catalog::{Shared, SyncedRevisions};
use crate::signal::Signal;
use crate::table;

pub use compare::{TableDifference, compare};
pub use node::facts;

use driver::Driver;
use health::Health;
use health_checks::HealthChecks;
use knarr_apimachinery::ids::NodeName;
use metrics::Metrics;
use node::NodeWatch;
use stale_flows::StaleFlows;

/// The name under which kube-proxy writes events.
const COMPONENT: &str = "kube-proxy";

/// The configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Table names, address ranges.
    pub proxy: proxy::Config,
    pub node_name: NodeName,
    /// Whether kernel parameters of connection tracking are set as kube-proxy sets them by default (room for entries, and
    /// how long closed and silent connections are kept); those that the rules cannot do without are set in any case.
    pub conntrack_sysctls: bool,
    /// `--conntrack-tcp-be-liberal`: packets outside of the window are not invalid.
    pub conntrack_tcp_be_liberal: bool,
    /// Of the server of `/healthz` and `/livez`, kube-proxy's is `0.0.0.0:10256`; `None` for none.
    pub healthz_address: Option<SocketAddr>,
}

/// A running proxy. Dropping it stops it; the kernel's tables stay.
pub struct ServiceProxy {
    reached: Arc<Signal<SyncedRevisions>>,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    _tasks: JoinSet<()>,
}

impl ServiceProxy {
    /// Begins to program the kernel of the network namespace that this runtime's threads are in. `api` acts as the network
    /// agent of the node: it watches the Node and writes events. Needs a tokio runtime, and root.
    pub fn start(config: Config, api: Arc<dyn Api>, catalog: Arc<Shared>, clock: Arc<dyn Clock>) -> Self {
        let reached = Arc::new(Signal::new(SyncedRevisions::default()));
        let health = Arc::new(Health::new(clock.clone()));
        let metrics = Arc::new(Metrics::new());
        let events = EventRecorder::new(api.clone(), COMPONENT, &config.node_name, clock.clone());
        let node = NodeWatch::new(config.node_name.clone(), health.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(node.clone().run(api));
        if let Some(address) = config.healthz_address {
            let (health, metrics) = (health.clone(), metrics.clone());
            tasks.spawn(health::serve(address, health, metrics));
        }
        let stale_flows = Arc::new(StaleFlows::default());
        tasks.spawn(stale_flows.clone().run(metrics.clone()));
        let driver = Driver {
            health_checks: HealthChecks::new(&config, events, health.clone()),
            config,
            catalog,
            node,
            stale_flows,
            clock,
            reached: reached.clone(),
            health: health.clone(),
            metrics: metrics.clone(),
        };
        tasks.spawn(driver.run());
        ServiceProxy {
            reached,
            health,
            metrics,
            _tasks: tasks,
        }
    }

    /// Up to which revisions the kernel has the catalog, for [`EndpointPropagation`](crate::propagation).
    pub fn reached(&self) -> Arc<Signal<SyncedRevisions>> {
        self.reached.clone()
    }

    /// Whether no change has been waiting for too long.
    pub fn is_healthy(&self) -> bool {
        self.health.is_healthy()
    }

    /// Prometheus' text format, under kube-proxy's names.
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }
}

/// Removes the proxy's tables of this name from the calling thread's network namespace. Blocks for some milliseconds.
pub fn remove(table: &str) -> Result<(), table::TableError> {
    table::remove(&mut Nftables::open()?, &|name| name == table)
}

/// A listener, with the address in the error.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|e| std::io::Error::new(e.kind(), format!("cannot listen on {address}: {e}")))
}
