//! What a rebalancer may do: which rules it is to restore, for which pods, how many pods it may move, and which pods it
//! must leave alone. The same types for a RebalancePolicy ([`rebalance_policy`]) and for the descheduler's
//! DeschedulerPolicy ([`descheduler`]). A policy that was read is possible: impossible values are errors of the reader.

pub mod descheduler;
mod fields;
pub mod rebalance_policy;
pub(crate) mod strategy_args;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_apimachinery::labels::Selector;
use knarr_scheduler::pod_info::Labels;

/// The most strategies of a policy: a set of them is one number.
pub const STRATEGIES_MAX: usize = 64;

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub name: String,
    /// The plan is only shown. A DeschedulerPolicy is read with `true`, too: the descheduler has a flag for it.
    pub dry_run: bool,
    pub profiles: Vec<Profile>,
    /// Pods are moved away from these nodes only; `None`: from all.
    pub node_selector: Option<Selector>,
    pub budgets: Budgets,
    /// `deleteOptions.gracePeriodSeconds` of the evictions; `None`: the pod's own.
    pub grace_period_seconds: Option<i64>,
}

/// A policy and what of its document has no effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Read {
    pub policy: Policy,
    /// `path: why`.
    pub ignored: Vec<String>,
}

/// Strategies with the protections of the pods that they may move.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub name: String,
    pub protections: Protections,
    pub strategies: Vec<Strategy>,
}

/// How many pods may be moved. `None` is unlimited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// In the hour before the plan and by the plan.
    pub per_hour: Option<u32>,
    /// Away from one node.
    pub per_node: Option<u32>,
    pub per_namespace: Option<u32>,
    pub per_workload: Option<u32>,
    /// How many pods of one workload may be replaced at the same time: the others wait for a later wave.
    pub at_once_per_workload: u32,
}

impl Budgets {
    pub const UNLIMITED: Budgets = Budgets {
        per_hour: None,
        per_node: None,
        per_namespace: None,
        per_workload: None,
        at_once_per_workload: 1,
    };
}

/// Pods that a profile does not move. Which pods are never moved by any policy: [`crate::protection`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Protections {
    /// Only pods that it selects are moved.
    pub label_selector: Option<Selector>,
    /// Only pods of namespaces that it selects are moved.
    pub namespace_selector: Option<Selector>,
    /// Only to nodes that it selects.
    pub node_selector: Option<Selector>,
    /// Pods of this priority or a higher one are not moved.
    pub priority_threshold: Option<PriorityThreshold>,
    /// Pods of workloads with fewer pods are not moved.
    pub min_replicas: usize,
    /// Pods that started later than this are not moved.
    pub min_pod_age: Option<SignedDuration>,
    /// Pods with `descheduler.alpha.kubernetes.io/prefer-no-eviction` are not moved; else they are the last.
    pub preference_is_mandatory: bool,
    /// Pods with emptyDir or hostPath volumes.
    pub local_storage: bool,
    /// Pods of priority 2 000 000 000 and higher.
    pub system_critical: bool,
    pub persistent_volume_claims: Option<ProtectedClaims>,
    /// Pods that no PodDisruptionBudget selects.
    pub without_disruption_budget: bool,
}

impl Protections {
    /// The default, as of the descheduler's DefaultEvictor.
    pub fn usual() -> Self {
        Protections {
            local_storage: true,
            system_critical: true,
            ..Protections::default()
        }
    }
}

/// Which pods with PersistentVolumeClaims are not moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtectedClaims {
    All,
    /// Those with claims of these storage classes.
    StorageClasses(BTreeSet<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorityThreshold {
    Value(i32),
    /// The value of this PriorityClass.
    Class(String),
}

/// A rule that the pods in its scope are moved for.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    pub scope: Scope,
    pub rule: Rule,
}

/// Which pods a strategy is for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scope {
    pub namespaces: Names,
    pub label_selector: Option<Selector>,
    /// Kinds of the pods' owners.
    pub owner_kinds: Names,
}

/// A choice of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    #[default]
    All,
    Only(BTreeSet<String>),
    Except(BTreeSet<String>),
}

impl Names {
    pub fn includes(&self, name: &str) -> bool {
        match self {
            Names::All => true,
            Names::Only(names) => names.contains(name),
            Names::Except(names) => !names.contains(name),
        }
    }

    /// For a pod with several owners, as the descheduler: one included owner is enough, one excluded is too many.
    pub fn include_owners<'a>(&self, mut kinds: impl Iterator<Item = &'a str>) -> bool {
        match self {
            Names::All => true,
            Names::Only(names) => kinds.any(|kind| names.contains(kind)),
            Names::Except(names) => !kinds.any(|kind| names.contains(kind)),
        }
    }
}

impl Scope {
    pub fn includes<'a>(
        &self,
        namespace: &str,
        labels: Option<&Labels>,
        owners: impl Iterator<Item = &'a str>,
    ) -> bool {
        self.namespaces.includes(namespace)
            && self.label_selector.as_ref().is_none_or(|s| s.matches(labels))
            && self.owner_kinds.include_owners(owners)
    }
}

/// What is restored.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    TopologySpread(TopologySpread),
    NodeTaints(NodeTaints),
    PodAntiAffinity,
    PodAffinity,
    NodeAffinity(NodeAffinity),
    Duplicates,
    LowNodeUtilization(LowNodeUtilization),
    HighNodeUtilization(HighNodeUtilization),
    PodLifeTime(PodLifeTime),
    TooManyRestarts(TooManyRestarts),
    FailedPods(FailedPods),
}

/// Topology spread constraints with these values of whenUnsatisfiable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologySpread {
    pub do_not_schedule: bool,
    pub schedule_anyway: bool,
}

/// Taints that a pod does not tolerate (any more).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTaints {
    pub include_prefer_no_schedule: bool,
    /// `key` or `key=value`; `None`: all.
    pub included: Option<BTreeSet<String>>,
    pub excluded: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAffinity {
    /// nodeSelector and requiredDuringSchedulingIgnoredDuringExecution.
    pub required: bool,
    /// preferredDuringSchedulingIgnoredDuringExecution: where another node has a larger weight.
    pub preferred: bool,
}

/// Percent of the allocatable amount of each resource.
pub type Thresholds = BTreeMap<String, f64>;

/// Pods of nodes that are above a target are moved while other nodes are below the thresholds.
#[derive(Clone, Debug, PartialEq)]
pub struct LowNodeUtilization {
    /// A node with less of each resource is underutilized.
    pub thresholds: Thresholds,
    /// A node with more of any resource is overutilized. The same resources as in `thresholds`.
    pub target_thresholds: Thresholds,
    /// Both are distances from the utilization of all nodes together.
    pub deviation: bool,
    /// Nothing is moved while no more nodes than this are underutilized.
    pub number_of_nodes: usize,
    /// Measured usage counts, not requests.
    pub measured: bool,
}

/// Pods of nodes that are below the thresholds are moved to nodes that are not.
#[derive(Clone, Debug, PartialEq)]
pub struct HighNodeUtilization {
    pub thresholds: Thresholds,
    pub number_of_nodes: usize,
    /// Only pods that request one of the resources of the thresholds.
    pub only_thresholding_resources: bool,
}

/// Pods of a state for too long are replaced. All criteria that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodLifeTime {
    pub max_seconds: Option<i64>,
    /// Phases, the pod's reason, reasons of waiting and terminated containers.
    pub states: BTreeSet<String>,
    /// One of them must match a condition of the pod.
    pub conditions: Vec<ConditionFilter>,
    pub exit_codes: BTreeSet<i32>,
    pub init_containers: bool,
    pub ephemeral_containers: bool,
}

/// Empty fields match everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConditionFilter {
    pub condition_type: String,
    pub status: String,
    pub reason: String,
    pub min_seconds_since_transition: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TooManyRestarts {
    /// So many restarts of all containers together, or more.
    pub threshold: i64,
    pub init_containers: bool,
    /// Empty: any state. Phases, and reasons of waiting containers.
    pub states: BTreeSet<String>,
}

/// Failed pods that their controller has not deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedPods {
    pub min_seconds: Option<i64>,
    pub reasons: BTreeSet<String>,
    pub exit_codes: BTreeSet<i32>,
    pub init_containers: bool,
}

impl Rule {
    /// What plans and messages call it.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::TopologySpread(_) => "TopologySpread",
            Rule::NodeTaints(_) => "NodeTaints",
            Rule::PodAntiAffinity => "PodAntiAffinity",
            Rule::PodAffinity => "PodAffinity",
            Rule::NodeAffinity(_) => "NodeAffinity",
            Rule::Duplicates => "Duplicates",
            Rule::LowNodeUtilization(_) => "LowNodeUtilization",
            Rule::HighNodeUtilization(_) => "HighNodeUtilization",
            Rule::PodLifeTime(_) => "PodLifeTime",
            Rule::TooManyRestarts(_) => "TooManyRestarts",
            Rule::FailedPods(_) => "FailedPods",
        }
    }
}

impl Policy {
    /// All strategies with their profile, in order: the bit of a strategy in a [`StrategySet`] is its position.
    pub fn strategies(&self) -> impl Iterator<Item = (&Profile, &Strategy)> {
        let profiles = self.profiles.iter();
        profiles
            .flat_map(|profile| profile.strategies.iter().map(move |strategy| (profile, strategy)))
            .take(STRATEGIES_MAX)
    }
}

/// Strategies of a policy, by position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StrategySet(u64);

impl StrategySet {
    pub const NONE: StrategySet = StrategySet(0);

    pub fn insert(&mut self, position: usize) {
        self.0 |= 1 << (position % STRATEGIES_MAX);
    }

    pub fn contains(self, position: usize) -> bool {
        self.0 & (1 << (position % STRATEGIES_MAX)) != 0
    }

    pub fn and(self, other: StrategySet) -> StrategySet {
        StrategySet(self.0 & other.0)
    }

    pub fn or(self, other: StrategySet) -> StrategySet {
        StrategySet(self.0 | other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn meets(self, other: StrategySet) -> bool {
        self.0 & other.0 != 0
    }
}
