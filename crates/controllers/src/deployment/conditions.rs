//! The conditions of a Deployment: Available, Progressing and ReplicaFailure.

use k8s_openapi::api::apps::v1::{DeploymentCondition, DeploymentSpec, DeploymentStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

pub const AVAILABLE: &str = "Available";
pub const PROGRESSING: &str = "Progressing";
pub const REPLICA_FAILURE: &str = "ReplicaFailure";

pub const NEW_SET_CREATED: &str = "NewReplicaSetCreated";
pub const NEW_SET_FOUND: &str = "FoundNewReplicaSet";
pub const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
pub const SET_UPDATED: &str = "ReplicaSetUpdated";
pub const CREATE_ERROR: &str = "ReplicaSetCreateError";
pub const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub const PAUSED: &str = "DeploymentPaused";
pub const RESUMED: &str = "DeploymentResumed";

pub fn find<'a>(status: &'a DeploymentStatus, type_: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|c| c.type_ == type_)
}

pub fn remove(status: &mut DeploymentStatus, type_: &str) {
    let mut conditions = status.conditions.take().unwrap_or_default();
    conditions.retain(|c| c.type_ != type_);
    status.conditions = (!conditions.is_empty()).then_some(conditions);
}

/// Sets a condition, unless status and reason are the same; its transition time changes only with its status.
pub fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
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

pub fn condition(
    type_: &str,
    is: &str,
    reason: &str,
    message: String,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: type_.into(),
        status: is.into(),
        reason: Some(reason.into()),
        message: Some(message),
        last_update_time: Some(seconds(now)),
        last_transition_time: Some(seconds(now)),
    }
}

pub fn deadline(spec: &DeploymentSpec) -> Option<SignedDuration> {
    let seconds = spec.progress_deadline_seconds.filter(|s| *s != i32::MAX)?;
    Some(SignedDuration::from_secs(i64::from(seconds)))
}
