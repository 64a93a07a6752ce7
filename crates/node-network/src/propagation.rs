//! When no proxy of the cluster sends new connections to a pod any more (SPEC B7): this node reports what its kernel has,
//! and a kubelet that terminates a pod waits until every node has.
//!
//! A report is a write to the Lease of the node's network agent; it is made only when endpoints were withdrawn, and
//! once for everything that was withdrawn since, and when the node has registered again: the Lease is owned by the
//! Node. `endpoint-propagation-controller` aggregates the reports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{self as core, ConfigMap};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_ready;
use knarr_api::propagation::{CONFIG_MAP, Propagation, REVISION};
use knarr_api::registry;
use knarr_api::{Object, ObjectKey};
use knarr_apimachinery::Error;
use knarr_apimachinery::ids::NodeName;
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
            Arc::new(PropagationConfig(cluster.clone())),
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
                    && !catalog.may_offer_later(namespace, labels, is_ready, (uid, &addresses[..]))
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

/// Forwards the ConfigMap's content.
struct PropagationConfig(Arc<Signal<Propagation>>);

impl ReflectorStore for PropagationConfig {
    fn apply(&self, object: &Arc<Object>) {
        let map = object.to_typed::<ConfigMap>();
        if let Some(propagation) = map.and_then(|map| Propagation::of(&map)) {
            self.0.set(propagation);
        }
    }

    fn remove(&self, _: &ObjectKey, _: Option<&Arc<Object>>) {}

    fn retain(&self, _: &BTreeSet<ObjectKey>) {}

    fn advance(&self, _: u64) {}
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
        lease.spec.get_or_insert_default().renew_time = Some(MicroTime(self.clock.now()));
        self.lease = Some(lease::write(&*self.api, lease).await?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use k8s_openapi::api::discovery::v1::EndpointSlice;
    use k8s_openapi::jiff::Timestamp;
    use knarr_client::fake::FakeApi;
    use knarr_client::{DeleteOptions, TokioClock, TypedApi};
    use serde_json::{Value, json};

    use super::*;

    const POD: &str = "10.1.0.1";

    fn slice(ready: bool) -> EndpointSlice {
        let slice = json!({
            "metadata": {"namespace": "ns", "name": "s", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": [POD],
                "conditions": {"ready": ready, "serving": true, "terminating": !ready},
            }],
        });
        serde_json::from_value(slice).unwrap()
    }

    fn summary(revision: u64, nodes: usize) -> ConfigMap {
        let data = Propagation {
            revision,
            nodes,
            slowest: if nodes == 1 { "n" } else { "m" }.into(),
        }
        .to_data();
        let map = json!({"metadata": {"namespace": NETWORK_NAMESPACE, "name": CONFIG_MAP}, "data": data});
        serde_json::from_value(map).unwrap()
    }

    /// The pod, deleted at this revision.
    fn pod(app: &str, ready: &str, deleted_at: u64) -> core::Pod {
        let pod = json!({
            "metadata": {
                "namespace": "ns", "name": "p", "labels": {"app": app}, "resourceVersion": deleted_at.to_string(),
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "status": {"podIPs": [{"ip": POD}], "conditions": [{"type": "Ready", "status": ready}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    /// A cluster with one offered pod on node `n`, and a waiter for its withdrawal.
    struct Cluster {
        api: Arc<FakeApi>,
        kernel: Arc<Signal<SyncedRevisions>>,
        propagation: Arc<EndpointPropagation>,
    }

    impl Cluster {
        async fn of(nodes: usize) -> Self {
            let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
            let api = Arc::new(FakeApi::new(clock.clone()));
            let node: Value = json!({"metadata": {"name": "n"}});
            api.create_as(serde_json::from_value::<Node>(node).unwrap())
                .await
                .unwrap();
            api.create_as(slice(true)).await.unwrap();
            api.create_as(summary(0, nodes)).await.unwrap();
            let catalog = Arc::new(Shared::start(api.clone()));
            catalog.wait_for(|_, reached| reached.is_synced()).await;
            let kernel = Arc::new(Signal::new(SyncedRevisions::default()));
            let propagation =
                EndpointPropagation::start(api.clone(), &"n".into(), catalog, kernel.clone(), clock);
            propagation.cluster.wait_for(|all| all.nodes == nodes).await;
            Cluster {
                api,
                kernel,
                propagation: Arc::new(propagation),
            }
        }

        fn wait(&self) -> tokio::task::JoinHandle<bool> {
            self.wait_of(pod("other", "True", 0))
        }

        fn wait_of(&self, pod: core::Pod) -> tokio::task::JoinHandle<bool> {
            let propagation = self.propagation.clone();
            tokio::spawn(async move { propagation.withdrawn(&pod).await })
        }

        /// The revision of the slice that takes the pod away.
        async fn withdraw(&self) -> u64 {
            let edited = self.api.edit::<EndpointSlice>("ns", "s", "", |s| {
                *s = EndpointSlice {
                    metadata: s.metadata.clone(),
                    ..slice(false)
                }
            });
            edited.await.unwrap();
            let slice = self.api.get_as::<EndpointSlice>("ns", "s").await.unwrap();
            slice.object().revision()
        }

        fn commit(&self, slices: u64, withdrawn: u64) {
            self.kernel.set(SyncedRevisions {
                services: Some(1),
                slices: Some(slices),
                withdrawn,
            });
        }

        async fn reported(&self) -> Option<String> {
            let lease = self.api.get_as::<Lease>(NETWORK_NAMESPACE, "n").await.ok()?;
            lease.metadata.annotations.as_ref()?.get(REVISION).cloned()
        }
    }

    /// Long enough for whatever is not waiting for another event.
    async fn settle() {
        sleep(Duration::from_secs(5)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn b7_a_wait_ends_with_the_kernels_of_all_nodes_and_not_before() {
        let cluster = Cluster::of(2).await;
        let wait = cluster.wait();
        settle().await;
        assert!(!wait.is_finished(), "the pod is offered");
        let withdrawn = cluster.withdraw().await;
        settle().await;
        assert!(!wait.is_finished(), "this node's kernel still offers it");
        cluster.commit(withdrawn, withdrawn);
        settle().await;
        assert_eq!(cluster.reported().await, Some(withdrawn.to_string()));
        assert!(!wait.is_finished(), "another node's kernel still offers it");
        cluster.api.update_as(summary(withdrawn - 1, 2)).await.unwrap();
        settle().await;
        assert!(!wait.is_finished());
        cluster.api.update_as(summary(withdrawn, 2)).await.unwrap();
        assert!(wait.await.unwrap(), "a Service offered it");
        // What is offered no longer is not waited for.
        assert!(cluster.wait().await.unwrap(), "a Service offered it before");
        let mut other = pod("none", "False", 0);
        other.status = None;
        assert!(!cluster.wait_of(other).await.unwrap(), "no Service offered it");
    }

    #[test]
    fn b7_the_only_ready_node_may_be_another_one() {
        for (nodes, slowest, revision, done) in [
            (0, "", 0, true),
            (1, "n", 0, true),
            (1, "m", 6, false),
            (1, "m", 7, true),
            (2, "n", 6, false),
            (2, "n", 7, true),
        ] {
            let all = Propagation {
                revision,
                nodes,
                slowest: slowest.into(),
            };
            assert_eq!(is_everywhere(&all, &"n".into(), 7), done, "{all:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn b7_what_other_nodes_may_have_received_before_this_one_is_awaited() {
        let cluster = Cluster::of(1).await;
        let service = |name: &str, publish: bool| -> core::Service {
            let service = json!({
                "metadata": {"namespace": "ns", "name": name},
                "spec": {"clusterIP": "10.0.0.1", "selector": {"app": name}, "publishNotReadyAddresses": publish},
            });
            serde_json::from_value(service).unwrap()
        };
        for (name, publish) in [("web", false), ("peers", true)] {
            cluster.api.create_as(service(name, publish)).await.unwrap();
        }
        let known = cluster.withdraw().await;
        cluster.commit(known, known);
        settle().await;
        // In this node's catalog nothing offers the pod. Slices up to the deletion are not all known to it.
        for (app, ready, deleted_at, waits) in [
            ("web", "True", known + 1, true),
            ("web", "True", known, false),
            ("web", "False", known + 1, false),
            ("peers", "False", known + 1, true),
            // No slice of this Service has it as terminating: its controller may not have seen the deletion.
            ("peers", "False", known, true),
            ("none", "True", known + 1, false),
        ] {
            let wait = cluster.wait_of(pod(app, ready, deleted_at));
            settle().await;
            assert_eq!(!wait.is_finished(), waits, "{app} {ready} {deleted_at}");
            wait.abort();
        }
        // It was offered meanwhile, which this node receives together with its withdrawal.
        let wait = cluster.wait_of(pod("web", "True", known + 1));
        cluster.api.update_as(slice(true)).await.unwrap();
        settle().await;
        assert!(!wait.is_finished(), "the pod is offered");
        let withdrawn = cluster.withdraw().await;
        settle().await;
        assert!(!wait.is_finished(), "the kernel still offers it");
        cluster.commit(withdrawn, withdrawn);
        wait.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn b7_a_pod_that_was_offered_again_meanwhile_is_waited_for_again() {
        let cluster = Cluster::of(2).await;
        let wait = cluster.wait();
        settle().await;
        let first = cluster.withdraw().await;
        cluster.commit(first, first);
        settle().await;
        // By a controller that has not seen the deletion, before every node has the first withdrawal …
        cluster.api.update_as(slice(true)).await.unwrap();
        settle().await;
        cluster.api.update_as(summary(first, 2)).await.unwrap();
        settle().await;
        assert!(!wait.is_finished(), "the pod is offered");
        // … and withdrawn again: the nodes' reports are from before.
        let second = cluster.withdraw().await;
        settle().await;
        assert!(!wait.is_finished(), "the kernels offer it again");
        cluster.commit(second, second);
        settle().await;
        assert!(!wait.is_finished(), "another node's kernel offers it again");
        cluster.api.update_as(summary(second, 2)).await.unwrap();
        wait.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn b7_the_only_node_waits_for_its_own_kernel() {
        let cluster = Cluster::of(1).await;
        let wait = cluster.wait();
        settle().await;
        let withdrawn = cluster.withdraw().await;
        settle().await;
        assert!(!wait.is_finished());
        cluster.commit(withdrawn, withdrawn);
        wait.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn b7_a_node_that_registers_again_reports_again() {
        for is_collected in [true, false] {
            let cluster = Cluster::of(1).await;
            cluster.commit(5, 0);
            settle().await;
            let api = &cluster.api;
            let owner = async || {
                let lease = api.get_as::<Lease>(NETWORK_NAMESPACE, "n").await.unwrap();
                lease::owner(&lease).to_string()
            };
            let before = owner().await;
            api.delete(&registry::NODE, "", "n", DeleteOptions::default())
                .await
                .unwrap();
            if is_collected {
                api.delete(&registry::LEASE, NETWORK_NAMESPACE, "n", DeleteOptions::default())
                    .await
                    .unwrap();
            }
            settle().await;
            let node: Value = json!({"metadata": {"name": "n"}});
            let node = serde_json::from_value::<Node>(node).unwrap();
            let node = api.create_as(node).await.unwrap();
            settle().await;
            assert_ne!(node.object().uid(), before);
            assert_eq!(owner().await, node.object().uid(), "collected: {is_collected}");
            assert_eq!(cluster.reported().await.as_deref(), Some("5"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn b7_reports_are_made_for_withdrawals_only_and_again_after_an_error() {
        let cluster = Cluster::of(2).await;
        cluster.commit(5, 0);
        settle().await;
        assert_eq!(
            cluster.reported().await.as_deref(),
            Some("5"),
            "what a new agent has"
        );
        cluster.commit(6, 0);
        settle().await;
        assert_eq!(
            cluster.reported().await.as_deref(),
            Some("5"),
            "nothing was withdrawn"
        );
        cluster.commit(6, 7);
        settle().await;
        assert_eq!(
            cluster.reported().await.as_deref(),
            Some("5"),
            "of the revision that withdraws an endpoint not everything is in the kernel yet"
        );
        cluster
            .api
            .edit::<Lease>(NETWORK_NAMESPACE, "n", "", |lease| lease.spec = None)
            .await
            .unwrap();
        cluster.commit(8, 7);
        settle().await;
        assert_eq!(cluster.reported().await.as_deref(), Some("8"), "after a conflict");
    }
}
