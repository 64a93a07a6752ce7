//! A scheduler profile: which plugins filter and score, with which weights and arguments. The default is that of
//! v1.36.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{NodeSelector, PreferredSchedulingTerm};
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::pod_info::SpreadConstraint;

/// The scheduler of pods without `spec.schedulerName`.
pub const DEFAULT_SCHEDULER_NAME: &str = "default-scheduler";

/// The default of `bindTimeoutSeconds`.
const BIND_TIMEOUT: SignedDuration = SignedDuration::from_secs(600);

/// A resource and its weight in a score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceWeight {
    pub name: String,
    pub weight: i64,
}

/// A point of the shape of RequestedToCapacityRatio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapePoint {
    /// Percent.
    pub utilization: i64,
    /// 0 to 10.
    pub score: i64,
}

/// The scoring strategy of NodeResourcesFit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    RequestedToCapacityRatio(Vec<ShapePoint>),
}

/// NodeResourcesFitArgs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitArgs {
    pub strategy: Strategy,
    pub resources: Vec<ResourceWeight>,
    pub ignored_resources: BTreeSet<String>,
    pub ignored_resource_groups: BTreeSet<String>,
}

/// PodTopologySpreadArgs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadArgs {
    /// Without selectors: those are computed for each pod.
    pub default_constraints: Vec<SpreadConstraint>,
    /// Whether those are the system defaults, which do not require all their topology keys.
    pub system: bool,
}

/// InterPodAffinityArgs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterPodAffinityArgs {
    pub hard_pod_affinity_weight: i64,
    pub ignore_preferred_terms_of_existing_pods: bool,
}

/// NodeAffinityArgs: `addedAffinity`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeAffinityArgs {
    pub required: Option<NodeSelector>,
    pub preferred: Vec<PreferredSchedulingTerm>,
}

/// How preemption treats PodDisruptionBudgets (SPEC B6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreemptionBudgets {
    /// As in kube-scheduler: victims that violate none are preferred.
    #[default]
    BestEffort,
    /// None is ever violated.
    Hard,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    pub scheduler_name: String,
    /// Plugins of the default set that do not filter here.
    pub filters_off: BTreeSet<&'static str>,
    /// Those that score, with their weights.
    pub weights: BTreeMap<&'static str, i64>,
    /// Whether DefaultPreemption is enabled.
    pub preemption: bool,
    pub preemption_budgets: PreemptionBudgets,
    /// Whether pods may request cross-node preemption (SPEC B5).
    pub cross_node_preemption: bool,
    pub fit: FitArgs,
    pub balanced: Vec<ResourceWeight>,
    pub spread: SpreadArgs,
    pub inter_pod_affinity: InterPodAffinityArgs,
    pub node_affinity: NodeAffinityArgs,
    /// `bindTimeoutSeconds` of VolumeBinding.
    pub bind_timeout: SignedDuration,
}

/// cpu and memory, with equal weight.
pub fn default_resources() -> Vec<ResourceWeight> {
    let resource = |name: &str| ResourceWeight {
        name: name.into(),
        weight: 1,
    };
    vec![resource("cpu"), resource("memory")]
}

/// The system default constraints for pods that have none.
pub fn system_default_constraints() -> Vec<SpreadConstraint> {
    let soft = |key: &str, max_skew| SpreadConstraint {
        hard: false,
        max_skew,
        min_domains: 1,
        topology_key: key.into(),
        selector: None,
        honor_node_affinity: true,
        honor_node_taints: false,
    };
    vec![
        soft("kubernetes.io/hostname", 3),
        soft("topology.kubernetes.io/zone", 5),
    ]
}

impl Default for Profile {
    fn default() -> Self {
        let weights = [
            ("TaintToleration", 3),
            ("NodeAffinity", 2),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
            ("DynamicResources", 2),
            ("NodeResourcesFit", 1),
            ("NodeResourcesBalancedAllocation", 1),
            ("ImageLocality", 1),
        ];
        Profile {
            scheduler_name: DEFAULT_SCHEDULER_NAME.into(),
            filters_off: BTreeSet::new(),
            weights: weights.into_iter().collect(),
            preemption: true,
            preemption_budgets: PreemptionBudgets::BestEffort,
            cross_node_preemption: false,
            fit: FitArgs {
                strategy: Strategy::LeastAllocated,
                resources: default_resources(),
                ignored_resources: BTreeSet::new(),
                ignored_resource_groups: BTreeSet::new(),
            },
            balanced: default_resources(),
            spread: SpreadArgs {
                default_constraints: system_default_constraints(),
                system: true,
            },
            inter_pod_affinity: InterPodAffinityArgs {
                hard_pod_affinity_weight: 1,
                ignore_preferred_terms_of_existing_pods: false,
            },
            node_affinity: NodeAffinityArgs::default(),
            bind_timeout: BIND_TIMEOUT,
        }
    }
}

impl Profile {
    pub fn filters(&self, plugin: &str) -> bool {
        !self.filters_off.contains(plugin)
    }

    /// 0: it does not score.
    pub fn weight(&self, plugin: &str) -> i64 {
        self.weights.get(plugin).copied().unwrap_or(0)
    }
}
