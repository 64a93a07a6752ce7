//! The rules of each kind, one file a kind.

use k8s_openapi::api::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use crate::Strategy;

mod checks;
mod cluster_role;
mod cluster_role_binding;
mod config_map;
mod controller_revision;
mod cron_job;
mod daemon_set;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod event;
mod events_event;
mod ingress;
mod ingress_class;
mod job;
mod lease;
mod limit_range;
pub mod namespace;
mod network_policy;
mod node;
mod persistent_volume;
mod persistent_volume_claim;
pub mod pod;
mod pod_disruption_budget;
pub mod priority_class;
mod rbac;
mod replica_set;
mod replication_controller;
mod resource_quota;
mod role;
mod role_binding;
mod secret;
pub mod service;
mod service_account;
pub mod service_ips;
mod spec_diff;
mod stateful_set;
mod storage_class;
mod template;

/// Kinds for which the answers that fit most kinds are right.
macro_rules! plain {
    ($($t:ty),* $(,)?) => {$(impl Strategy for $t {})*};
}

plain! {
core::v1::Binding,
core::v1::ComponentStatus,
core::v1::PodTemplate,
APIService,
authentication::v1::SelfSubjectReview,
authentication::v1::TokenReview,
authorization::v1::LocalSubjectAccessReview,
authorization::v1::SelfSubjectAccessReview,
authorization::v1::SelfSubjectRulesReview,
authorization::v1::SubjectAccessReview,
autoscaling::v2::HorizontalPodAutoscaler,
autoscaling::v1::HorizontalPodAutoscaler,
certificates::v1::CertificateSigningRequest,
networking::v1::IPAddress,
networking::v1::ServiceCIDR,
storage::v1::CSIDriver,
storage::v1::CSINode,
storage::v1::CSIStorageCapacity,
storage::v1::VolumeAttachment,
storage::v1::VolumeAttributesClass,
admissionregistration::v1::MutatingAdmissionPolicy,
admissionregistration::v1::MutatingAdmissionPolicyBinding,
admissionregistration::v1::MutatingWebhookConfiguration,
admissionregistration::v1::ValidatingAdmissionPolicy,
admissionregistration::v1::ValidatingAdmissionPolicyBinding,
admissionregistration::v1::ValidatingWebhookConfiguration,
CustomResourceDefinition,
k8s_openapi::api::node::v1::RuntimeClass,
resource::v1::DeviceClass,
resource::v1::ResourceClaim,
resource::v1::ResourceClaimTemplate,
resource::v1::ResourceSlice,
flowcontrol::v1::FlowSchema,
flowcontrol::v1::PriorityLevelConfiguration,}
