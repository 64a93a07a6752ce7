//! Pods: their number, and what they request and are limited to, as long as they are not finished.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, Pod, PodAffinityTerm, PodSpec, ResourceRequirements, ScopedResourceSelectorRequirement,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{one, selects};
use crate::AnyObject;
use crate::kinds::pod::resources::{
    Amounts, DEVICE_CLASS_PREFIX, Side, charged, has_pod_level, is_dra_extended, is_hugepages, is_native,
    qos_class,
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
/// What every container must name where a quota limits it. Kubernetes regrets these and adds no more.
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
        used = named(&charged(pod, Side::Requests), &charged(pod, Side::Limits));
    }
    // All that are stored, also those that have ended.
    used.insert(COUNT.into(), one());
    used
}

/// Whether a pod still uses what it asks for: not once it has ended, nor when it should have long ago.
fn is_live(pod: &Pod, now: Timestamp) -> bool {
    if has_ended(pod) {
        return false;
    }
    let meta = &pod.metadata;
    match (&meta.deletion_timestamp, meta.deletion_grace_period_seconds) {
        (Some(asked), Some(grace)) => asked
            .0
            .checked_add(SignedDuration::from_secs(grace))
            .is_ok_and(|end| now <= end),
        _ => true,
    }
}

fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Failed" | "Succeeded"))
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

/// What containers must name and do not, where these amounts are limited: `limits.cpu for: a,b; …`.
pub(super) fn missing<'a>(pod: &Pod, limited: impl Iterator<Item = &'a str>) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    if has_pod_level(spec) {
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
    let amounts = |side: Side| crate::kinds::pod::resources::amounts(side.of(resources));
    named(&amounts(Side::Requests), &amounts(Side::Limits))
}

/// Whether the pod is to end at some time of itself, as quotas mean `Terminating`.
pub(super) fn has_deadline(pod: &dyn AnyObject) -> bool {
    pod.as_any().downcast_ref::<Pod>().is_some_and(is_terminating)
}

fn is_terminating(pod: &Pod) -> bool {
    let deadline = pod.spec.as_ref().and_then(|s| s.active_deadline_seconds);
    deadline.is_some_and(|seconds| seconds >= 0)
}

pub(super) fn is_of(pod: &Pod, scope: &ScopedResourceSelectorRequirement) -> bool {
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
        "CrossNamespacePodAffinity" => looks_abroad(spec),
        _ => false,
    }
}

/// Whether an affinity looks at pods of other namespaces.
fn looks_abroad(spec: &PodSpec) -> bool {
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

/// Whether a pod ended, was resized, or changed between the scopes.
pub(super) fn frees(was: &Pod, is: &Pod) -> bool {
    let given = |pod: &Pod| -> Vec<(String, Option<ResourceRequirements>)> {
        let status = pod.status.iter();
        let all = status.flat_map(|s| {
            let containers = s.container_statuses.iter().flatten();
            containers.chain(s.init_container_statuses.iter().flatten())
        });
        all.map(|s| (s.name.clone(), s.resources.clone())).collect()
    };
    (!has_ended(was) && has_ended(is))
        || is_terminating(was) != is_terminating(is)
        || given(was).iter().any(|(name, resources)| {
            given(is)
                .iter()
                .any(|(other, now)| other == name && now != resources)
        })
}
