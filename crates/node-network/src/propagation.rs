//! When no proxy of the cluster sends new connections to a pod any more (SPEC B7): this node reports what its kernel has,
//! and a kubelet that terminates a pod waits until every node has.
//!
//! A report is a write to the Lease of the node's network agent; it is made only when endpoints were withdrawn, and
//! once for everything that was withdrawn since, and when the node has registered again: the Lease is owned by the
//! Node. `endpoint-propagation-controller` aggregates the reports.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{self as core, ConfigMap};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_ready;
use knarr_api::propagation::{CONFIG_MAP, Propagation, REVISION};
use knarr_api::registry;
use knarr_api::{Object, ObjectKey};
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
use knarr_apimachinery::time::microseconds;
use knarr_client::informer::{self, ReflectorStore, Scope};
use knarr_client::{Api, Clock, NETWORK_NAMESPACE};
use knarr_network::catalog::Catalog;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use crate::catalog::{Shared, SyncedRevisions};
use crate::lease;
use crate::signal::Signal;

/// Between two reports of one node …
const PACE: Duration = Duration::from_millis(5);
/// … and for each node of the cluster: all of them together make a thousand reports a second at the most.
const PACE_PER_NODE: Duration = Duration::from_millis(1);
/// Before a report that failed is made again.
const RETRY: Duration = Duration::from_secs(1);

/// The reports of this node and of all. Dropping it ends them.
pub struct EndpointPropagation {
    node_name: NodeName,
    catalog: Arc<Shared>,
    kernel: Arc<Signal<SyncedRevisions>>,
    cluster: Arc<Signal<Propagation>>,
    /// Whether it is known what the other nodes have, if there are others.
    is_listed: Arc<Signal<bool>>,
    _tasks: JoinSet<()>,
}

impl EndpointPropagation {
    /// Starts to report the kernel's state for the node of this name, which must exist.
    pub fn start(
        api: Arc<dyn Api>,
        node_name: &NodeName,
        catalog: Arc<Shared>,
        kernel: Arc<Signal<SyncedRevisions>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let cluster = Arc::new(Signal::new(Propagation::default()));
        let is_listed = Arc::new(Signal::new(false));
        let mut tasks = JoinSet::new();
        let scope = Scope {
            namespace: NETWORK_NAMESPACE.into(),
            field_selector: format!("metadata.name={CONFIG_MAP}"),
            ..Scope::default()
        };
        tasks.spawn(informer::run(
            api.clone(),
            registry::CONFIG_MAP.clone(),
            scope,
            Arc::new(PropagationConfig {
                cluster: cluster.clone(),
                is_listed: is_listed.clone(),
            }),
        ));
        let node_uid = Arc::new(Signal::new(String::new()));
        let scope = Scope {
            field_selector: format!("metadata.name={node_name}"),
            ..Scope::default()
        };
        tasks.spawn(informer::run(
            api.clone(),
            registry::NODE.clone(),
            scope,
            Arc::new(NodeUid(node_uid.clone())),
        ));
        let reporter = Reporter {
            lease: None,
            node_uid,
            api,
            node_name: node_name.clone(),
            kernel: kernel.clone(),
            cluster: cluster.clone(),
            clock,
        };
        tasks.spawn(reporter.run());
        EndpointPropagation {
            node_name: node_name.clone(),
            catalog,
            kernel,
            cluster,
            is_listed,
            _tasks: tasks,
        }
    }

    /// Returns when no Service offers this pod and every node's kernel has that, of the last time it was offered; at once if
    /// none can have offered it. The result is whether one has offered it. The caller bounds the wait.
    pub async fn withdrawn(&self, pod: &core::Pod) -> bool {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let addresses = addresses(pod);
        let marked = marked_at(pod);
        let no_labels = BTreeMap::new();
        let labels = pod.metadata.labels.as_ref().unwrap_or(&no_labels);
        let is_ready = is_ready(pod);
        // What has been offered since this node last received slices is not in its catalog yet, but in others'. The
        // write of the pod's deletion comes after all of that. And a controller that has not seen the deletion may offer a
        // pod later that has just become ready.
        let is_known = |catalog: &Catalog, reached: SyncedRevisions| {
            let has_reached = |marked| reached.slices.is_some_and(|slices| slices >= marked);
            !catalog.may_offer(namespace, labels, is_ready)
                || marked.is_none_or(has_reached)
                    && !catalog.may_offer_later(namespace, labels, is_ready, uid, &addresses)
        };
        loop {
            self.catalog
                .wait_for(|catalog, reached| {
                    !catalog.offers(namespace, &addresses) && is_known(catalog, reached)
                })
                .await;
            // Having received the slice does not mean that the kernel has it.
            let Some(withdrawn) = self.catalog.withdrawn(&addresses) else {
                return false;
            };
            let in_kernel =
                |reached: &SyncedRevisions| reached.slices.is_some_and(|slices| slices >= withdrawn);
            self.kernel.wait_for(in_kernel).await;
            // A node that has just started is not alone because it knows of no other.
            self.is_listed.wait_for(|known| *known).await;
            let everywhere = |all: &Propagation| is_everywhere(all, &self.node_name, withdrawn);
            self.cluster.wait_for(everywhere).await;
            // A controller that had not seen the deletion yet may have offered it again meanwhile.
            let is_offered = self.catalog.read().offers(namespace, &addresses);
            if !is_offered && self.catalog.withdrawn(&addresses) == Some(withdrawn) {
                return true;
            }
        }
    }
}

/// Whether all nodes that count have this revision, where this one has it. A single node knows by itself; but where
/// this node is considered lost, another one is the single node.
fn is_everywhere(all: &Propagation, node_name: &NodeName, revision: u64) -> bool {
    let is_alone = all.nodes == 0 || (all.nodes == 1 && all.slowest == *node_name);
    is_alone || all.revision >= revision
}

fn addresses(pod: &core::Pod) -> Vec<IpAddr> {
    let ips = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    ips.filter_map(|ip| ip.ip.parse().ok()).collect()
}

/// The revision at which its deletion is known to have been requested; `None` if it was not.
fn marked_at(pod: &core::Pod) -> Option<u64> {
    pod.metadata.deletion_timestamp.as_ref()?;
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

/// Forwards the ConfigMap's content, and that it has been listed, whether it exists or not.
struct PropagationConfig {
    cluster: Arc<Signal<Propagation>>,
    is_listed: Arc<Signal<bool>>,
}

impl ReflectorStore for PropagationConfig {
    fn apply(&self, object: &Arc<Object>) {
        let map = object.to_typed::<ConfigMap>();
        if let Some(propagation) = map.and_then(|map| Propagation::of(&map)) {
            self.cluster.set(propagation);
        }
    }

    fn remove(&self, _: &ObjectKey, _: Option<&Arc<Object>>) {}

    fn retain(&self, _: &BTreeSet<ObjectKey>) {}

    fn advance(&self, _: u64) {
        if !self.is_listed.get() {
            self.is_listed.set(true);
        }
    }
}

/// Forwards the UID of this node's Node; empty before it is registered. After a deletion it stays until the node
/// registers again.
struct NodeUid(Arc<Signal<String>>);

impl ReflectorStore for NodeUid {
    fn apply(&self, object: &Arc<Object>) {
        // Heartbeats change nothing here.
        if self.0.get() != object.uid() {
            self.0.set(object.uid().to_string());
        }
    }

    fn remove(&self, _: &ObjectKey, _: Option<&Arc<Object>>) {}

    fn retain(&self, _: &BTreeSet<ObjectKey>) {}

    fn advance(&self, _: u64) {}
}

struct Reporter {
    /// As it was last written.
    lease: Option<Lease>,
    node_uid: Arc<Signal<String>>,
    api: Arc<dyn Api>,
    node_name: NodeName,
    kernel: Arc<Signal<SyncedRevisions>>,
    cluster: Arc<Signal<Propagation>>,
    clock: Arc<dyn Clock>,
}

impl Reporter {
    async fn run(mut self) {
        // Of the last withdrawal that was reported; the first report is made as soon as the kernel has everything.
        let mut reported = None;
        let mut not_before = Instant::now();
        loop {
            // A withdrawal is known a moment before the revision that it was made by is reached.
            let is_complete =
                |reached: &SyncedRevisions| reached.is_synced() && reached.slices >= Some(reached.withdrawn);
            let due = |reached: &SyncedRevisions| {
                is_complete(reached) && reported.is_none_or(|before| reached.withdrawn > before)
            };
            // The Lease of a deleted Node is deleted with it, and this node is not waited for without one.
            let owner = self
                .lease
                .as_ref()
                .map(lease::owner)
                .unwrap_or_default()
                .to_string();
            let is_another = |uid: &String| !owner.is_empty() && !uid.is_empty() && *uid != owner;
            tokio::select! {
                biased;
                _ = self.kernel.wait_for(due) => {}
                _ = self.node_uid.wait_for(is_another) => {
                    self.lease = None;
                    reported = None;
                    continue;
                }
            }
            sleep_until(not_before).await;
            let reached = self.kernel.get();
            if !is_complete(&reached) {
                continue;
            }
            match self.report(reached.slices.unwrap_or(0)).await {
                Ok(()) => {
                    reported = Some(reached.withdrawn);
                    let nodes = u32::try_from(self.cluster.get().nodes).unwrap_or(u32::MAX);
                    not_before = Instant::now() + PACE + PACE_PER_NODE.saturating_mul(nodes);
                }
                Err(error) => {
                    self.lease = None;
                    if error.is_not_found() {
                        debug!(%error, "this node is not registered yet");
                    } else {
                        warn!(%error, "cannot report the endpoints that this node's kernel has");
                    }
                    sleep(RETRY).await;
                }
            }
        }
    }

    async fn report(&mut self, revision: u64) -> Result<(), Error> {
        let mut lease = match self.lease.take() {
            Some(lease) => lease,
            None => lease::own(&*self.api, &self.node_name).await?,
        };
        let node_uid = self.node_uid.get();
        // A new one was just created for the current Node, which this task may not have seen yet.
        if !node_uid.is_empty() && lease.metadata.resource_version.is_some() {
            lease::set_owner(&mut lease, &self.node_name, &node_uid);
        }
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(REVISION.into(), revision.to_string());
        lease.spec.get_or_insert_default().renew_time = Some(microseconds(self.clock.now()));
        self.lease = Some(lease::write(&*self.api, lease).await?);
        Ok(())
    }
}
