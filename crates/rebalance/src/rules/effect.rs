//! What the move of one pod does to every rule that counts it: the violations before, and those after for any node that it
//! may be placed on. Asked for many nodes while the pod is counted nowhere.

use knarr_scheduler::Cluster;
use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::plugins::node_affinity::meets_required;
use knarr_scheduler::pod_info::PodInfo;

use super::utilization::Gate;
use super::{ClassNumber, RuleRef, Rules, pod};
use crate::policy::StrategySet;

/// A pod that is about to move, with the violations of its rules on its node.
#[derive(Debug)]
pub(crate) struct Mover<'a> {
    pub pod: &'a PodInfo,
    pub number: ClassNumber,
    pub from: NodeIndex,
    /// The strategies that it may be moved for.
    pub active: StrategySet,
    /// Those of them that replace it wherever it is placed.
    pub replaced_for: StrategySet,
    before: Before,
}

/// In the order of the class' lists.
#[derive(Debug, Default)]
struct Before {
    spread: Vec<u64>,
    anti_affinity: Vec<u64>,
    affinity: Vec<u64>,
    duplicates: u64,
    low: Vec<u64>,
    high: Vec<u64>,
    taints: Vec<u64>,
    required: u64,
    missed_weight: u64,
}

/// The result for one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Good,
    NoGain,
    Grows { rule: RuleRef, before: u64, after: u64 },
}

/// Whether the strategies on nodes' utilization move pods at present, in the order of the rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gates {
    pub low: Vec<Gate>,
    pub high: Vec<Gate>,
}

/// A rule with its violation before and after, and whether less of it is a reason to move the pod.
struct Effect {
    rule: RuleRef,
    before: u64,
    after: u64,
    is_goal: bool,
}

impl Rules {
    pub fn gates(&self, cluster: &Cluster) -> Gates {
        let load = self.load(cluster);
        Gates {
            low: self.low.iter().map(|(_, rule)| rule.gate(load)).collect(),
            high: self.high.iter().map(|(_, rule)| rule.gate(cluster)).collect(),
        }
    }

    /// The pod is still counted on its node.
    pub fn mover<'a>(
        &self,
        cluster: &Cluster,
        pod: &'a PodInfo,
        number: ClassNumber,
        from: NodeIndex,
        active: StrategySet,
        replaced_for: StrategySet,
    ) -> Mover<'a> {
        let class = &self.classes[number];
        let node = cluster.at(from);
        let load = self.load(cluster);
        let mut before = Before {
            spread: class
                .spread
                .iter()
                .map(|rule| self.spread[*rule].value())
                .collect(),
            duplicates: class.duplicates.map_or(0, |rule| self.duplicates[rule].value()),
            required: u64::from(!meets_required(&class.class, node)),
            missed_weight: pod::missed_weight(&class.class, node),
            ..Before::default()
        };
        let anti = class.anti_affinity.iter();
        before.anti_affinity = anti.map(|(rule, _)| self.anti_affinity[*rule].value()).collect();
        let near = class.affinity.iter();
        before.affinity = near.map(|(rule, _)| self.affinity[*rule].value()).collect();
        for (_, low) in &self.low {
            let resources = low.resources();
            before
                .low
                .extend(resources.map(|(resource, _)| low.value(resource, from, load)));
        }
        for (_, high) in &self.high {
            before.high.push(high.value(cluster, from));
        }
        let taints = self.taints.iter();
        before.taints = taints
            .map(|(_, policy)| pod::untolerated(policy, &class.class, node))
            .collect();
        Mover {
            pod,
            number,
            from,
            active,
            replaced_for,
            before,
        }
    }

    /// Visits each rule that the move may change. The pod is counted nowhere.
    fn effects(
        &self,
        cluster: &Cluster,
        gates: &Gates,
        mover: &Mover,
        to: NodeIndex,
        visit: &mut dyn FnMut(Effect),
    ) {
        let class = &self.classes[mover.number];
        let masks = &self.masks;
        let active = mover.active;
        let before = &mover.before;
        let mut put = |rule, before, after, is_goal| {
            visit(Effect {
                rule,
                before,
                after,
                is_goal,
            });
        };
        let node = cluster.at(to);
        let affine = u64::from(!meets_required(&class.class, node));
        let goal = active.meets(masks.required_node_affinity);
        put(RuleRef::RequiredNodeAffinity, before.required, affine, goal);
        for ((position, policy), before) in self.taints.iter().zip(&before.taints) {
            if class.strategies.contains(*position) {
                let after = pod::untolerated(policy, &class.class, node);
                let goal = active.contains(*position);
                put(RuleRef::NodeTaints(*position), *before, after, goal);
            }
        }
        for ((rule, role), before) in class.anti_affinity.iter().zip(&before.anti_affinity) {
            let after = self.anti_affinity[*rule].value_with(cluster, to, *role);
            let goal = active.meets(masks.pod_anti_affinity);
            put(RuleRef::PodAntiAffinity(*rule), *before, after, goal);
        }
        for ((rule, role), before) in class.affinity.iter().zip(&before.affinity) {
            let after = self.affinity[*rule].value_with(cluster, to, *role);
            let goal = active.meets(masks.pod_affinity);
            put(RuleRef::PodAffinity(*rule), *before, after, goal);
        }
        for (rule, before) in class.spread.iter().zip(&before.spread) {
            let of = &self.spread[*rule];
            let goal = active.meets(masks.spread(of.constraint.hard));
            let after = of.value_with(to);
            put(RuleRef::TopologySpread(*rule), *before, after, goal);
        }
        if class.strategies.meets(masks.preferred_node_affinity) {
            let after = pod::missed_weight(&class.class, node);
            let goal = active.meets(masks.preferred_node_affinity);
            put(RuleRef::PreferredNodeAffinity, before.missed_weight, after, goal);
        }
        if let Some(rule) = class.duplicates {
            let after = self.duplicates[rule].value_with(to);
            let goal = active.meets(masks.duplicates);
            put(RuleRef::Duplicates(rule), before.duplicates, after, goal);
        }
        if to != mover.from {
            self.effects_on_nodes(cluster, gates, mover, to, &mut put);
        }
        for position in 0..crate::policy::STRATEGIES_MAX {
            if mover.replaced_for.contains(position) {
                put(RuleRef::Pod(position), 1, 0, active.contains(position));
            }
        }
    }

    fn effects_on_nodes(
        &self,
        cluster: &Cluster,
        gates: &Gates,
        mover: &Mover,
        to: NodeIndex,
        put: &mut impl FnMut(RuleRef, u64, u64, bool),
    ) {
        let load = self.load(cluster);
        let from = mover.from;
        let mut before = mover.before.low.iter();
        for (rule, (position, low)) in self.low.iter().enumerate() {
            let goal = mover.active.contains(*position) && gates.low.get(rule) == Some(&Gate::Open);
            for (resource, _) in low.resources() {
                let there = before.next().copied().unwrap_or(0);
                let of = |node| RuleRef::Low { rule, resource, node };
                put(of(from), there, low.value(resource, from, load), goal);
                let here = low.value(resource, to, load);
                let with = low.value_with(resource, to, load, mover.pod);
                put(of(to), here, with, goal);
            }
        }
        for ((rule, (position, high)), there) in self.high.iter().enumerate().zip(&mover.before.high) {
            let goal = mover.active.contains(*position)
                && gates.high.get(rule) == Some(&Gate::Open)
                && high.moves(mover.pod);
            let of = |node| RuleRef::High { rule, node };
            put(of(from), *there, high.value(cluster, from), goal);
            let here = high.value(cluster, to);
            put(of(to), here, high.value_with(cluster, to, mover.pod), goal);
        }
    }

    /// Whether the pod may be placed on the node: nothing grows, and a goal shrinks.
    pub fn check(&self, cluster: &Cluster, gates: &Gates, mover: &Mover, to: NodeIndex) -> Verdict {
        let mut verdict = Verdict::NoGain;
        self.effects(cluster, gates, mover, to, &mut |effect| {
            let Effect {
                rule,
                before,
                after,
                is_goal,
            } = effect;
            if matches!(verdict, Verdict::Grows { .. }) {
                return;
            }
            if after > before {
                verdict = Verdict::Grows { rule, before, after };
            } else if after < before && is_goal {
                verdict = Verdict::Good;
            }
        });
        verdict
    }

    /// All that changes, goals first.
    pub fn changes(
        &self,
        cluster: &Cluster,
        gates: &Gates,
        mover: &Mover,
        to: NodeIndex,
    ) -> Vec<(RuleRef, u64, u64)> {
        let mut changes = Vec::new();
        self.effects(cluster, gates, mover, to, &mut |effect| {
            if effect.before != effect.after {
                changes.push((!effect.is_goal, effect.rule, effect.before, effect.after));
            }
        });
        changes.sort_by_key(|(is_extra, ..)| *is_extra);
        changes
            .into_iter()
            .map(|(_, rule, before, after)| (rule, before, after))
            .collect()
    }
}
