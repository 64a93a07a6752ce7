//! Validation of pod updates: images may change, `activeDeadlineSeconds` may decrease, tolerations may be added; with scheduling
//! gates node selector and node affinity may change, too. The subresources `resize` and `ephemeralcontainers` have their own
//! rules.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::metadata;
use k8s_openapi::api::core::v1::{
    Container, NodeAffinity, NodeSelectorTerm, Pod, PodSpec, PodStatus, ResourceRequirements, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;
use knarr_api::kinds::pod::is_mirror;
use knarr_api::kinds::pod::resources::{is_sidecar, qos_class};
use knarr_api::registry;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path};
use knarr_apimachinery::names;

use super::security::shown_or_null;
use super::{EMPTY_PATH, annotations, pod_and_spec, text};
use crate::kinds::pod::internal;

const UPDATABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

fn spec_of(pod: &Pod) -> Cow<'_, PodSpec> {
    let spec = pod.spec.as_ref().map(Cow::Borrowed);
    spec.unwrap_or_default()
}

/// The rules for a new pod, and those for changes of its annotations.
fn validate_metadata_and_spec(pod: &Pod, old: &Pod) -> ErrorList {
    let mut errors = metadata::validate(&registry::POD, &pod.metadata);
    errors.extend(pod_and_spec(pod));
    let path = Path::new("metadata").child("annotations");
    let (new, old) = (
        pod.metadata.annotations.as_ref(),
        old.metadata.annotations.as_ref(),
    );
    annotations::validate_change(new, old, &path, &mut errors);
    annotations::validate(new, &spec_of(pod), &path, &mut errors);
    errors
}

pub(in crate::kinds::pod) fn validate_update(pod: &Pod, old: &Pod) -> ErrorList {
    let mut errors = validate_metadata_and_spec(pod, old);
    let path = Path::new("spec");
    let (spec, before) = (spec_of(pod), spec_of(old));
    for (field, new, old) in [
        ("containers", &*spec.containers, &*before.containers),
        (
            "initContainers",
            spec.init_containers.as_deref().unwrap_or_default(),
            before.init_containers.as_deref().unwrap_or_default(),
        ),
    ] {
        let at = path.child(field);
        if new.len() != old.len() {
            errors.forbidden(&at, "pod updates may not add or remove containers");
            return errors;
        }
        images(new, &at, &mut errors);
    }
    if deadline(&spec, &before, &path.child("activeDeadlineSeconds"), &mut errors).is_err() {
        return errors;
    }
    tolerations(&spec, &before, &path.child("tolerations"), &mut errors);
    gates(&spec, &before, &path.child("schedulingGates"), &mut errors);
    if *spec == *before {
        return errors;
    }
    let mut rest = spec.into_owned();
    for (new, old) in rest.containers.iter_mut().zip(&before.containers) {
        new.image.clone_from(&old.image);
    }
    let old_init = before.init_containers.iter().flatten();
    for (new, old) in rest.init_containers.iter_mut().flatten().zip(old_init) {
        new.image.clone_from(&old.image);
    }
    rest.active_deadline_seconds = before.active_deadline_seconds;
    rest.scheduling_gates.clone_from(&before.scheduling_gates);
    rest.tolerations.clone_from(&before.tolerations);
    let grace = before.termination_grace_period_seconds;
    if grace.is_some_and(|s| s < 0) && rest.termination_grace_period_seconds == Some(1) {
        rest.termination_grace_period_seconds = grace;
    }
    if before.scheduling_gates.as_ref().is_some_and(|g| !g.is_empty()) {
        gated(&mut rest, &before, &path, &mut errors);
    }
    if rest != *before {
        let difference = internal::difference("PodSpec", &*before, &rest);
        errors.forbidden(&path, format!("{UPDATABLE}\n{difference}"));
    }
    errors
}

fn images(containers: &[Container], path: &Path, errors: &mut ErrorList) {
    for (i, container) in containers.iter().enumerate() {
        let (at, image) = (path.index(i).child("image"), text(&container.image));
        if image.is_empty() {
            errors.required(&at, "");
        }
        if image.trim() != image {
            errors.invalid(&at, image, "must not have leading or trailing whitespace");
        }
    }
}

/// Checks that `activeDeadlineSeconds` is only set or decreased. `Err`: validation stops with this error.
fn deadline(spec: &PodSpec, before: &PodSpec, path: &Path, errors: &mut ErrorList) -> Result<(), ()> {
    match (spec.active_deadline_seconds, before.active_deadline_seconds) {
        (Some(new), old) => {
            let messages = names::in_range(new, 0, i64::from(i32::MAX));
            if let Some(message) = messages.into_iter().next() {
                errors.invalid(path, new, message);
                return Err(());
            }
            if old.is_some_and(|old| old < new) {
                errors.invalid(path, new, "must be less than or equal to previous value");
                return Err(());
            }
        }
        (None, Some(_)) => errors.invalid(
            path,
            serde_json::Value::Null,
            "must not update from a positive integer to nil value",
        ),
        (None, None) => {}
    }
    Ok(())
}

fn tolerations(spec: &PodSpec, before: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let new = spec.tolerations.as_deref().unwrap_or_default();
    let is_kept = |old: &Toleration| {
        new.iter().any(|t| {
            *t == Toleration {
                toleration_seconds: t.toleration_seconds,
                ..old.clone()
            }
        })
    };
    if !before.tolerations.iter().flatten().all(is_kept) {
        return errors.forbidden(
            path,
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
    errors.extend(super::validate_tolerations(new, path));
}

fn gates(spec: &PodSpec, before: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let had: Vec<&str> = before
        .scheduling_gates
        .iter()
        .flatten()
        .map(|g| g.name.as_str())
        .collect();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        if !had.contains(&gate.name.as_str()) {
            errors.forbidden(
                &path.index(i).child("name"),
                format!(
                    "only deletion is allowed, but found new scheduling gate '{}'",
                    gate.name
                ),
            );
        }
    }
}

/// A pod with scheduling gates may narrow its node selector and node affinity. Fields that are validated here are reset
/// in `rest`.
fn gated(rest: &mut PodSpec, before: &PodSpec, path: &Path, errors: &mut ErrorList) {
    if rest.node_selector != before.node_selector {
        let new = rest.node_selector.clone().unwrap_or_default();
        let is_kept = |(key, value): (&String, &String)| new.get(key) == Some(value);
        if !before.node_selector.iter().flatten().all(is_kept) {
            let shown = serde_json::to_value(&rest.node_selector).unwrap_or_default();
            errors.invalid(
                &path.child("nodeSelector"),
                shown,
                "only additions to spec.nodeSelector are allowed (no mutations or deletions)",
            );
        }
        rest.node_selector.clone_from(&before.node_selector);
    }
    let old = before.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let new = rest.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    if old != new {
        node_affinity(new, old, &path.child("affinity").child("nodeAffinity"), errors);
        let old = old.cloned();
        match &mut rest.affinity {
            None => rest.affinity.get_or_insert_default().node_affinity = old,
            Some(affinity)
                if before.affinity.is_none()
                    && affinity.pod_affinity.is_none()
                    && affinity.pod_anti_affinity.is_none() =>
            {
                rest.affinity = None;
            }
            Some(affinity) => affinity.node_affinity = old,
        }
    }
}

fn node_affinity(
    new: Option<&NodeAffinity>,
    old: Option<&NodeAffinity>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let terms = |affinity: Option<&NodeAffinity>| -> Vec<NodeSelectorTerm> {
        affinity
            .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref())
            .map(|required| required.node_selector_terms.clone())
            .unwrap_or_default()
    };
    let (new, old) = (terms(new), terms(old));
    if old.is_empty() {
        return;
    }
    let at = path
        .child("requiredDuringSchedulingIgnoredDuringExecution")
        .child("nodeSelectorTerms");
    let mut invalid = |at: &Path, value: String, detail: &str| {
        errors.push(FieldError {
            cause: Cause::Invalid,
            field: at.to_string(),
            value: Some(value),
            detail: detail.into(),
        });
    };
    if old.len() != new.len() {
        let shown: Vec<String> = new
            .iter()
            .map(|t| internal::json("NodeSelectorTerm", t))
            .collect();
        let shown = if new.is_empty() {
            "null".to_string()
        } else {
            format!("[{}]", shown.join(","))
        };
        return invalid(
            &at,
            shown,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        );
    }
    for (i, (new, old)) in new.iter().zip(&old).enumerate() {
        if !has_only_additions(new, old) {
            invalid(
                &at.index(i),
                internal::json("NodeSelectorTerm", new),
                "only additions are allowed (no mutations or deletions)",
            );
        }
    }
}

/// Whether the new term is the old one with requirements appended. An empty term, which matches nothing, must stay empty.
fn has_only_additions(new: &NodeSelectorTerm, old: &NodeSelectorTerm) -> bool {
    let lists = |t: &NodeSelectorTerm| {
        (
            t.match_expressions.clone().unwrap_or_default(),
            t.match_fields.clone().unwrap_or_default(),
        )
    };
    let ((new_expressions, new_fields), (expressions, fields)) = (lists(new), lists(old));
    if expressions.is_empty() && fields.is_empty() {
        return new_expressions.is_empty() && new_fields.is_empty();
    }
    new_expressions.starts_with(&expressions) && new_fields.starts_with(&fields)
}

pub(in crate::kinds::pod) fn validate_ephemeral_containers_update(pod: &Pod, old: &Pod) -> ErrorList {
    let mut errors = validate_metadata_and_spec(pod, old);
    if is_mirror(old) {
        let mut only = ErrorList::new();
        only.forbidden(
            &Path::new(EMPTY_PATH),
            "static pods do not support ephemeral containers",
        );
        return only;
    }
    let path = Path::new("spec").child("ephemeralContainers");
    let (spec, before) = (spec_of(pod), spec_of(old));
    let new = spec.ephemeral_containers.as_deref().unwrap_or_default();
    for was in before.ephemeral_containers.iter().flatten() {
        match new.iter().rfind(|c| c.name == was.name) {
            None => errors.forbidden(
                &path,
                format!(
                    "existing ephemeral containers {:?} may not be removed\n",
                    was.name
                ),
            ),
            Some(is) if is != was => {
                let difference = internal::difference("EphemeralContainer", was, is);
                errors.forbidden(
                    &path,
                    format!(
                        "existing ephemeral containers {:?} may not be changed\n{difference}",
                        was.name
                    ),
                );
            }
            Some(_) => {}
        }
    }
    errors
}

pub(in crate::kinds::pod) fn validate_resize(pod: &Pod, old: &Pod) -> ErrorList {
    let empty_path = Path::new(EMPTY_PATH);
    let path = Path::new("spec");
    let (spec, before) = (spec_of(pod).into_owned(), spec_of(old).into_owned());
    let only = |detail: &str| {
        let mut only = ErrorList::new();
        only.forbidden(&empty_path, detail);
        only
    };
    if is_mirror(old) {
        return only("static pods cannot be resized");
    }
    if before.os.as_ref().is_some_and(|os| os.name == "windows") {
        return only("windows pods cannot be resized");
    }
    let mut errors = metadata::validate(&registry::POD, &pod.metadata);
    errors.extend(pod_and_spec(pod));
    let class = |pod: &Pod| pod.status.as_ref().and_then(|s| s.qos_class.clone());
    let had = class(old).unwrap_or_else(|| qos_class(&before).to_string());
    if had != qos_class(&spec) {
        let shown = shown_or_null(class(pod).as_ref());
        errors.push(FieldError {
            cause: Cause::Invalid,
            field: path.to_string(),
            value: Some(shown),
            detail: "Pod QOS Class may not change as a result of resizing".into(),
        });
    }
    if !node_can_resize(old.status.as_ref()) {
        errors.forbidden(&path, "Pod running on node without support for resize");
    }
    let mut rest = spec.clone();
    pod_level_resources(&mut rest, &before, &path, &mut errors);
    if ordering(&spec, &before, &path, &mut errors) {
        return errors;
    }
    let init_path = path.child("initContainers");
    let (init, old_init) = (
        rest.init_containers.get_or_insert_default(),
        before.init_containers.as_deref().unwrap_or_default(),
    );
    for (i, (new, old)) in init.iter().zip(old_init).enumerate() {
        nothing_removed(new, old, &init_path.index(i).child("resources"), &mut errors);
    }
    for (i, (new, old)) in rest.containers.iter().zip(&before.containers).enumerate() {
        let at = path.child("containers").index(i).child("resources");
        nothing_removed(new, old, &at, &mut errors);
    }
    for (new, old) in rest.containers.iter_mut().zip(&before.containers) {
        restore_cpu_and_memory(new, old);
        if new != old {
            errors.forbidden(&path, "only cpu and memory resources are mutable");
        }
    }
    for (i, (new, old)) in init.iter_mut().zip(old_init).enumerate() {
        let at = init_path.index(i);
        let changed = new != old;
        restore_cpu_and_memory(new, old);
        if new != old {
            errors.forbidden(
                &at,
                "only cpu and memory resources for init or sidecar containers are mutable",
            );
        }
        if changed && !is_sidecar(new) {
            let policies = new.resize_policy.iter().flatten();
            for _ in policies.filter(|p| p.restart_policy == "RestartContainer") {
                errors.forbidden(
                    &at,
                    "non-sidecar init containers with a resize policy of RestartContainer cannot be resized",
                );
            }
        }
    }
    if init.is_empty() {
        rest.init_containers = None;
    }
    if errors.is_empty() && rest != before {
        errors.forbidden(&path, "only cpu and memory resources are mutable");
    }
    errors
}

/// Whether the node supports resize: it reports the resources of running containers. Assumed if none is running.
fn node_can_resize(status: Option<&PodStatus>) -> bool {
    let mut statuses = status
        .into_iter()
        .flat_map(|s| s.container_statuses.iter().flatten());
    statuses
        .find(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()))
        .is_none_or(|c| c.resources.is_some())
}

/// Checks pod-level resources; the mutable ones are reset in `rest`.
fn pod_level_resources(rest: &mut PodSpec, before: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let set = |r: &Option<ResourceRequirements>| {
        r.as_ref().is_some_and(|r| {
            r.requests.as_ref().is_some_and(|r| !r.is_empty())
                || r.limits.as_ref().is_some_and(|l| !l.is_empty())
        })
    };
    if !set(&rest.resources) && !set(&before.resources) {
        return;
    }
    let at = path.child("resources");
    let empty = ResourceRequirements::default();
    match (&rest.resources, &before.resources) {
        (None, Some(_)) => return errors.forbidden(&at, "pod-level resources cannot be removed"),
        (Some(new), Some(old)) => {
            if removed(new.requests.as_ref(), old.requests.as_ref()) {
                errors.forbidden(
                    &at.child("requests"),
                    "pod-level resource requests cannot be removed",
                );
            }
            if removed(new.limits.as_ref(), old.limits.as_ref()) {
                errors.forbidden(&at.child("limits"), "pod-level resource limits cannot be removed");
            }
        }
        _ => {}
    }
    if let Some(new) = &mut rest.resources {
        let old = before.resources.as_ref().unwrap_or(&empty);
        new.requests = with_old_cpu_and_memory(new.requests.take(), old.requests.as_ref());
        new.limits = with_old_cpu_and_memory(new.limits.take(), old.limits.as_ref());
        if before.resources.is_none() && *new == empty {
            rest.resources = None;
        }
    }
    if rest.resources != before.resources {
        errors.forbidden(path, "only cpu and memory resources are mutable at pod-level");
    }
}

/// Whether containers were added, removed, renamed or reordered; adds an error for each.
fn ordering(spec: &PodSpec, before: &PodSpec, path: &Path, errors: &mut ErrorList) -> bool {
    let count = errors.len();
    let mut check = |field: &str, new: &[Container], old: &[Container]| {
        let at = path.child(field);
        if new.len() != old.len() {
            return errors.forbidden(&at, format!("{field} may not be added or removed on resize"));
        }
        for (i, (new, old)) in new.iter().zip(old).enumerate() {
            if new.name != old.name {
                errors.forbidden(
                    &at.index(i).child("name"),
                    format!("{field} may not be renamed or reordered on resize"),
                );
            }
        }
    };
    check("containers", &spec.containers, &before.containers);
    check(
        "initContainers",
        spec.init_containers.as_deref().unwrap_or_default(),
        before.init_containers.as_deref().unwrap_or_default(),
    );
    errors.len() > count
}

type List = BTreeMap<String, Wire>;

fn removed(new: Option<&List>, old: Option<&List>) -> bool {
    old.into_iter()
        .flatten()
        .any(|(name, _)| !new.is_some_and(|new| new.contains_key(name)))
}

fn nothing_removed(new: &Container, old: &Container, path: &Path, errors: &mut ErrorList) {
    let (new, old) = (
        new.resources.clone().unwrap_or_default(),
        old.resources.clone().unwrap_or_default(),
    );
    if removed(new.requests.as_ref(), old.requests.as_ref()) {
        errors.forbidden(&path.child("requests"), "resource requests cannot be removed");
    }
    if removed(new.limits.as_ref(), old.limits.as_ref()) {
        errors.forbidden(&path.child("limits"), "resource limits cannot be removed");
    }
}

fn with_old_cpu_and_memory(new: Option<List>, old: Option<&List>) -> Option<List> {
    let mut list = new.unwrap_or_default();
    for name in ["cpu", "memory"] {
        match old.and_then(|old| old.get(name)) {
            Some(amount) => list.insert(name.into(), amount.clone()),
            None => list.remove(name),
        };
    }
    Some(list).filter(|l| !l.is_empty() || old.is_some())
}

/// Resets what a resize may change, so that only forbidden changes are left. Claims are removed on purpose: Kubernetes rejects
/// the resize of a container that has claims.
fn restore_cpu_and_memory(new: &mut Container, old: &Container) {
    let (is, was) = (
        new.resources.take().unwrap_or_default(),
        old.resources.clone().unwrap_or_default(),
    );
    new.resources = Some(ResourceRequirements {
        claims: None,
        limits: with_old_cpu_and_memory(is.limits, was.limits.as_ref()),
        requests: with_old_cpu_and_memory(is.requests, was.requests.as_ref()),
    });
    if old.resources.is_none() && new.resources == Some(ResourceRequirements::default()) {
        new.resources = None;
    }
}
