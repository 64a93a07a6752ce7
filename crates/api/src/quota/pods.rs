//! Pods: their number, and what they request and are limited to, as long as they are not finished.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, Pod, PodAffinityTerm, PodSpec, ResourceRequirements, ScopedResourceSelectorRequirement,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{one, selects};
use crate::AnyObject;
use crate::kinds::pod::is_terminal;
use crate::kinds::pod::resources::{
    Amounts, DEVICE_CLASS_PREFIX, RequirementKind, has_pod_level_resources, is_dra_extended, is_hugepages,
    is_native, pod_resources_with_status, qos_class,
};

const COUNT: &str = "count/pods";
const NAMES: [&str; 11] = [
    COUNT,
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];
/// The resources that every container must set where a quota limits them. Kubernetes adds no further ones.
const REQUIRED: [&str; 6] = [
    "cpu",
    "memory",
    "requests.cpu",
    "requests.memory",
    "limits.cpu",
    "limits.memory",
];

pub(super) fn counts(name: &str) -> bool {
    NAMES.contains(&name)
        || is_hugepages(name)
        || name
            .strip_prefix("requests.")
            .is_some_and(|of| is_hugepages(of) || !is_native(name) || of.starts_with(DEVICE_CLASS_PREFIX))
}

pub(super) fn usage(pod: &Pod, now: Timestamp) -> Amounts {
    let mut used = Amounts::new();
    if is_live(pod, now) {
        used = named(
            &pod_resources_with_status(pod, RequirementKind::Requests),
            &pod_resources_with_status(pod, RequirementKind::Limits),
        );
    }
    // All stored pods, also terminal ones.
    used.insert(COUNT.into(), one());
    used
}

/// Whether a pod still uses what it requests: not once it is terminal, nor after its deletion grace period.
fn is_live(pod: &Pod, now: Timestamp) -> bool {
    if is_terminal(pod) {
        return false;
    }
    let meta = &pod.metadata;
    match (&meta.deletion_timestamp, meta.deletion_grace_period_seconds) {
        (Some(deletion), Some(grace)) => deletion
            .0
            .checked_add(SignedDuration::from_secs(grace))
            .is_ok_and(|end| now <= end),
        _ => true,
    }
}

/// Amounts by the names that quotas have for them.
fn named(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::from([("pods".to_string(), one())]);
    for name in ["cpu", "memory", "ephemeral-storage"] {
        if let Some(request) = requests.get(name) {
            used.insert(name.into(), *request);
            used.insert(format!("requests.{name}"), *request);
        }
        if let Some(limit) = limits.get(name) {
            used.insert(format!("limits.{name}"), *limit);
        }
    }
    for (name, request) in requests {
        if is_hugepages(name) {
            used.insert(name.clone(), *request);
        }
        if is_hugepages(name) || is_dra_extended(name) {
            used.insert(format!("requests.{name}"), *request);
        }
    }
    used
}

/// The resources that containers must set and do not, where these are limited: `limits.cpu for: a,b; …`.
pub(super) fn missing<'a>(pod: &Pod, limited: impl Iterator<Item = &'a str>) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if has_pod_level_resources(spec) {
        return None;
    }
    let required: BTreeSet<&str> = limited.filter(|name| REQUIRED.contains(name)).collect();
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
    {
        let has = names_of(container);
        for name in required.iter().filter(|name| !has.contains_key(**name)) {
            missing.entry(*name).or_default().insert(&container.name);
        }
    }
    let all: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| {
            let containers: Vec<&str> = containers.into_iter().collect();
            format!("{name} for: {}", containers.join(","))
        })
        .collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn names_of(container: &Container) -> Amounts {
    let resources: Option<&ResourceRequirements> = container.resources.as_ref();
    let amounts = |kind: RequirementKind| crate::kinds::pod::resources::amounts(kind.of(resources));
    named(
        &amounts(RequirementKind::Requests),
        &amounts(RequirementKind::Limits),
    )
}

/// Whether the pod has a deadline: the scope `Terminating` of quotas.
pub(super) fn has_deadline(pod: &dyn AnyObject) -> bool {
    pod.as_any().downcast_ref::<Pod>().is_some_and(is_terminating)
}

fn is_terminating(pod: &Pod) -> bool {
    let deadline = pod.spec.as_ref().and_then(|s| s.active_deadline_seconds);
    deadline.is_some_and(|seconds| seconds >= 0)
}

pub(super) fn matches_scope(pod: &Pod, scope: &ScopedResourceSelectorRequirement) -> bool {
    let Some(spec) = &pod.spec else { return false };
    match scope.scope_name.as_str() {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => qos_class(spec) == "BestEffort",
        "NotBestEffort" => qos_class(spec) != "BestEffort",
        "PriorityClass" => {
            let class = spec.priority_class_name.as_deref().filter(|c| !c.is_empty());
            match scope.operator.as_str() {
                "Exists" => class.is_some(),
                _ => selects(scope, class),
            }
        }
        "CrossNamespacePodAffinity" => has_cross_namespace_affinity(spec),
        _ => false,
    }
}

/// Whether an affinity term selects pods of other namespaces.
fn has_cross_namespace_affinity(spec: &PodSpec) -> bool {
    let Some(affinity) = &spec.affinity else {
        return false;
    };
    let abroad = |term: &PodAffinityTerm| {
        term.namespaces.as_ref().is_some_and(|n| !n.is_empty()) || term.namespace_selector.is_some()
    };
    let to = affinity.pod_affinity.as_ref();
    let from = affinity.pod_anti_affinity.as_ref();
    let required = to
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
        .into_iter()
        .chain(from.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref()))
        .flatten();
    let preferred = to
        .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref())
        .into_iter()
        .chain(from.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref()))
        .flatten()
        .map(|weighted| &weighted.pod_affinity_term);
    required.chain(preferred).any(abroad)
}

/// Whether a pod became terminal, was resized, or changed its scopes.
pub(super) fn reduces_usage(was: &Pod, is: &Pod) -> bool {
    let given = |pod: &Pod| -> Vec<(String, Option<ResourceRequirements>)> {
        let status = pod.status.iter();
        let all = status.flat_map(|s| {
            let containers = s.container_statuses.iter().flatten();
            containers.chain(s.init_container_statuses.iter().flatten())
        });
        all.map(|s| (s.name.clone(), s.resources.clone())).collect()
    };
    (!is_terminal(was) && is_terminal(is))
        || is_terminating(was) != is_terminating(is)
        || given(was).iter().any(|(name, resources)| {
            given(is)
                .iter()
                .any(|(other, now)| other == name && now != resources)
        })
}
