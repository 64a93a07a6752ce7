//! The network agent of a node: its real catalog, service proxy and reports, with a simulated kernel. The kernel
//! takes some time for each change; it keeps its state when the agent dies, and loses it when the host reboots.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_client::{Api, Clock};
use knarr_network::catalog::ServiceKey;
use knarr_network::nft::Table;
use knarr_network::proxy::{Config, Family, NodeFacts, Proxy, TableChange, layout, packet};
use knarr_node::kubelet::{Availability, NodeNetwork};
use knarr_node_network::catalog::{Shared, SyncedRevisions};
use knarr_node_network::propagation::EndpointPropagation;
use knarr_node_network::signal::Signal;
use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::names::Names;
use crate::observer::Observer;
use crate::random::Stream;

/// One change in so many thousands takes the kernel long …
const SLOW_PER_MILLE: u32 = 50;
/// … at most this.
const SLOW_MILLIS: u64 = 1_500;
/// The others.
const USUAL_MILLIS: u64 = 30;

/// See the module.
#[derive(Debug)]
pub(crate) struct NetworkAgent(Reports, Option<Mutation>);

struct Reports(EndpointPropagation);

impl std::fmt::Debug for Reports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EndpointPropagation")
    }
}

/// What an agent is started with.
pub(crate) struct AgentConfig {
    pub node: String,
    pub api: Arc<dyn Api>,
    pub clock: Arc<dyn Clock>,
    pub observer: Arc<Observer>,
    pub chance: Stream,
    pub mutation: Option<Mutation>,
    pub kernel: Arc<ProxyKernel>,
    pub dead: CancellationToken,
    /// The DNS zone, in histories with names.
    pub names: Option<Arc<Mutex<Option<Arc<Names>>>>>,
}

impl NetworkAgent {
    pub fn start(parts: AgentConfig) -> Arc<Self> {
        let catalog = Arc::new(Shared::start(parts.api.clone()));
        let kernel = Arc::new(Signal::new(SyncedRevisions::default()));
        let propagation = EndpointPropagation::start(
            parts.api.clone(),
            &parts.node.as_str().into(),
            catalog.clone(),
            kernel.clone(),
            parts.clock.clone(),
        );
        let (dead, mutation) = (parts.dead.clone(), parts.mutation);
        if let Some(place) = &parts.names {
            *place.lock() = Some(Names::start(&parts.api, &catalog, &dead, mutation));
        }
        let programming = program(parts, catalog, kernel);
        tokio::spawn(async move { dead.run_until_cancelled(programming).await });
        Arc::new(NetworkAgent(Reports(propagation), mutation))
    }
}

/// The Services in a host's kernel, over all incarnations of its agent.
#[derive(Default)]
pub(crate) struct ProxyKernel(Mutex<Table>);

impl ProxyKernel {
    pub fn rebooted(&self) {
        self.0.lock().clear();
    }

    fn commit(&self, change: Vec<TableChange>, mutation: Option<Mutation>) {
        let mut table = self.0.lock();
        for change in change {
            let kept = mutation == Some(Mutation::KeepRemoved);
            for element in change.remove.into_iter().filter(|_| !kept) {
                table.entry(element.set).or_default().remove(&element.key);
            }
            for element in change.add {
                table
                    .entry(element.set)
                    .or_default()
                    .insert(element.key, element.data);
            }
        }
    }
}

/// A change to commit.
enum Commit {
    /// Replaces everything.
    Whole(Table),
    Change(Vec<TableChange>),
}

/// The proxy of an agent that was just started: it adopts the state of the kernel.
fn adopting(parts: &AgentConfig) -> Proxy {
    let facts = NodeFacts {
        name: parts.node.as_str().into(),
        ..NodeFacts::default()
    };
    let mut proxy = Proxy::new(Config::default(), facts);
    let table = parts.kernel.0.lock();
    let of = |set| table.get(set).cloned().unwrap_or_default();
    proxy.adopt(
        Family::V4,
        &of(layout::ENDPOINTS),
        &of(layout::NODE_PORT_ENDPOINTS),
    );
    proxy
}

fn whole(parts: &AgentConfig, proxy: &Proxy) -> Table {
    let mut table = packet::table(proxy, Family::V4);
    if parts.mutation == Some(Mutation::ForgetDeletions) {
        for (set, elements) in parts.kernel.0.lock().iter() {
            let of = table.entry(set).or_default();
            for (key, data) in elements {
                of.entry(key.clone()).or_insert_with(|| data.clone());
            }
        }
    }
    table
}

/// Programs the catalog's changes into the kernel, and reports when they are in force.
async fn program(mut parts: AgentConfig, catalog: Arc<Shared>, kernel: Arc<Signal<SyncedRevisions>>) {
    let mut subscription = catalog.subscribe();
    let mut changed: BTreeSet<ServiceKey> = BTreeSet::new();
    let mut proxy: Option<Proxy> = None;
    while let Some(mut changes) = subscription.changes().await {
        changed.append(&mut changes.services);
        let reached = changes.reached;
        // Before the first lists are complete the kernel keeps its state.
        if !reached.is_synced() {
            continue;
        }
        let offered = catalog.read().offered();
        let is_new = proxy.is_none();
        let commit = {
            let proxy = proxy.get_or_insert_with(|| adopting(&parts));
            let catalog = catalog.read();
            let services = std::mem::take(&mut changed);
            let all: Vec<_> = services.iter().map(|key| proxy.apply(&catalog, key).v4).collect();
            proxy.finish_adoption();
            match is_new {
                true => Commit::Whole(whole(&parts, proxy)),
                false => Commit::Change(all),
            }
        };
        let takes = match parts.chance.per_mille(SLOW_PER_MILLE) {
            true => parts.chance.millis(USUAL_MILLIS, SLOW_MILLIS),
            false => parts.chance.millis(0, USUAL_MILLIS),
        };
        if parts.mutation == Some(Mutation::ReportBeforeCommit) {
            kernel.set(reached);
        }
        sleep(takes).await;
        match commit {
            Commit::Whole(table) => *parts.kernel.0.lock() = table,
            Commit::Change(change) => parts.kernel.commit(change, parts.mutation),
        }
        let table = parts.kernel.0.lock().clone();
        parts.observer.proxied(&parts.node, table);
        parts.observer.programmed(&parts.node, offered);
        // An agent that died during a change may have changed a table that a reboot has cleared in the meantime.
        let lives = !parts.dead.is_cancelled();
        if let (true, Some(services), Some(slices)) = (lives, reached.services, reached.slices) {
            parts.observer.reached(&parts.node, services, slices);
        }
        kernel.set(reached);
    }
}

#[async_trait]
impl NodeNetwork for NetworkAgent {
    async fn withdrawn(&self, pod: &core::Pod) -> bool {
        self.1 != Some(Mutation::TermWithoutBarrier) && self.0.0.withdrawn(pod).await
    }

    fn reports_endpoints(&self) -> bool {
        true
    }

    fn metrics(&self) -> String {
        String::new()
    }

    fn availability(&self) -> Option<Availability> {
        None
    }

    async fn availability_changed(&self) {
        std::future::pending().await
    }
}
