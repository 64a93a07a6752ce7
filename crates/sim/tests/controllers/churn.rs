//! A mixed workload with churn: nodes and pods are added and deleted, nodes are cordoned and tainted, budgets and
//! priorities are in force, and the controllers and the scheduler are the real ones. At the end no pod waits that
//! fits, none that could preempt has not done so, and no pod is on a node where it does not fit.
//!
//! The histories are the same in every run; `KNARR_CHURN=N` runs the first N of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::{self, Registered};
use knarr_api::{Shared, k8s_openapi};
use knarr_client::{Clock, DeleteOptions, Error, Kind, Object, Patch};
use knarr_scheduler::Scheduler;
use knarr_scheduler::plugins::default_preemption::Outcome;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Cluster;

const HISTORIES: u64 = 3;
const EVENTS: usize = 70;
const NODES: u64 = 6;
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
/// Longer than any backoff and than a lost node's pods are kept; shorter than the resync period.
const SETTLING_SECONDS: usize = 120;

/// SplitMix64: the same numbers for the same seed everywhere.
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        let at = self.below(of.len().max(1) as u64);
        of.get(at as usize)
    }
}

/// A cluster with random changes.
pub(super) struct Churn {
    pub(super) cluster: Cluster,
    pub(super) chance: Chance,
    made: u64,
}

/// Another request was faster, or the object does not exist: that is not an error.
fn met(done: Result<Arc<Object>, Error>) {
    if let Err(error) = done {
        let harmless =
            error.is_not_found() || error.is_conflict() || error.is_already_exists() || error.code() == 429;
        assert!(harmless, "{error}");
    }
}

impl Churn {
    pub(super) async fn new(seed: u64) -> Self {
        Churn {
            cluster: Cluster::start().await,
            chance: Chance(seed),
            made: 0,
        }
    }

    pub(super) async fn create(&self, kind: &Kind, value: Value) {
        let bytes = serde_json::to_vec(&value).unwrap();
        let object = kind.ops.decode(&bytes).unwrap().object;
        met(self.cluster.api.create(kind, object).await);
    }

    async fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        let options = DeleteOptions::default();
        met(self.cluster.api.delete(kind, namespace, name, options).await);
    }

    pub(super) async fn change(&self, kind: &Kind, name: &str, part: &str, patch: Value) {
        let namespace = if kind.namespaced() { "default" } else { "" };
        let patch = Patch::Merge(patch);
        met(self.cluster.api.patch(kind, namespace, name, part, patch).await);
    }

    fn node(&mut self) -> String {
        format!("n{}", self.chance.below(NODES))
    }

    async fn create_node(&mut self) {
        let n = self.chance.below(NODES);
        let zone = format!("z{}", self.chance.below(3));
        // A node that comes back under its name is as large as before: pods may still be assigned to it.
        let cpu = (2 + n % 4).to_string();
        let name = format!("n{n}");
        self.node_of(&name, &zone, &cpu).await;
    }

    pub(super) async fn node_of(&self, name: &str, zone: &str, cpu: &str) {
        let labels = json!({"kubernetes.io/hostname": name, ZONE: zone});
        self.create(
            &registry::NODE,
            json!({"metadata": {"name": name, "labels": labels}}),
        )
        .await;
        let allocatable = json!({"cpu": cpu, "memory": "8Gi", "pods": "12"});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let status = json!({"status": {"allocatable": allocatable, "conditions": ready}});
        self.change(&registry::NODE, name, "status", status).await;
    }

    fn pod_spec(&mut self, app: &str) -> Value {
        let selector = json!({"matchLabels": {"app": app}});
        let cpu = format!("{}m", 250 * (1 + self.chance.below(6)));
        let mut spec = json!({
            "terminationGracePeriodSeconds": self.chance.below(3),
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}],
        });
        let spread = |key: &str, when: &str| json!([{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": selector}]);
        let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": selector});
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
        match self.chance.below(6) {
            0 => spec["topologySpreadConstraints"] = spread(ZONE, "DoNotSchedule"),
            1 => spec["topologySpreadConstraints"] = spread("kubernetes.io/hostname", "ScheduleAnyway"),
            2 => spec["affinity"] = json!({"podAntiAffinity": required}),
            3 => spec["affinity"] = json!({"podAffinity": required}),
            _ => {}
        }
        if let Some(class) = self.chance.pick(&["", "", "low", "high", "polite"])
            && !class.is_empty()
        {
            spec["priorityClassName"] = (*class).into();
        }
        if self.chance.below(3) == 0 {
            spec["tolerations"] = json!([{"key": "special", "operator": "Exists"}]);
        }
        spec
    }

    async fn event(&mut self) {
        let node = self.node();
        let app = format!("app{}", self.chance.below(4));
        match self.chance.below(20) {
            0..4 => self.create_node().await,
            4 => self.delete(&registry::NODE, "", &node).await,
            5..7 => {
                let cordoned = self.chance.below(2) == 0;
                let patch = json!({"spec": {"unschedulable": cordoned}});
                self.change(&registry::NODE, &node, "", patch).await;
            }
            7 => {
                let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
                let taint = self
                    .chance
                    .pick(&effects)
                    .map(|e| json!({"key": "special", "effect": e}));
                let taints: Vec<Value> = taint.filter(|_| self.chance.below(2) == 0).into_iter().collect();
                self.change(&registry::NODE, &node, "", json!({"spec": {"taints": taints}}))
                    .await;
            }
            8..12 => {
                let spec = self.pod_spec(&app);
                let replicas = self.chance.below(7);
                let deployment = json!({
                    "metadata": {"namespace": "default", "name": app},
                    "spec": {
                        "replicas": replicas, "selector": {"matchLabels": {"app": app}},
                        "template": {"metadata": {"labels": {"app": app}}, "spec": spec},
                    },
                });
                self.create(&registry::DEPLOYMENT, deployment).await;
            }
            12..14 => {
                let patch = json!({"spec": {"replicas": self.chance.below(9)}});
                self.change(&registry::DEPLOYMENT, &app, "", patch).await;
            }
            14 => self.delete(&registry::DEPLOYMENT, "default", &app).await,
            15..18 => {
                self.made += 1;
                let name = format!("bare-{}", self.made);
                let spec = self.pod_spec(&app);
                let labels = json!({"app": app});
                let metadata = json!({"namespace": "default", "name": name, "labels": labels});
                self.create(&registry::POD, json!({"metadata": metadata, "spec": spec}))
                    .await;
            }
            18 => {
                let budget = json!({
                    "metadata": {"namespace": "default", "name": app},
                    "spec": {"minAvailable": self.chance.below(4), "selector": {"matchLabels": {"app": app}}},
                });
                self.create(&registry::POD_DISRUPTION_BUDGET, budget).await;
            }
            _ => {
                let pods = self.cluster.list(&registry::POD, "default").await;
                if let Some(pod) = self.chance.pick(&pods) {
                    self.delete(&registry::POD, "default", pod.name()).await;
                }
            }
        }
    }

    /// What the kubelets of all nodes would do.
    pub(super) async fn kubelets(&self) {
        let nodes: BTreeSet<String> = self
            .cluster
            .list(&registry::NODE, "")
            .await
            .iter()
            .map(|n| n.name().to_string())
            .collect();
        for node in &nodes {
            let lease = json!({
                "metadata": {"namespace": "kube-node-lease", "name": node},
                "spec": {"renewTime": self.cluster.clock.now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()},
            });
            let patch = Patch::Merge(lease.clone());
            let renewed = self
                .cluster
                .api
                .patch(&registry::LEASE, "kube-node-lease", node, "", patch)
                .await;
            if renewed.is_err() {
                self.create(&registry::LEASE, lease).await;
            }
        }
        for object in self.cluster.list(&registry::POD, "default").await {
            let Some(pod) = object.get::<Pod>() else { continue };
            let node = pod.spec.as_ref().and_then(|s| s.node_name.as_ref());
            if !node.is_some_and(|node| nodes.contains(node)) {
                continue;
            }
            if pod.metadata.deletion_timestamp.is_some() {
                let options = DeleteOptions {
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                met(self
                    .cluster
                    .api
                    .delete(&registry::POD, "default", object.name(), options)
                    .await);
            } else if pod.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Running") {
                let ready = json!([{"type": "Ready", "status": "True"}]);
                let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1",
                    "startTime": self.cluster.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "conditions": ready}});
                let patch = Patch::Strategic(status);
                met(self
                    .cluster
                    .api
                    .patch(&registry::POD, "default", object.name(), "status", patch)
                    .await);
            }
        }
    }

    /// A new scheduler without cached state, and the pods that wait.
    async fn new_scheduler(&self) -> (Scheduler, Vec<Shared<Pod>>) {
        let mut scheduler = Scheduler::default();
        let now = Timestamp::UNIX_EPOCH;
        async fn all<T: Registered>(cluster: &Cluster) -> Vec<Shared<T>> {
            let objects = cluster.list(T::kind_of(), "").await;
            objects.into_iter().map(|o| Shared::new(o).unwrap()).collect()
        }
        for node in all::<Node>(&self.cluster).await {
            scheduler.node_changed(node.object().name(), Some(node.clone()), now);
        }
        let names = |object: &Object| (object.namespace().to_string(), object.name().to_string());
        let surroundings = scheduler.cluster_mut();
        for of in all::<Namespace>(&self.cluster).await {
            surroundings.set_namespace(of.object().name(), Some(&of));
        }
        for of in all::<Service>(&self.cluster).await {
            let (namespace, name) = names(of.object());
            surroundings.set_service(&namespace, &name, Some(&of));
        }
        for of in all::<k8s_openapi::api::apps::v1::ReplicaSet>(&self.cluster).await {
            let (namespace, name) = names(of.object());
            surroundings.set_replica_set(&namespace, &name, Some(&of));
        }
        for of in all::<k8s_openapi::api::policy::v1::PodDisruptionBudget>(&self.cluster).await {
            let (namespace, name) = names(of.object());
            surroundings.set_budget(&namespace, &name, Some(&of));
        }
        let mut waiting = Vec::new();
        for pod in all::<Pod>(&self.cluster).await {
            scheduler.pod_changed(None, Some(&pod), now);
            let bound = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
            if !bound && pod.metadata.deletion_timestamp.is_none() {
                waiting.push(pod);
            }
        }
        (scheduler, waiting)
    }

    /// What is wrong with the present state.
    async fn wrongs(&self) -> Vec<String> {
        let (mut scheduler, waiting) = self.new_scheduler().await;
        let mut wrongs = Vec::new();
        for pod in waiting {
            let info = scheduler.info(&pod);
            let found = scheduler.explain(&info);
            let name = pod.object().name();
            if let Some((node, _)) = found.nodes.iter().find(|(_, rejection)| rejection.is_none()) {
                wrongs.push(format!("{name} waits though {node} takes it"));
            }
            if let Some(Outcome::Candidates(all)) = &found.preemption
                && let Some(candidate) = all.first()
            {
                let node = &scheduler.cluster().at(candidate.index).name;
                wrongs.push(format!("{name} waits though it could make room on {node}"));
            }
        }
        let mut used: BTreeMap<String, (i64, usize)> = BTreeMap::new();
        for (_, node) in scheduler.cluster().iter() {
            let used = used.entry(node.name.to_string()).or_default();
            *used = (node.requested.get("cpu"), node.pods().len());
            if used.0 > node.allocatable.get("cpu") || used.1 > 12 {
                wrongs.push(format!("{} is over capacity: {used:?}", node.name));
            }
        }
        wrongs
    }
}

async fn play(seed: u64) -> Vec<String> {
    let mut churn = Churn::new(seed).await;
    for (name, value, policy) in [
        ("low", -10, "PreemptLowerPriority"),
        ("high", 100, "PreemptLowerPriority"),
        ("polite", 50, "Never"),
    ] {
        let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy});
        churn.create(&registry::PRIORITY_CLASS, class).await;
    }
    for _ in 0..3 {
        churn.create_node().await;
    }
    for _ in 0..EVENTS {
        churn.event().await;
        let pause = churn.chance.below(1_500);
        sleep(Duration::from_millis(pause)).await;
        if pause < 750 {
            churn.kubelets().await;
        }
    }
    for _ in 0..SETTLING_SECONDS {
        sleep(Duration::from_secs(1)).await;
        churn.kubelets().await;
    }
    churn.wrongs().await
}

#[tokio::test(start_paused = true)]
async fn p3_p4_d2_under_churn_no_pod_stays_pending_that_has_room() {
    let more = std::env::var("KNARR_CHURN")
        .ok()
        .map(|n| n.parse::<u64>().unwrap());
    for seed in 0..more.unwrap_or(HISTORIES) {
        let wrongs = play(seed).await;
        assert!(wrongs.is_empty(), "seed {seed}: {}", wrongs.join("\n"));
    }
}
