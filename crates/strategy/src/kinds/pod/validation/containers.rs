//! Containers, init containers and ephemeral containers: names, images, ports, restart rules, and fields that one of them
//! may not have.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerRestartRule, EphemeralContainer, PodSpec, Volume,
};
use knarr_api::kinds::pod::resources::is_sidecar;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::{env, handlers, mounts, one_of, resource_requirements, security, text};
use crate::facts;
use crate::kinds::pod::as_container;

/// Maximum number of restart policy rules of one container.
const RESTART_RULES_MAX: usize = 20;
/// Maximum number of exit codes of one rule.
const EXIT_CODES_MAX: usize = 255;

/// The pod of a container, with what the container can refer to.
pub(super) struct PodContext<'a> {
    pub(super) spec: &'a PodSpec,
    /// Valid volumes, by name.
    pub(super) volumes: &'a BTreeMap<&'a str, &'a Volume>,
    /// Names of the pod's resource claims.
    pub(super) claims: &'a BTreeSet<&'a str>,
    pub(super) host_users: bool,
}

impl PodContext<'_> {
    fn grace_seconds(&self) -> Option<i64> {
        self.spec.termination_grace_period_seconds
    }

    fn os(&self) -> Option<&str> {
        self.spec.os.as_ref().map(|os| os.name.as_str())
    }
}

pub(super) fn containers(pod: &PodContext<'_>, path: &Path, errors: &mut ErrorList) {
    let containers = &pod.spec.containers;
    if containers.is_empty() {
        return errors.required(path, "");
    }
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let at = path.index(i);
        common(container, pod, &at, errors);
        if !seen.insert(container.name.as_str()) {
            errors.duplicate(&at.child("name"), &container.name);
        }
        hooks_and_probes(container, pod, &at, errors);
        restart_policy(container, &at, errors);
    }
    unique_host_ports(containers, path, errors);
}

pub(super) fn init_containers(pod: &PodContext<'_>, path: &Path, errors: &mut ErrorList) {
    let mut seen: BTreeSet<&str> = pod.spec.containers.iter().map(|c| c.name.as_str()).collect();
    for (i, container) in pod.spec.init_containers.iter().flatten().enumerate() {
        let at = path.index(i);
        common(container, pod, &at, errors);
        restart_policy(container, &at, errors);
        if seen.contains(container.name.as_str()) {
            errors.duplicate(&at.child("name"), &container.name);
        } else if !container.name.is_empty() {
            seen.insert(&container.name);
        }
        // Init containers run one after the other, so only ports of the same container can conflict.
        unique_host_ports(std::slice::from_ref(container), path, errors);
        if is_sidecar(container) {
            hooks_and_probes(container, pod, &at, errors);
        } else {
            for (field, given) in [
                ("lifecycle", container.lifecycle.is_some()),
                ("livenessProbe", container.liveness_probe.is_some()),
                ("readinessProbe", container.readiness_probe.is_some()),
                ("startupProbe", container.startup_probe.is_some()),
            ] {
                if given {
                    errors.forbidden(
                        &at.child(field),
                        "may not be set for init containers without restartPolicy=Always",
                    );
                }
            }
            for (j, policy) in container.resize_policy.iter().flatten().enumerate() {
                if policy.restart_policy == "RestartContainer" {
                    errors.invalid(
                        &at.child("resizePolicy").index(j).child("restartPolicy"),
                        &policy.restart_policy,
                        "must not be set to 'RestartContainer' for non-sidecar initContainers",
                    );
                }
            }
        }
    }
}

pub(super) fn ephemeral_containers(pod: &PodContext<'_>, path: &Path, errors: &mut ErrorList) {
    let spec = pod.spec;
    let others: BTreeSet<&str> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|c| c.name.as_str())
        .collect();
    let mut seen = others.clone();
    for (i, ephemeral) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let at = path.index(i);
        let container = as_container(ephemeral.clone());
        common(&container, pod, &at, errors);
        only_for_pods_one(&container, &at, errors);
        if !seen.insert(ephemeral.name.as_str()) {
            errors.duplicate(&at.child("name"), &ephemeral.name);
        }
        let target = text(&ephemeral.target_container_name);
        if !target.is_empty() && !others.contains(target) {
            errors.not_found(&at.child("targetContainerName"), target);
        }
        forbidden_for_ephemeral(ephemeral, &at, errors);
    }
}

/// Checks the fields that an ephemeral container, which is only for debugging, may not have.
fn forbidden_for_ephemeral(container: &EphemeralContainer, path: &Path, errors: &mut ErrorList) {
    const DETAIL: &str = "cannot be set for an Ephemeral Container";
    let has_resources = container
        .resources
        .as_ref()
        .is_some_and(|r| *r != Default::default());
    for (field, given) in [
        ("ports", container.ports.is_some()),
        ("resources", has_resources),
        ("resizePolicy", container.resize_policy.is_some()),
        ("restartPolicy", container.restart_policy.is_some()),
        ("restartPolicyRules", container.restart_policy_rules.is_some()),
        ("livenessProbe", container.liveness_probe.is_some()),
        ("readinessProbe", container.readiness_probe.is_some()),
        ("startupProbe", container.startup_probe.is_some()),
        ("lifecycle", container.lifecycle.is_some()),
    ] {
        if given {
            errors.forbidden(&path.child(field), DETAIL);
        }
    }
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = path.child("volumeMounts").index(i);
        if !text(&mount.sub_path).is_empty() {
            errors.forbidden(&at.child("subPath"), DETAIL);
        }
        if !text(&mount.sub_path_expr).is_empty() {
            errors.forbidden(&at.child("subPathExpr"), DETAIL);
        }
    }
}

/// Rules that apply to pods but not to templates, for compatibility with stored templates.
pub(super) fn only_for_pods(containers: &[Container], path: &Path, errors: &mut ErrorList) {
    for (i, container) in containers.iter().enumerate() {
        only_for_pods_one(container, &path.index(i), errors);
    }
}

fn only_for_pods_one(container: &Container, path: &Path, errors: &mut ErrorList) {
    let image = text(&container.image);
    if image.trim() != image {
        errors.invalid(
            &path.child("image"),
            image,
            "must not have leading or trailing whitespace",
        );
    }
}

/// Rules for every container.
fn common(container: &Container, pod: &PodContext<'_>, path: &Path, errors: &mut ErrorList) {
    let name_at = path.child("name");
    if container.name.is_empty() {
        errors.required(&name_at, "");
    } else {
        errors.all_invalid(&name_at, &container.name, names::dns1123_label(&container.name));
    }
    if text(&container.image).is_empty() {
        errors.required(&path.child("image"), "");
    }
    facts::check(errors, path, container, &["terminationMessagePolicy"]);
    ports(
        container.ports.as_deref().unwrap_or_default(),
        &path.child("ports"),
        errors,
    );
    env::variables(
        container.env.as_deref().unwrap_or_default(),
        &path.child("env"),
        errors,
    );
    env::sources(
        container.env_from.as_deref().unwrap_or_default(),
        &path.child("envFrom"),
        errors,
    );
    mounts::mounts(container, pod.volumes, &path.child("volumeMounts"), errors);
    mounts::devices(container, pod.volumes, &path.child("volumeDevices"), errors);
    facts::check(errors, path, container, &["imagePullPolicy"]);
    if let Some(resources) = &container.resources {
        resource_requirements::container(resources, pod.claims, &path.child("resources"), errors);
    }
    resize_policies(container, pod, &path.child("resizePolicy"), errors);
    if let Some(context) = &container.security_context {
        security::container(context, pod.host_users, &path.child("securityContext"), errors);
    }
}

fn hooks_and_probes(container: &Container, pod: &PodContext<'_>, path: &Path, errors: &mut ErrorList) {
    let grace = pod.grace_seconds();
    if let Some(lifecycle) = &container.lifecycle {
        handlers::lifecycle(lifecycle, grace, pod.os(), &path.child("lifecycle"), errors);
    }
    if let Some(probe) = &container.liveness_probe {
        handlers::liveness(probe, &path.child("livenessProbe"), errors);
    }
    if let Some(probe) = &container.readiness_probe {
        handlers::readiness(probe, &path.child("readinessProbe"), errors);
    }
    if let Some(probe) = &container.startup_probe {
        handlers::startup(probe, &path.child("startupProbe"), errors);
    }
}

fn ports(ports: &[ContainerPort], path: &Path, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = path.index(i);
        let name = text(&port.name);
        if !name.is_empty() {
            let messages = names::port_name(name);
            if messages.is_empty() {
                if !seen.insert(name) {
                    errors.duplicate(&at.child("name"), name);
                }
            } else {
                errors.all_invalid(&at.child("name"), name, messages);
            }
        }
        if port.container_port == 0 {
            errors.required(&at.child("containerPort"), "");
        } else {
            for detail in names::port_number(port.container_port.into()) {
                errors.invalid(&at.child("containerPort"), port.container_port, detail);
            }
        }
        let host_port = port.host_port.unwrap_or(0);
        if host_port != 0 {
            for detail in names::port_number(host_port.into()) {
                errors.invalid(&at.child("hostPort"), host_port, detail);
            }
        }
        facts::check(errors, &at, port, &["protocol"]);
    }
}

/// Checks that each host port is used once.
fn unique_host_ports(containers: &[Container], path: &Path, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in container.ports.iter().flatten().enumerate() {
            let number = port.host_port.unwrap_or(0);
            if number == 0 {
                continue;
            }
            let taken = format!("{}/{}/{number}", text(&port.protocol), text(&port.host_ip));
            if !seen.insert(taken.clone()) {
                let at = path.index(i).child("ports").index(j).child("hostPort");
                errors.duplicate(&at, taken);
            }
        }
    }
}

fn resize_policies(container: &Container, pod: &PodContext<'_>, path: &Path, errors: &mut ErrorList) {
    let never = text(&pod.spec.restart_policy) == "Never";
    let mut seen = BTreeSet::new();
    for (i, policy) in container.resize_policy.iter().flatten().enumerate() {
        if !seen.insert(policy.resource_name.as_str()) {
            errors.duplicate(&path.index(i), &policy.resource_name);
        }
        one_of(&policy.resource_name, &["cpu", "memory"], path, errors);
        one_of(
            &policy.restart_policy,
            &["NotRequired", "RestartContainer"],
            path,
            errors,
        );
        if never && policy.restart_policy != "NotRequired" {
            errors.invalid(
                path,
                &policy.restart_policy,
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            );
        }
    }
}

/// Checks a container's `restartPolicy` and `restartPolicyRules` (SPEC L5).
fn restart_policy(container: &Container, path: &Path, errors: &mut ErrorList) {
    let at = path.child("restartPolicy");
    let rules: &[ContainerRestartRule] = container.restart_policy_rules.as_deref().unwrap_or_default();
    let supported = ["Always", "Never", "OnFailure"];
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => errors.required(&at, "must specify restartPolicy when restart rules are used"),
        Some(policy) if !supported.contains(&policy) => errors.not_supported(&at, policy, &supported),
        Some(_) => {}
    }
    let rules_at = path.child("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        errors.too_many(&rules_at, rules.len(), RESTART_RULES_MAX);
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = rules_at.index(i);
        facts::check(errors, &at, rule, &["action"]);
        let at = at.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.required(&at, "must be specified");
            continue;
        };
        facts::check(errors, &at, codes, &["operator"]);
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > EXIT_CODES_MAX {
            errors.too_many(&at.child("values"), count, EXIT_CODES_MAX);
        }
    }
}
