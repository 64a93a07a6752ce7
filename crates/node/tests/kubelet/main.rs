//! The kubelet's driver against an API and a runtime in memory, under paused time.

#![allow(
    clippy::disallowed_methods,
    reason = "tests create the files that they read by name"
)]
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used)]

mod at_most_one;
mod attachments;
mod clock_jumps;
mod deaths;
mod devices;
mod dra;
mod evictions;
mod own_node;
mod plugin;
mod preemption;
mod registration;
mod shutdown;
mod spans;
mod static_pods;

#[path = "../support/dra_driver.rs"]
mod dra_driver;
#[path = "../support/plugin.rs"]
mod plugin_support;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Pod};
use knarr_api::k8s_openapi;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::registry::{self, Registered};
use knarr_client::fake::FakeApi;
use knarr_client::{Api, Clock, DeleteOptions, Error, ListOptions, Store, TokioClock, TypedApi};
use knarr_kubelet::configuration::KubeletConfiguration;
use knarr_kubelet::static_pods::PodRules;
use knarr_node::runtime::fake::FakeRuntime;
use knarr_node::stats::Meter;
use knarr_node::{Config, Kubelet, Machine};
use knarr_strategy::Strategy;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "docker.io/library/app:latest";

struct World {
    dir: tempfile::TempDir,
    api: Arc<FakeApi>,
    runtime: Arc<FakeRuntime>,
    clock: Arc<dyn Clock>,
}

impl World {
    fn new() -> Self {
        let begin = Timestamp::from_second(1_800_000_000).unwrap();
        World::on(Arc::new(TokioClock::new(begin)))
    }

    fn on(clock: Arc<dyn Clock>) -> Self {
        World {
            dir: tempfile::tempdir().unwrap(),
            api: Arc::new(FakeApi::new(clock.clone())),
            runtime: Arc::new(FakeRuntime::new(clock.clone(), &[IMAGE])),
            clock,
        }
    }

    fn config(&self) -> Config {
        Config {
            node_name: "n1".into(),
            root_dir: self.dir.path().join("kubelet"),
            log_dir: self.dir.path().join("logs"),
            node_ips: vec!["192.0.2.1".into()],
            pod_rules: Some(PodRules {
                set_defaults: Strategy::set_defaults,
                validate: Strategy::validate,
            }),
            ..Config::default()
        }
    }

    fn kubelet(&self) -> (Kubelet, CancellationToken) {
        self.kubelet_with(KubeletConfiguration::default(), None)
    }

    /// Without the host's clock, which a test cannot advance.
    fn kubelet_on_nothing(&self) -> (Kubelet, CancellationToken) {
        let machine = Machine::Hollow {
            cpus: 2,
            memory_bytes: 1 << 30,
        };
        self.kubelet_of(machine, KubeletConfiguration::default(), None)
    }

    /// The test machine's own pressure does not matter: only `meter` measures.
    fn kubelet_with(
        &self,
        configuration: KubeletConfiguration,
        meter: Option<Arc<dyn Meter>>,
    ) -> (Kubelet, CancellationToken) {
        self.kubelet_of(Machine::Host, configuration, meter)
    }

    fn kubelet_of(
        &self,
        machine: Machine,
        configuration: KubeletConfiguration,
        meter: Option<Arc<dyn Meter>>,
    ) -> (Kubelet, CancellationToken) {
        let config = Config {
            machine,
            configuration,
            ..self.config()
        };
        self.start(config, meter)
    }

    fn start(&self, config: Config, meter: Option<Arc<dyn Meter>>) -> (Kubelet, CancellationToken) {
        let cancel = CancellationToken::new();
        let ways = (
            self.api.clone() as _,
            self.runtime.clone() as _,
            self.clock.clone(),
        );
        let pods = Arc::new(Store::new(Pod::kind_of(), &[]));
        let kubelet = Kubelet::start_measured(config, ways, pods, meter, cancel.clone());
        (kubelet, cancel)
    }

    async fn create(&self, name: &str) {
        self.create_with(name, json!({})).await;
    }

    async fn create_with(&self, name: &str, spec: Value) {
        let mut pod = json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": "n1", "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
                     "containers": [{"name": name, "image": "app", "imagePullPolicy": "IfNotPresent"}]},
        });
        for (key, value) in spec.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        self.api.create_as(pod).await.unwrap();
    }

    async fn pod(&self, name: &str) -> Option<Pod> {
        let pod = self.api.get_as::<Pod>("default", name).await.ok()?;
        Some((*pod).clone())
    }

    /// `reason message` of the events about an object, oldest first.
    async fn events(&self, about: &str) -> Vec<String> {
        let listed = self
            .api
            .list(Event::kind_of(), ListOptions::default())
            .await
            .unwrap();
        let mut events: Vec<Event> = listed.items.iter().filter_map(|e| e.to_typed()).collect();
        events.retain(|e| e.involved_object.name.as_deref() == Some(about));
        events.sort_by_key(|e| e.metadata.name.clone());
        let words = |e: Event| {
            format!(
                "{} {}",
                e.reason.unwrap_or_default(),
                e.message.unwrap_or_default()
            )
        };
        events.into_iter().map(words).collect()
    }

    async fn phase(&self, name: &str) -> Option<String> {
        let pod = self.api.get_as::<Pod>("default", name).await.ok()?;
        Some(pod.status.as_ref()?.phase.clone().unwrap_or_default())
    }

    async fn delete(&self, name: &str) {
        let kind = Pod::kind_of();
        self.api
            .delete(kind, "default", name, DeleteOptions::default())
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn s1_a_restarted_kubelet_adopts_its_pods_and_terminates_deleted_ones() {
    let world = World::new();
    let (kubelet, cancel) = world.kubelet();
    world.create("a").await;
    world.create("b").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.phase("a").await.as_deref(), Some("Running"));
    cancel.cancel();
    kubelet.wait().await;
    // While it is down one pod is deleted by force, and one gracefully.
    let at_once = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    world
        .api
        .delete(Pod::kind_of(), "default", "b", at_once)
        .await
        .unwrap();
    let (_kubelet, _cancel) = world.kubelet();
    sleep(Duration::from_secs(30)).await;
    assert_eq!(
        world.runtime.starts().len(),
        2,
        "nothing was started a second time"
    );
    assert_eq!(world.runtime.running().len(), 1, "what has no pod was ended");
    world.delete("a").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.phase("a").await, None);
    assert!(world.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn t4_a_runtime_that_restarts_neither_loses_nor_doubles_a_container() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet();
    world.create("a").await;
    world.runtime.ignore_term("stubborn");
    world.create("stubborn").await;
    sleep(Duration::from_secs(1)).await;
    world.runtime.set_down(true);
    world.delete("stubborn").await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.phase("stubborn").await.as_deref(), Some("Running"));
    let id = world
        .runtime
        .running()
        .into_iter()
        .find(|(_, key)| key.ends_with("/a"));
    // It exits while no kubelet watches.
    assert!(world.runtime.exit(&id.unwrap().0, 1));
    world.runtime.set_down(false);
    sleep(Duration::from_secs(5)).await;
    let starts: Vec<_> = world.runtime.starts().into_iter().map(|(_, key)| key).collect();
    assert_eq!(
        starts.iter().filter(|k| k.ends_with("/a")).count(),
        2,
        "it was started again: {starts:?}"
    );
    sleep(Duration::from_secs(40)).await;
    assert_eq!(world.phase("stubborn").await, None);
    assert_eq!(world.runtime.running().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn l6_statuses_survive_conflicts_and_an_api_that_fails() {
    let world = World::new();
    let mut writes = 0;
    world.api.intercept(move |request| {
        let write = request.kind == Pod::kind_of().clone() && request.subresource == "status";
        writes += i32::from(write);
        match writes {
            _ if !write => None,
            1..=3 => Some(Error::unavailable(
                "the server is currently unable to handle the request",
            )),
            4 => Some(Error::conflict(
                request.kind.resource_ref(&request.name),
                "the object has been modified",
            )),
            _ => None,
        }
    });
    let (_kubelet, _cancel) = world.kubelet();
    world.create("a").await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.phase("a").await.as_deref(), Some("Running"));
    world.api.break_watches(true);
    world.delete("a").await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(
        world.phase("a").await,
        None,
        "a status written during the outage is written afterwards"
    );
    assert!(world.runtime.running().is_empty());
}

#[tokio::test(start_paused = true)]
async fn b4_a_node_that_is_cut_off_terminates_what_must_not_run_twice_and_nothing_else() {
    let world = World::new();
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    world.create("plain").await;
    for name in ["once", "given-away"] {
        world.create(name).await;
        let pod = world.api.get_as::<Pod>("default", name).await.unwrap();
        let mut pod = (*pod).clone();
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert("knarr.io/at-most-one".into(), "true".into());
        world.api.update_as(pod).await.unwrap();
    }
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.runtime.running().len(), 3);
    let cut = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_cut = cut.clone();
    world.api.intercept(move |_| {
        let cut = is_cut.load(std::sync::atomic::Ordering::SeqCst);
        cut.then(|| Error::unavailable("there is no way to the server"))
    });
    // The last renewal was at most ten seconds ago.
    sleep(Duration::from_secs(14)).await;
    assert_eq!(world.runtime.running().len(), 3, "two renewals may fail");
    sleep(Duration::from_secs(21)).await;
    let running = |world: &World| -> Vec<String> {
        let keys = world.runtime.running().into_iter().map(|(_, key)| key);
        let mut names: Vec<String> = keys
            .filter_map(|k| Some(k.rsplit('/').next()?.to_string()))
            .collect();
        names.sort();
        names
    };
    assert_eq!(running(&world), ["plain"], "35 seconds after the last renewal");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(running(&world), ["plain"], "nothing is started again meanwhile");
    cut.store(false, std::sync::atomic::Ordering::SeqCst);
    // While the node was cut off, a user released one of the pods.
    world.api.break_watches(true);
    let at_once = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    let kind = Pod::kind_of();
    world
        .api
        .delete(kind, "default", "given-away", at_once)
        .await
        .unwrap();
    sleep(Duration::from_secs(400)).await;
    assert_eq!(running(&world), ["once", "plain"]);
    let starts = world.runtime.starts();
    let of = |name: &str| starts.iter().filter(|(_, key)| key.ends_with(name)).count();
    assert_eq!((of("/plain"), of("/once"), of("/given-away")), (1, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn b4_a_kubelet_restarted_while_cut_off_terminates_them_too() {
    let world = World::new();
    let (kubelet, cancel) = world.kubelet_on_nothing();
    world.create("plain").await;
    world.create("once").await;
    let mut once = world.pod("once").await.unwrap();
    let annotations = once.metadata.annotations.get_or_insert_default();
    annotations.insert("knarr.io/at-most-one".into(), "true".into());
    world.api.update_as(once).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.runtime.running().len(), 2);
    let no_way = || Some(Error::unavailable("there is no way to the server"));
    world.api.intercept(move |_| no_way());
    cancel.cancel();
    kubelet.wait().await;
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(
        world.runtime.running().len(),
        2,
        "the API may answer again in time"
    );
    sleep(Duration::from_secs(16)).await;
    let running = world.runtime.running();
    assert!(
        running.len() == 1 && running[0].1.ends_with("/plain"),
        "{running:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn b4_renewals_that_are_answered_late_or_at_the_second_try_end_nothing() {
    // How long each answer takes, and whether the first try finds the lease changed, as after a write that was sent twice.
    for (takes, is_changed) in [(9, false), (4, true)] {
        let world = World::new();
        let (_kubelet, _cancel) = world.kubelet_on_nothing();
        world.create("once").await;
        let mut once = world.pod("once").await.unwrap();
        let annotations = once.metadata.annotations.get_or_insert_default();
        annotations.insert("knarr.io/at-most-one".into(), "true".into());
        world.api.update_as(once).await.unwrap();
        sleep(Duration::from_secs(5)).await;
        let name = world.api.names(&registry::LEASE).remove(0);
        world
            .api
            .delay_update_responses(move |request| match request.kind.plural() {
                "leases" => Duration::from_secs(takes),
                _ => Duration::ZERO,
            });
        for count in 0..24 {
            if is_changed {
                let change = |lease: &mut Lease| {
                    let annotations = lease.metadata.annotations.get_or_insert_default();
                    annotations.insert("changed".into(), count.to_string());
                };
                let changed = world.api.edit("kube-node-lease", &name, "", change).await;
                changed.unwrap();
            }
            sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(
            world.runtime.starts().len(),
            1,
            "{takes} s, changed: {is_changed}"
        );
        assert_eq!(world.runtime.running().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn b4_a_kubelet_starts_nothing_that_must_not_run_twice_before_its_own_first_renewal() {
    let world = World::new();
    world.create("plain").await;
    world.create("once").await;
    let mut once = world.pod("once").await.unwrap();
    let annotations = once.metadata.annotations.get_or_insert_default();
    annotations.insert("knarr.io/at-most-one".into(), "true".into());
    world.api.update_as(once).await.unwrap();
    let denied = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let is_denied = denied.clone();
    world.api.intercept(move |request| {
        let is_lease = request.kind.plural() == "leases";
        let denied = is_lease && is_denied.load(std::sync::atomic::Ordering::SeqCst);
        denied.then(|| Error::unavailable("the lease is not written"))
    });
    let (_kubelet, _cancel) = world.kubelet_on_nothing();
    sleep(Duration::from_secs(10)).await;
    let running = world.runtime.running();
    assert!(
        running.len() == 1 && running[0].1.ends_with("/plain"),
        "{running:?}"
    );
    denied.store(false, std::sync::atomic::Ordering::SeqCst);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.runtime.running().len(), 2);
}

fn readiness(pod: &Pod) -> &str {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.unwrap().iter().find(|c| c.type_ == "Ready");
    &ready.unwrap().status
}

impl World {
    /// As node lifecycle does with the pods of a node it takes for lost.
    async fn mark_as_lost(&self, name: &str) {
        let mut pod = self.pod(name).await.unwrap();
        assert_eq!(readiness(&pod), "True");
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.iter_mut().find(|c| c.type_ == "Ready").unwrap().status = "False".into();
        self.api
            .update(Pod::kind_of(), Box::new(pod), "status")
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn l3_a_pod_marked_as_lost_with_its_node_is_ready_again_when_the_node_was_not_lost() {
    let world = World::new();
    let (kubelet, cancel) = world.kubelet();
    world.create("a").await;
    sleep(Duration::from_secs(1)).await;
    for _ in 0..3 {
        world.mark_as_lost("a").await;
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(readiness(&world.pod("a").await.unwrap()), "True");
    // A restarted kubelet finds the status as the earlier one wrote it, and writes nothing; it still restores it.
    cancel.cancel();
    kubelet.wait().await;
    let (_kubelet, _cancel) = world.kubelet();
    sleep(Duration::from_secs(5)).await;
    world.mark_as_lost("a").await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(readiness(&world.pod("a").await.unwrap()), "True");
}
