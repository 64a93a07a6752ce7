//! The rules of the cluster that a plan restores and guards, as numbers: the violation of each, kept up with every move of
//! a pod. Nothing here iterates over pods after [`Rules::new`]; pods of one class (of equal metadata and spec, as far as
//! the scheduler reads them) are counted together.
//!
//! The rules that pods require (DoNotSchedule, required terms) are guarded whatever the policy: no move makes them worse.
//! Preferences and the utilization of nodes are guarded where the policy names them.

pub(crate) mod affinity;
mod build;
pub(crate) mod domains;
pub(crate) mod duplicates;
pub(crate) mod effect;
pub(crate) mod pod;
pub(crate) mod spread;
pub(crate) mod utilization;

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_scheduler::Cluster;
use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::pod_info::{ClassId, PodClass, PodInfo};

use crate::constraint::Constraint;
use crate::policy::{NodeTaints, Policy, Rule, StrategySet};
use crate::snapshot::Workload;
use affinity::{AffinityRule, AntiAffinityRule, Role};
use duplicates::DuplicatesRule;
use spread::SpreadRule;
use utilization::{HighRule, Load, LowRule, Measured};

/// The number of a class of pods here.
pub(crate) type ClassNumber = usize;

/// The pods of a class with the rules that count them.
#[derive(Debug)]
pub(crate) struct ClassRules {
    pub class: Arc<PodClass>,
    /// `None`: its pods have no controller.
    pub workload: Option<Workload>,
    /// Those with the class in their scope.
    pub strategies: StrategySet,
    pub spread: Vec<usize>,
    pub anti_affinity: Vec<(usize, Role)>,
    pub affinity: Vec<(usize, Role)>,
    pub duplicates: Option<usize>,
    /// The PodDisruptionBudgets that select it.
    pub disruption_budgets: Vec<usize>,
    /// Pods on each node, terminating ones excepted.
    pub nodes: BTreeMap<NodeIndex, u32>,
    /// The smallest weight of preferred node affinity that a possible node misses.
    pub least_missed_weight: u64,
}

/// The strategies of each rule.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Masks {
    pub do_not_schedule: StrategySet,
    pub schedule_anyway: StrategySet,
    pub node_taints: StrategySet,
    pub pod_anti_affinity: StrategySet,
    pub pod_affinity: StrategySet,
    pub required_node_affinity: StrategySet,
    pub preferred_node_affinity: StrategySet,
    pub duplicates: StrategySet,
    pub pods: StrategySet,
}

impl Masks {
    fn of(policy: &Policy) -> Self {
        let mut masks = Masks::default();
        for (position, (_, strategy)) in policy.strategies().enumerate() {
            match &strategy.rule {
                Rule::TopologySpread(spread) => {
                    if spread.do_not_schedule {
                        masks.do_not_schedule.insert(position);
                    }
                    if spread.schedule_anyway {
                        masks.schedule_anyway.insert(position);
                    }
                }
                Rule::NodeTaints(_) => masks.node_taints.insert(position),
                Rule::PodAntiAffinity => masks.pod_anti_affinity.insert(position),
                Rule::PodAffinity => masks.pod_affinity.insert(position),
                Rule::NodeAffinity(affinity) => {
                    if affinity.required {
                        masks.required_node_affinity.insert(position);
                    }
                    if affinity.preferred {
                        masks.preferred_node_affinity.insert(position);
                    }
                }
                Rule::Duplicates => masks.duplicates.insert(position),
                Rule::PodLifeTime(_) | Rule::TooManyRestarts(_) | Rule::FailedPods(_) => {
                    masks.pods.insert(position);
                }
                Rule::LowNodeUtilization(_) | Rule::HighNodeUtilization(_) => {}
            }
        }
        masks
    }

    pub fn spread(&self, hard: bool) -> StrategySet {
        if hard {
            self.do_not_schedule
        } else {
            self.schedule_anyway
        }
    }
}

/// A rule, for a class and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RuleRef {
    RequiredNodeAffinity,
    /// Of the strategy with this position.
    NodeTaints(usize),
    PodAntiAffinity(usize),
    PodAffinity(usize),
    TopologySpread(usize),
    PreferredNodeAffinity,
    Duplicates(usize),
    Low {
        rule: usize,
        resource: usize,
        node: NodeIndex,
    },
    High {
        rule: usize,
        node: NodeIndex,
    },
    /// Of the strategy with this position, on the pod alone.
    Pod(usize),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rules {
    pub masks: Masks,
    pub classes: Vec<ClassRules>,
    numbers: BTreeMap<ClassId, ClassNumber>,
    pub spread: Vec<SpreadRule>,
    pub anti_affinity: Vec<AntiAffinityRule>,
    pub affinity: Vec<AffinityRule>,
    pub duplicates: Vec<DuplicatesRule>,
    /// The classes that each rule counts.
    pub spread_classes: Vec<Vec<ClassNumber>>,
    pub anti_affinity_classes: Vec<Vec<ClassNumber>>,
    pub affinity_classes: Vec<Vec<ClassNumber>>,
    pub duplicates_classes: Vec<Vec<ClassNumber>>,
    /// With the positions of their strategies.
    pub low: Vec<(usize, LowRule)>,
    pub high: Vec<(usize, HighRule)>,
    pub taints: Vec<(usize, NodeTaints)>,
    pub measured: Measured,
    names: BTreeMap<RuleRef, Arc<Constraint>>,
}

impl Rules {
    /// The number of the pod's class; `None`: there were no pods of it when the plan began.
    pub fn number(&self, pod: &PodInfo) -> Option<ClassNumber> {
        self.numbers.get(&pod.class.id).copied()
    }

    pub fn number_of(&self, id: ClassId) -> Option<ClassNumber> {
        self.numbers.get(&id).copied()
    }

    pub fn load<'a>(&'a self, cluster: &'a Cluster) -> Load<'a> {
        Load {
            cluster,
            measured: &self.measured,
        }
    }

    /// Counts a pod on its new node. The cluster is counted separately.
    pub fn add(&mut self, cluster: &Cluster, number: ClassNumber, node: NodeIndex, pod: &PodInfo) {
        let Some(class) = self.classes.get_mut(number) else {
            return;
        };
        *class.nodes.entry(node).or_default() += 1;
        for rule in &class.spread {
            self.spread[*rule].add(node, 1);
        }
        for (rule, role) in &class.anti_affinity {
            self.anti_affinity[*rule].add(cluster, node, *role, 1);
        }
        for (rule, role) in &class.affinity {
            self.affinity[*rule].add(cluster, node, *role, 1);
        }
        if let Some(rule) = class.duplicates {
            self.duplicates[rule].add(node);
        }
        self.measured.add(node, pod);
    }

    /// Counts a pod no more on its node.
    pub fn remove(&mut self, cluster: &Cluster, number: ClassNumber, node: NodeIndex, pod: &PodInfo) {
        let Some(class) = self.classes.get_mut(number) else {
            return;
        };
        if let Some(pods) = class.nodes.get_mut(&node) {
            *pods -= 1;
            if *pods == 0 {
                class.nodes.remove(&node);
            }
        }
        for rule in &class.spread {
            self.spread[*rule].remove(node);
        }
        for (rule, role) in &class.anti_affinity {
            self.anti_affinity[*rule].remove(cluster, node, *role);
        }
        for (rule, role) in &class.affinity {
            self.affinity[*rule].remove(cluster, node, *role);
        }
        if let Some(rule) = class.duplicates {
            self.duplicates[rule].remove(node);
        }
        self.measured.remove(node, pod);
    }

    /// The rules that a pod on the node violates, of those that the policy restores for the class, `pods` being the
    /// strategies that would replace the pod itself.
    pub fn violated(
        &self,
        cluster: &Cluster,
        number: ClassNumber,
        node: NodeIndex,
        pods: StrategySet,
    ) -> Vec<RuleRef> {
        let class = &self.classes[number];
        let info = cluster.at(node);
        let wants = |mask: StrategySet| class.strategies.meets(mask);
        let mut violated = Vec::new();
        if wants(self.masks.required_node_affinity)
            && !knarr_scheduler::plugins::node_affinity::meets_required(&class.class, info)
        {
            violated.push(RuleRef::RequiredNodeAffinity);
        }
        for (position, taints) in self.taints.iter().filter(|(p, _)| class.strategies.contains(*p)) {
            if pod::untolerated(taints, &class.class, info) > 0 {
                violated.push(RuleRef::NodeTaints(*position));
            }
        }
        if wants(self.masks.pod_anti_affinity) {
            let mut of = class.anti_affinity.iter();
            let is_violated =
                |(rule, role): &&(usize, Role)| self.anti_affinity[*rule].pairs(cluster, node, *role) > 0;
            let all = of.by_ref().filter(is_violated);
            violated.extend(all.map(|(rule, _)| RuleRef::PodAntiAffinity(*rule)));
        }
        if wants(self.masks.pod_affinity) {
            let is_violated =
                |(rule, role): &&(usize, Role)| self.affinity[*rule].lonely(cluster, node, *role) > 0;
            let all = class.affinity.iter().filter(is_violated);
            violated.extend(all.map(|(rule, _)| RuleRef::PodAffinity(*rule)));
        }
        for rule in &class.spread {
            let of = &self.spread[*rule];
            if wants(self.masks.spread(of.constraint.hard)) && of.excess(node) > 0 {
                violated.push(RuleRef::TopologySpread(*rule));
            }
        }
        if wants(self.masks.preferred_node_affinity)
            && pod::missed_weight(&class.class, info) > class.least_missed_weight
        {
            violated.push(RuleRef::PreferredNodeAffinity);
        }
        if let Some(rule) = class.duplicates.filter(|_| wants(self.masks.duplicates))
            && self.duplicates[rule].excess(node) > 0
        {
            violated.push(RuleRef::Duplicates(rule));
        }
        let load = self.load(cluster);
        for (rule, (position, low)) in self.low.iter().enumerate() {
            for (resource, _) in low.resources() {
                if class.strategies.contains(*position) && low.value(resource, node, load) > 0 {
                    violated.push(RuleRef::Low { rule, resource, node });
                }
            }
        }
        for (rule, (position, high)) in self.high.iter().enumerate() {
            if class.strategies.contains(*position) && high.value(cluster, node) > 0 {
                violated.push(RuleRef::High { rule, node });
            }
        }
        let pods = pods.and(class.strategies);
        violated.extend(
            (0..crate::policy::STRATEGIES_MAX)
                .filter(|p| pods.contains(*p))
                .map(RuleRef::Pod),
        );
        violated
    }
}
