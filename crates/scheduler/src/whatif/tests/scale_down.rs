//! A scale-down in a simulation deletes the pods that the controller deletes (SPEC B2, B3).

use knarr_api::scale_down::{BURST_REPLICAS, SCALE_DOWN};
use knarr_api::{Kind, ObjectKey};
use knarr_controllers::replicaset::ReplicaSets;
use knarr_controllers::replicationcontroller::ReplicationControllers;
use knarr_controllers::{Action, Context, Controller, View};
use proptest::prelude::*;

use super::*;

const NOW: i64 = 1_000_000;

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The objects as controllers read them, in the order of namespace and name.
struct Caches(Vec<Arc<Object>>);

impl Caches {
    fn new(objects: &[Arc<Object>]) -> Self {
        let mut objects = objects.to_vec();
        objects.sort_by_key(|o| (o.namespace().to_string(), o.name().to_string()));
        Caches(objects)
    }

    fn owner(object: &Object) -> Option<&str> {
        let owner = controller(object.metadata().owner_references.as_ref());
        owner.map(|o| o.uid.as_str())
    }

    fn find(&self, kind: &Kind, is: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        let found = self.0.iter().filter(|o| o.kind() == kind && is(o));
        found.cloned().collect()
    }
}

impl View for Caches {
    fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.find(kind, |o| o.namespace() == namespace && o.name() == name)
            .pop()
    }

    fn list(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        self.find(kind, |o| namespace.is_empty() || o.namespace() == namespace)
    }

    fn controlled_by(&self, kind: &Kind, uid: &str) -> Vec<Arc<Object>> {
        self.find(kind, |o| Self::owner(o) == Some(uid))
    }

    fn orphans(&self, kind: &Kind, namespace: &str) -> Vec<Arc<Object>> {
        self.find(kind, |o| o.namespace() == namespace && Self::owner(o).is_none())
    }

    fn pods_on(&self, _: &str) -> Vec<Arc<Object>> {
        Vec::new()
    }
}

/// The pods that the controller of the workload deletes in one sync.
fn deleted_by(controller: &dyn Controller, objects: &[Arc<Object>], name: &str) -> Vec<String> {
    let actions = controller.reconcile(&Context {
        view: &Caches::new(objects),
        key: &ObjectKey::new("default", name),
        now: second(NOW),
        failure: None,
    });
    let mut deleted: Vec<String> = Vec::new();
    for action in actions {
        if let Action::DeleteMany(all) = action {
            deleted.extend(all.iter().map(|d| d.key.to_string()));
        }
    }
    deleted.sort();
    deleted
}

/// The pods that a simulated scale-down deletes.
fn gone(objects: &[Arc<Object>], policy: Policy, kind: &str, name: &str, replicas: usize) -> Vec<String> {
    let snapshot = Snapshot::new(Scheduler::default(), objects, second(NOW)).with_scale_down_policy(policy);
    let change = Change::Scale {
        kind: kind.into(),
        namespace: "default".into(),
        name: name.into(),
        replicas,
    };
    let what = snapshot.what_if(&change).unwrap();
    what.gone.into_iter().map(|p| p.pod).collect()
}

/// A full node, to which nothing more can be scheduled.
fn full_node(name: &str) -> Arc<Object> {
    let labels = json!({"kubernetes.io/hostname": name, ZONE: &name[..1]});
    object::<Node>(json!({"metadata": {"name": name, "uid": name, "labels": labels}}))
}

/// A pod's owner: its kind, and its name, which is its UID, too.
#[derive(Clone, Copy)]
struct Owner {
    kind: &'static str,
    name: &'static str,
}

impl Owner {
    fn references(self) -> Value {
        let version = if self.kind == "ReplicationController" {
            "v1"
        } else {
            "apps/v1"
        };
        json!([{"apiVersion": version, "kind": self.kind, "name": self.name, "uid": self.name, "controller": true}])
    }
}

/// A workload of `kind` and `name`; the name is its UID, too.
fn workload<T: Registered>(
    name: &str,
    owner: Option<Owner>,
    policy: Option<&str>,
    replicas: usize,
) -> Arc<Object> {
    let selector = json!({"app": "web"});
    let is_rc = T::kind_of().kind() == "ReplicationController";
    let selector = if is_rc {
        selector
    } else {
        json!({"matchLabels": selector})
    };
    object::<T>(json!({
        "metadata": {"namespace": "default", "name": name, "uid": name,
            "annotations": policy.map(|policy| json!({SCALE_DOWN: policy})),
            "ownerReferences": owner.map(Owner::references)},
        "spec": {"replicas": replicas, "selector": selector, "template": {"metadata": {"labels": {"app": "web"}}}},
    }))
}

/// What decides when a pod is deleted.
#[derive(Clone, Debug)]
struct Traits {
    node: usize,
    phase: usize,
    ready: Option<i64>,
    cost: i32,
    restarts: i32,
    created: i64,
    is_terminating: bool,
    constraints: usize,
}

fn traits() -> impl Strategy<Value = Traits> {
    let status = (0..8_usize, prop::option::weighted(0.8, 0..3000_i64), 0..3_i32);
    let rest = (
        0..6_usize,
        prop::sample::select(vec![0, 0, 0, 0, -1, 1]),
        0..3000_i64,
    );
    (status, rest, prop::bool::weighted(0.1), 0..4_usize).prop_map(
        |((phase, ready, restarts), (node, cost, created), is_terminating, constraints)| Traits {
            node,
            phase,
            ready,
            cost,
            restarts,
            created,
            is_terminating,
            constraints,
        },
    )
}

const NODES: [&str; 5] = ["a1", "a2", "b1", "b2", "c1"];

fn constraints(which: usize) -> Value {
    let one = |key: &str, when: &str| {
        json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
            "labelSelector": {"matchLabels": {"app": "web"}}})
    };
    match which {
        0 => json!([]),
        1 | 2 => json!([one(ZONE, "DoNotSchedule")]),
        _ => json!([
            one(ZONE, "DoNotSchedule"),
            one("kubernetes.io/hostname", "ScheduleAnyway")
        ]),
    }
}

fn pod_of(name: &str, owner: Owner, of: &Traits) -> Arc<Object> {
    let time = |age: i64| second(NOW - age).to_string();
    let phase = ["Pending", "Unknown", "Failed"]
        .get(of.phase)
        .unwrap_or(&"Running");
    let conditions = of
        .ready
        .map(|age| json!([{"type": "Ready", "status": "True", "lastTransitionTime": time(age)}]));
    let cost = json!({"controller.kubernetes.io/pod-deletion-cost": of.cost.to_string()});
    object::<Pod>(json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "labels": {"app": "web"},
            "annotations": cost, "creationTimestamp": time(of.created), "ownerReferences": owner.references(),
            "deletionTimestamp": of.is_terminating.then(|| time(0))},
        "spec": {"nodeName": NODES.get(of.node), "topologySpreadConstraints": constraints(of.constraints),
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": phase, "conditions": conditions, "containerStatuses":
            [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": of.restarts}]},
    }))
}

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(vec![Policy::Default, Policy::Spread])
}

fn annotation() -> impl Strategy<Value = Option<&'static str>> {
    prop::sample::select(vec![None, Some("spread"), Some("default"), Some("other")])
}

const SET: Owner = Owner {
    kind: "ReplicaSet",
    name: "web-new",
};
const OLD: Owner = Owner {
    kind: "ReplicaSet",
    name: "web-old",
};
const DEPLOYMENT: Owner = Owner {
    kind: "Deployment",
    name: "web",
};
const CONTROLLER: Owner = Owner {
    kind: "ReplicationController",
    name: "web",
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn b2_b3_a_simulated_scale_down_of_a_replica_set_deletes_what_its_controller_deletes(
        own in prop::collection::vec(traits(), 0..30),
        old in prop::collection::vec(traits(), 0..6),
        replicas in 0..20_usize,
        cluster in policy(),
        annotated in annotation(),
    ) {
        let mut objects: Vec<Arc<Object>> = NODES.iter().map(|n| full_node(n)).collect();
        objects.push(workload::<ReplicaSet>("web-new", Some(DEPLOYMENT), annotated, replicas));
        objects.push(workload::<ReplicaSet>("web-old", Some(DEPLOYMENT), None, 0));
        objects.push(workload::<Deployment>("web", None, None, replicas));
        objects.extend(own.iter().enumerate().map(|(i, of)| pod_of(&format!("new-{i}"), SET, of)));
        let alone = objects.clone();
        objects.extend(old.iter().enumerate().map(|(i, of)| pod_of(&format!("old-{i}"), OLD, of)));
        let sets = ReplicaSets { scale_down: cluster };
        prop_assert_eq!(
            gone(&objects, cluster, "ReplicaSet", "web-new", replicas),
            deleted_by(&sets, &objects, "web-new")
        );
        // Between rollouts it is the same for the Deployment.
        prop_assert_eq!(
            gone(&alone, cluster, "Deployment", "web", replicas),
            deleted_by(&sets, &alone, "web-new")
        );
    }

    #[test]
    fn b2_b3_a_simulated_scale_down_of_a_replication_controller_deletes_what_its_controller_deletes(
        own in prop::collection::vec(traits(), 0..30),
        replicas in 0..20_usize,
        cluster in policy(),
        annotated in annotation(),
    ) {
        let mut objects: Vec<Arc<Object>> = NODES.iter().map(|n| full_node(n)).collect();
        objects.push(workload::<ReplicationController>("web", None, annotated, replicas));
        objects.extend(own.iter().enumerate().map(|(i, of)| pod_of(&format!("web-{i}"), CONTROLLER, of)));
        let controllers = ReplicationControllers { scale_down: cluster };
        prop_assert_eq!(
            gone(&objects, cluster, "ReplicationController", "web", replicas),
            deleted_by(&controllers, &objects, "web")
        );
    }
}

fn plain(node: usize, age: i64) -> Traits {
    Traits {
        node,
        phase: 9,
        ready: Some(age),
        cost: 0,
        restarts: 0,
        created: 3000,
        is_terminating: false,
        constraints: 1,
    }
}

#[test]
fn b2_b3_a_simulated_scale_down_by_spread_leaves_1_1_1_of_2_2_1() {
    let cluster = |annotated: Option<&str>| -> Vec<Arc<Object>> {
        let mut objects: Vec<Arc<Object>> = NODES.iter().map(|n| full_node(n)).collect();
        objects.push(workload::<ReplicaSet>("web-new", Some(DEPLOYMENT), annotated, 5));
        // The pods of zone a, and that of zone c, became ready last.
        let ages = [2, 1000, 1000, 1000, 2];
        let pods = ages.iter().enumerate();
        objects.extend(pods.map(|(i, age)| pod_of(&format!("web-{}", NODES[i]), SET, &plain(i, *age))));
        objects
    };
    let scaled = |annotated, policy| gone(&cluster(annotated), policy, "Deployment", "web", 3);
    assert_eq!(
        scaled(None, Policy::Default),
        ["default/web-a1", "default/web-c1"]
    );
    assert_eq!(
        scaled(Some("spread"), Policy::Default),
        ["default/web-a1", "default/web-b1"]
    );
    assert_eq!(scaled(None, Policy::Spread), ["default/web-a1", "default/web-b1"]);
}

#[test]
fn b2_b3_a_simulated_scale_down_of_many_pods_deletes_them_in_syncs_of_burst_replicas() {
    let mut objects: Vec<Arc<Object>> = NODES.iter().map(|n| full_node(n)).collect();
    objects.push(workload::<ReplicaSet>("web-new", None, Some("spread"), 4));
    let number = BURST_REPLICAS + 40;
    objects.extend((0..number).map(|i| {
        let on = if i % 3 == 0 { i % 5 } else { 0 };
        pod_of(&format!("web-{i}"), SET, &plain(on, 1000))
    }));
    let simulated = gone(&objects, Policy::Default, "ReplicaSet", "web-new", 4);
    let mut deleted = Vec::new();
    while deleted.len() < number - 4 {
        let sync = deleted_by(&ReplicaSets::default(), &objects, "web-new");
        assert!(!sync.is_empty() && sync.len() <= BURST_REPLICAS, "{}", sync.len());
        objects.retain(|o| !sync.contains(&full_name(o)));
        deleted.extend(sync);
    }
    deleted.sort();
    assert_eq!(simulated, deleted);
}
