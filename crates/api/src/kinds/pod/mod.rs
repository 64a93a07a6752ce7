//! Pod: defaults, validation, what an update may change, and how it is deleted (SPEC T1).
//!
//! What a PodTemplateSpec shares with it (Deployment, ReplicaSet, Job …) is offered as plain functions:
//! [`set_pod_spec_defaults`], [`validate_pod_template`], [`validate_pod_spec`].

pub mod columns;
mod defaults;
mod validation;

use k8s_openapi::api::core::v1::Pod;

use crate::strategy::Strategy;

pub use defaults::set_pod_spec_defaults;
pub use validation::{validate_pod_spec, validate_pod_template};

impl Strategy for Pod {}
