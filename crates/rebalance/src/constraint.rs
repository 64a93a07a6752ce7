//! The rules as plans name them: what is violated, and in which unit.

use std::fmt;

use knarr_apimachinery::ids::NodeName;
use serde::Serialize;

/// A rule that can be violated, and the unit of its violation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum Constraint {
    /// Pods above the fewest in a domain plus maxSkew, over all domains.
    TopologySpread {
        namespace: String,
        topology_key: String,
        max_skew: i64,
        when_unsatisfiable: &'static str,
        label_selector: String,
    },
    /// Pairs of pods in one domain, of which one has the term and the other matches it.
    PodAntiAffinity {
        topology_key: String,
        label_selector: String,
    },
    /// Pods with terms for which no other pod is in the domain.
    PodAffinity {
        label_selector: String,
    },
    /// Taints that the pod does not tolerate.
    NodeTaints,
    /// 1: the node does not match.
    RequiredNodeAffinity,
    /// The weights of the terms that the node does not match.
    PreferredNodeAffinity,
    /// Pods of one owner on a node beyond an even distribution over the nodes.
    Duplicates {
        owner: String,
    },
    /// The amount above the target: milli-CPU, bytes, pods, devices.
    NodeUtilization {
        node: NodeName,
        resource: String,
    },
    /// Pods on a node below the thresholds.
    NodeUnderutilization {
        node: NodeName,
    },
    /// 1: the pod is to be replaced.
    PodLifeTime,
    TooManyRestarts,
    FailedPods,
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Constraint::TopologySpread {
                namespace,
                topology_key,
                max_skew,
                when_unsatisfiable,
                label_selector,
            } => write!(
                f,
                "spread of {label_selector} in {namespace} over {topology_key} (maxSkew {max_skew}, {when_unsatisfiable})"
            ),
            Constraint::PodAntiAffinity {
                topology_key,
                label_selector,
            } => write!(f, "anti-affinity to {label_selector} in {topology_key}"),
            Constraint::PodAffinity { label_selector } => write!(f, "affinity to {label_selector}"),
            Constraint::NodeTaints => f.write_str("untolerated taints"),
            Constraint::RequiredNodeAffinity => f.write_str("node affinity"),
            Constraint::PreferredNodeAffinity => f.write_str("preferred node affinity"),
            Constraint::Duplicates { owner } => write!(f, "duplicates of {owner}"),
            Constraint::NodeUtilization { node, resource } => {
                write!(f, "{resource} of node {node} above its target")
            }
            Constraint::NodeUnderutilization { node } => write!(f, "underutilized node {node}"),
            Constraint::PodLifeTime => f.write_str("lifetime"),
            Constraint::TooManyRestarts => f.write_str("restarts"),
            Constraint::FailedPods => f.write_str("failed"),
        }
    }
}
