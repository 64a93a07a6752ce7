//! What of a Job may change: parallelism always, completions with it, and while it is suspended where and with how
//! much its pods run.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Affinity, Container, PodSpec};

use super::is;
use crate::field::{Errors, Path};
use crate::kinds::checks::{IMMUTABLE, Json, immutable, json, text};
use crate::kinds::pod::internal;

pub(super) fn validate(job: &Job, old: &Job, errors: &mut Errors) {
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

fn completions(new: &JobSpec, old: &JobSpec, path: &Path, errors: &mut Errors) {
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

/// Whether nothing of it runs, so that its pods may still be changed.
fn is_at_rest(old: &Job) -> bool {
    let suspended = old.spec.as_ref().and_then(|s| s.suspend) == Some(true);
    let status = old.status.clone().unwrap_or_default();
    suspended && (status.start_time.is_none() || (is(old, "Suspended") && status.active.unwrap_or(0) == 0))
}

fn template(new: &JobSpec, old: &Job, errors: &mut Errors) {
    let mut allowed = old.spec.clone().unwrap_or_default().template;
    let at_rest = is_at_rest(old);
    if at_rest {
        let wanted = new.template.clone();
        let meta = allowed.metadata.get_or_insert_default();
        let wanted_meta = wanted.metadata.unwrap_or_default();
        meta.annotations = wanted_meta.annotations;
        meta.labels = wanted_meta.labels;
        let pod = allowed.spec.get_or_insert_default();
        let wanted = wanted.spec.unwrap_or_default();
        pod.affinity = with_node_affinity_of(pod.affinity.take(), wanted.affinity.as_ref());
        resources_of(pod, &wanted);
        pod.node_selector = wanted.node_selector;
        pod.tolerations = wanted.tolerations;
        pod.scheduling_gates = wanted.scheduling_gates;
    }
    let path = Path::new("spec");
    if at_rest {
        // Kubernetes names the path like this when resources may change.
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

fn with_node_affinity_of(old: Option<Affinity>, wanted: Option<&Affinity>) -> Option<Affinity> {
    let mut affinity = old.unwrap_or_default();
    affinity.node_affinity = wanted.and_then(|w| w.node_affinity.clone());
    (wanted.is_some() || affinity != Affinity::default()).then_some(affinity)
}

fn resources_of(pod: &mut PodSpec, wanted: &PodSpec) {
    let copy = |containers: &mut [Container], wanted: &[Container]| {
        if containers.len() == wanted.len() {
            for (container, wanted) in containers.iter_mut().zip(wanted) {
                if container.name == wanted.name {
                    container.resources.clone_from(&wanted.resources);
                }
            }
        }
    };
    copy(&mut pod.containers, &wanted.containers);
    copy(
        pod.init_containers.as_deref_mut().unwrap_or(&mut []),
        wanted.init_containers.as_deref().unwrap_or(&[]),
    );
}
