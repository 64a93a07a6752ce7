//! Validation of an update of a Job's spec: parallelism may change, completions together with it, and the scheduling
//! directives and resources of the pod template while the Job is suspended.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Affinity, Container, PodSpec};
use knarr_apimachinery::field::{ErrorList, Path};

use super::is_condition_true;
use crate::kinds::checks::{IMMUTABLE, Json, immutable, json, text};
use crate::kinds::pod::internal;

pub(super) fn validate(job: &Job, old: &Job, errors: &mut ErrorList) {
    let path = Path::new("spec");
    let new = job.spec.clone().unwrap_or_default();
    let before = old.spec.clone().unwrap_or_default();
    super::validate_spec(job, &path, errors);
    completions(&new, &before, &path.child("completions"), errors);
    if new.selector != before.selector {
        let shown = new
            .selector
            .as_ref()
            .map_or("null".into(), crate::kinds::checks::json_selector);
        errors.invalid(&path.child("selector"), Json(shown), IMMUTABLE);
    }
    template(&new, old, errors);
    immutable(
        errors,
        &path.child("completionMode"),
        &new.completion_mode,
        &before.completion_mode,
    );
    if new.pod_failure_policy != before.pod_failure_policy {
        let shown = Json(internal::json("*PodFailurePolicy", &new.pod_failure_policy));
        errors.invalid(&path.child("podFailurePolicy"), shown, IMMUTABLE);
    }
    immutable(
        errors,
        &path.child("backoffLimitPerIndex"),
        &new.backoff_limit_per_index,
        &before.backoff_limit_per_index,
    );
    immutable(
        errors,
        &path.child("managedBy"),
        &new.managed_by,
        &before.managed_by,
    );
    if new.success_policy != before.success_policy {
        let shown = Json(internal::json("*SuccessPolicy", &new.success_policy));
        errors.invalid(&path.child("successPolicy"), shown, IMMUTABLE);
    }
}

fn completions(new: &JobSpec, old: &JobSpec, path: &Path, errors: &mut ErrorList) {
    if text(&new.completion_mode) != "Indexed" {
        immutable(errors, path, &new.completions, &old.completions);
    } else if new.completions != old.completions
        && new.completions.is_some()
        && new.completions != new.parallelism
    {
        errors.invalid(
            path,
            json(&new.completions),
            "can only be modified in tandem with spec.parallelism",
        );
    }
}

/// Whether the Job is suspended and has no active pods, so that its pod template may change.
fn is_suspended_without_active_pods(old: &Job) -> bool {
    let suspended = old.spec.as_ref().and_then(|s| s.suspend) == Some(true);
    let status = old.status.clone().unwrap_or_default();
    suspended
        && (status.start_time.is_none()
            || (is_condition_true(old, "Suspended") && status.active.unwrap_or(0) == 0))
}

fn template(new: &JobSpec, old: &Job, errors: &mut ErrorList) {
    let mut allowed = old.spec.clone().unwrap_or_default().template;
    let can_change_template = is_suspended_without_active_pods(old);
    if can_change_template {
        let new_template = new.template.clone();
        let meta = allowed.metadata.get_or_insert_default();
        let new_meta = new_template.metadata.unwrap_or_default();
        meta.annotations = new_meta.annotations;
        meta.labels = new_meta.labels;
        let pod = allowed.spec.get_or_insert_default();
        let new_pod = new_template.spec.unwrap_or_default();
        pod.affinity = with_node_affinity(pod.affinity.take(), new_pod.affinity.as_ref());
        copy_resources(pod, &new_pod);
        pod.node_selector = new_pod.node_selector;
        pod.tolerations = new_pod.tolerations;
        pod.scheduling_gates = new_pod.scheduling_gates;
    }
    let path = Path::new("spec");
    if can_change_template {
        // This is the field path that Kubernetes reports when the resources may change.
        let none = PodSpec::default();
        let spec = new.template.spec.as_ref().unwrap_or(&none);
        if spec != allowed.spec.as_ref().unwrap_or(&none) {
            let shown = Json(internal::json("PodSpec", spec));
            errors.invalid(&path.child("template.spec"), shown, IMMUTABLE);
        }
    } else if new.template != allowed {
        let shown = Json(internal::json("PodTemplateSpec", &new.template));
        errors.invalid(&path.child("template"), shown, IMMUTABLE);
    }
}

fn with_node_affinity(old: Option<Affinity>, new: Option<&Affinity>) -> Option<Affinity> {
    let mut affinity = old.unwrap_or_default();
    affinity.node_affinity = new.and_then(|w| w.node_affinity.clone());
    (new.is_some() || affinity != Affinity::default()).then_some(affinity)
}

fn copy_resources(pod: &mut PodSpec, new: &PodSpec) {
    let copy = |containers: &mut [Container], new: &[Container]| {
        if containers.len() == new.len() {
            for (container, new) in containers.iter_mut().zip(new) {
                if container.name == new.name {
                    container.resources.clone_from(&new.resources);
                }
            }
        }
    };
    copy(&mut pod.containers, &new.containers);
    copy(
        pod.init_containers.as_deref_mut().unwrap_or(&mut []),
        new.init_containers.as_deref().unwrap_or(&[]),
    );
}
