//! The kubelet's events, about its node and about pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_client::EventRecorder;
use knarr_client::events::{EventType, reference_to};

/// See the module.
#[derive(Clone)]
pub(super) struct Events {
    recorder: EventRecorder,
    node: ObjectReference,
}

impl Events {
    pub fn new(recorder: EventRecorder, node_name: &str) -> Self {
        Events {
            recorder,
            // As kubelets refer to their own node in events.
            node: ObjectReference {
                kind: Some(Node::kind_of().kind().into()),
                name: Some(node_name.into()),
                uid: Some(node_name.into()),
                ..ObjectReference::default()
            },
        }
    }

    pub fn of_node(&self, type_: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(&self.node, type_, reason, message);
    }

    pub fn of_pod(&self, pod: &Pod, type_: EventType, reason: &str, message: impl Into<String>) {
        self.recorder.event(&reference(pod), type_, reason, message);
    }

    /// `field_path` names the container: `spec.containers{c}`.
    pub fn of_container(
        &self,
        pod: &Pod,
        field_path: Option<String>,
        type_: EventType,
        reason: &str,
        message: String,
    ) {
        let mut about = reference(pod);
        about.field_path = field_path;
        self.recorder.event(&about, type_, reason, message);
    }

    /// A warning that has annotations.
    pub fn annotated_warning(
        &self,
        pod: &Pod,
        annotations: BTreeMap<String, String>,
        reason: &str,
        message: String,
    ) {
        let about = reference(pod);
        self.recorder
            .annotated_event(&about, annotations, EventType::Warning, reason, message);
    }
}

fn reference(pod: &Pod) -> ObjectReference {
    reference_to(Pod::kind_of(), pod.as_object())
}
