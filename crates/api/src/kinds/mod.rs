//! What every component knows of a kind: names, small questions about its objects, and how its type is decoded and selected
//! ([`ApiType`]). The rules of kinds are in `knarr-strategy`.

use k8s_openapi::api::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use crate::api_type::ApiType;

mod certificate_signing_request;
mod daemon_set;
mod deployment;
pub mod endpoint_slice;
mod event;
mod events_event;
mod horizontal_pod_autoscaler;
mod ip_address;
mod job;
mod namespace;
pub mod node;
pub mod node_affinity;
pub mod node_selector;
pub mod persistent_volume;
pub mod pod;
mod replica_set;
mod replication_controller;
mod resource_slice;
pub(crate) mod scale;
mod secret;
mod service;
pub mod service_ips;
mod stateful_set;
pub mod template;
pub mod toleration;
mod volume_attachment;

/// Implements [`ApiType`] for types that need only its default methods.
macro_rules! api_types {
    ($($t:ty),* $(,)?) => {$(impl ApiType for $t {})*};
}

/// Implements [`ApiType`] for types whose metadata an update of the status does not change.
macro_rules! status_keeps_metadata {
    ($($t:ty),* $(,)?) => {$(impl ApiType for $t {
        const STATUS_KEEPS_METADATA: bool = true;
    })*};
}

status_keeps_metadata! {
    APIService,
    flowcontrol::v1::FlowSchema,
    flowcontrol::v1::PriorityLevelConfiguration,
    resource::v1::ResourceClaim,
    networking::v1::ServiceCIDR,
    admissionregistration::v1::ValidatingAdmissionPolicy,
}

api_types! {
    core::v1::Binding,
    core::v1::ComponentStatus,
    core::v1::ConfigMap,
    core::v1::Endpoints,
    core::v1::LimitRange,
    core::v1::PersistentVolumeClaim,
    core::v1::PodTemplate,
    core::v1::ResourceQuota,
    core::v1::ServiceAccount,
    apps::v1::ControllerRevision,
    authentication::v1::SelfSubjectReview,
    authentication::v1::TokenReview,
    authorization::v1::LocalSubjectAccessReview,
    authorization::v1::SelfSubjectAccessReview,
    authorization::v1::SelfSubjectRulesReview,
    authorization::v1::SubjectAccessReview,
    autoscaling::v1::HorizontalPodAutoscaler,
    batch::v1::CronJob,
    networking::v1::IngressClass,
    networking::v1::Ingress,
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
    rbac::v1::ClusterRoleBinding,
    rbac::v1::ClusterRole,
    rbac::v1::RoleBinding,
    rbac::v1::Role,
    storage::v1::CSIDriver,
    storage::v1::CSINode,
    storage::v1::CSIStorageCapacity,
    storage::v1::StorageClass,
    storage::v1::VolumeAttributesClass,
    admissionregistration::v1::MutatingAdmissionPolicy,
    admissionregistration::v1::MutatingAdmissionPolicyBinding,
    admissionregistration::v1::MutatingWebhookConfiguration,
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    admissionregistration::v1::ValidatingWebhookConfiguration,
    CustomResourceDefinition,
    scheduling::v1::PriorityClass,
    coordination::v1::Lease,
    k8s_openapi::api::node::v1::RuntimeClass,
    discovery::v1::EndpointSlice,
    resource::v1::DeviceClass,
    resource::v1::ResourceClaimTemplate,
}

/// The value of an optional string field; empty if it is absent, as in Go.
pub fn text(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("")
}
