//! The conditions of a policy: Ready (the spec is valid), Progressing (pods are moved, or why none is), Degraded (it has
//! stopped, because a replacement is not Ready).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

use super::schema::MESSAGE_MAX;
use crate::plan::Plan;
use crate::reason::SIMULATION_LIMIT;

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
        Finding {
            holds,
            reason,
            message: truncated(message.into(), MESSAGE_MAX),
        }
    }
}

/// The text, or its first bytes if it has more than `bytes_max`.
pub(super) fn truncated(mut text: String, bytes_max: usize) -> String {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
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
pub(super) fn stays(plan: &Plan) -> String {
    let reasons = plan.reasons();
    let reasons: Vec<String> = reasons.iter().map(|(code, n)| format!("{code} {n}")).collect();
    format!(
        "{} pods violate rules of the policy and stay: {}",
        plan.pods_that_stay(),
        reasons.join(", ")
    )
}

/// Why a plan without moves has none.
pub(super) fn idle(plan: &Plan) -> Finding {
    let reasons = plan.reasons();
    if reasons.is_empty() {
        return Finding::new(false, "NothingToDo", "no pod violates a rule of the policy");
    }
    let has = |code: &str| reasons.contains_key(code);
    let reason = if has("Budget") {
        "BudgetExhausted"
    } else if has("RepeatedMoves") {
        "RepeatedMoves"
    } else if has("DisruptionBudget") {
        "DisruptionBudget"
    } else if has(SIMULATION_LIMIT) {
        SIMULATION_LIMIT
    } else {
        "NothingToDo"
    };
    Finding::new(false, reason, stays(plan))
}

/// What a message about the plan's moves says of pods that were left out; empty if none was.
pub(super) fn left_out(plan: &Plan) -> String {
    match plan.not_simulated() {
        0 => String::new(),
        pods => format!("; {pods} pods were not simulated, because too many before them stay"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn b3_the_condition_counts_pods_that_were_not_simulated() {
        let plan = Plan {
            not_listed: BTreeMap::from([("NoNodeFits", 2_000), (SIMULATION_LIMIT, 40)]),
            ..Plan::default()
        };
        let finding = idle(&plan);
        assert_eq!(finding.reason, "SimulationLimit");
        assert_eq!(
            finding.message,
            "2040 pods violate rules of the policy and stay: NoNodeFits 2000, SimulationLimit 40"
        );
        assert_eq!(
            left_out(&plan),
            "; 40 pods were not simulated, because too many before them stay"
        );
        assert_eq!(left_out(&Plan::default()), "");
    }

    #[test]
    fn b3_texts_are_truncated_between_characters() {
        assert_eq!(truncated("spread".into(), 6), "spread");
        assert_eq!(truncated("spread".into(), 3), "spr");
        assert_eq!(truncated("né".into(), 2), "n");
    }
}
