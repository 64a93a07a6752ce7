//! Pod: defaults, validation, what an update may change, and how it is deleted (SPEC T1).
//!
//! What a PodTemplateSpec shares with it (Deployment, ReplicaSet, Job …) is offered as plain functions:
//! [`set_pod_spec_defaults`], [`validate_pod_template`], [`validate_pod_spec`], [`drop_disabled_fields`].

mod at_most_one;
pub mod columns;
mod defaults;
mod diff;
mod image;
pub(super) mod internal;
mod prepare;
pub mod resources;
pub(super) mod validation;
mod warnings;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use k8s_openapi::jiff::Timestamp;

use crate::field::Errors;
use crate::strategy::{Deletion, MetadataChecks, Part, Strategy};
use crate::table::{Cell, Column};

pub use at_most_one::{AT_MOST_ONE, at_most_one};
pub use defaults::{drop_init_container_annotations, set_claim_spec_defaults, set_pod_spec_defaults};
pub use prepare::{APP_ARMOR_ANNOTATION, app_armor_profile, drop_disabled_fields};
pub(crate) use validation::{container_resource_name, template_metadata};
pub use validation::{
    validate_claim_spec, validate_node_affinity, validate_pod_spec, validate_pod_template,
    validate_resource_name, validate_resource_quantity, validate_tolerations,
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

    fn validate(&self) -> Errors {
        validation::validate_create(self)
    }

    fn validate_update(&self, old: &Self, part: Part) -> Errors {
        match part {
            Part::Status => validation::validate_status_update(self, old),
            Part::Other("resize") => validation::validate_resize(self, old),
            Part::Other("ephemeralcontainers") => validation::validate_ephemeral_containers_update(self, old),
            // `binding` and `eviction` only set what the server itself decided.
            Part::Other(_) => Errors::new(),
            Part::Main => validation::validate_update(self, old),
        }
    }

    fn warnings(&self) -> Vec<String> {
        warnings::pod_warnings(self)
    }

    fn early_warnings(&self) -> Vec<String> {
        warnings::early_pod_warnings(self)
    }

    /// SPEC T1: not scheduled or ended: at once. Negative: one second.
    fn deletion(&self, requested_grace_seconds: Option<i64>) -> Deletion {
        let spec = self.spec.as_ref();
        let own = spec.and_then(|s| s.termination_grace_period_seconds);
        let grace = requested_grace_seconds.or(own).unwrap_or(30);
        let bound = spec.is_some_and(|s| !text(&s.node_name).is_empty());
        let phase = self.status.as_ref().map_or("", |s| text(&s.phase));
        if !bound || matches!(phase, "Succeeded" | "Failed") || grace == 0 {
            return Deletion::Immediate;
        }
        Deletion::Graceful {
            grace_seconds: if grace < 0 { 1 } else { grace },
        }
    }

    const SELECTABLE_FIELDS: &'static [&'static str] = &[
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ];

    fn field(&self, path: &str) -> String {
        let (spec, status) = (self.spec.as_ref(), self.status.as_ref());
        let value = match path {
            "spec.nodeName" => spec.map(|s| text(&s.node_name)),
            "spec.restartPolicy" => spec.map(|s| text(&s.restart_policy)),
            "spec.schedulerName" => spec.map(|s| text(&s.scheduler_name)),
            "spec.serviceAccountName" => spec.map(|s| text(&s.service_account_name)),
            "spec.hostNetwork" => {
                let shared = spec.and_then(|s| s.host_network).unwrap_or(false);
                Some(if shared { "true" } else { "false" })
            }
            "status.phase" => status.map(|s| text(&s.phase)),
            "status.podIP" => status.map(|s| text(&s.pod_ip)),
            "status.nominatedNodeName" => status.map(|s| text(&s.nominated_node_name)),
            _ => None,
        };
        value.unwrap_or("").to_string()
    }

    fn columns() -> &'static [Column] {
        columns::columns()
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        columns::row(self, now)
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::CHANGES,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }
}

/// An absent string is an empty one.
fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or("")
}

/// An ephemeral container as any other container; its target is not part of it.
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

/// The way back from [`as_container`].
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
