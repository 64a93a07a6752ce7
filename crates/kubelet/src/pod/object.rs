//! The pod's object as last received from the API, or from a static pod's file.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::Container;
use super::container::{find_spec, status_of};

#[derive(Clone, Debug)]
pub(super) struct PodObject {
    object: Arc<core::Pod>,
    /// It was deleted from the API.
    removed: bool,
    /// It had a deletionTimestamp already when this kubelet started to manage the pod.
    was_already_terminating: bool,
}

impl PodObject {
    pub(super) fn new(object: Arc<core::Pod>) -> Self {
        PodObject {
            was_already_terminating: object.metadata.deletion_timestamp.is_some(),
            object,
            removed: false,
        }
    }

    pub(super) fn update(&mut self, object: Arc<core::Pod>) {
        self.object = object;
    }

    pub(super) fn set_removed(&mut self) {
        self.removed = true;
    }

    pub(super) fn get(&self) -> &Arc<core::Pod> {
        &self.object
    }

    pub(super) fn metadata(&self) -> &ObjectMeta {
        &self.object.metadata
    }

    pub(super) fn generation(&self) -> Option<i64> {
        self.object.metadata.generation
    }

    pub(super) fn spec(&self) -> &core::PodSpec {
        static EMPTY: std::sync::LazyLock<core::PodSpec> = std::sync::LazyLock::new(core::PodSpec::default);
        self.object.spec.as_ref().unwrap_or(&EMPTY)
    }

    pub(super) fn status(&self) -> Option<&core::PodStatus> {
        self.object.status.as_ref()
    }

    /// The spec of the container of this name, whichever list it is in.
    pub(super) fn container(&self, name: &str) -> Option<Cow<'_, core::Container>> {
        find_spec(self.spec(), name)
    }

    /// A container's status in the API.
    pub(super) fn status_of(&self, container: &Container) -> Option<&core::ContainerStatus> {
        self.status().and_then(|status| status_of(status, container))
    }

    pub(super) fn image_of(&self, container: &str) -> String {
        self.container(container)
            .and_then(|c| c.image.clone())
            .unwrap_or_default()
    }

    pub(super) fn desired_resources(&self, container: &str) -> core::ResourceRequirements {
        self.container(container)
            .and_then(|c| c.resources.clone())
            .unwrap_or_default()
    }

    pub(super) fn host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }

    /// `name_namespace(uid)`, as in messages (upstream: `format.Pod`).
    pub(super) fn full_name(&self) -> String {
        let meta = &self.object.metadata;
        format!(
            "{}_{}({})",
            meta.name.as_deref().unwrap_or(""),
            meta.namespace.as_deref().unwrap_or(""),
            meta.uid.as_deref().unwrap_or("")
        )
    }

    /// Whether the object was deleted from the API.
    pub(super) fn is_removed(&self) -> bool {
        self.removed
    }

    /// Whether the object is deleted or has a deletionTimestamp.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.removed || self.object.metadata.deletion_timestamp.is_some()
    }

    /// The grace period of its deletion: none is left once it is deleted.
    pub(super) fn deletion_grace_seconds(&self) -> Option<i64> {
        match self.removed {
            true => Some(0),
            false => self.object.metadata.deletion_grace_period_seconds,
        }
    }

    /// The deletionTimestamp, if it was set before this kubelet started to manage the pod.
    pub(super) fn earlier_deletion(&self) -> Option<Timestamp> {
        let at = self.object.metadata.deletion_timestamp.as_ref()?.0;
        self.was_already_terminating.then_some(at)
    }
}
