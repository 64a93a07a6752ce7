//! What a pod's spec and status say of its state: node, phase, conditions.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::jiff::Timestamp;

use crate::well_known::MIRROR_ANNOTATION;

/// The condition of a pod that a component is about to delete because of a disruption (KEP-3329).
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`, or `""`.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the pod is a mirror pod: the API's copy of a static pod.
pub fn is_mirror(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|a| a.contains_key(MIRROR_ANNOTATION))
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|c| c.status == "True")
}

/// Since when it is ready.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|c| c.status == "True")?;
    ready.last_transition_time.as_ref().map(|t| t.0)
}

/// Empty while it is not bound.
pub fn node_name(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|s| s.node_name.as_deref())
        .unwrap_or("")
}
