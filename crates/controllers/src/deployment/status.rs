//! The status of a Deployment: counts, and the conditions Available, Progressing and ReplicaFailure.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentSpec, DeploymentStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::time::seconds;

use super::rollout::{PlannedReplicaSet, Rollout};
use super::scaling::rollout_bounds;

pub const AVAILABLE: &str = "Available";
pub const PROGRESSING: &str = "Progressing";
pub const REPLICA_FAILURE: &str = "ReplicaFailure";

const NEW_SET_CREATED: &str = "NewReplicaSetCreated";
const NEW_SET_FOUND: &str = "FoundNewReplicaSet";
const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const SET_UPDATED: &str = "ReplicaSetUpdated";
const CREATE_ERROR: &str = "ReplicaSetCreateError";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
const RESUMED: &str = "DeploymentResumed";

fn find<'a>(status: &'a DeploymentStatus, type_: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_)
}

fn remove(status: &mut DeploymentStatus, type_: &str) {
    let mut conditions = status.conditions.take().unwrap_or_default();
    conditions.retain(|c| c.type_ != type_);
    status.conditions = (!conditions.is_empty()).then_some(conditions);
}

/// Sets a condition, unless status and reason are the same; its transition time changes only with its status.
fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(old) = find(status, &condition.type_) {
        if old.status == condition.status && old.reason == condition.reason {
            return;
        }
        if old.status == condition.status {
            condition.last_transition_time = old.last_transition_time.clone();
        }
    }
    remove(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

fn condition(type_: &str, is: &str, reason: &str, message: String, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: type_.into(),
        status: is.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(seconds(now)),
        last_transition_time: Some(seconds(now)),
    }
}

fn deadline(spec: &DeploymentSpec) -> Option<SignedDuration> {
    let seconds = spec.progress_deadline_seconds.filter(|s| *s != i32::MAX)?;
    Some(SignedDuration::from_secs(i64::from(seconds)))
}

fn progressing(rollout: &mut Rollout<'_>, is: &str, reason: &str, message: String) {
    if deadline(rollout.spec).is_some() {
        let progress = condition(PROGRESSING, is, reason, message, rollout.now);
        set(&mut rollout.status, progress);
    }
}

/// The new set is being created.
pub fn created(rollout: &mut Rollout<'_>, name: &str) {
    let message = format!("Created new replica set {name:?}");
    progressing(rollout, "True", NEW_SET_CREATED, message);
}

/// The current template already had a set.
pub fn found(rollout: &mut Rollout<'_>) {
    if find(&rollout.status, PROGRESSING).is_none()
        && let Some(name) = rollout.new.as_ref().map(|s| s.name().to_string())
    {
        let message = format!("Found new replica set {name:?}");
        progressing(rollout, "True", NEW_SET_FOUND, message);
    }
}

/// The new set could not be created.
pub fn create_failed(rollout: &mut Rollout<'_>, message: String) {
    progressing(rollout, "False", CREATE_ERROR, message);
}

/// The progress deadline of a paused Deployment does not run.
pub fn pause_or_resume(rollout: &mut Rollout<'_>) {
    let reason = find(&rollout.status, PROGRESSING).and_then(|c| c.reason.clone());
    let reason = reason.as_deref().unwrap_or("");
    if reason == TIMED_OUT {
        return;
    }
    let paused = rollout.spec.paused == Some(true);
    if paused && reason != PAUSED {
        progressing(rollout, "Unknown", PAUSED, "Deployment is paused".into());
    } else if !paused && reason == PAUSED {
        progressing(rollout, "Unknown", RESUMED, "Deployment is resumed".into());
    }
}

fn sum<'a>(sets: impl Iterator<Item = &'a PlannedReplicaSet>, of: fn(&PlannedReplicaSet) -> i32) -> i32 {
    sets.map(of).sum()
}

/// Counts, and whether enough is available.
pub fn count(rollout: &mut Rollout<'_>) {
    // Kubernetes leaves these out when they are 0.
    let some = |n: i32| (n != 0).then_some(n);
    let available = sum(rollout.all(), PlannedReplicaSet::available);
    let desired = sum(rollout.all(), PlannedReplicaSet::replicas);
    let updated = rollout.new.as_ref().map_or(0, PlannedReplicaSet::status_replicas);
    let terminating = terminating(rollout.all());
    let status = DeploymentStatus {
        observed_generation: rollout.deployment.metadata.generation,
        replicas: some(sum(rollout.all(), PlannedReplicaSet::status_replicas)),
        updated_replicas: some(updated),
        ready_replicas: some(sum(rollout.all(), PlannedReplicaSet::ready)),
        available_replicas: some(available),
        unavailable_replicas: some((desired - available).max(0)),
        terminating_replicas: terminating,
        collision_count: rollout.status.collision_count,
        conditions: rollout.status.conditions.take(),
    };
    rollout.status = status;
    let enough = available >= rollout.replicas() - rollout_bounds(rollout.spec).unavailable;
    let (is, reason, message) = if enough {
        (
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
        )
    } else {
        (
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
        )
    };
    let available = condition(AVAILABLE, is, reason, message.into(), rollout.now);
    set(&mut rollout.status, available);
}

/// Unknown while one of the sets does not report it.
fn terminating<'a>(mut sets: impl Iterator<Item = &'a PlannedReplicaSet>) -> Option<i32> {
    sets.try_fold(0, |sum, set| {
        let status = set.now.status.as_ref();
        match status.and_then(|s| s.terminating_replicas) {
            Some(n) => Some(sum + n),
            None => status
                .and_then(|s| s.observed_generation)
                .is_none()
                .then_some(sum),
        }
    })
}

/// Whether every pod has the current template and is available (upstream: DeploymentComplete).
pub fn is_complete(rollout: &Rollout<'_>, status: &DeploymentStatus) -> bool {
    let desired = rollout.replicas();
    let all = |n: Option<i32>| n.unwrap_or(0) == desired;
    all(status.updated_replicas)
        && all(status.replicas)
        && all(status.available_replicas)
        && status.observed_generation.unwrap_or(0) >= rollout.deployment.metadata.generation.unwrap_or(0)
}

/// Whether there is progress since the status was last written (upstream: DeploymentProgressing).
fn has_progressed(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let n = |n: Option<i32>| n.unwrap_or(0);
    let old_pods = |s: &DeploymentStatus| n(s.replicas) - n(s.updated_replicas);
    n(new.updated_replicas) > n(old.updated_replicas)
        || old_pods(new) < old_pods(old)
        || n(new.ready_replicas) > n(old.ready_replicas)
        || n(new.available_replicas) > n(old.available_replicas)
}

/// Counts, and the condition Progressing.
pub fn sync_rollout(rollout: &mut Rollout<'_>) {
    let old = rollout.deployment.status.clone().unwrap_or_default();
    count(rollout);
    let Some(deadline) = deadline(rollout.spec) else {
        remove(&mut rollout.status, PROGRESSING);
        return failures(rollout);
    };
    let current = find(&rollout.status, PROGRESSING).cloned();
    let reason = current.as_ref().and_then(|c| c.reason.as_deref()).unwrap_or("");
    let settled = rollout.status.replicas == rollout.status.updated_replicas && reason == NEW_SET_AVAILABLE;
    if !settled {
        let what = match &rollout.new {
            Some(new) => format!("ReplicaSet {:?}", new.name()),
            None => format!("Deployment {:?}", rollout.deployment.object().name()),
        };
        let now = rollout.now;
        if is_complete(rollout, &rollout.status) {
            let message = format!("{what} has successfully progressed.");
            let progress = condition(PROGRESSING, "True", NEW_SET_AVAILABLE, message, now);
            set(&mut rollout.status, progress);
        } else if has_progressed(&old, &rollout.status) {
            let message = format!("{what} is progressing.");
            let mut progress = condition(PROGRESSING, "True", SET_UPDATED, message, now);
            if let Some(current) = current.filter(|c| c.status == "True") {
                progress.last_transition_time = current.last_transition_time;
            }
            // Its update time changes with every step: the deadline is measured from there.
            remove(&mut rollout.status, PROGRESSING);
            set(&mut rollout.status, progress);
        } else if current.is_some_and(|c| has_timed_out(&c, deadline, now)) {
            let message = format!("{what} has timed out progressing.");
            let progress = condition(PROGRESSING, "False", TIMED_OUT, message, now);
            set(&mut rollout.status, progress);
        }
    }
    failures(rollout);
}

fn has_timed_out(progress: &DeploymentCondition, deadline: SignedDuration, now: Timestamp) -> bool {
    match progress.reason.as_deref() {
        Some(NEW_SET_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => {
            let since = progress.last_update_time.as_ref();
            since.is_some_and(|since| now.duration_since(since.0) > deadline)
        }
    }
}

/// ReplicaFailure is copied from the sets, the new one's first.
fn failures(rollout: &mut Rollout<'_>) {
    let failure = rollout.new.iter().chain(&rollout.old).find_map(|set| {
        let conditions = set.now.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|c| c.type_ == REPLICA_FAILURE)
    });
    let taken_over = failure.map(|failure| DeploymentCondition {
        type_: REPLICA_FAILURE.into(),
        status: failure.status.clone(),
        reason: failure.reason.clone(),
        message: failure.message.clone(),
        last_transition_time: failure.last_transition_time.clone(),
        last_update_time: failure.last_transition_time.clone(),
    });
    match taken_over {
        Some(failure) => set(&mut rollout.status, failure),
        None => remove(&mut rollout.status, REPLICA_FAILURE),
    }
}

/// When to check whether the progress deadline has passed; `None` when no progress is expected.
pub fn next_progress_check(rollout: &Rollout<'_>) -> Option<Duration> {
    let deadline = deadline(rollout.spec)?;
    let progress = find(&rollout.status, PROGRESSING)?;
    if progress.reason.as_deref() == Some(TIMED_OUT) || is_complete(rollout, &rollout.status) {
        return None;
    }
    let since = progress.last_update_time.as_ref()?.0;
    let rest = deadline - rollout.now.duration_since(since);
    // One second more, so that the deadline has passed by then.
    Some(Duration::try_from(rest).unwrap_or_default() + Duration::from_secs(1))
}
