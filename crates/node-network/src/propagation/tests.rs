//! Reports of one node, and waits for those of all, over a fake API.

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
async fn b7_a_node_is_not_alone_before_it_has_read_about_others() {
    let cluster = Cluster::of(2).await;
    settle().await;
    // As in an agent whose watch of the ConfigMap is late.
    cluster.propagation.is_listed.set(false);
    cluster.propagation.cluster.set(Propagation::default());
    let wait = cluster.wait();
    let withdrawn = cluster.withdraw().await;
    cluster.commit(withdrawn, withdrawn);
    settle().await;
    assert!(!wait.is_finished(), "what other nodes have is not known");
    let all = PropagationConfig {
        cluster: cluster.propagation.cluster.clone(),
        is_listed: cluster.propagation.is_listed.clone(),
    };
    all.advance(1);
    assert!(wait.await.unwrap(), "there is no ConfigMap: it is alone");
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
