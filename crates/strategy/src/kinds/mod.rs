//! The API strategy of each kind (defaults, validation, table columns), one file for each kind.

use k8s_openapi::api::*;

use crate::Strategy;

mod admission_policy;
mod admission_rule;
mod api_service;
mod certificate_signing_request;
pub(crate) mod checks;
mod cluster_role;
mod cluster_role_binding;
mod component_status;
mod config_map;
mod controller_revision;
mod cron_job;
mod csi_driver;
mod csi_node;
mod csi_storage_capacity;
mod custom_resource_definition;
mod daemon_set;
mod deployment;
mod device;
mod device_class;
mod device_requests;
mod endpoint_slice;
mod endpoints;
mod event;
mod events_event;
mod flow_rules;
mod flow_schema;
mod horizontal_pod_autoscaler;
mod horizontal_pod_autoscaler_v1;
mod ingress;
mod ingress_class;
mod ip_address;
mod job;
mod lease;
mod limit_range;
mod mutating_admission_policy;
mod mutating_admission_policy_binding;
mod mutating_webhook_configuration;
pub mod namespace;
mod network_policy;
pub mod node;
pub mod persistent_volume;
mod persistent_volume_claim;
pub mod pod;
mod pod_disruption_budget;
mod pod_template;
pub mod priority_class;
mod priority_level_configuration;
mod rbac;
mod replica_set;
mod replication_controller;
mod resource_claim;
mod resource_claim_status;
mod resource_claim_template;
mod resource_quota;
mod resource_slice;
mod role;
mod role_binding;
mod runtime_class;
mod secret;
pub mod service;
mod service_account;
mod service_cidr;
pub mod service_ips;
mod stateful_set;
mod storage_class;
mod template;
mod validating_admission_policy;
mod validating_admission_policy_binding;
mod validating_webhook_configuration;
mod volume_attachment;
mod volume_attributes_class;
pub(crate) mod warnings;
mod webhook;

/// Implements `Strategy` for kinds that need only its default methods.
macro_rules! default_strategy {
    ($($t:ty),* $(,)?) => {$(impl Strategy for $t {})*};
}

default_strategy! {
core::v1::Binding,
authentication::v1::SelfSubjectReview,
authentication::v1::TokenReview,
authorization::v1::LocalSubjectAccessReview,
authorization::v1::SelfSubjectAccessReview,
authorization::v1::SelfSubjectRulesReview,
authorization::v1::SubjectAccessReview,
autoscaling::v1::Scale,
}

#[cfg(test)]
mod tests;
