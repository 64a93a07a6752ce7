//! Why no node fits a pod: the message of the PodScheduled condition.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// For each reason the number of nodes that were rejected with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    pub counts: BTreeMap<Cow<'static, str>, usize>,
}

impl Reasons {
    pub fn add(&mut self, reasons: &[Cow<'static, str>], nodes: usize) {
        if nodes > 0 {
            for reason in reasons {
                *self.counts.entry(reason.clone()).or_default() += nodes;
            }
        }
    }

    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.` Sorted as strings, so `10 …`
    /// comes before `2 …`.
    pub fn message(&self, nodes: usize) -> String {
        let mut all: Vec<String> = self.counts.iter().map(|(why, n)| format!("{n} {why}")).collect();
        all.sort();
        if all.is_empty() {
            return format!("0/{nodes} nodes are available:");
        }
        format!("0/{nodes} nodes are available: {}.", all.join(", "))
    }
}

/// What PostFilter did for a pod that fits no node, as the message reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PostFilter {
    /// It did not run, or preemption found a node.
    #[default]
    Nothing,
    /// PreFilter rejected the pod: a later plugin does not find its own state in CycleState.
    NoState,
    /// A claim that the pod cannot use is deallocated or deleted.
    ClaimFreed(FreedClaim),
    /// The pod may not preempt others.
    NotEligible { why: &'static str, has_claims: bool },
    /// Preemption found no node.
    NoCandidates { why: String, has_claims: bool },
}

/// How a claim is freed so that it can be allocated again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreedClaim {
    Deallocated,
    /// A claim for extended resources belongs to its pod alone.
    Deleted,
}

impl PostFilter {
    /// The same, of a pod with claims, none of which could be freed.
    #[must_use]
    pub fn with_claims(mut self) -> Self {
        if let PostFilter::NotEligible { has_claims, .. } | PostFilter::NoCandidates { has_claims, .. } =
            &mut self
        {
            *has_claims = true;
        }
        self
    }
}

impl fmt::Display for PostFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (why, has_claims) = match self {
            PostFilter::Nothing => return Ok(()),
            PostFilter::NoState => return f.write_str("not found"),
            PostFilter::ClaimFreed(FreedClaim::Deallocated) => {
                return f.write_str("deallocation of ResourceClaim completed");
            }
            PostFilter::ClaimFreed(FreedClaim::Deleted) => {
                return f.write_str("deletion of ResourceClaim completed");
            }
            PostFilter::NotEligible { why, has_claims } => (*why, has_claims),
            PostFilter::NoCandidates { why, has_claims } => (why.as_str(), has_claims),
        };
        let claims = if *has_claims {
            "still not schedulable"
        } else {
            "no new claims to deallocate"
        };
        write!(f, "{claims}, preemption: {why}")
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    pub nodes: usize,
    pub reasons: Reasons,
    /// Why PreFilter rejected the pod, whatever the node.
    pub rejection: Option<Cow<'static, str>>,
    /// The plugins that rejected nodes or the pod (UnschedulablePlugins).
    pub plugins: BTreeSet<&'static str>,
    pub post_filter: PostFilter,
    /// The claim (namespace and name) that is to be deallocated so that it can be allocated where the pod fits.
    pub deallocate: Option<(String, String)>,
    /// A plugin returned an error: the pod is retried after its backoff.
    pub is_error: bool,
    /// Hard PodDisruptionBudgets exclude nodes from preemption: the pod is retried when a budget allows more.
    pub budgets_in_the_way: bool,
    /// Cross-node preemption waits for its rate: the pod is retried after its backoff.
    pub is_rate_limited: bool,
}

impl Diagnosis {
    /// Without what PostFilter reports.
    pub fn unschedulable(&self) -> String {
        if self.is_error {
            return self.rejection.clone().unwrap_or_default().into_owned();
        }
        if self.nodes == 0 {
            return "no nodes available to schedule pods".to_string();
        }
        match &self.rejection {
            Some(why) => format!("0/{} nodes are available: {why}.", self.nodes),
            None => self.reasons.message(self.nodes),
        }
    }

    pub fn message(&self) -> String {
        let message = self.unschedulable();
        match &self.post_filter {
            PostFilter::Nothing => message,
            found => format!("{message} {found}"),
        }
    }
}
