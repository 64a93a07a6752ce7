//! Validation of a Pod with the field paths and messages of v1.36 (`pkg/apis/core/validation`). All errors are reported at once.
//!
//! One file for each subject. Every function takes a value, its path, and the list that it adds errors to.

pub(in crate::kinds) mod affinity;
mod annotations;
mod containers;
mod env;
mod handlers;
pub(in crate::kinds) mod local_paths;
mod mounts;
mod network;
mod projected;
pub(in crate::kinds) mod resource_requirements;
mod scheduling;
mod security;
mod status;
mod update;
mod volume_files;
pub(in crate::kinds) mod volume_plugins;
pub(in crate::kinds) mod volumes;
mod windows;

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::meta;
use knarr_apimachinery::names;

use super::{as_container, text};
use crate::facts;

pub(super) use annotations::{SECCOMP_CONTAINER, SECCOMP_POD};
pub(crate) use resource_requirements::container_resource_name;
pub use resource_requirements::{validate_resource_name, validate_resource_quantity};
pub use scheduling::validate_tolerations;
pub(super) use status::validate_status_update;
pub(super) use update::{validate_ephemeral_containers_update, validate_resize, validate_update};
pub(crate) use volumes::template_metadata;
pub use volumes::validate_claim_spec;

/// The empty field path as Kubernetes prints it, for errors about an object as a whole.
const EMPTY_PATH: &str = "[]";

/// Every container of a pod with its path: init containers, containers, ephemeral containers.
pub(super) fn every_container<'a>(spec: &'a PodSpec, path: &Path) -> Vec<(Cow<'a, Container>, Path)> {
    let init = path.child("initContainers");
    let plain = path.child("containers");
    let ephemeral = path.child("ephemeralContainers");
    let init_containers = spec.init_containers.iter().flatten().enumerate();
    let containers = spec.containers.iter().enumerate();
    let ephemeral_containers = spec.ephemeral_containers.iter().flatten().enumerate();
    init_containers
        .map(|(i, c)| (Cow::Borrowed(c), init.index(i)))
        .chain(containers.map(|(i, c)| (Cow::Borrowed(c), plain.index(i))))
        .chain(ephemeral_containers.map(|(i, c)| (Cow::Owned(as_container(c.clone())), ephemeral.index(i))))
        .collect()
}

/// Validates a new pod, whose metadata has been validated before.
pub(super) fn validate_create(pod: &Pod) -> ErrorList {
    let path = Path::new("spec");
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut errors = pod_and_spec(pod);
    if spec.ephemeral_containers.as_ref().is_some_and(|c| !c.is_empty()) {
        errors.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
    }
    let gated = spec.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty());
    if gated && !text(&spec.node_name).is_empty() {
        errors.forbidden(
            &path.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
    annotations::match_fields(&pod.metadata, spec, &path, &mut errors);
    errors
}

/// The rules that apply on create and on update.
fn pod_and_spec(pod: &Pod) -> ErrorList {
    let path = Path::new("spec");
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let mut errors = ErrorList::new();
    annotations::validate(
        pod.metadata.annotations.as_ref(),
        spec,
        &Path::new("metadata").child("annotations"),
        &mut errors,
    );
    errors.extend(validate_pod_spec(spec, Some(&pod.metadata), &path));
    if text(&spec.service_account_name).is_empty() {
        for (i, volume) in spec.volumes.iter().flatten().enumerate() {
            let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
            for (j, source) in sources.enumerate() {
                if source.service_account_token.is_some() {
                    let at = path
                        .child("volumes")
                        .index(i)
                        .child("projected")
                        .child("sources")
                        .index(j);
                    errors.forbidden(
                        &at.child("serviceAccountToken"),
                        "must not be specified when serviceAccountName is not set",
                    );
                }
            }
        }
    }
    containers::only_for_pods(&spec.containers, &path.child("containers"), &mut errors);
    containers::only_for_pods(
        spec.init_containers.as_deref().unwrap_or_default(),
        &path.child("initContainers"),
        &mut errors,
    );
    errors
}

/// Validates a template at `path` (`spec.template`): labels, annotations and spec.
pub fn validate_pod_template(template: &PodTemplateSpec, path: &Path) -> ErrorList {
    let empty = (ObjectMeta::default(), PodSpec::default());
    let metadata = template.metadata.as_ref().unwrap_or(&empty.0);
    let spec = template.spec.as_ref().unwrap_or(&empty.1);
    let spec_path = path.child("spec");
    let mut errors = ErrorList::new();
    errors.extend(meta::labels(metadata.labels.as_ref(), &path.child("labels")));
    let at = path.child("annotations");
    errors.extend(meta::annotations(metadata.annotations.as_ref(), &at));
    annotations::validate(metadata.annotations.as_ref(), spec, &at, &mut errors);
    errors.extend(validate_pod_spec(spec, None, &spec_path));
    annotations::match_fields(metadata, spec, &spec_path, &mut errors);
    if spec.ephemeral_containers.as_ref().is_some_and(|c| !c.is_empty()) {
        errors.forbidden(
            &spec_path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
    errors
}

/// Validates a PodSpec at `path`. `meta` is the pod's metadata, `None` for a template.
pub fn validate_pod_spec(spec: &PodSpec, meta: Option<&ObjectMeta>, path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    let e = &mut errors;
    let is_pod = meta.is_some();
    if spec.termination_grace_period_seconds.is_none() {
        e.required(&path.child("terminationGracePeriodSeconds"), "");
    }
    let known = volumes::validate(spec, meta, &path.child("volumes"), e);
    let claims = resource_requirements::pod_claims(spec, meta, &path.child("resourceClaims"), e);
    let pod = containers::PodContext {
        spec,
        volumes: &known,
        claims: &claims,
        host_users: spec.host_users.unwrap_or(true),
    };
    containers::containers(&pod, &path.child("containers"), e);
    containers::init_containers(&pod, &path.child("initContainers"), e);
    containers::ephemeral_containers(&pod, &path.child("ephemeralContainers"), e);
    resource_requirements::pod_level(spec, &claims, &path.child("resources"), e);
    network::host_ports(spec, is_pod, path, e);
    facts::check(e, path, spec, &["restartPolicy", "dnsPolicy"]);
    e.extend(meta::labels(
        spec.node_selector.as_ref(),
        &path.child("nodeSelector"),
    ));
    security::pod(spec, &path.child("securityContext"), e);
    if let Some(affinity) = &spec.affinity {
        affinity::validate(affinity, &path.child("affinity"), e);
    }
    network::dns_config(spec, &path.child("dnsConfig"), e);
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let at = path.child("readinessGates").index(i).child("conditionType");
        e.all_invalid(
            &at,
            &gate.condition_type,
            names::qualified_name(&gate.condition_type),
        );
    }
    scheduling::gates(spec, &path.child("schedulingGates"), e);
    scheduling::topology_spread(spec, &path.child("topologySpreadConstraints"), e);
    windows::host_process(spec, path, e);
    security::host_users(spec, path, e);
    network::hostname_override(spec, path, e);
    names_and_numbers(spec, path, e);
    if let Some(tolerations) = &spec.tolerations {
        e.extend(validate_tolerations(tolerations, &path.child("tolerations")));
    }
    network::host_aliases(spec, &path.child("hostAliases"), e);
    let class = text(&spec.priority_class_name);
    if !class.is_empty() {
        e.all_invalid(
            &path.child("priorityClassName"),
            class,
            names::dns1123_subdomain(class),
        );
    }
    if let Some(class) = &spec.runtime_class_name {
        e.all_invalid(
            &path.child("runtimeClassName"),
            class,
            names::dns1123_subdomain(class),
        );
    }
    if let Some(policy) = &spec.preemption_policy {
        one_of(
            policy,
            &["PreemptLowerPriority", "Never"],
            &path.child("preemptionPolicy"),
            e,
        );
    }
    resource_requirements::overhead(spec, &path.child("overhead"), e);
    operating_system(spec, path, e);
    if let Some(group) = &spec.scheduling_group {
        let at = path.child("schedulingGroup").child("podGroupName");
        match &group.pod_group_name {
            None => e.invalid(
                &at,
                serde_json::Value::Null,
                "must specify one of: `podGroupName`",
            ),
            Some(name) => e.all_invalid(&at, name, names::dns1123_subdomain(name)),
        }
    }
    env::file_key_volumes(spec, path, e);
    errors
}

/// Checks that there is a value.
pub(in crate::kinds) fn required(value: &str, path: &Path, errors: &mut ErrorList) {
    if value.is_empty() {
        errors.required(path, "");
    }
}

/// Checks a required value of an enum; the error lists the supported values in the given order.
fn one_of(value: &str, supported: &[&str], path: &Path, errors: &mut ErrorList) {
    if value.is_empty() {
        errors.required(path, "");
    } else if !supported.contains(&value) {
        errors.not_supported_in_order(path, value, supported);
    }
}

/// Checks fields that are a name or a number.
fn names_and_numbers(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    for (field, value) in [
        ("serviceAccountName", text(&spec.service_account_name)),
        ("nodeName", text(&spec.node_name)),
    ] {
        if !value.is_empty() {
            errors.all_invalid(&path.child(field), value, names::dns1123_subdomain(value));
        }
    }
    if let Some(seconds) = spec.active_deadline_seconds {
        for detail in names::in_range(seconds, 1, i64::from(i32::MAX)) {
            errors.invalid(&path.child("activeDeadlineSeconds"), seconds, detail);
        }
    }
    for (field, value) in [
        ("hostname", text(&spec.hostname)),
        ("subdomain", text(&spec.subdomain)),
    ] {
        if !value.is_empty() {
            errors.all_invalid(&path.child(field), value, names::dns1123_label(value));
        }
    }
}

fn operating_system(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let Some(os) = &spec.os else {
        return;
    };
    match os.name.as_str() {
        "" => errors.required(&path.child("os").child("name"), ""),
        "linux" => windows::validate_linux(spec, path, errors),
        "windows" => windows::validate_windows(spec, path, errors),
        other => errors.not_supported(&path.child("os"), other, &["linux", "windows"]),
    }
}
