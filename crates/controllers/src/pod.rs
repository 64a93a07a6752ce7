//! Predicates on pods: ready, available, active, terminating; and the creation of a pod from a template.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::Object;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;

use crate::owner::controller_reference;

pub use knarr_api::kinds::pod::{condition, is_active, is_ready, node_name, phase, ready_since};

pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether it is being deleted and not finished.
pub fn is_terminating(pod: &Pod) -> bool {
    !is_terminal(pod) && is_deleting(pod)
}

/// When a pod becomes available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    Available,
    /// After this time, if it stays ready.
    In(Duration),
    NotReady,
}

/// A pod is available once it has been ready for `min_ready_seconds`.
pub fn availability(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Availability {
    if !is_ready(pod) {
        return Availability::NotReady;
    }
    if min_ready_seconds <= 0 {
        return Availability::Available;
    }
    let Some(since) = ready_since(pod) else {
        return Availability::NotReady;
    };
    let rest = SignedDuration::from_secs(i64::from(min_ready_seconds)) - now.duration_since(since);
    match Duration::try_from(rest) {
        Ok(rest) if !rest.is_zero() => Availability::In(rest),
        _ => Availability::Available,
    }
}

/// A pod of `owner` from a template, with generateName.
pub fn from_template(owner: &Object, template: &PodTemplateSpec) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", owner.name())),
            namespace: Some(owner.namespace().to_string()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}
