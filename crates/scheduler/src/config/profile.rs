//! From the parsed configuration to the profiles that the plugins use.

use std::collections::BTreeSet;

use super::{
    ExtensionPoint, KubeSchedulerConfiguration, KubeSchedulerProfile, PodTopologySpreadArgs, ResourceSpec,
    ScoringStrategy,
};
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::Scheduler;
use crate::pod_info::SpreadConstraint;
use crate::profile::{
    FitArgs, InterPodAffinityArgs, NodeAffinityArgs, Profile, ResourceWeight, ShapePoint, SpreadArgs,
    Strategy, system_default_constraints,
};
use crate::queue::Backoffs;

impl KubeSchedulerConfiguration {
    /// A scheduler with an empty snapshot.
    pub fn scheduler(&self) -> Scheduler {
        let backoffs = Backoffs {
            initial: self.pod_initial_backoff,
            max: self.pod_max_backoff,
        };
        Scheduler::new(self.profiles.iter().map(Profile::from).collect(), backoffs)
    }
}

fn weights(resources: &[ResourceSpec]) -> Vec<ResourceWeight> {
    let weight = |r: &ResourceSpec| ResourceWeight {
        name: r.name.clone(),
        weight: r.weight,
    };
    resources.iter().map(weight).collect()
}

impl From<&KubeSchedulerProfile> for Profile {
    fn from(of: &KubeSchedulerProfile) -> Self {
        let default = KubeSchedulerProfile::default();
        let filters_off: BTreeSet<&'static str> = default
            .plugins
            .at(ExtensionPoint::Filter)
            .iter()
            .map(|p| p.name)
            .filter(|name| !of.plugins.is_enabled(ExtensionPoint::Filter, name))
            .collect();
        let args = &of.args;
        let fit = &args.node_resources_fit;
        let shape = |points: &[super::UtilizationShapePoint]| -> Vec<ShapePoint> {
            let point = |p: &super::UtilizationShapePoint| ShapePoint {
                utilization: p.utilization.into(),
                score: p.score.into(),
            };
            points.iter().map(point).collect()
        };
        let added = args.added_node_affinity.as_ref();
        let spread = match &args.pod_topology_spread {
            PodTopologySpreadArgs::System => SpreadArgs {
                default_constraints: system_default_constraints(),
                system: true,
            },
            // None of them has a selector, so all of them parse.
            PodTopologySpreadArgs::List(list) => SpreadArgs {
                default_constraints: list
                    .iter()
                    .filter_map(|c| SpreadConstraint::read(c, None).ok())
                    .collect(),
                system: false,
            },
        };
        Profile {
            scheduler_name: of.scheduler_name.clone(),
            filters_off,
            weights: of
                .plugins
                .at(ExtensionPoint::Score)
                .iter()
                .map(|p| (p.name, i64::from(p.weight)))
                .collect(),
            preemption: of
                .plugins
                .is_enabled(ExtensionPoint::PostFilter, "DefaultPreemption"),
            preemption_budgets: args.preemption.budgets,
            cross_node_preemption: args.preemption.cross_node,
            fit: FitArgs {
                strategy: match &fit.scoring_strategy {
                    ScoringStrategy::LeastAllocated => Strategy::LeastAllocated,
                    ScoringStrategy::MostAllocated => Strategy::MostAllocated,
                    ScoringStrategy::RequestedToCapacityRatio(points) => {
                        Strategy::RequestedToCapacityRatio(shape(points))
                    }
                },
                resources: weights(&fit.resources),
                ignored_resources: fit.ignored_resources.clone(),
                ignored_resource_groups: fit.ignored_resource_groups.clone(),
            },
            balanced: weights(&args.balanced_allocation_resources),
            spread,
            inter_pod_affinity: InterPodAffinityArgs {
                hard_pod_affinity_weight: args.inter_pod_affinity.hard_pod_affinity_weight.into(),
                ignore_preferred_terms_of_existing_pods: args
                    .inter_pod_affinity
                    .ignore_preferred_terms_of_existing_pods,
            },
            node_affinity: NodeAffinityArgs {
                required: added.and_then(|a| a.required_during_scheduling_ignored_during_execution.clone()),
                preferred: added
                    .and_then(|a| a.preferred_during_scheduling_ignored_during_execution.clone())
                    .unwrap_or_default(),
            },
            bind_timeout: SignedDuration::from_secs(args.bind_timeout_seconds),
        }
    }
}
