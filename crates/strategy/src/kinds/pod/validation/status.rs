//! Validation of an update of a pod's status. Little is checked: the kubelet is trusted with the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodExtendedResourceClaimStatus, PodSpec, PodStatus,
};
use knarr_apimachinery::field::{ErrorList, Path, Shown};
use knarr_apimachinery::names;

use super::{annotations, text};

pub(in crate::kinds::pod) fn validate_status_update(pod: &Pod, old: &Pod) -> ErrorList {
    let mut errors = ErrorList::new();
    let e = &mut errors;
    let path = Path::new("status");
    let empty = (PodSpec::default(), PodStatus::default());
    let spec = pod.spec.as_ref().unwrap_or(&empty.0);
    let (status, before) = (
        pod.status.as_ref().unwrap_or(&empty.1),
        old.status.as_ref().unwrap_or(&empty.1),
    );
    let at = Path::new("metadata").child("annotations");
    let (new_annotations, old_annotations) = (
        pod.metadata.annotations.as_ref(),
        old.metadata.annotations.as_ref(),
    );
    annotations::validate_change(new_annotations, old_annotations, &at, e);
    annotations::validate(new_annotations, spec, &at, e);
    conditions(status, &path.child("conditions"), e);
    nominated_node(status, before, spec, &path.child("nominatedNodeName"), e);
    let observed = status.observed_generation.unwrap_or(0);
    if observed < 0 {
        e.invalid(
            &path.child("observedGeneration"),
            observed,
            "must be a non-negative integer",
        );
    }
    if text(&status.qos_class) != text(&before.qos_class) {
        e.invalid(
            &path.child("qosClass"),
            text(&status.qos_class),
            "field is immutable",
        );
    }
    let none: &[Container] = &[];
    let lists = [
        (
            "containerStatuses",
            &status.container_statuses,
            &before.container_statuses,
            spec.containers.as_slice(),
        ),
        (
            "initContainerStatuses",
            &status.init_container_statuses,
            &before.init_container_statuses,
            spec.init_containers.as_deref().unwrap_or_default(),
        ),
        (
            "ephemeralContainerStatuses",
            &status.ephemeral_container_statuses,
            &before.ephemeral_container_statuses,
            none,
        ),
    ];
    for (field, new, old, containers) in lists {
        let (new, old) = (
            new.as_deref().unwrap_or_default(),
            old.as_deref().unwrap_or_default(),
        );
        stays_terminated(new, old, containers, spec, &path.child(field), e);
    }
    claims(status, spec, &path, e);
    addresses(
        &status.pod_ips.iter().flatten().map(|p| &p.ip).collect::<Vec<_>>(),
        &before.pod_ips.iter().flatten().map(|p| &p.ip).collect::<Vec<_>>(),
        &path.child("podIPs"),
        e,
    );
    let host_ips: Vec<&String> = status.host_ips.iter().flatten().map(|h| &h.ip).collect();
    if let Some(first) = host_ips.first()
        && *first != text(&status.host_ip)
    {
        let at = path.child("hostIPs").index(0).child("ip");
        e.invalid(&at, first.as_str(), "must be equal to `hostIP`");
    }
    addresses(
        &host_ips,
        &before
            .host_ips
            .iter()
            .flatten()
            .map(|h| &h.ip)
            .collect::<Vec<_>>(),
        &path.child("hostIPs"),
        e,
    );
    let windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    for (field, new, _, containers) in lists {
        let statuses = new.as_deref().unwrap_or_default();
        for (i, container) in statuses.iter().enumerate() {
            let at = path.child(field).index(i);
            user(container, windows, &at.child("user").child("linux"), e);
            if field == "ephemeralContainerStatuses" {
                if container
                    .allocated_resources_status
                    .as_ref()
                    .is_some_and(|s| !s.is_empty())
                {
                    e.forbidden(
                        &at.child("allocatedResourcesStatus"),
                        "must not be specified in container status",
                    );
                }
            } else {
                allocated_resources(container, containers, &at.child("allocatedResourcesStatus"), e);
            }
        }
    }
    errors
}

fn conditions(status: &PodStatus, path: &Path, errors: &mut ErrorList) {
    for (i, condition) in status.conditions.iter().flatten().enumerate() {
        let at = path.index(i);
        let observed = condition.observed_generation.unwrap_or(0);
        if observed < 0 {
            errors.invalid(
                &at.child("observedGeneration"),
                observed,
                "must be a non-negative integer",
            );
        }
        let of = condition.type_.as_str();
        if !matches!(of, "PodScheduled" | "Ready" | "Initialized") {
            errors.all_invalid(&at.child("Type"), of, names::qualified_name(of));
        }
    }
}

fn nominated_node(
    status: &PodStatus,
    before: &PodStatus,
    spec: &PodSpec,
    path: &Path,
    errors: &mut ErrorList,
) {
    let node = text(&status.nominated_node_name);
    if node.is_empty() || node == text(&before.nominated_node_name) {
        return;
    }
    errors.all_invalid(path, node, names::dns1123_subdomain(node));
    if !text(&spec.node_name).is_empty() {
        errors.forbidden(path, "may not be set on pods that are already bound to a node");
    }
}

/// Whether a container that exited with this code is restarted (SPEC L5).
fn restarts(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    let by_policy = |policy: &str| match policy {
        "OnFailure" => exit_code != 0,
        "Never" => false,
        _ => true,
    };
    let Some(own) = container.restart_policy.as_deref() else {
        return by_policy(text(&spec.restart_policy));
    };
    let rule = container.restart_policy_rules.iter().flatten().find(|rule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
            match codes.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    });
    match rule.map(|r| r.action.as_str()) {
        Some("Restart" | "RestartAllContainers") => true,
        _ => by_policy(own),
    }
}

/// Checks that a terminated container that is not restarted stays terminated.
fn stays_terminated(
    new: &[ContainerStatus],
    old: &[ContainerStatus],
    containers: &[Container],
    spec: &PodSpec,
    path: &Path,
    errors: &mut ErrorList,
) {
    let terminated = |s: &ContainerStatus| {
        s.state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .map(|t| t.exit_code)
    };
    let ephemeral = containers.is_empty() && path.as_str().ends_with("ephemeralContainerStatuses");
    let restart_all = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .flat_map(|c| c.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == "RestartAllContainers");
    if restart_all && !ephemeral {
        return;
    }
    for (i, was) in old.iter().enumerate() {
        let Some(exit_code) = terminated(was) else {
            continue;
        };
        let back = new.iter().any(|s| s.name == was.name && terminated(s).is_none());
        let container = containers.iter().find(|c| c.name == was.name);
        if back && !container.is_some_and(|c| restarts(c, spec, exit_code)) {
            errors.forbidden(
                &path.index(i).child("state"),
                "may not be transitioned to non-terminated state",
            );
        }
    }
}

/// Checks that new addresses are valid, with at most one of each family.
fn addresses(new: &[&String], old: &[&String], path: &Path, errors: &mut ErrorList) {
    for (i, ip) in new.iter().enumerate().filter(|(_, ip)| !old.contains(ip)) {
        errors.all_invalid(&path.index(i), ip, names::ip_address(ip));
    }
    if new.len() > 1 {
        let families: Vec<Option<bool>> = new
            .iter()
            .map(|ip| ip.parse::<IpAddr>().ok().map(|ip| ip.is_ipv4()))
            .collect();
        let dual = new.len() == 2 && families.contains(&Some(true)) && families.contains(&Some(false));
        if !dual {
            let list: Vec<serde_json::Value> = new
                .iter()
                .map(|ip| serde_json::json!({"IP": ip.as_str()}))
                .collect();
            errors.invalid(
                path,
                serde_json::Value::from(list),
                "may specify no more than one IP for each IP family",
            );
        }
    }
}

fn user(container: &ContainerStatus, windows: bool, path: &Path, errors: &mut ErrorList) {
    let Some(user) = container.user.as_ref().and_then(|u| u.linux.as_ref()) else {
        return;
    };
    if windows {
        return errors.forbidden(path, "cannot be set for a windows pod");
    }
    for (field, id) in [("uid", user.uid), ("gid", user.gid)] {
        for detail in names::user_or_group_id(id) {
            errors.invalid(&path.child(field), id, detail);
        }
    }
    for (i, id) in user.supplemental_groups.iter().flatten().enumerate() {
        for detail in names::user_or_group_id(*id) {
            errors.invalid(&path.child("supplementalGroups").index(i), *id, detail);
        }
    }
}

/// Checks `allocatedResourcesStatus`: only resources that the container requests, each device once.
fn allocated_resources(
    status: &ContainerStatus,
    containers: &[Container],
    path: &Path,
    errors: &mut ErrorList,
) {
    let container = containers.iter().find(|c| c.name == status.name);
    for (i, resource) in status.allocated_resources_status.iter().flatten().enumerate() {
        let at = path.index(i);
        if let Some(resources) = container.map(|c| c.resources.clone().unwrap_or_default()) {
            let is_claim = resource.name.starts_with("claim:");
            let found = if is_claim {
                resources.claims.iter().flatten().any(|claim| {
                    let request = text(&claim.request);
                    let slash = if request.is_empty() { "" } else { "/" };
                    format!("claim:{}{slash}{request}", claim.name) == resource.name
                })
            } else {
                resources.requests.is_some_and(|r| r.contains_key(&resource.name))
            };
            if !found {
                errors.invalid(
                    &at.child("name"),
                    &resource.name,
                    if is_claim {
                        "must match one of the container's resource claims in a format \
                         'claim:<claimName>/<request>' or 'claim:<claimName>' if request is empty"
                    } else {
                        "must match one of the container's resource requests"
                    },
                );
            }
        }
        let mut seen = BTreeSet::new();
        for (j, device) in resource.resources.iter().flatten().enumerate() {
            let at = at.child("resources").index(j);
            let health = text(&device.health);
            if !matches!(health, "Healthy" | "Unhealthy" | "Unknown") {
                errors.not_supported(&at.child("health"), health, &["Healthy", "Unhealthy", "Unknown"]);
            }
            if device.message.as_deref() == Some("") {
                errors.required(&at.child("message"), "must be non-empty if specified");
            }
            if !seen.insert(device.resource_id.as_str()) {
                errors.duplicate(&at.child("resourceID"), &device.resource_id);
            }
        }
    }
}

/// Checks `resourceClaimStatuses`, the ResourceClaims that were generated for the pod.
fn claims(status: &PodStatus, spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (i, claim) in status.resource_claim_statuses.iter().flatten().enumerate() {
        let at = path.child("resourceClaimStatuses").index(i);
        if !spec
            .resource_claims
            .iter()
            .flatten()
            .any(|c| c.name == claim.name)
        {
            errors.invalid(
                &at.child("name"),
                &claim.name,
                "must match the name of an entry in `spec.resourceClaims`",
            );
        }
        if !seen.insert(claim.name.as_str()) {
            errors.duplicate(&at.child("name"), &claim.name);
        }
        if let Some(name) = &claim.resource_claim_name {
            errors.all_invalid(
                &at.child("resourceClaimName"),
                name,
                names::dns1123_subdomain(name),
            );
        }
    }
    if let Some(extended) = &status.extended_resource_claim_status {
        extended_claim(extended, spec, &path.child("extendedResourceClaimStatus"), errors);
    }
}

fn extended_claim(
    status: &PodExtendedResourceClaimStatus,
    spec: &PodSpec,
    path: &Path,
    errors: &mut ErrorList,
) {
    let at = path.child("requestMappings");
    if status.request_mappings.is_empty() {
        errors.required(&at, "at least one request mapping is required");
    }
    let containers: BTreeMap<&str, &Container> = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|c| (c.name.as_str(), c))
        .collect();
    let mut seen = BTreeSet::new();
    for (i, mapping) in status.request_mappings.iter().enumerate() {
        let at = at.index(i);
        match containers.get(mapping.container_name.as_str()) {
            None => errors.invalid(
                &at.child("containerName"),
                &mapping.container_name,
                "must match the name of an entry in spec.initContainers.name or spec.containers.name",
            ),
            Some(container) => {
                let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
                if !requests.is_some_and(|r| r.contains_key(&mapping.resource_name)) {
                    errors.invalid(
                        &at.child("resourceName"),
                        &mapping.resource_name,
                        "must match the extended resource name of an entry in \
                         spec.initContainers.resources.requests or spec.containers.resources.requests",
                    );
                }
            }
        }
        let request = &mapping.request_name;
        errors.all_invalid(&path.child("requestName"), request, names::dns1123_label(request));
        if !seen.insert((&mapping.container_name, &mapping.resource_name, request)) {
            for (field, value) in [
                ("containerName", &mapping.container_name),
                ("resourceName", &mapping.resource_name),
                ("requestName", request),
            ] {
                errors.duplicate(&at.child(field), value.shown().trim_matches('"'));
            }
        }
    }
    let name = &status.resource_claim_name;
    let at = path.child("resourceClaimName");
    if name.is_empty() {
        errors.required(&at, "");
    } else {
        errors.all_invalid(&at, name, names::dns1123_subdomain(name));
    }
}
