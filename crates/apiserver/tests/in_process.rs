//! The server as components in its process use it: one server over the memory store, with its own clock.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

#[path = "in_process/admission.rs"]
mod admission;
#[path = "in_process/binding.rs"]
mod binding;
#[path = "in_process/conversion.rs"]
mod conversion;
#[path = "in_process/custom.rs"]
mod custom;
#[path = "in_process/definitions.rs"]
mod definitions;
#[path = "in_process/disruption.rs"]
mod disruption;
#[path = "in_process/events.rs"]
mod events;
#[path = "in_process/hooks.rs"]
mod hooks;
#[path = "in_process/lists_and_watches.rs"]
mod lists_and_watches;
#[path = "in_process/quota.rs"]
mod quota;
#[path = "in_process/servers.rs"]
mod servers;
#[path = "in_process/service_ips.rs"]
mod service_ips;
#[path = "in_process/unchanged.rs"]
mod unchanged;
#[path = "in_process/verbs.rs"]
mod verbs;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering};

use async_trait::async_trait;
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_api::Object;
use knarr_api::k8s_openapi;
use knarr_api::registry::{
    CONFIG_MAP, ENDPOINT_SLICE, ENDPOINTS, JOB, NAMESPACE, POD, POD_DISRUPTION_BUDGET, SERVICE,
    SERVICE_ACCOUNT,
};
use knarr_apimachinery::Error;
use knarr_apiserver::seams::{Clock, Entropy};
use knarr_apiserver::{Config, ISSUER, Seams, Server, ServiceRange};
use knarr_client::{
    Api, Conn, DeleteOptions, ListOptions, NodeDialer, Patch, Preconditions, Propagation, TypedApi,
    WatchEvent, WatchOptions,
};
use knarr_store::Store;
use serde_json::{Value, json};

/// A clock that tests advance.
struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Relaxed)).unwrap()
    }
}

/// Counts instead of random bytes.
struct Counter(AtomicU8);

impl Entropy for Counter {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        bytes[0] = self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct NoNodes;

#[async_trait]
impl NodeDialer for NoNodes {
    async fn dial(&self, _: &str) -> std::io::Result<Box<dyn Conn>> {
        Err(std::io::ErrorKind::NotFound.into())
    }
}

struct Cluster {
    server: Arc<Server>,
    api: Arc<dyn Api>,
    clock: Arc<TestClock>,
    store: Arc<dyn Store>,
}

async fn cluster() -> Cluster {
    let store = knarr_store::open(knarr_store::Config::Memory).await.unwrap();
    let c = server_over(store).await;
    let account = SERVICE_ACCOUNT
        .ops
        .decode(br#"{"metadata":{"name":"default","namespace":"default"}}"#)
        .unwrap();
    c.api.create(&SERVICE_ACCOUNT, account.object).await.unwrap();
    c
}

async fn server_over(store: Arc<dyn Store>) -> Cluster {
    server_with(store, knarr_apiserver::Options::default()).await
}

async fn server_with(store: Arc<dyn Store>, options: knarr_apiserver::Options) -> Cluster {
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(TestClock(AtomicI64::new(1_800_000_000)));
    let pki = knarr_apiserver::pki::Pki::open(directory.path(), clock.now()).unwrap();
    let config = Config {
        advertised: "127.0.0.1:6443".into(),
        address: [192, 0, 2, 1].into(),
        port: 6443,
        service_range: ServiceRange::parse("10.96.0.0/16").unwrap(),
        static_tokens: Default::default(),
        issuer: ISSUER.into(),
        service_account_key: pki.service_account_key().unwrap(),
        options,
    };
    let seams = Seams {
        clock: clock.clone(),
        entropy: Arc::new(Counter(AtomicU8::new(0))),
        nodes: Arc::new(NoNodes),
    };
    let server = Server::new(config, seams, store.clone()).await.unwrap();
    let api = server.api_as("system:apiserver-test", ["system:masters"]);
    Cluster {
        server,
        api,
        clock,
        store,
    }
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"}, "data": {"k": value},
    }))
    .unwrap()
}

/// A pod on a node, with 60 s of grace.
async fn bound_pod(api: &dyn Api) -> Arc<Object> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "containers": [{"name": "c", "image": "img:1"}],
            "terminationGracePeriodSeconds": 60,
        },
    }))
    .unwrap();
    let pod = api.create_as(pod).await.unwrap();
    api.bind(&pod, &"n1".into()).await.unwrap();
    api.get(&POD, "default", "p").await.unwrap()
}

fn grace(seconds: i64) -> DeleteOptions {
    DeleteOptions {
        grace_period_seconds: Some(seconds),
        ..DeleteOptions::default()
    }
}

fn of_pod(object: &Object) -> (Option<i64>, Option<i64>) {
    let meta = object.metadata();
    (
        meta.deletion_grace_period_seconds,
        meta.deletion_timestamp.as_ref().map(|t| t.0.as_second()),
    )
}

#[tokio::test(start_paused = true)]
async fn t1_a_repeated_delete_shortens_and_never_lengthens() {
    let c = cluster().await;
    bound_pod(&*c.api).await;
    let start = c.clock.now().as_second();
    let delete = |options| c.api.delete(&POD, "default", "p", options);
    assert_eq!(
        of_pod(&delete(DeleteOptions::default()).await.unwrap()),
        (Some(60), Some(start + 60))
    );
    c.clock.0.fetch_add(5, Ordering::Relaxed);
    assert_eq!(
        of_pod(&delete(grace(100)).await.unwrap()),
        (Some(60), Some(start + 60))
    );
    assert_eq!(
        of_pod(&delete(grace(20)).await.unwrap()),
        (Some(20), Some(start + 20))
    );
    c.clock.0.fetch_add(25, Ordering::Relaxed);
    // Too late for 10 s: the remaining grace is the minimum.
    assert_eq!(
        of_pod(&delete(grace(10)).await.unwrap()),
        (Some(1), Some(start + 30))
    );
    delete(grace(0)).await.unwrap();
    assert!(c.api.get(&POD, "default", "p").await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn t1_an_unscheduled_pod_is_deleted_at_once_and_a_negative_grace_is_one() {
    let c = cluster().await;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "q", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "img:1"}]},
    }))
    .unwrap();
    c.api.create_as(pod).await.unwrap();
    c.api.delete(&POD, "default", "q", grace(5)).await.unwrap();
    assert!(c.api.get(&POD, "default", "q").await.unwrap_err().is_not_found());
    bound_pod(&*c.api).await;
    let marked = c.api.delete(&POD, "default", "p", grace(-7)).await.unwrap();
    assert_eq!(of_pod(&marked).0, Some(1));
}

#[tokio::test(start_paused = true)]
async fn t1_preconditions_hold_a_deletion_back() {
    let c = cluster().await;
    c.api.create_as(config_map("a", "1")).await.unwrap();
    let options = |uid: Option<&str>, version: Option<&str>| DeleteOptions {
        preconditions: Preconditions {
            uid: uid.map(Into::into),
            resource_version: version.map(Into::into),
        },
        ..DeleteOptions::default()
    };
    for wrong in [options(Some("other"), None), options(None, Some("1"))] {
        let error = c
            .api
            .delete(&CONFIG_MAP, "default", "a", wrong)
            .await
            .unwrap_err();
        assert!(error.is_conflict(), "{error}");
    }
    let there = c.api.get(&CONFIG_MAP, "default", "a").await.unwrap();
    let right = options(Some(there.uid()), there.metadata().resource_version.as_deref());
    c.api.delete(&CONFIG_MAP, "default", "a", right).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t1_finalizers_hold_an_object_until_the_last_is_gone() {
    let c = cluster().await;
    let mut map = config_map("a", "1");
    map.metadata.finalizers = Some(vec!["x.io/y".into()]);
    c.api.create_as(map).await.unwrap();
    let foreground = DeleteOptions {
        propagation: Some(Propagation::Foreground),
        ..DeleteOptions::default()
    };
    let held = c
        .api
        .delete(&CONFIG_MAP, "default", "a", foreground)
        .await
        .unwrap();
    assert_eq!(
        held.metadata().finalizers.as_deref(),
        Some(&["x.io/y".to_string(), "foregroundDeletion".to_string()][..])
    );
    let drop_them = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    c.api
        .patch(&CONFIG_MAP, "default", "a", "", drop_them)
        .await
        .unwrap();
    assert!(
        c.api
            .get(&CONFIG_MAP, "default", "a")
            .await
            .unwrap_err()
            .is_not_found()
    );
}

#[tokio::test(start_paused = true)]
async fn of_two_writers_with_the_same_resource_version_one_gets_a_conflict() {
    let c = cluster().await;
    let seen = c.api.create_as(config_map("a", "1")).await.unwrap();
    let change = |value: &str| {
        let mut map = (*seen).clone();
        map.data = Some([("k".to_string(), value.to_string())].into());
        map
    };
    let (one, two) = tokio::join!(c.api.update_as(change("2")), c.api.update_as(change("3")));
    let lost: Vec<Error> = [one.err(), two.err()].into_iter().flatten().collect();
    assert_eq!(lost.len(), 1);
    assert!(lost[0].is_conflict());
}

#[tokio::test(start_paused = true)]
async fn unconditional_writes_all_succeed() {
    let c = cluster().await;
    c.api.create_as(config_map("a", "1")).await.unwrap();
    let patches = (0..20).map(|i| {
        let patch = Patch::Merge(json!({"data": {format!("k{i}"): "v"}}));
        c.api.patch(&CONFIG_MAP, "default", "a", "", patch)
    });
    for done in futures::future::join_all(patches).await {
        done.unwrap();
    }
    let map = c.api.get_as::<ConfigMap>("default", "a").await.unwrap();
    assert_eq!(map.data.as_ref().unwrap().len(), 21);

    // Neither does a patch of a kind without unconditional update: it sets no resourceVersion.
    let budget: PodDisruptionBudget = serde_json::from_value(json!({
        "metadata": {"name": "b", "namespace": "default"}, "spec": {"minAvailable": 1},
    }))
    .unwrap();
    c.api.create_as(budget).await.unwrap();
    let patches = (0..20).map(|i| {
        let patch =
            Patch::Merge(json!({"status": {"disruptedPods": {format!("p{i}"): "2026-11-21T10:00:00Z"}}}));
        c.api
            .patch(&POD_DISRUPTION_BUDGET, "default", "b", "status", patch)
    });
    for done in futures::future::join_all(patches).await {
        done.unwrap();
    }
    let budget = c.api.get_as::<PodDisruptionBudget>("default", "b").await.unwrap();
    let disrupted = budget.status.as_ref().unwrap().disrupted_pods.as_ref();
    assert_eq!(disrupted.unwrap().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn times_with_the_same_encoding_are_equal() {
    let c = cluster().await;
    let job = json!({
        "metadata": {"name": "j", "namespace": "default"},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    });
    let mut job: Job = serde_json::from_value(job).unwrap();
    job = (*c.api.create_as(job).await.unwrap()).clone();
    // A controller has the time to the nanosecond; the encoding has seconds.
    let start = Timestamp::new(1_700_000_000, 5_000_000).unwrap();
    job.status.get_or_insert_default().start_time = Some(Time(start));
    c.api.update_status_as(job).await.unwrap();
    let note = Patch::Merge(json!({"status": {"ready": 0}}));
    c.api.patch(&JOB, "default", "j", "status", note).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_update_that_changes_nothing_writes_nothing() {
    let c = cluster().await;
    let made = c.api.create_as(config_map("a", "1")).await.unwrap();
    let again = c.api.update_as(config_map("a", "1")).await.unwrap();
    assert!(Arc::ptr_eq(made.object(), again.object()));
}

#[tokio::test(start_paused = true)]
async fn the_service_of_the_api_comes_back_when_it_is_deleted() {
    let c = cluster().await;
    let find = async || c.api.get(&SERVICE, "default", "kubernetes").await;
    let first = find().await.unwrap();
    let options = DeleteOptions::default();
    c.api
        .delete(&SERVICE, "default", "kubernetes", options)
        .await
        .unwrap();
    assert!(find().await.is_err());
    let back = async {
        while find().await.is_err() {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), back)
        .await
        .unwrap();
    assert_ne!(find().await.unwrap().uid(), first.uid());
}

#[tokio::test(start_paused = true)]
async fn a_terminating_namespace_rejects_new_objects() {
    let c = cluster().await;
    let namespace = NAMESPACE.ops.decode(br#"{"metadata":{"name":"old"}}"#).unwrap();
    c.api.create(&NAMESPACE, namespace.object).await.unwrap();
    c.api
        .delete(&NAMESPACE, "", "old", DeleteOptions::default())
        .await
        .unwrap();
    let mut map = config_map("a", "1");
    map.metadata.namespace = Some("old".into());
    assert_eq!(c.api.create_as(map.clone()).await.unwrap_err().code(), 403);
    map.metadata.namespace = Some("none".into());
    assert_eq!(c.api.create_as(map).await.unwrap_err().code(), 404);
    let error = c
        .api
        .delete(&NAMESPACE, "", "default", DeleteOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.code(), 403);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_once() {
    let c = cluster().await;
    let pod = bound_pod(&*c.api).await;
    let pod: Pod = pod.to_typed().unwrap();
    let error = c.api.bind(&pod, &"n2".into()).await.unwrap_err();
    assert!(error.is_conflict(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_generated_name_is_one_that_no_object_has() {
    let c = cluster().await;
    // The names that the test's entropy makes differ in one character. Of each four one is free: eight attempts find one.
    let name = |one: char| format!("m-{one}bbbb");
    let all = "bcdfghjklmnpqrstvwxz2456789".chars().enumerate();
    let (mut free, mut taken) = (Vec::new(), Vec::new());
    for (at, one) in all {
        let names = if at % 4 == 0 { &mut free } else { &mut taken };
        names.push(name(one));
    }
    for name in &taken {
        c.api.create_as(config_map(name, "")).await.unwrap();
    }
    let generated = || {
        let mut map = config_map("", "");
        map.metadata.name = None;
        map.metadata.generate_name = Some("m-".into());
        map
    };
    for _ in 0..2 {
        let made = c.api.create_as(generated()).await.unwrap();
        let name = made.metadata.name.clone().unwrap();
        let at = free.iter().position(|one| *one == name).expect("a free name");
        free.remove(at);
    }
    for name in &free {
        c.api.create_as(config_map(name, "")).await.unwrap();
    }
    assert_eq!(c.api.create_as(generated()).await.unwrap_err().code(), 409);
}

#[tokio::test(start_paused = true)]
async fn p2_a_pods_priority_comes_from_its_class() {
    let c = cluster().await;
    let pod = |class: &str| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"generateName": "p-", "namespace": "default"},
            "spec": {"containers": [{"name": "c", "image": "i"}], "priorityClassName": class},
        }))
        .unwrap()
    };
    let critical = c.api.create_as(pod("system-node-critical")).await.unwrap();
    let spec = critical.spec.as_ref().unwrap();
    assert_eq!(
        (spec.priority, spec.preemption_policy.as_deref()),
        (Some(2_000_001_000), Some("PreemptLowerPriority"))
    );
    assert_eq!(
        c.api
            .create_as(pod(""))
            .await
            .unwrap()
            .spec
            .as_ref()
            .unwrap()
            .priority,
        Some(0)
    );
    assert_eq!(c.api.create_as(pod("none")).await.unwrap_err().code(), 403);
}

#[tokio::test(start_paused = true)]
async fn b6_pods_of_a_class_with_hard_budgets_have_them_and_keep_them() {
    const ANNOTATION: &str = "knarr.io/preemption-budgets";
    let c = cluster().await;
    let class = |name: &str, annotations: serde_json::Value| -> PriorityClass {
        let class = json!({"metadata": {"name": name, "annotations": annotations}, "value": 7});
        serde_json::from_value(class).unwrap()
    };
    c.api
        .create_as(class("gentle", json!({ANNOTATION: "Hard"})))
        .await
        .unwrap();
    c.api.create_as(class("plain", json!({}))).await.unwrap();
    let pod = |class: &str, annotations: serde_json::Value| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"generateName": "p-", "namespace": "default", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "i"}], "priorityClassName": class},
        }))
        .unwrap()
    };
    let budgets = |pod: &Pod| {
        pod.metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(ANNOTATION))
            .cloned()
    };
    let plain = c.api.create_as(pod("plain", json!({}))).await.unwrap();
    assert_eq!(budgets(&plain), None);
    let gentle = c
        .api
        .create_as(pod("gentle", json!({ANNOTATION: "BestEffort"})))
        .await
        .unwrap();
    assert_eq!(
        budgets(&gentle).as_deref(),
        Some("Hard"),
        "the class decides, not the pod"
    );
    let mut changed = (*gentle).clone();
    changed.metadata.annotations = None;
    let changed = c.api.update_as(changed).await.unwrap();
    assert_eq!(
        budgets(&changed).as_deref(),
        Some("Hard"),
        "an update cannot remove it"
    );
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_writes_its_own_pods_and_no_others() {
    let c = cluster().await;
    bound_pod(&*c.api).await;
    let node = |name: &str| c.server.api_as(&format!("system:node:{name}"), ["system:nodes"]);
    let running = || Patch::Merge(json!({"status": {"phase": "Running"}}));
    node("n1")
        .patch(&POD, "default", "p", "status", running())
        .await
        .unwrap();
    let error = node("n2")
        .patch(&POD, "default", "p", "status", running())
        .await
        .unwrap_err();
    assert_eq!(error.code(), 403);
    assert_eq!(
        node("n1")
            .patch(&POD, "default", "p", "", running())
            .await
            .unwrap_err()
            .code(),
        403
    );
    let stranger = c.server.api_as("bob", [""; 0]);
    assert_eq!(stranger.get(&POD, "default", "p").await.unwrap_err().code(), 403);
}

#[tokio::test(start_paused = true)]
async fn l2_what_replaces_an_object_has_another_uid() {
    let c = cluster().await;
    let first = c.api.create_as(config_map("a", "1")).await.unwrap();
    c.api
        .delete(&CONFIG_MAP, "default", "a", DeleteOptions::default())
        .await
        .unwrap();
    let second = c.api.create_as(config_map("a", "1")).await.unwrap();
    assert_ne!(first.metadata.uid, second.metadata.uid);
    let mut late = (*first).clone();
    late.metadata.resource_version = None;
    assert!(c.api.update_as(late).await.unwrap_err().is_conflict());
}
