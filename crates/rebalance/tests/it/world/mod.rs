//! A cluster as objects in JSON, for plans and for what the cluster is after them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_api::k8s_openapi::api::apps::v1::ReplicaSet;
use knarr_api::k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolumeClaim, Pod};
use knarr_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_api::k8s_openapi::api::scheduling::v1::PriorityClass;
use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared};
use knarr_rebalance::plan;
use knarr_rebalance::plan::{Move, Plan};
use knarr_rebalance::policy::{Policy, rebalance_policy};
use knarr_rebalance::snapshot::{Eviction, Snapshot, Usage};
use knarr_scheduler::Profile;
use serde_json::{Value, json};

pub fn shared<T: Registered>(value: &Value) -> Shared<T> {
    let typed: T = serde_json::from_value(value.clone()).unwrap();
    Shared::new(Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))).unwrap()
}

fn object<T: Registered>(value: &Value) -> Arc<Object> {
    shared::<T>(value).object().clone()
}

pub fn overlay(base: &mut Value, with: &Value) {
    match (base, with) {
        (Value::Object(base), Value::Object(with)) => {
            for (key, value) in with {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, with) => *base = with.clone(),
    }
}

/// The time of all plans: 10 days after the epoch.
pub fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_hours(240)
}

pub fn ago(seconds: i64) -> String {
    (now() - SignedDuration::from_secs(seconds)).to_string()
}

#[derive(Clone, Debug, Default)]
pub struct World {
    pub nodes: BTreeMap<String, Value>,
    /// By name; all are in the namespace `default` unless their metadata say otherwise.
    pub pods: BTreeMap<String, Value>,
    pub others: Vec<Arc<Object>>,
    pub usage: Usage,
    pub evictions: Vec<Eviction>,
}

impl World {
    /// Nodes as `name zone`, 4 CPUs, 8 GiB, 20 pods each.
    pub fn of(nodes: &[&str]) -> Self {
        let mut world = World::default();
        for node in nodes {
            let (name, zone) = node.split_once(' ').unwrap_or((node, ""));
            let labels = match zone {
                "" => json!({}),
                zone => json!({"zone": zone}),
            };
            world.node(name, json!({"metadata": {"labels": labels}}));
        }
        world
    }

    pub fn node(&mut self, name: &str, with: Value) {
        let mut node = json!({
            "metadata": {"name": name, "uid": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}},
        });
        overlay(&mut node, &with);
        self.nodes.insert(name.to_string(), node);
    }

    /// A running pod of the ReplicaSet `app`, with the label `app`.
    pub fn pod(&mut self, name: &str, app: &str, node: &str, with: &Value) {
        let mut pod = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("uid-{name}"), "labels": {"app": app},
                "creationTimestamp": ago(7200),
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": app, "controller": true},
                ],
            },
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "registry/app:1"}]},
            "status": {"phase": "Running", "startTime": ago(7200)},
        });
        overlay(&mut pod, with);
        self.pods.insert(name.to_string(), pod);
    }

    /// So many pods of the ReplicaSet on the node.
    pub fn pods(&mut self, count: usize, app: &str, node: &str, with: &Value) {
        for n in 0..count {
            self.pod(&format!("{app}-{node}-{n}"), app, node, with);
        }
    }

    pub fn disruption_budget(&mut self, name: &str, app: &str, allowed: i32) {
        self.others.push(object::<PodDisruptionBudget>(&json!({
            "metadata": {"name": name, "namespace": "default", "generation": 1},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {
                "disruptionsAllowed": allowed, "observedGeneration": 1,
                "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0,
            },
        })));
    }

    pub fn namespace(&mut self, name: &str, metadata: Value) {
        let mut namespace = json!({"metadata": {"name": name}});
        overlay(&mut namespace, &json!({ "metadata": metadata }));
        self.others.push(object::<Namespace>(&namespace));
    }

    pub fn claim(&mut self, name: &str, class: &str, mode: &str) {
        self.others.push(object::<PersistentVolumeClaim>(&json!({
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"storageClassName": class, "accessModes": [mode], "volumeName": "v"},
        })));
    }

    pub fn priority_class(&mut self, name: &str, value: i32) {
        let class = json!({"metadata": {"name": name}, "value": value});
        self.others.push(object::<PriorityClass>(&class));
    }

    pub fn replica_set(&mut self, name: &str, deployment: &str) {
        self.others.push(object::<ReplicaSet>(&json!({
            "metadata": {
                "name": name, "namespace": "default",
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment, "uid": "d", "controller": true},
                ],
            },
            "spec": {"selector": {"matchLabels": {"app": name}}},
        })));
    }

    pub fn objects(&self) -> Vec<Arc<Object>> {
        let mut objects = self.others.clone();
        objects.extend(self.pods.values().map(object::<Pod>));
        objects.extend(self.nodes.values().map(object::<Node>));
        objects
    }

    pub fn snapshot_of(&self, objects: &[Arc<Object>]) -> Snapshot {
        let snapshot = Snapshot::new(vec![Profile::default()], objects, now());
        snapshot
            .with_usage(self.usage.clone())
            .with_evictions(self.evictions.clone())
    }

    pub fn plan(&self, policy: &Policy) -> Plan {
        plan(&self.snapshot_of(&self.objects()), policy)
    }

    /// The cluster after one move: the pod is gone, and its controller has created another one, of another name.
    pub fn apply(&mut self, step: &Move, number: usize) {
        let found = self.pods.iter().find(|(_, pod)| {
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            uid == step.pod.uid || pod["metadata"]["replaces"] == step.pod.uid.as_str()
        });
        let name = found.expect("the pod of a move exists").0.clone();
        let mut pod = self.pods.remove(&name).unwrap();
        self.evictions.push(Eviction {
            at: now(),
            node: step.from.clone(),
            workload: step.workload.clone(),
        });
        let Some(to) = &step.to else { return };
        assert_eq!(pod["spec"]["nodeName"], step.from.as_str());
        // Names that sort differently from those before.
        let name = format!("{}-new{number}", ["z", "a", "m"][number % 3]);
        pod["metadata"]["name"] = name.clone().into();
        pod["metadata"]["uid"] = format!("uid-{name}").into();
        pod["metadata"]["replaces"] = step.pod.uid.clone().into();
        pod["metadata"]["creationTimestamp"] = now().to_string().into();
        pod["spec"]["nodeName"] = to.clone().into();
        pod["status"] = json!({"phase": "Running", "startTime": now().to_string()});
        self.pods.insert(name, pod);
    }

    pub fn after(&self, plan: &Plan) -> World {
        let mut world = self.clone();
        for (number, step) in plan.moves.iter().enumerate() {
            world.apply(step, number);
        }
        world
    }

    /// How many pods of the app each zone has.
    pub fn by_zone(&self, app: &str) -> BTreeMap<String, usize> {
        let mut zones = BTreeMap::new();
        for node in self.nodes.values() {
            if let Some(zone) = node["metadata"]["labels"]["zone"].as_str() {
                zones.entry(zone.to_string()).or_insert(0);
            }
        }
        for pod in self
            .pods
            .values()
            .filter(|p| p["metadata"]["labels"]["app"] == app)
        {
            let node = &self.nodes[pod["spec"]["nodeName"].as_str().unwrap()];
            if let Some(zone) = node["metadata"]["labels"]["zone"].as_str() {
                *zones.get_mut(zone).unwrap() += 1;
            }
        }
        zones
    }

    pub fn sizes(&self, app: &str) -> Vec<usize> {
        self.by_zone(app).into_values().collect()
    }
}

/// A RebalancePolicy with unlimited budgets, unless the spec has some.
pub fn policy(mut spec: Value) -> Policy {
    let unlimited = 1_000_000;
    let mut budgets = json!({
        "perHour": unlimited, "perNode": unlimited, "perNamespace": unlimited, "perWorkload": unlimited,
        "atOncePerWorkload": 1,
    });
    overlay(
        &mut budgets,
        &spec["budgets"].as_object().map_or(json!({}), |b| json!(b)),
    );
    spec["budgets"] = budgets;
    rebalance_policy::read("test", "", &spec).unwrap()
}

/// A policy of one strategy.
pub fn strategy(name: &str, args: Value) -> Policy {
    policy(json!({"strategies": {name: args}}))
}

pub fn spread(key: &str, max_skew: i32, app: &str) -> Value {
    json!({
        "maxSkew": max_skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
    })
}

/// The pods that did not move, as `name: code`.
pub fn reasons(plan: &Plan) -> Vec<String> {
    let reasons = plan.not_moved.iter();
    reasons
        .map(|pod| format!("{}: {}", pod.pod.name, pod.reason.code()))
        .collect()
}

/// The moves, as `from -> to`.
pub fn moves(plan: &Plan) -> Vec<String> {
    let moves = plan.moves.iter();
    moves
        .map(|step| format!("{} -> {}", step.from, step.to.as_deref().unwrap_or("deleted")))
        .collect()
}

/// What must hold for every plan: planned again from its result it is empty.
pub fn check_is_fixpoint(world: &World, policy: &Policy) -> (Plan, World) {
    let plan = world.plan(policy);
    let after = world.after(&plan);
    let again = after.plan(policy);
    assert!(again.moves.is_empty(), "first:\n{plan}\nagain:\n{again}");
    (plan, after)
}
