//! The plugins on volumes: storage is written as JSON, results as messages of the condition.

mod filters;
mod queueing_hints;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared, k8s_openapi};
use serde_json::{Value, json};

use crate::plugins::volume_binding::VolumesToBind;
use crate::volumes::Change;
use crate::{Action, Scheduler};

fn object<T: Registered>(value: Value) -> Arc<Object> {
    let typed: T = serde_json::from_value(value).unwrap();
    Arc::new(Object::from_typed(T::kind_of(), Box::new(typed)))
}

fn node(name: &str, zone: &str) -> Shared<Node> {
    let labels = json!({"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone});
    let allocatable = json!({"cpu": "4", "memory": "8Gi", "pods": "10"});
    let node = json!({"metadata": {"name": name, "uid": name, "labels": labels},
        "status": {"allocatable": allocatable}});
    Shared::new(object::<Node>(node)).unwrap()
}

/// With these volumes.
fn pod(name: &str, volumes: Value) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c"}], "volumes": volumes},
    })
}

fn of_claims(claims: &[&str]) -> Value {
    let volume = |c: &&str| json!({"name": c, "persistentVolumeClaim": {"claimName": c}});
    claims.iter().map(volume).collect()
}

fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Pending"},
    })
}

fn bound(name: &str, volume: &str) -> Value {
    let mut claim = claim(name, "local", "1Gi");
    claim["spec"]["volumeName"] = volume.into();
    claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    claim["status"]["phase"] = "Bound".into();
    claim
}

/// A local volume of a node (empty: no node affinity).
fn volume(name: &str, class: &str, size: &str, node: &str) -> Value {
    let mut volume = json!({
        "metadata": {"name": name, "uid": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class, "capacity": {"storage": size},
            "csi": {"driver": "disks", "volumeHandle": name}},
        "status": {"phase": "Available"},
    });
    if !node.is_empty() {
        let needs = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        volume["spec"]["nodeAffinity"] =
            json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [needs]}]}});
    }
    volume
}

fn class(name: &str, provisioner: &str, mode: &str) -> Value {
    json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode})
}

const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const WAITS: &str = "WaitForFirstConsumer";

struct World {
    scheduler: Scheduler,
    now: Timestamp,
}

impl World {
    /// Nodes a (zone 1) and b (zone 2).
    fn new() -> Self {
        let mut world = World {
            scheduler: Scheduler::default(),
            now: Timestamp::UNIX_EPOCH,
        };
        for (name, zone) in [("a", "1"), ("b", "2")] {
            world
                .scheduler
                .node_changed(name, Some(node(name, zone)), world.now);
        }
        world.put::<StorageClass>(class("local", NO_PROVISIONER, WAITS));
        world
    }

    fn put<T: Registered>(&mut self, value: Value) -> Arc<Object> {
        self.change::<T>(None, Some(value))
    }

    fn change<T: Registered>(&mut self, before: Option<Value>, after: Option<Value>) -> Arc<Object> {
        let (before, after) = (before.map(object::<T>), after.map(object::<T>));
        let change = Change::of(before.as_ref(), after.as_ref()).unwrap();
        self.scheduler.storage_changed(&change, self.now);
        after.or(before).unwrap()
    }

    fn run(&mut self, node: &str, mut pod: Value) {
        pod["spec"]["nodeName"] = node.into();
        self.submit(pod);
    }

    fn submit(&mut self, pod: Value) {
        let pod = Shared::<Pod>::new(object::<Pod>(pod)).unwrap();
        self.scheduler.pod_changed(None, Some(&pod), self.now);
    }

    fn remove(&mut self, node: &str, mut pod: Value) {
        pod["spec"]["nodeName"] = node.into();
        let pod = Shared::<Pod>::new(object::<Pod>(pod)).unwrap();
        self.scheduler.pod_changed(Some(&pod), None, self.now);
    }

    fn step(&mut self) -> Option<Action> {
        self.scheduler.schedule_one(self.now)
    }

    /// `node volume=claim claim@node`, or the message of the condition without that of preemption.
    fn next(&mut self) -> String {
        match self.step() {
            None => "nothing".into(),
            Some(Action::Bind { node, volumes, .. }) => {
                let mut words = vec![node.to_string()];
                for (volume, claim) in volumes.iter().flat_map(|v| &v.bindings) {
                    words.push(format!("{}={}", volume.object().name(), claim.object().name()));
                }
                for claim in volumes.iter().flat_map(|v| &v.provisions) {
                    words.push(format!("{}@{node}", claim.object().name()));
                }
                words.join(" ")
            }
            Some(Action::Report { message, .. }) => short(&message),
            Some(Action::Preempt { node, victims, .. }) => {
                let victims: Vec<&str> = victims.iter().map(|v| v.object().name()).collect();
                format!("{node} without {}", victims.join(" "))
            }
        }
    }

    fn later(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }
}

fn short(message: &str) -> String {
    let short = message
        .strip_prefix("0/2 nodes are available: ")
        .unwrap_or(message);
    for end in [" no new claims", " not found"] {
        if let Some((short, _)) = short.split_once(&format!(".{end}")) {
            return short.to_string();
        }
    }
    short.to_string()
}

type Setup = fn(&mut World);

fn capacities(world: &mut World, zone: &str, size: &str) {
    world.put::<StorageClass>(class("made", "disks", WAITS));
    world.put::<CSIDriver>(json!({"metadata": {"name": "disks"}, "spec": {"storageCapacity": true}}));
    world.put::<CSIStorageCapacity>(json!({
        "metadata": {"name": "x", "namespace": "kube-system"}, "storageClassName": "made", "capacity": size,
        "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": zone}},
    }));
    world.put::<PersistentVolumeClaim>(claim("c", "made", "2Gi"));
}

fn csi_node(node: &str, count: i64) -> Value {
    json!({"metadata": {"name": node}, "spec": {"drivers":
        [{"name": "disks", "nodeID": node, "allocatable": {"count": count}}]}})
}

fn limited(world: &mut World, node: &str, count: i64) {
    world.put::<CSINode>(csi_node(node, count));
}

#[test]
fn a_volume_that_is_reserved_for_one_claim_is_not_bound_to_another() {
    let mut world = World::new();
    world.put::<PersistentVolume>(volume("v1", "local", "1Gi", "a"));
    world.put::<PersistentVolume>(volume("v2", "local", "2Gi", "b"));
    for (name, c) in [("p", "c"), ("q", "d")] {
        world.put::<PersistentVolumeClaim>(claim(c, "local", "1Gi"));
        world.submit(pod(name, of_claims(&[c])));
    }
    assert_eq!([world.next(), world.next()], ["a v1=c", "b v2=d"]);
}

#[test]
fn a_volume_is_free_again_when_the_pod_it_was_reserved_for_is_deleted() {
    let mut world = World::new();
    world.put::<PersistentVolume>(volume("v", "local", "1Gi", "a"));
    world.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
    world.put::<PersistentVolumeClaim>(claim("d", "local", "1Gi"));
    let first = pod("p", of_claims(&["c"]));
    world.submit(first.clone());
    assert_eq!(world.next(), "a v=c");
    let first = Shared::<Pod>::new(object::<Pod>(first)).unwrap();
    world.scheduler.pod_changed(Some(&first), None, world.now);
    world.submit(pod("q", of_claims(&["d"])));
    assert_eq!(world.next(), "a v=d");
}

#[test]
fn a_read_write_once_pod_claim_is_preempted_by_a_more_important_pod() {
    let mut world = World::new();
    let mut exclusive = bound("c", "v");
    exclusive["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    world.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
    world.put::<PersistentVolumeClaim>(exclusive);
    world.run("b", pod("low", of_claims(&["c"])));
    let mut high = pod("high", of_claims(&["c"]));
    high["spec"]["priority"] = 10.into();
    world.submit(high);
    assert_eq!(world.next(), "b without low");
}

#[test]
fn volumes_are_bound_when_claim_and_volume_are_and_failed_when_reset() {
    let mut world = World::new();
    world.put::<StorageClass>(class("made", "disks", WAITS));
    world.put::<PersistentVolume>(volume("v", "local", "1Gi", "a"));
    world.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
    world.put::<PersistentVolumeClaim>(claim("d", "made", "1Gi"));
    world.submit(pod("p", of_claims(&["c", "d"])));
    let Some(Action::Bind {
        pod, node, volumes, ..
    }) = world.step()
    else {
        panic!("it fits");
    };
    let volumes: Arc<VolumesToBind> = volumes.expect("volumes to bind");
    assert_eq!(node, "a");
    let bound_now = |world: &World| {
        let bound = world.scheduler.volumes_bound(&pod, &node, &volumes);
        bound.map_err(|e| e.to_string())
    };
    assert_eq!(
        bound_now(&world),
        Err("ClaimRef got reset for pv \"v\"".to_string()),
        "nothing is written"
    );
    let mut given = volume("v", "local", "1Gi", "a");
    given["spec"]["claimRef"] = json!({"namespace": "default", "name": "c", "uid": "c"});
    world.put::<PersistentVolume>(given);
    assert_eq!(bound_now(&world), Ok(false), "the claim does not know");
    world.put::<PersistentVolumeClaim>(bound("c", "v"));
    assert_eq!(
        bound_now(&world),
        Err("selectedNode annotation reset for PVC \"d\"".to_string())
    );
    let mut selected = claim("d", "made", "1Gi");
    selected["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "a"});
    world.put::<PersistentVolumeClaim>(selected.clone());
    assert_eq!(bound_now(&world), Ok(false), "there is no volume yet");
    let mut made = bound("d", "w");
    made["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "a".into();
    world.put::<PersistentVolumeClaim>(made);
    assert_eq!(bound_now(&world), Ok(false), "the volume is not seen yet");
    world.put::<PersistentVolume>(volume("w", "made", "1Gi", ""));
    assert_eq!(bound_now(&world), Ok(true));
    world.scheduler.pod_changed(Some(&pod), None, world.now);
    assert_eq!(bound_now(&world), Err("pod does not exist any more".to_string()));
}
