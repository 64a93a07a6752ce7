//! HorizontalPodAutoscalers on an in-memory API, in paused time, with metrics that the test sets.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::registry::{EVENT, HORIZONTAL_POD_AUTOSCALER, POD};
use knarr_client::fake::FakeApi;
use knarr_client::{Api, Clock, ListOptions, TypedApi};
use knarr_control::Config;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::DropGuard;

use crate::cluster::{create, empty_api, run_all};

struct Cluster {
    api: Arc<FakeApi>,
    clock: Arc<dyn Clock>,
    /// What each pod uses, in thousandths of a core.
    usage: Arc<AtomicI64>,
    _running: DropGuard,
}

/// A Deployment `web` with this many replicas that request 100m, and an autoscaler with a target of 50 %.
async fn cluster(replicas: i32, target: Value) -> Cluster {
    let (api, clock) = empty_api("2026-01-02T03:04:05Z".parse().unwrap());
    let usage = Arc::new(AtomicI64::new(50));
    let (answered, now) = (usage.clone(), clock.clone());
    let pods = api.clone();
    api.respond_raw(move |path| {
        assert!(
            path.starts_with("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods?labelSelector=app%3Dweb"),
            "{path}"
        );
        let cpu = format!("{}m", answered.load(Ordering::Relaxed));
        let names = pods.names(&POD);
        let items = names.iter().map(|name| {
            json!({"metadata": {"name": name, "namespace": "default"}, "timestamp": now.now(), "window": "10s",
                "containers": [{"name": "c", "usage": {"cpu": cpu}}]})
        });
        json!({"items": items.collect::<Vec<_>>()})
    });
    let mut config = Config::default();
    // The node's lease is not renewed.
    config.controllers.node_lifecycle.grace = SignedDuration::from_hours(24);
    let running = run_all(&api, &clock, config);
    let node = json!({"metadata": {"name": "n1"}, "status": {
        "allocatable": {"cpu": "8", "memory": "4Gi", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}});
    create::<Node>(&api, node).await;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}]}});
    let web = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    create::<Deployment>(&api, web).await;
    let metric = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}});
    let hpa = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {
        "scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 6, "metrics": [metric]}});
    create::<HorizontalPodAutoscaler>(&api, hpa).await;
    Cluster {
        api,
        clock,
        usage,
        _running: running,
    }
}

impl Cluster {
    /// Marks new pods as ready, as a node would, until the condition holds.
    async fn until(&self, what: &str, holds: impl Fn(&HorizontalPodAutoscaler, i32) -> bool) {
        let reached = async {
            loop {
                for pod in self.pods().await {
                    self.run(pod).await;
                }
                let web = self.api.get_as::<Deployment>("default", "web").await.unwrap();
                let hpa = self
                    .api
                    .get_as::<HorizontalPodAutoscaler>("default", "web")
                    .await
                    .unwrap();
                let replicas = web.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
                if holds(&hpa, replicas) {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        if timeout(Duration::from_secs(1800), reached).await.is_err() {
            let hpa = self
                .api
                .get_as::<HorizontalPodAutoscaler>("default", "web")
                .await
                .unwrap();
            panic!(
                "waited in vain for {what}: {:?}\n{:?}",
                hpa.status,
                self.events().await
            );
        }
    }

    async fn pods(&self) -> Vec<Pod> {
        let listed = self.api.list(&POD, ListOptions::default()).await.unwrap();
        listed.items.iter().filter_map(|o| o.to_typed::<Pod>()).collect()
    }

    async fn run(&self, mut pod: Pod) {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if phase == Some("Running") || pod.spec.as_ref().is_none_or(|s| s.node_name.is_none()) {
            return;
        }
        let now = self.clock.now();
        pod.status = serde_json::from_value(json!({"phase": "Running", "startTime": now, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": now}]}))
        .unwrap();
        self.api.update_status_as(pod).await.unwrap();
    }

    async fn events(&self) -> Vec<String> {
        let listed = self.api.list(&EVENT, ListOptions::default()).await.unwrap();
        let events = listed.items.iter().filter_map(|o| o.to_typed::<Event>());
        let of_autoscaler =
            events.filter(|e| e.involved_object.kind.as_deref() == Some("HorizontalPodAutoscaler"));
        of_autoscaler
            .map(|e| format!("{}: {}", e.reason.unwrap(), e.message.unwrap()))
            .collect()
    }
}

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"})
}

fn condition<'a>(hpa: &'a HorizontalPodAutoscaler, type_: &str) -> Option<(&'a str, &'a str)> {
    let conditions = hpa.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == type_)?;
    Some((&found.status, found.reason.as_deref().unwrap_or_default()))
}

#[tokio::test(start_paused = true)]
async fn a_busy_deployment_is_scaled_up_and_down_again_after_the_stabilization() {
    let c = cluster(2, deployment()).await;
    c.until("a first status", |hpa, _| {
        condition(hpa, "ScalingActive") == Some(("True", "ValidMetricFound"))
    })
    .await;
    // Pods of less than five minutes are not ready for a scale-up by their own usage: let them grow older.
    sleep(Duration::from_secs(400)).await;
    c.usage.store(100, Ordering::Relaxed);
    c.until("twice as many", |_, replicas| replicas == 4).await;
    c.usage.store(50, Ordering::Relaxed);
    let began = c.clock.now();
    c.until("all at their target", |hpa, _| {
        hpa.status
            .as_ref()
            .is_some_and(|s| s.current_replicas == Some(4) && s.desired_replicas == 4)
    })
    .await;
    c.usage.store(25, Ordering::Relaxed);
    c.until("half as many", |_, replicas| replicas == 2).await;
    let waited = c.clock.now().duration_since(began).as_secs();
    assert!(
        waited >= 290,
        "scaled down after {waited} s, before the stabilization window"
    );
    let events = c.events().await;
    let up = "SuccessfulRescale: New size: 4; reason: cpu resource utilization (percentage of request) above target";
    assert!(events.iter().any(|e| e == up), "{events:?}");
    assert!(
        events
            .iter()
            .any(|e| e == "SuccessfulRescale: New size: 2; reason: All metrics below target"),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_target_that_does_not_exist_is_reported_and_found_when_it_comes() {
    let c = cluster(
        2,
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "later"}),
    )
    .await;
    c.until("the failure", |hpa, _| {
        condition(hpa, "AbleToScale") == Some(("False", "FailedGetScale"))
    })
    .await;
    let events = c.events().await;
    assert!(
        events
            .iter()
            .any(|e| e.starts_with("FailedGetScale: deployments.apps \"later\" not found")),
        "{events:?}"
    );
    let mut hpa = (*c
        .api
        .get_as::<HorizontalPodAutoscaler>("default", "web")
        .await
        .unwrap())
    .clone();
    hpa.spec.scale_target_ref.name = "web".into();
    c.api
        .update(&HORIZONTAL_POD_AUTOSCALER, Box::new(hpa), "")
        .await
        .unwrap();
    c.until("the target", |hpa, _| {
        condition(hpa, "AbleToScale").is_some_and(|(status, _)| status == "True")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_unknown_kind_of_target_is_reported() {
    let c = cluster(
        2,
        json!({"apiVersion": "example.com/v1", "kind": "Robot", "name": "web"}),
    )
    .await;
    c.until("the failure", |hpa, _| {
        condition(hpa, "AbleToScale") == Some(("False", "FailedGetScale"))
    })
    .await;
    let events = c.events().await;
    let expected = "FailedGetScale: unable to determine resource for scale target reference: no matches for kind \"Robot\" in group \"example.com\"";
    assert!(events.iter().any(|e| e == expected), "{events:?}");
}
