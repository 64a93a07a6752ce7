//! The scheduler on an in-memory API, in paused time.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_client::fake::FakeApi;
use knarr_client::metrics::Registry;
use knarr_client::{Api, DeleteOptions, Error, ListOptions, Patch, TypedApi};
use knarr_control::scheduler_config::KubeSchedulerConfiguration;
use knarr_control::{Config, scheduler, scheduler_config};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::DropGuard;

use crate::cluster::{node_of, run_one, with_all, with_base};

/// The scheduler alone: what other controllers write, the tests do.
fn cluster() -> (Arc<FakeApi>, DropGuard) {
    cluster_with(&KubeSchedulerConfiguration::default())
}

fn cluster_with(configuration: &KubeSchedulerConfiguration) -> (Arc<FakeApi>, DropGuard) {
    let (api, base) = with_base();
    let metrics = scheduler::Metrics::new(&Registry::default());
    let running = run_one(scheduler::run(base, configuration.scheduler(), metrics));
    (api, running)
}

fn node(name: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "110"}},
    }))
    .unwrap()
}

fn pod(name: &str, cpu: &str) -> Pod {
    let resources = json!({"requests": {"cpu": cpu}});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    }))
    .unwrap()
}

async fn events(api: &FakeApi) -> Vec<String> {
    let list = api.list(&registry::EVENT, ListOptions::default()).await.unwrap();
    let events = list.items.iter().filter_map(|e| e.get::<Event>());
    let text = |e: &Event| {
        let of = |t: &Option<String>| t.clone().unwrap_or_default();
        format!("{} {}: {}", of(&e.type_), of(&e.reason), of(&e.message))
    };
    events.map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn an_unschedulable_pod_reports_it_and_is_bound_when_a_node_is_added() {
    let (api, _running) = cluster();
    api.create_as(pod("web", "1")).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let web = api.get_as::<Pod>("default", "web").await.unwrap();
    let condition = &web.status.as_ref().unwrap().conditions.as_ref().unwrap()[0];
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str()),
        ("PodScheduled", "False")
    );
    assert_eq!(condition.reason.as_deref(), Some("Unschedulable"));
    assert_eq!(
        condition.message.as_deref(),
        Some("no nodes available to schedule pods")
    );

    api.create_as(node("n1")).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(node_of(&api, "web").await.as_deref(), Some("n1"));
    assert_eq!(
        events(&api).await,
        [
            "Warning FailedScheduling: no nodes available to schedule pods",
            "Normal Scheduled: Successfully assigned default/web to n1"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_burst_never_overfills_a_node() {
    let (api, _running) = cluster();
    for n in 0..3 {
        api.create_as(node(&format!("n{n}"))).await.unwrap();
    }
    for n in 0..10 {
        api.create_as(pod(&format!("p{n}"), "1")).await.unwrap();
    }
    sleep(Duration::from_secs(20)).await;
    let mut on = std::collections::BTreeMap::<Option<String>, usize>::new();
    for n in 0..10 {
        *on.entry(node_of(&api, &format!("p{n}")).await).or_default() += 1;
    }
    let counts: Vec<usize> = on.values().copied().collect();
    assert_eq!(counts, [4, 2, 2, 2], "four wait, two run on each node: {on:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_binding_is_retried() {
    let (api, _running) = cluster();
    let mut rejections = 2;
    api.intercept(move |request| {
        let rejected = request.subresource == "binding" && rejections > 0;
        rejected.then(|| {
            rejections -= 1;
            Error::unavailable("not now")
        })
    });
    api.create_as(node("n1")).await.unwrap();
    api.create_as(pod("web", "2")).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    assert_eq!(node_of(&api, "web").await.as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn p4_a_pod_of_higher_priority_preempts_and_reports_its_victims() {
    let (api, _running) = cluster();
    api.create_as(node("n1")).await.unwrap();
    api.create_as(pod("low", "2")).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(node_of(&api, "low").await.as_deref(), Some("n1"));
    let mut high = pod("high", "2");
    high.spec.as_mut().unwrap().priority = Some(10);
    api.create_as(high).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    // The victim ends gracefully: that is the kubelet's, which is not here.
    let low = api.get_as::<Pod>("default", "low").await.unwrap();
    assert!(low.metadata.deletion_timestamp.is_some());
    let conditions = low.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("PreemptionByScheduler"));
    assert_eq!(node_of(&api, "high").await, None);
    let high = api.get_as::<Pod>("default", "high").await.unwrap();
    let nominated = high.status.as_ref().unwrap().nominated_node_name.as_deref();
    assert_eq!(nominated, Some("n1"));
    // One of lower priority does not get what is being freed, nor does it preempt.
    api.create_as(pod("late", "1")).await.unwrap();
    let now = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    api.delete(&registry::POD, "default", "low", now).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(node_of(&api, "high").await.as_deref(), Some("n1"));
    assert_eq!(node_of(&api, "late").await, None);
    let events = events(&api).await;
    let preempted = format!(
        "Normal Preempted: Preempted by pod {} on node n1",
        high.object().uid()
    );
    assert!(events.contains(&preempted), "{events:?}");
    let failed = "Warning FailedScheduling: 0/1 nodes are available: 1 Insufficient cpu.".to_string();
    assert!(events.contains(&failed), "{events:?}");
}

/// With cross-node preemption, a node a1 with room, and a pod `low` on a2 that is in the way of [`asking`].
async fn across_nodes() -> (Arc<FakeApi>, DropGuard) {
    let configuration = scheduler_config::parse(
        "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: knarr.io/Preemption
    args: {crossNode: true}
",
    );
    let (api, running) = cluster_with(&configuration.unwrap());
    for name in ["a1", "a2"] {
        let mut node = node(name);
        node.metadata.labels = Some([("zone".to_string(), "a".to_string())].into());
        api.create_as(node).await.unwrap();
    }
    for (name, priority) in [("full", 100), ("low", 0)] {
        let mut pod = pod(name, "1");
        pod.metadata.labels = Some([("app".to_string(), name.to_string())].into());
        let spec = pod.spec.as_mut().unwrap();
        spec.node_name = Some("a2".into());
        spec.priority = Some(priority);
        api.create_as(pod).await.unwrap();
    }
    (api, running)
}

/// It fits on a1 alone, and there only without `low` in the zone.
fn asking() -> Pod {
    let mut asking = pod("high", "2");
    let request = ("knarr.io/cross-node-preemption".to_string(), "true".to_string());
    asking.metadata.annotations = Some([request].into());
    let spec = asking.spec.as_mut().unwrap();
    spec.priority = Some(10);
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "low"}}});
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    spec.affinity = serde_json::from_value(anti).unwrap();
    asking
}

#[tokio::test(start_paused = true)]
async fn b5_a_victim_on_another_node_is_evicted_after_the_nomination_is_written() {
    let (api, _running) = across_nodes().await;
    // The status of the preemptor cannot be written for a while.
    let rejects = Arc::new(AtomicBool::new(true));
    let rejecting = rejects.clone();
    api.intercept(move |request| {
        let is_record = request.name == "high" && request.subresource == "status";
        (is_record && rejecting.load(Ordering::Relaxed)).then(|| Error::unavailable("not now"))
    });
    api.create_as(asking()).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    let low = api.get_as::<Pod>("default", "low").await.unwrap();
    assert!(
        low.metadata.deletion_timestamp.is_none(),
        "evicted without a record"
    );
    rejects.store(false, Ordering::Relaxed);
    sleep(Duration::from_secs(60)).await;
    let low = api.get_as::<Pod>("default", "low").await.unwrap();
    assert!(low.metadata.deletion_timestamp.is_some());
    let high = api.get_as::<Pod>("default", "high").await.unwrap();
    let nominated = high.status.as_ref().unwrap().nominated_node_name.as_deref();
    assert_eq!(nominated, Some("a1"));
    let uid = high.object().uid();
    let preempted = format!("Normal Preempted: Preempted by pod {uid}, which is nominated to node a1");
    let events = events(&api).await;
    assert!(events.contains(&preempted), "{events:?}");
    let now = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    api.delete(&registry::POD, "default", "low", now).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    assert_eq!(node_of(&api, "high").await.as_deref(), Some("a1"));
}

/// A node, a claim that waits for its first consumer, and a pod with that claim.
async fn with_claim(api: &FakeApi, provisioner: &str) {
    api.create_as(node("n1")).await.unwrap();
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": "disks"}, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }))
    .unwrap();
    api.create_as(class).await.unwrap();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "disks",
            "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .unwrap();
    api.create_as(claim).await.unwrap();
    let mut web = pod("web", "1");
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    web.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
    api.create_as(web).await.unwrap();
}

/// What the volume controller writes once the volume is there.
async fn bind_claim(api: &FakeApi, volume: &str) {
    let patch = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": volume},
    });
    let kind = &registry::PERSISTENT_VOLUME_CLAIM;
    api.patch(kind, "default", "data", "", Patch::Merge(patch))
        .await
        .unwrap();
}

fn volume() -> PersistentVolume {
    serde_json::from_value(json!({
        "metadata": {"name": "disk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "disks", "capacity": {"storage": "1Gi"},
            "local": {"path": "/x"}},
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_bound_to_the_claim_before_the_pod_is_bound() {
    let (api, _running) = cluster();
    api.create_as(volume()).await.unwrap();
    with_claim(&api, "kubernetes.io/no-provisioner").await;
    // As the volume controller does.
    let available = Patch::Merge(json!({"status": {"phase": "Available"}}));
    api.patch(&registry::PERSISTENT_VOLUME, "", "disk", "status", available)
        .await
        .unwrap();
    sleep(Duration::from_secs(30)).await;
    let disk = api.get_as::<PersistentVolume>("", "disk").await.unwrap();
    let claim = api
        .get_as::<PersistentVolumeClaim>("default", "data")
        .await
        .unwrap();
    let given = disk.spec.as_ref().unwrap().claim_ref.as_ref().unwrap();
    assert_eq!(given.uid.as_deref(), Some(claim.object().uid()));
    let by = disk.metadata.annotations.as_ref().unwrap();
    assert_eq!(by["pv.kubernetes.io/bound-by-controller"], "yes");
    assert_eq!(
        node_of(&api, "web").await,
        None,
        "the claim does not know of it yet"
    );
    bind_claim(&api, "disk").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node_of(&api, "web").await.as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_requested_on_the_node_and_a_failure_to_provision_it_is_reported_and_retried() {
    let (api, _running) = cluster();
    with_claim(&api, "disks.example.com").await;
    sleep(Duration::from_secs(1)).await;
    let selected = async || {
        let claim = api
            .get_as::<PersistentVolumeClaim>("default", "data")
            .await
            .unwrap();
        let annotations = claim.metadata.annotations.clone().unwrap_or_default();
        annotations.get("volume.kubernetes.io/selected-node").cloned()
    };
    assert_eq!(selected().await.as_deref(), Some("n1"));
    assert_eq!(node_of(&api, "web").await, None);
    // The provisioner reports that it cannot provision on that node.
    let patch = json!({"metadata": {"annotations":
        {"volume.kubernetes.io/selected-node": null, "x": "y"}}});
    let kind = &registry::PERSISTENT_VOLUME_CLAIM;
    api.patch(kind, "default", "data", "", Patch::Merge(patch))
        .await
        .unwrap();
    sleep(Duration::from_millis(500)).await;
    let recorded = events(&api).await;
    let failed = "Warning FailedScheduling: running PreBind plugin \"VolumeBinding\": binding volumes: \
                  provisioning failed for PVC \"data\"";
    assert!(recorded.contains(&failed.to_string()), "{recorded:?}");
    sleep(Duration::from_secs(20)).await;
    assert_eq!(selected().await.as_deref(), Some("n1"), "it is tried again");
    api.create_as(volume()).await.unwrap();
    bind_claim(&api, "disk").await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(node_of(&api, "web").await.as_deref(), Some("n1"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_volume_is_not_bound_in_time_is_unreserved() {
    let (api, _running) = cluster();
    with_claim(&api, "disks.example.com").await;
    sleep(Duration::from_secs(601)).await;
    let recorded = events(&api).await;
    let failed = "Warning FailedScheduling: running PreBind plugin \"VolumeBinding\": binding volumes: \
                  context deadline exceeded";
    assert!(recorded.contains(&failed.to_string()), "{recorded:?}");
    let now = DeleteOptions {
        grace_period_seconds: Some(0),
        ..DeleteOptions::default()
    };
    api.delete(&registry::POD, "default", "web", now).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn metrics_have_kube_schedulers_names() {
    let config = Config::default();
    let metrics = config.metrics.clone();
    let (api, _running) = with_all(config);
    api.create_as(node("n1")).await.unwrap();
    for name in ["a", "b"] {
        let mut low = pod(name, "1");
        low.spec.as_mut().unwrap().scheduler_name = Some("default-scheduler".into());
        api.create_as(low).await.unwrap();
    }
    sleep(Duration::from_secs(3)).await;
    api.create_as(pod("large", "3")).await.unwrap();
    let mut high = pod("high", "2");
    high.spec.as_mut().unwrap().priority = Some(10);
    api.create_as(high).await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let page = metrics.text();
    for line in [
        r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="scheduled"} 2"#,
        r#"scheduler_schedule_attempts_total{profile="default-scheduler",result="unschedulable"} 2"#,
        r#"scheduler_scheduling_attempt_duration_seconds_count{profile="default-scheduler",result="scheduled"} 2"#,
        r#"scheduler_pending_pods{queue="unschedulable"} 2"#,
        r#"scheduler_pending_pods{queue="active"} 0"#,
        r#"scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="default-scheduler"} 2"#,
        r#"scheduler_preemption_victims_sum 2"#,
        r#"scheduler_preemption_attempts_total 1"#,
        r#"scheduler_pod_scheduling_attempts_count 2"#,
        r#"scheduler_cache_size{type="nodes"} 1"#,
        r#"scheduler_queue_incoming_pods_total{event="UnschedulablePodAdd",queue="active"} 4"#,
        r#"scheduler_framework_extension_point_duration_seconds_count{extension_point="Bind",profile="default-scheduler",status="Success"} 2"#,
        "# TYPE scheduler_scheduling_algorithm_duration_seconds histogram",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in:\n{page}");
    }
}
