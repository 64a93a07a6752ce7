//! Processes of the previous version, and their upgrade: in the order of Kubernetes' version skew policy, first API
//! servers, then controllers, then nodes, each restarted as this version and never back as the previous one.
//!
//! What the previous version does not do:
//! - its kubelets write neither `knarr.io/started-by` nor `knarr.io/used-by`, declare no features of their node, and make containers
//!   without the annotation `knarr.io/self-fenced`;
//! - its API servers store pods without `metadata.generation`, and what components observed of it is not reported.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use k8s_openapi::api::core::v1::{Node as ApiNode, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use knarr_api::kinds::persistent_volume::USED_BY;
use knarr_api::{AnyObject, k8s_openapi};
use knarr_client::Patch;
use knarr_store::{Op, Txn};
use serde_json::Value;

/// The kubelet that started a pod last, which the kubelet writes before it does.
pub(crate) const STARTED_BY: &str = "knarr.io/started-by";
/// On a container: how its node terminates it when it is cut off.
const SELF_FENCED: &str = "knarr.io/self-fenced";
const PODS: &[u8] = b"/registry/core/pods/";

/// Whether a process is of the previous version.
#[derive(Debug, Default)]
pub(crate) struct Version(AtomicBool);

impl Version {
    pub fn is_former(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set_former(&self, is_former: bool) {
        self.0.store(is_former, Ordering::Relaxed);
    }
}

/// What a kubelet or a controller of the previous version does not write.
pub(crate) fn as_former_writes(object: &mut dyn AnyObject) {
    let any = object.as_any_mut();
    if let Some(node) = any.downcast_mut::<ApiNode>() {
        if let Some(status) = &mut node.status {
            status.declared_features = None;
        }
    } else if let Some(attachment) = any.downcast_mut::<VolumeAttachment>()
        && let Some(annotations) = &mut attachment.metadata.annotations
    {
        annotations.remove(USED_BY);
    }
}

/// Whether a patch only announces that a pod is going to be started.
pub(crate) fn is_announcement(patch: &Patch) -> bool {
    let Patch::Merge(patch) = patch else { return false };
    let announced = patch
        .pointer("/metadata/annotations")
        .and_then(|a| a.get(STARTED_BY));
    announced.is_some()
}

/// The annotations of a container that a kubelet of the previous version creates.
pub(crate) fn as_former_makes(config: &mut knarr_node::runtime::ContainerConfig) {
    config.annotations.remove(SELF_FENCED);
}

/// A transaction as an API server of the previous version requests it.
pub(crate) fn as_former_stores(mut txn: Txn) -> Txn {
    for op in &mut txn.ops {
        if let Op::Put { key, value } = op
            && key.starts_with(PODS)
            && let Some(changed) = without_generation(value)
        {
            *value = changed;
        }
    }
    txn
}

fn without_generation(json: &Bytes) -> Option<Bytes> {
    let mut pod: Value = serde_json::from_slice(json).ok()?;
    pod.get_mut("metadata")?.as_object_mut()?.remove("generation")?;
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("observedGeneration");
        let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
        for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
            condition.remove("observedGeneration");
        }
    }
    serde_json::to_vec(&pod).ok().map(Bytes::from)
}

/// The kubelet that started the pod last, by its annotation.
pub(crate) fn started_by(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(STARTED_BY).map(String::as_str)
}
