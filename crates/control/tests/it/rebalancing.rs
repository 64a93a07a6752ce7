//! Rebalance policies on an in-memory API, in paused time, with nodes that the test imitates.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::custom::conditions;
use knarr_api::k8s_openapi;
use knarr_api::registry::{CUSTOM_RESOURCE_DEFINITION, EVENT, POD};
use knarr_client::fake::FakeApi;
use knarr_client::{Api, Clock, DeleteOptions, Error, ListOptions, TypedApi};
use knarr_control::Config;
use knarr_control::rebalancing_kinds::{RebalancePolicy, kinds};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::sync::DropGuard;

use crate::cluster::{create, empty_api, run_all};

fn node(name: &str, zone: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"zone": zone}}, "status": {
        "allocatable": {"cpu": "8", "memory": "4Gi", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}})
}

struct Cluster {
    api: Arc<FakeApi>,
    clock: Arc<dyn Clock>,
    _running: DropGuard,
}

/// A Deployment `web` of four pods that spread over zones, all on n1 of zone a; n2 of zone b came later.
async fn crowded() -> Cluster {
    let (api, clock) = empty_api("2026-01-02T03:04:05Z".parse().unwrap());
    let mut config = Config {
        rebalancing: true,
        ..Config::default()
    };
    // The nodes' leases are not renewed.
    config.controllers.node_lifecycle.grace = SignedDuration::from_hours(24);
    let running = run_all(&api, &clock, config);
    create::<Node>(&api, node("n1", "a")).await;
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "containers": [{"name": "c", "image": "i"}], "topologySpreadConstraints": spread}});
    let web = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": {
        "replicas": 4, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    create::<Deployment>(&api, web).await;
    let cluster = Cluster {
        api,
        clock,
        _running: running,
    };
    cluster
        .until("the pods run", async || cluster.on("n1").await == 4)
        .await;
    create::<Node>(&cluster.api, node("n2", "b")).await;
    cluster
}

impl Cluster {
    /// Does what the nodes and the API server do, until the condition holds.
    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let reached = async {
            loop {
                self.establish().await;
                for pod in self.pods().await {
                    self.run(pod).await;
                }
                if holds().await {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        if timeout(Duration::from_secs(1800), reached).await.is_err() {
            panic!("waited in vain for {what}: {:?}", self.events().await);
        }
    }

    /// Establishes the definitions.
    async fn establish(&self) {
        let all = self.api.list(&CUSTOM_RESOURCE_DEFINITION, ListOptions::default());
        for object in all.await.unwrap().items {
            let mut crd: CustomResourceDefinition = object.to_typed().unwrap();
            if conditions::is_established(&crd) {
                continue;
            }
            let status = crd.status.get_or_insert_default();
            conditions::set(
                status,
                conditions::ESTABLISHED,
                "True",
                "Test",
                "",
                self.clock.now(),
            );
            self.api.update_status_as(crd).await.unwrap();
        }
    }

    async fn pods(&self) -> Vec<Pod> {
        let listed = self.api.list(&POD, ListOptions::default()).await.unwrap();
        listed.items.iter().filter_map(|o| o.to_typed::<Pod>()).collect()
    }

    /// Runs a pod that is assigned to a node, and completes the deletion of one that terminates.
    async fn run(&self, mut pod: Pod) {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if pod.metadata.deletion_timestamp.is_some() {
            let options = DeleteOptions {
                grace_period_seconds: Some(0),
                ..DeleteOptions::default()
            };
            let name = pod.metadata.name.unwrap();
            self.api.delete(&POD, "default", &name, options).await.unwrap();
            return;
        }
        if phase == Some("Running") || pod.spec.as_ref().is_none_or(|s| s.node_name.is_none()) {
            return;
        }
        let now = self.clock.now();
        pod.status = serde_json::from_value(json!({"phase": "Running", "startTime": now, "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": now}]}))
        .unwrap();
        self.api.update_status_as(pod).await.unwrap();
    }

    /// How many pods run on the node.
    async fn on(&self, node: &str) -> usize {
        let running = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            phase == Some("Running")
                && pod.spec.as_ref().unwrap().node_name.as_deref() == Some(node)
                && pod.metadata.deletion_timestamp.is_none()
        };
        self.pods().await.iter().filter(|pod| running(pod)).count()
    }

    async fn events(&self) -> Vec<String> {
        let listed = self.api.list(&EVENT, ListOptions::default()).await.unwrap();
        let events = listed.items.iter().filter_map(|o| o.to_typed::<Event>());
        events
            .map(|e| {
                format!(
                    "{}: {}",
                    e.reason.unwrap_or_default(),
                    e.message.unwrap_or_default()
                )
            })
            .collect()
    }

    async fn create_policy(&self, dry_run: bool) {
        let [_, kind] = kinds();
        let json = json!({"metadata": {"name": "spread", "namespace": "default", "generation": 1},
            "spec": {"dryRun": dry_run, "strategies": {"topologySpread": {}}}});
        let object = kind.ops.decode(json.to_string().as_bytes()).unwrap().object;
        self.api.create(kind, object).await.unwrap();
    }

    async fn policy(&self) -> RebalancePolicy {
        let [_, kind] = kinds();
        RebalancePolicy::of(&self.api.get(kind, "default", "spread").await.unwrap()).unwrap()
    }

    async fn reason(&self, condition: &str) -> String {
        let conditions = self.policy().await.status.conditions;
        let found = conditions.into_iter().find(|c| c.type_ == condition);
        found.map(|c| c.reason).unwrap_or_default()
    }

    fn evictions(&self) -> usize {
        let requests = self.api.requests();
        requests.iter().filter(|r| r.subresource == "eviction").count()
    }
}

#[tokio::test(start_paused = true)]
async fn b3_a_policy_restores_the_spread_wave_by_wave() {
    let cluster = crowded().await;
    cluster.create_policy(false).await;
    cluster
        .until("both zones have two pods", async || {
            assert!(cluster.on("n1").await + cluster.on("n2").await >= 2);
            cluster.on("n1").await == 2 && cluster.on("n2").await == 2
        })
        .await;
    cluster
        .until("nothing to do", async || {
            cluster.reason("Progressing").await == "NothingToDo"
        })
        .await;
    assert_eq!(cluster.evictions(), 2);
    let policy = cluster.policy().await;
    assert_eq!((policy.status.moves, policy.status.moves_last_hour), (0, 2));
    assert_eq!(cluster.reason("Ready").await, "Accepted");
    let events = cluster.events().await;
    let evicted = events
        .iter()
        .filter(|e| e.starts_with("RebalanceEvicted: Evicted from node n1"));
    assert_eq!(evicted.count(), 2, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn b3_a_dry_run_evicts_nothing() {
    let cluster = crowded().await;
    cluster.create_policy(true).await;
    cluster
        .until("a plan", async || cluster.policy().await.status.moves == 2)
        .await;
    let minutes = cluster.clock.now() + SignedDuration::from_mins(5);
    cluster
        .until("some minutes", async || cluster.clock.now() > minutes)
        .await;
    assert_eq!((cluster.evictions(), cluster.on("n1").await), (0, 4));
    let events = cluster.events().await;
    let planned = events
        .iter()
        .filter(|e| e.starts_with("RebalancePlanned: 2 moves"));
    assert_eq!(planned.count(), 1, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn b3_a_disruption_budget_that_rejects_an_eviction_is_named_and_the_move_waits() {
    let cluster = crowded().await;
    let mut rejections = 2;
    cluster.api.intercept(move |request| {
        if request.subresource != "eviction" || rejections == 0 {
            return None;
        }
        rejections -= 1;
        Some(Error::too_many_requests("Cannot evict pod: budget b.", 0))
    });
    cluster.create_policy(false).await;
    cluster
        .until("the rejection", async || {
            cluster.reason("Progressing").await == "DisruptionBudget"
        })
        .await;
    let policy = cluster.policy().await;
    assert_eq!(policy.status.moves_last_hour, 0);
    let conditions = policy.status.conditions;
    assert!(
        conditions
            .iter()
            .any(|c| c.message.ends_with("Cannot evict pod: budget b.")),
        "{conditions:?}"
    );
    assert_eq!(cluster.on("n1").await, 4);
    cluster
        .until("both zones have two pods", async || {
            cluster.on("n1").await == 2 && cluster.on("n2").await == 2
        })
        .await;
    assert_eq!(cluster.evictions(), 4);
}
