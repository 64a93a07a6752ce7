//! The plugins on volumes: storage is written as JSON, results as messages of the condition.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
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
                let mut words = vec![node.clone()];
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

#[test]
fn every_volume_plugin_has_kube_schedulers_verdicts() {
    let one = || pod("p", of_claims(&["c"]));
    let cases: &[(&str, Setup, Value, &str)] = &[
        (
            "no such claim",
            |_| {},
            one(),
            "persistentvolumeclaim \"c\" not found",
        ),
        (
            "the claim is deleted",
            |w| {
                let mut claim = claim("c", "local", "1Gi");
                claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "persistentvolumeclaim \"c\" is being deleted",
        ),
        (
            "the claim has lost its volume",
            |w| {
                let mut claim = bound("c", "v");
                claim["status"]["phase"] = "Lost".into();
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"",
        ),
        (
            "an ephemeral claim is not made yet",
            |_| {},
            pod("p", json!([{"name": "e", "ephemeral": {}}])),
            "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-e\"",
        ),
        (
            "an ephemeral claim has another owner",
            |w| {
                w.put::<PersistentVolumeClaim>(claim("p-e", "local", "1Gi"));
            },
            pod("p", json!([{"name": "e", "ephemeral": {}}])),
            "PVC default/p-e was not created for pod default/p (pod is not owner)",
        ),
        (
            "an immediate claim is not bound",
            |w| {
                w.put::<StorageClass>(class("now", "disks", "Immediate"));
                w.put::<PersistentVolumeClaim>(claim("c", "now", "1Gi"));
            },
            one(),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "a claim without class is not bound",
            |w| {
                w.put::<PersistentVolumeClaim>(claim("c", "", "1Gi"));
            },
            one(),
            "pod has unbound immediate PersistentVolumeClaims",
        ),
        (
            "the bound volume is on b",
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", "b"));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "b",
        ),
        (
            "the bound volume is nowhere",
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", "z"));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "2 node(s) didn't match PersistentVolume's node affinity",
        ),
        (
            "the bound volume is not there",
            |w| {
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "persistentvolume \"v\" not found",
        ),
        (
            "no volume to bind",
            |w| {
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            one(),
            "2 node(s) didn't find available persistent volumes to bind",
        ),
        (
            "the smallest that is large enough",
            |w| {
                for (name, size) in [("huge", "9Gi"), ("small", "1Gi"), ("fits", "3Gi")] {
                    w.put::<PersistentVolume>(volume(name, "local", size, "b"));
                }
                w.put::<PersistentVolumeClaim>(claim("c", "local", "2Gi"));
            },
            one(),
            "b fits=c",
        ),
        (
            "two claims, each the smallest",
            |w| {
                for (name, size, node) in [("v1", "1Gi", "a"), ("v2", "9Gi", "b"), ("v3", "3Gi", "b")] {
                    w.put::<PersistentVolume>(volume(name, "local", size, node));
                }
                w.put::<PersistentVolumeClaim>(claim("c", "local", "5Gi"));
                w.put::<PersistentVolumeClaim>(claim("d", "local", "1Gi"));
            },
            pod("p", of_claims(&["c", "d"])),
            "b v3=d v2=c",
        ),
        (
            "a volume that is not available, one of another mode, one of other access",
            |w| {
                let mut released = volume("v1", "local", "1Gi", "");
                released["status"]["phase"] = "Released".into();
                w.put::<PersistentVolume>(released);
                let mut block = volume("v2", "local", "1Gi", "");
                block["spec"]["volumeMode"] = "Block".into();
                w.put::<PersistentVolume>(block);
                let mut many = volume("v3", "local", "1Gi", "");
                many["spec"]["accessModes"] = json!(["ReadOnlyMany"]);
                w.put::<PersistentVolume>(many);
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            one(),
            "2 node(s) didn't find available persistent volumes to bind",
        ),
        (
            "the volume that is reserved for the claim precedes a smaller one",
            |w| {
                w.put::<PersistentVolume>(volume("v1", "local", "1Gi", ""));
                let mut kept = volume("v2", "local", "5Gi", "a");
                kept["spec"]["claimRef"] = json!({"namespace": "default", "name": "c"});
                w.put::<PersistentVolume>(kept);
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            one(),
            "a v2=c",
        ),
        (
            "the claim selects by label",
            |w| {
                w.put::<PersistentVolume>(volume("v1", "local", "1Gi", ""));
                let mut fast = volume("v2", "local", "1Gi", "b");
                fast["metadata"]["labels"] = json!({"disk": "fast"});
                w.put::<PersistentVolume>(fast);
                let mut claim = claim("c", "local", "1Gi");
                claim["spec"]["selector"] = json!({"matchLabels": {"disk": "fast"}});
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "b v2=c",
        ),
        (
            "a volume is made where the class allows",
            |w| {
                let mut class = class("made", "disks", WAITS);
                class["allowedTopologies"] = json!([{"matchLabelExpressions":
                    [{"key": "topology.kubernetes.io/zone", "values": ["2"]}]}]);
                w.put::<StorageClass>(class);
                w.put::<PersistentVolumeClaim>(claim("c", "made", "1Gi"));
            },
            one(),
            "b c@b",
        ),
        (
            "a volume is being made for b",
            |w| {
                w.put::<StorageClass>(class("made", "disks", WAITS));
                let mut claim = claim("c", "made", "1Gi");
                claim["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "b"});
                w.put::<PersistentVolumeClaim>(claim);
            },
            one(),
            "b c@b",
        ),
        (
            "the driver has room in zone 1",
            |w| {
                capacities(w, "1", "5Gi");
            },
            one(),
            "a c@a",
        ),
        (
            "the driver has too little room",
            |w| {
                capacities(w, "1", "1Gi");
            },
            one(),
            "2 node(s) did not have enough free storage",
        ),
        (
            "the volume's label says zone 2",
            |w| {
                let mut labelled = volume("v", "local", "1Gi", "");
                labelled["metadata"]["labels"] = json!({"failure-domain.beta.kubernetes.io/zone": "2__3"});
                w.put::<PersistentVolume>(labelled);
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "b",
        ),
        (
            "the volume's label says zone 3",
            |w| {
                let mut labelled = volume("v", "local", "1Gi", "");
                labelled["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": "3"});
                w.put::<PersistentVolume>(labelled);
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "2 node(s) had no available volume zone",
        ),
        (
            "one pod at a time",
            |w| {
                let mut claim = bound("c", "v");
                claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(claim);
                w.run("a", pod("other", of_claims(&["c"])));
            },
            one(),
            "2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod",
        ),
        (
            "a disk is written on a",
            |w| {
                w.run(
                    "a",
                    pod(
                        "other",
                        json!([{"name": "d", "gcePersistentDisk": {"pdName": "x"}}]),
                    ),
                );
            },
            pod(
                "p",
                json!([{"name": "d", "gcePersistentDisk": {"pdName": "x", "readOnly": true}}]),
            ),
            "b",
        ),
        (
            "a disk is written everywhere",
            |w| {
                for n in ["a", "b"] {
                    w.run(
                        n,
                        pod(
                            n,
                            json!([{"name": "d", "rbd": {"monitors": ["m", "n"], "image": "i"}}]),
                        ),
                    );
                }
            },
            pod(
                "p",
                json!([{"name": "d", "rbd": {"monitors": ["n"], "image": "i"}}]),
            ),
            "2 node(s) had no available disk",
        ),
        (
            "a attaches one volume, and has it",
            |w| {
                limited(w, "a", 1);
                w.put::<PersistentVolume>(volume("v0", "local", "1Gi", "a"));
                w.put::<PersistentVolumeClaim>(bound("c0", "v0"));
                w.run("a", pod("other", of_claims(&["c0"])));
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "b",
        ),
        (
            "a volume that is attached anyway is not counted twice",
            |w| {
                limited(w, "a", 1);
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", "a"));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
                w.run("a", pod("other", of_claims(&["c"])));
            },
            one(),
            "a",
        ),
        (
            "an attachment without a pod counts",
            |w| {
                limited(w, "a", 1);
                limited(w, "b", 0);
                w.put::<PersistentVolume>(volume("v0", "local", "1Gi", ""));
                w.put::<VolumeAttachment>(json!({"metadata": {"name": "x"}, "spec":
                    {"attacher": "disks", "nodeName": "a", "source": {"persistentVolumeName": "v0"}}}));
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(bound("c", "v"));
            },
            one(),
            "2 node(s) exceed max volume count",
        ),
    ];
    for (name, setup, pod, expected) in cases {
        let mut world = World::new();
        setup(&mut world);
        world.submit(pod.clone());
        assert_eq!(world.next(), *expected, "{name}");
    }
}

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

/// Events after a pod was rejected, and their name in the metrics if they requeue it.
#[test]
fn only_events_that_may_help_requeue_a_pod() {
    let rejected_by_limit: Setup = |w| {
        limited(w, "a", 0);
        limited(w, "b", 0);
        w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
        w.put::<PersistentVolumeClaim>(bound("c", "v"));
    };
    let no_volume: Setup = |w| {
        w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
    };
    let in_use: Setup = |w| {
        let mut exclusive = bound("c", "v");
        exclusive["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
        w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
        w.put::<PersistentVolumeClaim>(exclusive);
        w.run("a", pod("other", of_claims(&["c"])));
    };
    let no_room: Setup = |w| capacities(w, "1", "1Gi");
    let no_claim: Setup = |_| {};
    let cases: &[(&str, Setup, Setup, Option<&'static str>)] = &[
        (
            "a node attaches more",
            rejected_by_limit,
            |w| {
                w.change::<CSINode>(Some(csi_node("a", 0)), Some(csi_node("a", 1)));
            },
            Some("storage.k8s.io/CSINodeUpdate"),
        ),
        (
            "a node says the same again",
            rejected_by_limit,
            |w| {
                w.change::<CSINode>(Some(csi_node("a", 0)), Some(csi_node("a", 0)));
            },
            None,
        ),
        (
            "a volume comes",
            no_volume,
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
            },
            Some("PersistentVolumeAdd"),
        ),
        (
            "another claim comes",
            no_volume,
            |w| {
                w.put::<PersistentVolumeClaim>(claim("d", "local", "1Gi"));
            },
            None,
        ),
        (
            "the claim comes",
            no_claim,
            |w| {
                w.put::<PersistentVolume>(volume("v", "local", "1Gi", ""));
                w.put::<PersistentVolumeClaim>(claim("c", "local", "1Gi"));
            },
            Some("PersistentVolumeClaimAdd"),
        ),
        (
            "the pod that used the claim is deleted",
            in_use,
            |w| w.remove("a", pod("other", of_claims(&["c"]))),
            Some("AssignedPodDelete"),
        ),
        (
            "another pod is deleted",
            in_use,
            |w| {
                let other = pod("another", of_claims(&["e"]));
                w.run("a", other.clone());
                w.remove("a", other);
            },
            None,
        ),
        (
            "the driver finds room",
            no_room,
            |w| {
                let before = json!({
                    "metadata": {"name": "x", "namespace": "kube-system"}, "storageClassName": "made",
                    "capacity": "1Gi", "nodeTopology": {"matchLabels": {"topology.kubernetes.io/zone": "1"}},
                });
                let mut after = before.clone();
                after["capacity"] = "9Gi".into();
                w.change::<CSIStorageCapacity>(Some(before), Some(after));
            },
            Some("storage.k8s.io/CSIStorageCapacityUpdate"),
        ),
    ];
    for (name, before, event, label) in cases {
        let mut world = World::new();
        before(&mut world);
        world.submit(pod("p", of_claims(&["c"])));
        assert!(matches!(world.step(), Some(Action::Report { .. })), "{name}");
        world.later(20);
        event(&mut world);
        let next = world.next();
        assert_eq!(next != "nothing", label.is_some(), "{name}: {next}");
        let labels = world.scheduler.incoming_pods();
        assert!(
            label.is_none_or(|l| labels.contains_key(&(l, "active"))),
            "{name}"
        );
    }
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
