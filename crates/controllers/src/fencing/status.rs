//! The status of a [`NodeFencing`]: its phase, its condition, and the event on the node when the phase changes.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::time::seconds;

use super::kinds::{Custom, NodeFencing, Phase};
use crate::action::{Action, reference};

pub(super) fn set(fencing: &mut NodeFencing, phase: Phase, message: &str, now: Timestamp) {
    if fencing.status.phase != phase && phase == Phase::Fencing {
        fencing.status.start_time = Some(seconds(now));
        fencing.status.next_try_time = None;
    }
    fencing.status.phase = phase;
    fencing.status.message = message.into();
}

/// Sets the condition for the phase.
pub(super) fn set_conditions(fencing: &mut NodeFencing, now: Timestamp) {
    let (is, reason) = match fencing.status.phase {
        Phase::Pending => ("False", "Waiting"),
        Phase::Fencing => ("False", "AgentsAtWork"),
        Phase::Failed => ("False", "NoEvidence"),
        Phase::Fenced => ("True", "Evidence"),
        Phase::Returning => ("True", "Returning"),
        Phase::Returned => ("False", "Returned"),
        Phase::Cancelled => ("False", "Cancelled"),
    };
    let old = fencing.status.conditions.iter().find(|c| c.type_ == "Fenced");
    let since = old
        .filter(|c| c.status == is)
        .map(|c| c.last_transition_time.clone());
    fencing.status.conditions = vec![Condition {
        type_: "Fenced".into(),
        status: is.into(),
        reason: reason.into(),
        message: fencing.status.message.clone(),
        last_transition_time: since.unwrap_or(seconds(now)),
        observed_generation: fencing.metadata.generation,
    }];
}

/// The update of the status, and an event on the node if the phase has changed.
pub(super) fn status_update(
    next: &NodeFencing,
    before: &NodeFencing,
    node: Option<&Shared<Node>>,
) -> Vec<Action> {
    let object = match next.to_object() {
        Ok(object) => object,
        // A status that does not encode is a bug; the fencing keeps its status.
        Err(error) => {
            debug_assert!(false, "{error}");
            return Vec::new();
        }
    };
    let mut actions = vec![Action::Update {
        kind: NodeFencing::kind().clone(),
        object,
        subresource: "status",
    }];
    let (phase, message) = (next.status.phase, &next.status.message);
    if let Some(node) = node.filter(|_| phase != before.status.phase) {
        let about = reference(node.object());
        let name = node.object().name();
        let text = |what: &str| format!("Fencing of node {name} {what}: {message}");
        actions.extend(match phase {
            Phase::Fencing => Some(Action::warning(&about, "FencingStarted", text("started"))),
            Phase::Failed => Some(Action::warning(&about, "FencingFailed", text("failed"))),
            Phase::Fenced => Some(Action::warning(&about, "NodeFenced", text("succeeded"))),
            Phase::Returned => Some(Action::event(&about, "NodeReturned", text("is finished"))),
            Phase::Cancelled => Some(Action::event(&about, "FencingCancelled", text("was cancelled"))),
            Phase::Pending | Phase::Returning => None,
        });
    }
    actions
}
