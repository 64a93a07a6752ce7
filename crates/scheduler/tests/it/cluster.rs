//! What the tests' clusters are made of: a scheduler, the time, and objects as the API has them.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use knarr_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use knarr_api::k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::registry::Registered;
use knarr_api::{Object, Shared};
use knarr_scheduler::volumes::Change;
use knarr_scheduler::{Scheduler, config};
use serde_json::{Value, json};

pub fn typed<T: Registered>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|e| panic!("{e}: {value}"))
}

pub fn shared<T: Registered>(value: &Value) -> Shared<T> {
    let object = Object::from_typed(T::kind_of(), Box::new(typed::<T>(value)));
    Shared::new(Arc::new(object)).unwrap()
}

pub fn at(second: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second)
}

/// A scheduler whose default profile has these args of `knarr.io/Preemption`.
pub fn scheduler(args: &str) -> Scheduler {
    let text = format!(
        "
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- pluginConfig:
  - name: knarr.io/Preemption
    args: {args}
"
    );
    config::parse(&text).unwrap().scheduler()
}

/// A node with 4 CPUs for 10 pods.
pub fn add_node(scheduler: &mut Scheduler, name: &str, zone: &str) {
    let node: Shared<Node> = shared(&json!({
        "metadata": {"name": name, "uid": name, "labels": {"zone": zone, "kubernetes.io/hostname": name}},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }));
    scheduler.node_changed(name, Some(node), at(0));
}

pub fn add_pod(scheduler: &mut Scheduler, pod: &Value) -> Shared<Pod> {
    let pod = shared(pod);
    scheduler.pod_changed(None, Some(&pod), at(0));
    pod
}

/// The claim `data` with access mode ReadWriteOncePod, bound to a volume of any node.
pub fn add_claim(scheduler: &mut Scheduler) {
    let volume: Shared<PersistentVolume> = shared(&json!({
        "metadata": {"name": "v", "uid": "v"},
        "spec": {"accessModes": ["ReadWriteOncePod"], "storageClassName": "disks", "capacity": {"storage": "1Gi"},
            "csi": {"driver": "disks", "volumeHandle": "v"}},
    }));
    let claim: Shared<PersistentVolumeClaim> = shared(&json!({
        "metadata": {"name": "data", "namespace": "default", "uid": "data",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"accessModes": ["ReadWriteOncePod"], "storageClassName": "disks", "volumeName": "v",
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    }));
    let (before, after) = (None, Some(volume));
    scheduler.storage_changed(&Change::Volume { before, after }, at(0));
    let (before, after) = (None, Some(claim));
    scheduler.storage_changed(&Change::Claim { before, after }, at(0));
}
