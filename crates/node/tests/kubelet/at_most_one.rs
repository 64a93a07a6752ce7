//! What is written before a pod is started that must not run twice (SPEC S1, S5, S6).

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::{Node, Taint};

use super::*;

const STARTED_BY: &str = "knarr.io/started-by";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

impl World {
    async fn create_once(&self, name: &str) {
        // A pod that does not tolerate the taint is rejected, and shows nothing.
        let tolerations = json!([{"key": OUT_OF_SERVICE, "operator": "Exists"}]);
        self.create_with(name, json!({"tolerations": tolerations})).await;
        let mut once = self.pod(name).await.unwrap();
        let annotations = once.metadata.annotations.get_or_insert_default();
        annotations.insert("knarr.io/at-most-one".into(), "true".into());
        self.api.update_as(once).await.unwrap();
    }

    /// The pods that run.
    fn names(&self) -> Vec<String> {
        let running = self.runtime.running();
        let names = running.iter().filter_map(|(_, name)| name.rsplit('/').next());
        let mut names: Vec<String> = names.map(String::from).collect();
        names.sort();
        names
    }

    async fn started_by(&self, name: &str) -> Option<String> {
        let pod = self.pod(name).await.unwrap();
        pod.metadata.annotations?.get(STARTED_BY).cloned()
    }
}

#[tokio::test(start_paused = true)]
async fn s1_nothing_that_must_not_run_twice_starts_before_the_node_is_seen_to_be_ready() {
    let world = World::new();
    world.create("plain").await;
    world.create_once("once").await;
    let is_silent = Arc::new(AtomicBool::new(true));
    let silent = is_silent.clone();
    world.api.intercept(move |request| {
        let is_status = request.kind.plural() == "nodes" && request.subresource == "status";
        (is_status && silent.load(Ordering::SeqCst)).then(|| Error::unavailable("no way to write it"))
    });
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.names(), ["plain"]);
    assert_eq!(world.started_by("once").await, None);
    is_silent.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.names(), ["once", "plain"]);
    assert!(
        world
            .started_by("once")
            .await
            .is_some_and(|by| by.starts_with("n1 "))
    );
    assert_eq!(world.started_by("plain").await, None);
}

#[tokio::test(start_paused = true)]
async fn s6_nothing_that_must_not_run_twice_starts_on_a_node_that_is_vouched_for() {
    let world = World::new();
    let (kubelet, cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(5)).await;
    cancel.cancel();
    kubelet.wait().await;
    let set = async |taint: Option<Taint>| {
        let mut node = (*world.api.get_as::<Node>("", "n1").await.unwrap()).clone();
        node.spec.get_or_insert_default().taints = taint.map(|taint| vec![taint]);
        world.api.update_as(node).await.unwrap();
    };
    set(Some(Taint {
        key: OUT_OF_SERVICE.into(),
        effect: "NoExecute".into(),
        ..Taint::default()
    }))
    .await;
    world.create_once("stays").await;
    world.create_once("ends").await;
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.names(), [""; 0]);
    // One that is deleted meanwhile ends as any other.
    world
        .api
        .delete(Pod::kind_of(), "default", "ends", DeleteOptions::default())
        .await
        .unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(world.pod("ends").await.is_none());
    set(None).await;
    sleep(Duration::from_secs(15)).await;
    assert_eq!(world.names(), ["stays"]);
}

#[tokio::test(start_paused = true)]
async fn s2_each_kubelet_writes_to_the_pod_before_it_starts_it() {
    let world = World::new();
    world.create_once("once").await;
    let (kubelet, cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(5)).await;
    let first = world.started_by("once").await.unwrap();
    cancel.cancel();
    kubelet.wait().await;
    world.runtime.reboot();
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.names(), ["once"]);
    assert_ne!(world.started_by("once").await.unwrap(), first);
}

/// Until the API takes what the kubelet writes to the pod, the node's lease may have run out.
#[tokio::test(start_paused = true)]
async fn b4_nothing_that_must_not_run_twice_starts_after_the_lease_ran_out_while_something_else_was_waited_for()
 {
    let world = World::new();
    world.create_once("once").await;
    let [no_patches, no_renewals] = [true, false].map(|is_lost| Arc::new(AtomicBool::new(is_lost)));
    let (patches, renewals) = (no_patches.clone(), no_renewals.clone());
    world.api.intercept(move |request| {
        let is_lost = match (request.kind.plural(), request.verb) {
            ("pods", "patch") => patches.load(Ordering::SeqCst),
            ("leases", _) => renewals.load(Ordering::SeqCst),
            _ => false,
        };
        is_lost.then(|| Error::unavailable("no way to write it"))
    });
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(20)).await;
    no_renewals.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(60)).await;
    no_patches.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(30)).await;
    assert!(world.started_by("once").await.is_some());
    assert!(
        world.runtime.starts().is_empty(),
        "its node may be taken for lost"
    );
    no_renewals.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.names(), ["once"]);
}

/// Neither the pod nor its container has failed: each wait in CrashLoopBackOff would prolong the outage.
#[tokio::test(start_paused = true)]
async fn b4_l5_a_pod_that_fenced_itself_runs_again_soon_after_each_time_that_its_node_is_cut_off() {
    let world = World::new();
    world.create_once("once").await;
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = is_cut.clone();
    world.api.intercept(move |_| {
        let is_cut = cut.load(Ordering::SeqCst);
        is_cut.then(|| Error::unavailable("there is no way to the server"))
    });
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(30)).await;
    for round in 0..7 {
        assert_eq!(world.names(), ["once"], "before outage {round}");
        is_cut.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(50)).await;
        assert!(world.names().is_empty(), "during outage {round}");
        is_cut.store(false, Ordering::SeqCst);
        sleep(Duration::from_secs(30)).await;
    }
    let status = world.pod("once").await.unwrap().status.unwrap();
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 7);
}
