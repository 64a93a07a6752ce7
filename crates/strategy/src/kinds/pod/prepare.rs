//! Preparation of a Pod for create and update: fields that users may not set are dropped, fields that the server computes
//! are set, and an update of one subresource leaves the other parts unchanged.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, Lifecycle, Pod, PodAffinityTerm, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use knarr_api::kinds::pod::resources::qos_class;
use knarr_api::kinds::pod::{APP_ARMOR_ANNOTATION, app_armor_profile};

use super::text;
use crate::Part;

pub(super) fn for_create(pod: &mut Pod) {
    pod.metadata.generation = Some(1);
    let spec = pod.spec.get_or_insert_default();
    drop_disabled_fields(spec);
    let gated = spec
        .scheduling_gates
        .as_ref()
        .is_some_and(|gates| !gates.is_empty());
    pod.status = Some(PodStatus {
        phase: Some("Pending".into()),
        qos_class: Some(qos_class(spec).into()),
        conditions: gated.then(|| {
            vec![PodCondition {
                type_: "PodScheduled".into(),
                status: "False".into(),
                reason: Some("SchedulingGated".into()),
                // The creation time, which the request pipeline has set before.
                last_transition_time: pod.metadata.creation_timestamp.clone(),
                message: Some("Scheduling is blocked due to non-empty scheduling gates".into()),
                ..PodCondition::default()
            }]
        }),
        ..PodStatus::default()
    });
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    merge_label_keys(spec, &labels);
    if spec.os.as_ref().is_none_or(|os| os.name != "windows") {
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        sync_app_armor(spec, &annotations);
    }
}

/// Drops the fields of features that v1.36 disables by default.
pub fn drop_disabled_fields(spec: &mut PodSpec) {
    spec.scheduling_group = None;
    let projected = spec
        .volumes
        .iter_mut()
        .flatten()
        .filter_map(|v| v.projected.as_mut());
    for source in projected.flat_map(|p| p.sources.iter_mut().flatten()) {
        source.cluster_trust_bundle = None;
        source.pod_certificate = None;
    }
    let without_stop_signal = |lifecycle: &mut Option<Lifecycle>| {
        if let Some(of) = lifecycle
            && of.stop_signal.take().is_some()
            && *of == Lifecycle::default()
        {
            *lifecycle = None;
        }
    };
    let containers = spec.init_containers.iter_mut().flatten();
    for container in containers.chain(&mut spec.containers) {
        without_stop_signal(&mut container.lifecycle);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        without_stop_signal(&mut container.lifecycle);
    }
}

/// Merges the labels named by `matchLabelKeys` and `mismatchLabelKeys` into the `labelSelector` of the same term.
fn merge_label_keys(spec: &mut PodSpec, labels: &BTreeMap<String, String>) {
    fn merge(
        selector: &mut Option<LabelSelector>,
        keys: Option<&Vec<String>>,
        operator: &str,
        labels: &BTreeMap<String, String>,
    ) {
        let Some(selector) = selector else {
            return;
        };
        for key in keys.into_iter().flatten() {
            if let Some(value) = labels.get(key) {
                let requirement = LabelSelectorRequirement {
                    key: key.clone(),
                    operator: operator.into(),
                    values: Some(vec![value.clone()]),
                };
                selector
                    .match_expressions
                    .get_or_insert_default()
                    .push(requirement);
            }
        }
    }
    let affinity = spec.affinity.as_mut();
    let mut terms: Vec<&mut PodAffinityTerm> = Vec::new();
    if let Some(affinity) = affinity {
        if let Some(a) = &mut affinity.pod_affinity {
            terms.extend(
                a.required_during_scheduling_ignored_during_execution
                    .iter_mut()
                    .flatten(),
            );
            let preferred = a
                .preferred_during_scheduling_ignored_during_execution
                .iter_mut()
                .flatten();
            terms.extend(preferred.map(|w| &mut w.pod_affinity_term));
        }
        if let Some(a) = &mut affinity.pod_anti_affinity {
            terms.extend(
                a.required_during_scheduling_ignored_during_execution
                    .iter_mut()
                    .flatten(),
            );
            let preferred = a
                .preferred_during_scheduling_ignored_during_execution
                .iter_mut()
                .flatten();
            terms.extend(preferred.map(|w| &mut w.pod_affinity_term));
        }
    }
    for term in terms {
        merge(
            &mut term.label_selector,
            term.match_label_keys.as_ref(),
            "In",
            labels,
        );
        merge(
            &mut term.label_selector,
            term.mismatch_label_keys.as_ref(),
            "NotIn",
            labels,
        );
    }
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        merge(
            &mut constraint.label_selector,
            constraint.match_label_keys.as_ref(),
            "In",
            labels,
        );
    }
}

/// Copies the deprecated AppArmor annotations into `appArmorProfile` of the containers where it is not set.
fn sync_app_armor(spec: &mut PodSpec, annotations: &BTreeMap<String, String>) {
    let of_pod = spec
        .security_context
        .as_ref()
        .and_then(|c| c.app_armor_profile.clone());
    let sync = |container: &mut Container| {
        let has_own = container
            .security_context
            .as_ref()
            .is_some_and(|c| c.app_armor_profile.is_some());
        let annotation = annotations.get(&format!("{APP_ARMOR_ANNOTATION}{}", container.name));
        if let (false, Some(profile)) = (has_own, annotation.and_then(|a| app_armor_profile(a)))
            && Some(&profile) != of_pod.as_ref()
        {
            container
                .security_context
                .get_or_insert_default()
                .app_armor_profile = Some(profile);
        }
    };
    spec.init_containers
        .iter_mut()
        .flatten()
        .chain(&mut spec.containers)
        .for_each(sync);
}

pub(super) fn for_update(pod: &mut Pod, old: &Pod, part: Part) {
    match part {
        Part::Main => {
            keep(&mut pod.status, &old.status);
            update_generation(pod, old);
        }
        Part::Status => for_status_update(pod, old),
        Part::Other("ephemeralcontainers") => {
            let ephemeral = pod.spec.as_mut().and_then(|s| s.ephemeral_containers.take());
            pod.spec.clone_from(&old.spec);
            pod.status.clone_from(&old.status);
            reset_object_meta_for_status(&mut pod.metadata, &old.metadata);
            let spec = pod.spec.get_or_insert_default();
            spec.ephemeral_containers = ephemeral;
            drop_disabled_fields(spec);
            update_generation(pod, old);
        }
        Part::Other("resize") => for_resize(pod, old),
        // A binding sets the spec, but does not change the generation.
        Part::Other(_) => {}
    }
}

/// Restores a part of the object. Most clients send it as it is, and to compare it costs less than a copy of it.
fn keep<T: Clone + PartialEq>(new: &mut T, old: &T) {
    if new != old {
        new.clone_from(old);
    }
}

fn update_generation(pod: &mut Pod, old: &Pod) {
    let generation = old.metadata.generation.unwrap_or(0);
    pod.metadata.generation = Some(generation + i64::from(pod.spec != old.spec)).filter(|g| *g != 0);
}

/// `ResetObjectMetaForStatus`: an update of a subresource does not change metadata, other than managed fields.
fn reset_object_meta_for_status(meta: &mut ObjectMeta, old: &ObjectMeta) {
    meta.deletion_timestamp.clone_from(&old.deletion_timestamp);
    meta.generation = old.generation;
    meta.self_link.clone_from(&old.self_link);
    meta.labels.clone_from(&old.labels);
    meta.annotations.clone_from(&old.annotations);
    meta.finalizers.clone_from(&old.finalizers);
    meta.owner_references.clone_from(&old.owner_references);
}

fn for_status_update(pod: &mut Pod, old: &Pod) {
    keep(&mut pod.spec, &old.spec);
    pod.metadata.generation = old.metadata.generation;
    pod.metadata
        .deletion_timestamp
        .clone_from(&old.metadata.deletion_timestamp);
    pod.metadata
        .owner_references
        .clone_from(&old.metadata.owner_references);
    let status = pod.status.get_or_insert_default();
    let before = old.status.clone().unwrap_or_default();
    if text(&status.qos_class).is_empty() {
        status.qos_class = before.qos_class;
    }
    // A client that does not know `observedGeneration` does not clear it.
    if status.observed_generation.unwrap_or(0) == 0 {
        status.observed_generation = before.observed_generation;
    }
    let mut had: Vec<PodCondition> = before.conditions.unwrap_or_default();
    for condition in status.conditions.iter_mut().flatten() {
        let same = had.iter().position(|c| c.type_ == condition.type_);
        let generation = same.and_then(|i| had.remove(i).observed_generation);
        if condition.observed_generation.unwrap_or(0) == 0 {
            condition.observed_generation = generation;
        }
    }
    status.node_allocatable_resource_claim_statuses = None;
}

/// Keeps everything but resources and resize policies. Containers that were added, removed or renamed stay, so that
/// validation rejects them.
fn for_resize(pod: &mut Pod, old: &Pod) {
    let (Some(new_spec), Some(old_spec)) = (&mut pod.spec, &old.spec) else {
        return;
    };
    let count = |spec: &PodSpec| {
        (
            spec.containers.len(),
            spec.init_containers.as_ref().map_or(0, Vec::len),
        )
    };
    if count(new_spec) == count(old_spec) {
        let keep = |new: &[Container], old: &[Container]| -> Vec<Container> {
            if new.iter().zip(old).any(|(n, o)| n.name != o.name) {
                return new.to_vec();
            }
            new.iter()
                .zip(old)
                .map(|(n, o)| Container {
                    resources: n.resources.clone(),
                    resize_policy: n.resize_policy.clone(),
                    ..o.clone()
                })
                .collect()
        };
        let containers = keep(&new_spec.containers, &old_spec.containers);
        let init = keep(
            new_spec.init_containers.as_deref().unwrap_or_default(),
            old_spec.init_containers.as_deref().unwrap_or_default(),
        );
        let of_pod = new_spec.resources.clone();
        new_spec.clone_from(old_spec);
        new_spec.resources = of_pod;
        new_spec.containers = containers;
        new_spec.init_containers = Some(init).filter(|i| !i.is_empty());
        pod.status.clone_from(&old.status);
        reset_object_meta_for_status(&mut pod.metadata, &old.metadata);
    }
    update_generation(pod, old);
}
