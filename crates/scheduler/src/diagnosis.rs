//! Why no node takes a pod, in the words of the PodScheduled condition.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// How many nodes each reason stands against.
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

    /// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.` Sorted as text, so that ten come
    /// before two.
    pub fn message(&self, nodes: usize) -> String {
        let mut all: Vec<String> = self.counts.iter().map(|(why, n)| format!("{n} {why}")).collect();
        all.sort();
        if all.is_empty() {
            return format!("0/{nodes} nodes are available:");
        }
        format!("0/{nodes} nodes are available: {}.", all.join(", "))
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    pub nodes: usize,
    pub reasons: Reasons,
    /// What stands against the pod itself, whatever the node.
    pub rejection: Option<Cow<'static, str>>,
    /// The plugins that refused.
    pub by: BTreeSet<&'static str>,
    /// What making room came to; empty: it was not tried, or has nothing to say.
    pub preemption: String,
    /// The claim (namespace and name) that is to be deallocated so that it can be allocated where the pod can run.
    pub deallocate: Option<(String, String)>,
    /// The scheduler could not judge the pod; it is to be tried again by itself.
    pub is_error: bool,
}

impl Diagnosis {
    /// Without what preemption says.
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
        if self.preemption.is_empty() {
            message
        } else {
            format!("{message} {}", self.preemption)
        }
    }
}
