//! Pod: defaults, validation, what an update may change, and how it is deleted (SPEC T1).
//!
//! What also applies to a PodTemplateSpec (Deployment, ReplicaSet, Job …) is in functions:
//! [`set_pod_spec_defaults`], [`validate_pod_template`], [`validate_pod_spec`], [`drop_disabled_fields`].

pub mod columns;
mod defaults;
mod diff;
mod image;
pub(super) mod internal;
mod prepare;
pub(super) mod validation;
mod warnings;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::kinds::text;
use knarr_apimachinery::field::ErrorList;

use crate::table::{Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

pub use defaults::{drop_init_container_annotations, set_claim_spec_defaults, set_pod_spec_defaults};
pub use prepare::drop_disabled_fields;
pub(crate) use validation::{container_resource_name, template_metadata};
pub use validation::{
    validate_claim_spec, validate_pod_spec, validate_pod_template, validate_resource_name,
    validate_resource_quantity, validate_tolerations,
};
pub use warnings::pod_template_warnings;

impl Strategy for Pod {
    fn set_defaults(&mut self) {
        defaults::set_pod_defaults(self);
    }

    fn prepare_for_create(&mut self) {
        prepare::for_create(self);
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        prepare::for_update(self, old, part);
    }

    fn validate(&self) -> ErrorList {
        validation::validate_create(self)
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        match part {
            Part::Status => validation::validate_status_update(self, old),
            Part::Other("resize") => validation::validate_resize(self, old),
            Part::Other("ephemeralcontainers") => validation::validate_ephemeral_containers_update(self, old),
            // `binding` and `eviction` only change what the server itself sets.
            Part::Other(_) => ErrorList::new(),
            Part::Main => validation::validate_update(self, old),
        }
    }

    fn warnings(&self) -> Vec<String> {
        warnings::pod_warnings(self)
    }

    fn early_warnings(&self) -> Vec<String> {
        warnings::early_pod_warnings(self)
    }

    /// SPEC T1: a pod that is not scheduled or is finished is deleted immediately; a negative grace period is one second.
    fn deletion_grace_seconds(&self, requested: Option<i64>) -> Option<i64> {
        let spec = self.spec.as_ref();
        let own = spec.and_then(|s| s.termination_grace_period_seconds);
        let grace = requested.or(own).unwrap_or(30);
        let bound = spec.is_some_and(|s| !text(&s.node_name).is_empty());
        if !bound || is_terminal(self) || grace == 0 {
            return Some(0);
        }
        Some(if grace < 0 { 1 } else { grace })
    }

    fn columns() -> &'static [Column] {
        columns::columns()
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        columns::row(self, now)
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }
}

/// An ephemeral container as a Container, without `targetContainerName`.
fn as_container(c: EphemeralContainer) -> Container {
    Container {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        liveness_probe: c.liveness_probe,
        name: c.name,
        ports: c.ports,
        readiness_probe: c.readiness_probe,
        resize_policy: c.resize_policy,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        security_context: c.security_context,
        startup_probe: c.startup_probe,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
    }
}

/// The reverse of [`as_container`].
fn as_ephemeral_container(c: Container, target_container_name: Option<String>) -> EphemeralContainer {
    EphemeralContainer {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        liveness_probe: c.liveness_probe,
        name: c.name,
        ports: c.ports,
        readiness_probe: c.readiness_probe,
        resize_policy: c.resize_policy,
        resources: c.resources,
        restart_policy: c.restart_policy,
        restart_policy_rules: c.restart_policy_rules,
        security_context: c.security_context,
        startup_probe: c.startup_probe,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        target_container_name,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
    }
}
