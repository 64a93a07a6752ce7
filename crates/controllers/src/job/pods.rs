//! A Job's pods: their indexes, which have failed, and new ones.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_apimachinery::finalizer;

use super::policy::{FailureAction, match_failure_policy};
use crate::pod;

/// The finalizer that keeps a pod until it is counted.
pub const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";
const INDEX_ENV: &str = "JOB_COMPLETION_INDEX";
/// The longest prefix of a generated name, which five random characters follow.
const PREFIX_BYTES: usize = 58;

pub fn is_tracked(pod: &Pod) -> bool {
    finalizer::contains(&pod.metadata, FINALIZER)
}

pub fn without_finalizer(pod: &Pod) -> Pod {
    let mut changed = pod.clone();
    finalizer::remove(&mut changed.metadata, FINALIZER);
    changed
}

fn annotation(pod: &Pod, key: &str) -> Option<i32> {
    let value: i32 = pod.metadata.annotations.as_ref()?.get(key)?.parse().ok()?;
    (value >= 0).then_some(value)
}

pub fn index(pod: &Pod) -> Option<i32> {
    annotation(pod, INDEX)
}

/// The failures of its index before this pod.
pub fn failures(pod: &Pod) -> i32 {
    annotation(pod, FAILURES).unwrap_or(0)
}

/// The same, with failures that the podFailurePolicy ignored.
pub fn all_failures(pod: &Pod) -> i32 {
    failures(pod).saturating_add(annotation(pod, IGNORED_FAILURES).unwrap_or(0))
}

/// Whether a pod is replaced only when it has failed, and not already when it is terminating (podReplacementPolicy, KEP-3939).
pub fn replaces_only_failed(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

pub fn is_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match pod::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pod::is_deleting(pod) && !replaces_only_failed(spec),
    }
}

/// Whether this pod's failure exceeds its index's backoff limit.
pub fn fails_index(spec: &JobSpec, limit: i32, pod: &Pod) -> bool {
    is_failed(spec, pod)
        && match match_failure_policy(spec, pod) {
            FailureAction::FailIndex => true,
            FailureAction::Ignore => false,
            FailureAction::Count | FailureAction::FailJob(_) => failures(pod) >= limit,
        }
}

pub fn indexes<'p>(pods: impl Iterator<Item = &'p Shared<Pod>>) -> BTreeSet<i32> {
    pods.filter_map(|p| index(p)).collect()
}

/// A new pod of the Job, with its completion index and the failure counts of the pod that it replaces.
pub fn new_pod(job: &Shared<Job>, spec: &JobSpec, of: Option<(i32, Option<&Pod>)>) -> Pod {
    let owner = job.object();
    let mut pod = pod::from_template(owner, &spec.template);
    finalizer::add(&mut pod.metadata, FINALIZER);
    let Some((index, replaced)) = of else { return pod };
    let suffix = format!("-{index}-");
    let room = PREFIX_BYTES.saturating_sub(suffix.len());
    let prefix = owner.name().get(..room).unwrap_or(owner.name());
    pod.metadata.generate_name = Some(format!("{prefix}{suffix}"));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.into(), index.to_string());
    if spec.backoff_limit_per_index.is_some() {
        let mut counted = replaced.map_or(0, failures);
        let mut ignored = replaced.map_or(0, |p| all_failures(p) - failures(p));
        if let Some(replaced) = replaced {
            match match_failure_policy(spec, replaced) {
                FailureAction::Ignore => ignored = ignored.saturating_add(1),
                _ => counted = counted.saturating_add(1),
            }
        }
        annotations.insert(FAILURES.into(), counted.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES.into(), ignored.to_string());
        }
    }
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(INDEX.into(), index.to_string());
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = Some(format!("{}-{index}", owner.name()));
    pod_spec
        .init_containers
        .iter_mut()
        .flatten()
        .for_each(add_completion_index_env);
    pod_spec.containers.iter_mut().for_each(add_completion_index_env);
    pod
}

fn add_completion_index_env(container: &mut Container) {
    let env = container.env.get_or_insert_default();
    if env.iter().any(|e| e.name == INDEX_ENV) {
        return;
    }
    env.push(EnvVar {
        name: INDEX_ENV.into(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path: format!("metadata.labels['{INDEX}']"),
            }),
            ..EnvVarSource::default()
        }),
    });
}
