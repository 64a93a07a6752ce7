//! The status of a Deployment: counts, and the conditions Available, Progressing and ReplicaFailure.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::conditions::{
    AVAILABLE, CREATE_ERROR, NEW_SET_AVAILABLE, PAUSED, PROGRESSING, REPLICA_FAILURE, RESUMED, SET_UPDATED,
    TIMED_OUT, condition, deadline, find, remove, set,
};
use super::planned_replica_set::PlannedReplicaSet;
use super::rollout::Rollout;
use super::rollout_bounds::rollout_bounds;

/// The new set could not be created.
pub fn create_failed(rollout: &mut Rollout<'_>, message: String) {
    rollout.progressing("False", CREATE_ERROR, message);
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
        rollout.progressing("Unknown", PAUSED, "Deployment is paused".into());
    } else if !paused && reason == PAUSED {
        rollout.progressing("Unknown", RESUMED, "Deployment is resumed".into());
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
