//! The conditions of a policy: Ready (the spec is valid), Progressing (pods are moved, or why none is), Degraded (it has
//! stopped, because a replacement is not Ready).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

use super::schema::MESSAGE_MAX;
use crate::plan::NotMoved;

pub const READY: &str = "Ready";
pub const PROGRESSING: &str = "Progressing";
pub const DEGRADED: &str = "Degraded";

/// What a condition says; the reason is one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Finding {
    pub fn new(holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MESSAGE_MAX {
            let mut end = MESSAGE_MAX;
            while !message.is_char_boundary(end) {
                end -= 1;
            }
            message.truncate(end);
        }
        Finding {
            holds,
            reason,
            message,
        }
    }
}

/// Sets a condition. Its time moves only when its status does. Returns whether its reason is another one.
pub(super) fn set(
    conditions: &mut Vec<Condition>,
    of: &str,
    finding: &Finding,
    generation: Option<i64>,
    now: Timestamp,
) -> bool {
    let mut condition = Condition {
        type_: of.into(),
        status: if finding.holds { "True" } else { "False" }.into(),
        reason: finding.reason.into(),
        message: finding.message.clone(),
        last_transition_time: seconds(now),
        observed_generation: generation,
    };
    match conditions.iter_mut().find(|c| c.type_ == of) {
        Some(there) => {
            if there.status == condition.status {
                condition.last_transition_time = there.last_transition_time.clone();
            }
            let is_new = there.reason != condition.reason;
            *there = condition;
            is_new
        }
        None => {
            conditions.push(condition);
            true
        }
    }
}

/// Why a plan moves no pod, or fewer than violate rules: how many pods stay for which reason.
pub(super) fn stays(not_moved: &[NotMoved]) -> String {
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for pod in not_moved {
        *reasons.entry(pod.reason.code()).or_default() += 1;
    }
    let reasons: Vec<String> = reasons.iter().map(|(code, n)| format!("{code} {n}")).collect();
    format!(
        "{} pods violate rules of the policy and stay: {}",
        not_moved.len(),
        reasons.join(", ")
    )
}

/// Why a plan without moves has none.
pub(super) fn idle(not_moved: &[NotMoved]) -> Finding {
    if not_moved.is_empty() {
        return Finding::new(false, "NothingToDo", "no pod violates a rule of the policy");
    }
    let has = |code: &str| not_moved.iter().any(|pod| pod.reason.code() == code);
    let reason = if has("Budget") {
        "BudgetExhausted"
    } else if has("RepeatedMoves") {
        "RepeatedMoves"
    } else if has("DisruptionBudget") {
        "DisruptionBudget"
    } else {
        "NothingToDo"
    };
    Finding::new(false, reason, stays(not_moved))
}
