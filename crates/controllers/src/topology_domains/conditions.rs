//! The conditions of a TopologyDomains object: Ready, Conflict and, with `spec.machineDeployments`, MachineDeploymentsRead.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

use super::kinds::{DOMAINS_MAX, TopologyDomains};

/// What the conditions report.
pub(super) enum Message<'a> {
    /// The object declares its key.
    Used {
        counted: usize,
        lost: Vec<&'a str>,
        left_out: usize,
    },
    /// An older object declares the same key.
    Conflict { owner: &'a str },
}

impl Message<'_> {
    fn text(&self, topology_key: &str) -> String {
        match self {
            Message::Used {
                counted,
                lost,
                left_out,
            } => {
                let mut text = format!("{counted} domains count");
                if !lost.is_empty() {
                    text += &format!(", lost: {}", lost.join(", "));
                }
                if *left_out > 0 {
                    text += &format!("; {left_out} are left out: at most {DOMAINS_MAX} can be declared");
                }
                text
            }
            Message::Conflict { owner } => format!(
                "TopologyDomains {owner} is older and declares {topology_key}, too: this object is not used"
            ),
        }
    }
}

/// What MachineDeploymentsRead reports.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Finding {
    pub(super) fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Finding {
            status,
            reason,
            message: message.into(),
        }
    }
}

/// All conditions; the transition time of one that keeps its status stays.
pub(super) fn set(
    domains: &TopologyDomains,
    message: &Message<'_>,
    machine_deployments: Option<Finding>,
    now: Timestamp,
) -> Vec<Condition> {
    let text = message.text(&domains.spec.topology_key);
    let (ready, conflict) = match message {
        Message::Used { .. } => (("True", "Declared", text), ("False", "NoConflict", String::new())),
        Message::Conflict { .. } => (("False", "Conflict", text.clone()), ("True", "OlderObject", text)),
    };
    let condition = |type_: &str, (status, reason, message): (&str, &str, String)| {
        let old = domains.status.conditions.iter().find(|c| c.type_ == type_);
        let since = old.filter(|c| c.status == status);
        Condition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            last_transition_time: since.map_or_else(|| seconds(now), |c| c.last_transition_time.clone()),
            observed_generation: domains.metadata.generation,
        }
    };
    let mut conditions = vec![condition("Ready", ready), condition("Conflict", conflict)];
    conditions.extend(machine_deployments.map(|found| {
        let of = (found.status, found.reason, found.message);
        condition("MachineDeploymentsRead", of)
    }));
    conditions
}
