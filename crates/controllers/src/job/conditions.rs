//! A Job's conditions.

use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

/// The condition of a finished Job: `Complete` or `Failed`.
pub fn finished(job: &Job) -> Option<&JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")
}

/// The condition of this type, if it is True.
pub fn find<'a>(conditions: &'a [JobCondition], type_: &str) -> Option<&'a JobCondition> {
    conditions.iter().find(|c| c.type_ == type_ && c.status == "True")
}

pub fn condition(type_: &str, reason: &str, message: &str, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: type_.into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_probe_time: Some(seconds(now)),
        last_transition_time: Some(seconds(now)),
    }
}

/// Sets a condition that differs (False does not differ from a missing one); whether it did.
pub fn set_condition(status: &mut JobStatus, new: JobCondition) -> bool {
    let conditions = status.conditions.get_or_insert_default();
    let changed = match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        Some(old) if (&old.status, &old.reason, &old.message) == (&new.status, &new.reason, &new.message) => {
            false
        }
        Some(old) => {
            *old = new;
            true
        }
        None if new.status == "False" => false,
        None => {
            conditions.push(new);
            true
        }
    };
    status.conditions = status.conditions.take().filter(|c| !c.is_empty());
    changed
}

/// The reason of a failed Job's event.
pub fn reason(reason: &str) -> &'static str {
    const REASONS: [&str; 5] = [
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "PodFailurePolicy",
        "MaxFailedIndexesExceeded",
        "FailedIndexes",
    ];
    REASONS.into_iter().find(|r| *r == reason).unwrap_or("Failed")
}
