//! The rules of each kind, one file a kind.

use k8s_openapi::api::*;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;

use crate::Strategy;

mod checks;
mod config_map;
mod controller_revision;
mod cron_job;
mod daemon_set;
mod deployment;
mod endpoint_slice;
mod endpoints;
mod event;
mod events_event;
mod job;
mod lease;
pub mod namespace;
mod node;
mod persistent_volume_claim;
pub mod pod;
mod pod_disruption_budget;
pub mod priority_class;
mod replica_set;
mod replication_controller;
mod secret;
pub mod service;
mod service_account;
pub mod service_ips;
mod spec_diff;
mod stateful_set;
mod template;

/// Kinds for which the answers that fit most kinds are right.
macro_rules! plain {
    ($($t:ty),* $(,)?) => {$(impl Strategy for $t {})*};
}

plain! {
core::v1::Binding,
core::v1::ComponentStatus,
core::v1::LimitRange,
core::v1::PersistentVolume,
core::v1::PodTemplate,
core::v1::ResourceQuota,
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
networking::v1::IngressClass,
networking::v1::Ingress,
networking::v1::IPAddress,
networking::v1::NetworkPolicy,
networking::v1::ServiceCIDR,
rbac::v1::ClusterRoleBinding,
rbac::v1::ClusterRole,
rbac::v1::RoleBinding,
rbac::v1::Role,
storage::v1::CSIDriver,
storage::v1::CSINode,
storage::v1::CSIStorageCapacity,
storage::v1::StorageClass,
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
