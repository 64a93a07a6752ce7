//! The effect of a failed pod on its Job (podFailurePolicy, KEP-3329), and which successes are enough (successPolicy, KEP-3998).

use std::time::Duration;

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicy,
};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::indexes::Indexes;
use crate::pod;

/// The back-off after the first failure; doubled with each further one.
const BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// The action for a failed pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureAction {
    /// Counts towards backoffLimit.
    Count,
    Ignore,
    FailIndex,
    /// With the message for the Job's condition.
    FailJob(String),
}

/// The first matching rule decides (upstream: matchPodFailurePolicy).
pub fn match_failure_policy(spec: &JobSpec, failed: &Pod) -> FailureAction {
    let rules = spec.pod_failure_policy.iter().flat_map(|p| &p.rules);
    for (index, rule) in rules.enumerate() {
        let Some(what) = matched(rule, failed) else {
            continue;
        };
        return match rule.action.as_str() {
            "Ignore" => FailureAction::Ignore,
            "FailIndex" => FailureAction::FailIndex,
            "Count" => FailureAction::Count,
            "FailJob" => FailureAction::FailJob(format!("{what} matching FailJob rule at index {index}")),
            _ => continue,
        };
    }
    FailureAction::Count
}

fn matched(rule: &PodFailurePolicyRule, failed: &Pod) -> Option<String> {
    let meta = &failed.metadata;
    let name = format!(
        "{}/{}",
        meta.namespace.as_deref().unwrap_or(""),
        meta.name.as_deref().unwrap_or("")
    );
    let status = failed.status.as_ref()?;
    if let Some(requirement) = &rule.on_exit_codes {
        let containers = status.container_statuses.iter().flatten();
        let mut all = containers.chain(status.init_container_statuses.iter().flatten());
        let (container, code) = all.find_map(|c| exit_code(requirement, c).map(|code| (&c.name, code)))?;
        return Some(format!(
            "Container {container} for pod {name} failed with exit code {code}"
        ));
    }
    let patterns = rule.on_pod_conditions.as_deref()?;
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|c| {
        // The API defaults the status to True.
        patterns
            .iter()
            .any(|p| p.type_ == c.type_ && c.status == p.status.as_deref().unwrap_or("True"))
    })?;
    Some(format!("Pod {name} has condition {}", condition.type_))
}

fn exit_code(
    requirement: &PodFailurePolicyOnExitCodesRequirement,
    container: &ContainerStatus,
) -> Option<i32> {
    let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
    let named = requirement
        .container_name
        .as_ref()
        .is_none_or(|n| *n == container.name);
    let listed = requirement.values.contains(&code);
    let matches = match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    };
    (named && code != 0 && matches).then_some(code)
}

/// The message of the first rule that these successes satisfy.
pub fn success(policy: &SuccessPolicy, completions: i32, succeeded: &Indexes) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let met = policy.rules.iter().position(|rule| {
        let enough = |n: i32| rule.succeeded_count.is_some_and(|required| n >= required);
        match &rule.succeeded_indexes {
            Some(text) => {
                let required = Indexes::parse(text, completions);
                let there = required.common(succeeded);
                !required.is_empty() && (there == required.total() || enough(there))
            }
            None => enough(succeeded.total()),
        }
    })?;
    Some(format!("Matched rules at index {met}"))
}

/// When a pod finished: its last container did; else it became unready; else its deletionTimestamp; else its creation.
pub fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref();
    let containers = status
        .and_then(|s| s.container_statuses.as_deref())
        .unwrap_or_default();
    let ends: Option<Vec<Timestamp>> = containers
        .iter()
        .map(|c| Some(c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0))
        .collect();
    let by_containers = ends.and_then(|e| e.into_iter().max());
    let by_readiness = || {
        let ready = pod::condition(pod, "Ready").filter(|c| c.status == "False")?;
        ready.last_transition_time.as_ref().map(|t| t.0)
    };
    let by_deletion = || {
        let deleted = pod.metadata.deletion_timestamp.as_ref()?.0;
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        deleted.checked_sub(SignedDuration::from_secs(grace)).ok()
    };
    by_containers
        .or_else(by_readiness)
        .or_else(by_deletion)
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|t| t.0))
}

/// The rest of the back-off after this many failures in a row, the last of them at this time.
pub fn remaining_backoff(failures: usize, last: Option<Timestamp>, now: Timestamp) -> Duration {
    let Some(last) = last.filter(|_| failures > 0) else {
        return Duration::ZERO;
    };
    let doublings = u32::try_from(failures - 1).unwrap_or(u32::MAX).min(16);
    let wait = (BACKOFF * 2u32.pow(doublings)).min(MAX_BACKOFF);
    let elapsed = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    wait.saturating_sub(elapsed)
}
