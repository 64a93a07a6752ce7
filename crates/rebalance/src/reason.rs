//! Why a pod that violates a rule is not moved: a code with its data for programs, and a sentence for users.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use knarr_apimachinery::ids::NodeName;
use serde::Serialize;

use crate::constraint::Constraint;

/// The code of [`Reason::SimulationLimit`].
pub const SIMULATION_LIMIT: &str = "SimulationLimit";

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum BudgetOf {
    Policy,
    Node,
    Namespace,
    Workload,
}

/// A rule that a move to the node would violate more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Growth {
    pub node: NodeName,
    pub constraint: Arc<Constraint>,
    pub before: u64,
    pub after: u64,
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Growth {
            constraint,
            before,
            after,
            ..
        } = self;
        write!(
            f,
            "the violation of another rule would grow from {before} to {after}: {constraint}"
        )
    }
}

/// See the module. The codes are the names of the variants.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "code", rename_all_fields = "camelCase")]
pub enum Reason {
    // Pods that no policy moves.
    NoController,
    DaemonSetPod,
    MirrorPod,
    StaticPod,
    Terminating,
    NodeNotReady,
    ResourceClaims,
    OtherScheduler {
        scheduler_name: String,
    },
    /// `knarr.io/rebalance: "false"` on the pod or its namespace.
    OptedOut,
    /// It must not run twice, and has no consent.
    AtMostOne,
    // Pods that the policy protects.
    PreferNoEviction,
    SystemCritical,
    PriorityThreshold {
        priority: i32,
        threshold: i32,
    },
    UnknownPriorityClass {
        name: String,
    },
    LocalStorage,
    PersistentVolumeClaim,
    NoDisruptionBudget,
    MinReplicas {
        replicas: usize,
        min: usize,
    },
    MinPodAge,
    NotSelected,
    // Budgets.
    DisruptionBudget {
        name: String,
    },
    SeveralDisruptionBudgets {
        names: Vec<String>,
    },
    Budget {
        of: BudgetOf,
        name: String,
        used: u32,
        limit: u32,
    },
    // Workloads that a controller holds.
    /// A move of another policy waits for its replacement.
    Moving {
        policy: String,
    },
    /// The same rule has moved it before, as often as was planned at first, and is violated still.
    RepeatedMoves {
        workload: String,
        rule: String,
        moves: usize,
    },
    // What the simulation found.
    /// How many nodes each plugin rejected.
    NoNodeFits {
        rejected_by: BTreeMap<&'static str, usize>,
    },
    Unschedulable {
        error: String,
    },
    /// Other nodes fit it, and none is better. `grows` is what would be violated more on one of them.
    NoBetterNode {
        nodes: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        grows: Option<Growth>,
    },
    /// The scheduler would place it on its node again.
    SameNode,
    NoGain {
        node: NodeName,
    },
    WouldGrow(Growth),
    NodeNotSelected {
        node: NodeName,
    },
    /// The policy waits for more nodes with room (or for a node to move pods to).
    NoUnderutilizedNodes {
        underutilized: usize,
        needed: usize,
    },
    NoMetrics,
    /// Other pods of its kind were moved, and the rule is violated still.
    NotTried,
    /// So many pods were simulated before and stay that it was not.
    SimulationLimit {
        limit: usize,
    },
}

impl Reason {
    /// For events and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::NoController => "NoController",
            Reason::DaemonSetPod => "DaemonSetPod",
            Reason::MirrorPod => "MirrorPod",
            Reason::StaticPod => "StaticPod",
            Reason::Terminating => "Terminating",
            Reason::NodeNotReady => "NodeNotReady",
            Reason::ResourceClaims => "ResourceClaims",
            Reason::OtherScheduler { .. } => "OtherScheduler",
            Reason::OptedOut => "OptedOut",
            Reason::AtMostOne => "AtMostOne",
            Reason::PreferNoEviction => "PreferNoEviction",
            Reason::SystemCritical => "SystemCritical",
            Reason::PriorityThreshold { .. } => "PriorityThreshold",
            Reason::UnknownPriorityClass { .. } => "UnknownPriorityClass",
            Reason::LocalStorage => "LocalStorage",
            Reason::PersistentVolumeClaim => "PersistentVolumeClaim",
            Reason::NoDisruptionBudget => "NoDisruptionBudget",
            Reason::MinReplicas { .. } => "MinReplicas",
            Reason::MinPodAge => "MinPodAge",
            Reason::NotSelected => "NotSelected",
            Reason::DisruptionBudget { .. } => "DisruptionBudget",
            Reason::SeveralDisruptionBudgets { .. } => "SeveralDisruptionBudgets",
            Reason::Budget { .. } => "Budget",
            Reason::Moving { .. } => "Moving",
            Reason::RepeatedMoves { .. } => "RepeatedMoves",
            Reason::NoNodeFits { .. } => "NoNodeFits",
            Reason::Unschedulable { .. } => "Unschedulable",
            Reason::SameNode => "SameNode",
            Reason::NoGain { .. } => "NoGain",
            Reason::NoBetterNode { .. } => "NoBetterNode",
            Reason::WouldGrow(_) => "WouldGrow",
            Reason::NodeNotSelected { .. } => "NodeNotSelected",
            Reason::NoUnderutilizedNodes { .. } => "NoUnderutilizedNodes",
            Reason::NoMetrics => "NoMetrics",
            Reason::NotTried => "NotTried",
            Reason::SimulationLimit { .. } => SIMULATION_LIMIT,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NoController => f.write_str("it has no controller that would create it again"),
            Reason::DaemonSetPod => f.write_str("it belongs to a DaemonSet"),
            Reason::MirrorPod => f.write_str("it is the mirror pod of a static pod"),
            Reason::StaticPod => f.write_str("it is a static pod"),
            Reason::Terminating => f.write_str("it is terminating already"),
            Reason::NodeNotReady => f.write_str("its node is not Ready"),
            Reason::ResourceClaims => f.write_str("it has resource claims, whose devices are not simulated"),
            Reason::OtherScheduler { scheduler_name } => {
                write!(
                    f,
                    "its scheduler is {scheduler_name}, whose decisions are not known here"
                )
            }
            Reason::OptedOut => f.write_str("an annotation of the pod or its namespace forbids it"),
            Reason::AtMostOne => {
                f.write_str("it must never run twice, and no annotation consents to its replacement")
            }
            Reason::PreferNoEviction => f.write_str("its annotation asks not to evict it"),
            Reason::SystemCritical => f.write_str("its priority is that of critical system pods"),
            Reason::PriorityThreshold { priority, threshold } => {
                write!(
                    f,
                    "its priority {priority} is not below the policy's threshold {threshold}"
                )
            }
            Reason::UnknownPriorityClass { name } => {
                write!(
                    f,
                    "the PriorityClass {name} of the policy's threshold does not exist"
                )
            }
            Reason::LocalStorage => f.write_str("it has local storage"),
            Reason::PersistentVolumeClaim => f.write_str("it uses a protected PersistentVolumeClaim"),
            Reason::NoDisruptionBudget => f.write_str("no PodDisruptionBudget selects it"),
            Reason::MinReplicas { replicas, min } => {
                write!(f, "its workload has {replicas} pods, fewer than {min}")
            }
            Reason::MinPodAge => f.write_str("it started too short a time ago"),
            Reason::NotSelected => f.write_str("the policy does not select it"),
            Reason::DisruptionBudget { name } => {
                write!(f, "the PodDisruptionBudget {name} allows no disruption")
            }
            Reason::SeveralDisruptionBudgets { names } => {
                let names = names.join(", ");
                write!(
                    f,
                    "several PodDisruptionBudgets select it ({names}), which the eviction API rejects"
                )
            }
            Reason::Budget {
                of,
                name,
                used,
                limit,
            } => {
                let of = match of {
                    BudgetOf::Policy => "policy",
                    BudgetOf::Node => "node",
                    BudgetOf::Namespace => "namespace",
                    BudgetOf::Workload => "workload",
                };
                write!(
                    f,
                    "{used} of the {limit} moves of an hour are used for {of} {name}"
                )
            }
            Reason::Moving { policy } => {
                write!(f, "a pod of its workload is moved by the policy {policy}")
            }
            Reason::RepeatedMoves {
                workload,
                rule,
                moves,
            } => write!(
                f,
                "{workload} was moved {moves} times for {rule} within the hour, and violates it still"
            ),
            Reason::NoNodeFits { rejected_by } => {
                f.write_str("no other node fits it")?;
                let mut separator = ": ";
                for (plugin, nodes) in rejected_by {
                    write!(f, "{separator}{plugin} rejects {nodes}")?;
                    separator = ", ";
                }
                Ok(())
            }
            Reason::Unschedulable { error } => write!(f, "the scheduler rejects it: {error}"),
            Reason::SameNode => f.write_str("the scheduler would place it on the same node again"),
            Reason::NoGain { node } => {
                write!(
                    f,
                    "the scheduler would place it on {node}, where no rule is violated less"
                )
            }
            Reason::NoBetterNode { nodes, grows } => {
                write!(f, "none of the {nodes} other nodes that fit it is better")?;
                match grows {
                    Some(growth) => write!(f, ": on {}, {growth}", growth.node),
                    None => Ok(()),
                }
            }
            Reason::WouldGrow(growth) => {
                write!(f, "the scheduler would place it on {}, and {growth}", growth.node)
            }
            Reason::NodeNotSelected { node } => {
                write!(
                    f,
                    "the scheduler would place it on {node}, which the policy does not select"
                )
            }
            Reason::NoUnderutilizedNodes {
                underutilized,
                needed,
            } => write!(f, "{underutilized} nodes are underutilized, fewer than {needed}"),
            Reason::NoMetrics => f.write_str("its usage is not known"),
            Reason::NotTried => f.write_str("the budgets were used before it was tried"),
            Reason::SimulationLimit { limit } => {
                write!(
                    f,
                    "it was not simulated: at most {limit} pods that stay are simulated for a plan"
                )
            }
        }
    }
}
