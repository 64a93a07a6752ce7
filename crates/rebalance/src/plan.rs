//! A plan as data: the moves in order, why the other pods that violate a rule stay, and the violations before and after.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use knarr_apimachinery::ids::{NodeName, PodUid};
use serde::Serialize;

use crate::constraint::Constraint;
use crate::reason::{Reason, SIMULATION_LIMIT};
use crate::snapshot::Workload;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    pub policy: String,
    /// In order: each was found good in the state that those before it lead to.
    pub moves: Vec<Move>,
    /// The pods that violate a rule and stay, as many as [`crate::limits::Limits`] allows.
    pub not_moved: Vec<NotMoved>,
    /// How many others stay, by the code of the reason.
    pub not_listed: BTreeMap<&'static str, usize>,
    /// The rules of the policy that are violated before or after the moves, as many as [`crate::limits::Limits`] allows.
    pub violations: Vec<Total>,
    /// How many other rules are violated.
    pub violations_not_listed: usize,
}

/// A pod as a plan names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    /// The precondition of its eviction.
    pub uid: PodUid,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One pod to evict.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Move {
    pub pod: PodName,
    pub workload: Workload,
    pub from: NodeName,
    /// Where the scheduler places the replacement, now that the earlier moves are done; `None`: the pod has finished, and
    /// no replacement follows from its deletion.
    pub to: Option<NodeName>,
    /// How many nodes are as good as that one: the scheduler may choose any of them, and the gains hold for all.
    pub equal_nodes: usize,
    /// Moves of a wave may be carried out together; the next wave waits until the replacements are Ready. From 1.
    pub wave: u32,
    /// It is the replacement of a pod that was moved in an earlier wave: a later move has made this one useful.
    pub is_replacement: bool,
    /// The rule that it is moved for.
    pub rule: &'static str,
    /// Each rule that changes, with its violation before and after the move. None grows.
    pub changes: Vec<Change>,
}

/// How a move changes the violation of a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    pub constraint: Arc<Constraint>,
    pub before: u64,
    pub after: u64,
}

/// A pod that violates a rule of the policy and stays.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NotMoved {
    pub pod: PodName,
    pub node: NodeName,
    pub violates: Vec<Arc<Constraint>>,
    #[serde(serialize_with = "with_sentence")]
    pub reason: Reason,
}

/// The violation of a rule before and after the plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Total {
    pub constraint: Arc<Constraint>,
    pub before: u64,
    pub after: u64,
}

/// The reason with its code and its sentence.
fn with_sentence<S: serde::Serializer>(reason: &Reason, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Shown<'a> {
        #[serde(flatten)]
        reason: &'a Reason,
        message: String,
    }
    let message = reason.to_string();
    Shown { reason, message }.serialize(to)
}

impl Plan {
    /// How many waves there are.
    pub fn waves(&self) -> u32 {
        self.moves.last().map_or(0, |last| last.wave)
    }

    /// How many pods violate a rule and stay, listed or not.
    pub fn pods_that_stay(&self) -> usize {
        self.not_moved.len() + self.not_listed.values().sum::<usize>()
    }

    /// The same by the code of the reason.
    pub fn reasons(&self) -> BTreeMap<&'static str, usize> {
        let mut reasons = self.not_listed.clone();
        for pod in &self.not_moved {
            *reasons.entry(pod.reason.code()).or_default() += 1;
        }
        reasons
    }

    /// How many pods were not simulated, because too many were in vain before.
    pub fn not_simulated(&self) -> usize {
        self.reasons().get(SIMULATION_LIMIT).copied().unwrap_or(0)
    }
}
