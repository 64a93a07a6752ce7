//! What a plan says beyond its moves: the violations before and after, why the other pods that violate a rule stay, and
//! which finished pods are deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_api::Shared;
use knarr_api::k8s_openapi::api::core::v1::Pod;
use knarr_apimachinery::ids::NodeName;
use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::plugins::node_affinity::meets_required;
use knarr_scheduler::pod_info::{PodInfo, node_name};

use super::cells::Driver;
use super::{Planner, pod_name};
use crate::constraint::Constraint;
use crate::plan::{Change, Move, NotMoved, Plan, Total};
use crate::policy::StrategySet;
use crate::reason::Reason;
use crate::rules::utilization::Gate;
use crate::rules::{ClassNumber, RuleRef, pod};
use crate::snapshot::owner_kinds;

/// The violation of each rule that is violated.
pub(super) type Totals = BTreeMap<RuleRef, u64>;

impl Planner<'_> {
    /// The violations of the policy's rules.
    pub(super) fn totals(&self) -> Totals {
        let rules = &self.rules;
        let cluster = &self.simulation.cluster;
        let masks = &rules.masks;
        let mut totals = Totals::new();
        let mut put = |rule, value: u64| {
            if value > 0 {
                *totals.entry(rule).or_default() += value;
            }
        };
        let restores = |classes: &[ClassNumber], mask: StrategySet| {
            let mut classes = classes.iter();
            classes.any(|number| rules.classes[*number].strategies.meets(mask))
        };
        for (at, rule) in rules.spread.iter().enumerate() {
            let value = rule.value();
            if value > 0 && restores(&rules.spread_classes[at], masks.spread(rule.constraint.hard)) {
                put(RuleRef::TopologySpread(at), value);
            }
        }
        for (at, rule) in rules.anti_affinity.iter().enumerate() {
            if restores(&rules.anti_affinity_classes[at], masks.pod_anti_affinity) {
                put(RuleRef::PodAntiAffinity(at), rule.value());
            }
        }
        for (at, rule) in rules.affinity.iter().enumerate() {
            if restores(&rules.affinity_classes[at], masks.pod_affinity) {
                put(RuleRef::PodAffinity(at), rule.value());
            }
        }
        for (at, rule) in rules.duplicates.iter().enumerate() {
            put(RuleRef::Duplicates(at), rule.value());
        }
        let load = rules.load(cluster);
        for (node, _) in cluster.iter() {
            for (rule, (_, low)) in rules.low.iter().enumerate() {
                for (resource, _) in low.resources() {
                    let at = RuleRef::Low { rule, resource, node };
                    put(at, low.value(resource, node, load));
                }
            }
            for (rule, (_, high)) in rules.high.iter().enumerate() {
                put(RuleRef::High { rule, node }, high.value(cluster, node));
            }
        }
        for class in &rules.classes {
            let strategies = class.strategies;
            let on_nodes = [
                masks.required_node_affinity,
                masks.node_taints,
                masks.preferred_node_affinity,
            ];
            if !on_nodes.iter().any(|mask| strategies.meets(*mask)) {
                continue;
            }
            for (node, pods) in &class.nodes {
                let (info, pods) = (cluster.at(*node), u64::from(*pods));
                if strategies.meets(masks.required_node_affinity) && !meets_required(&class.class, info) {
                    put(RuleRef::RequiredNodeAffinity, pods);
                }
                for (position, taints) in rules.taints.iter().filter(|(at, _)| strategies.contains(*at)) {
                    let untolerated = pod::untolerated(taints, &class.class, info);
                    put(RuleRef::NodeTaints(*position), untolerated * pods);
                }
                if strategies.meets(masks.preferred_node_affinity) {
                    let missed = pod::missed_weight(&class.class, info);
                    let missed = missed.saturating_sub(class.least_missed_weight);
                    put(RuleRef::PreferredNodeAffinity, missed * pods);
                }
            }
        }
        for set in self.replaced_for.values() {
            for position in (0..crate::policy::STRATEGIES_MAX).filter(|at| set.contains(*at)) {
                put(RuleRef::Pod(position), 1);
            }
        }
        totals
    }

    /// Failed and succeeded pods that a strategy deletes. Their controllers have replaced them already, so nothing is
    /// simulated.
    pub(super) fn delete_finished(&mut self) {
        if self.rules.masks.pods.is_empty() {
            return;
        }
        for pod in &self.snapshot.finished {
            let mut scope = StrategySet::NONE;
            for (position, (_, strategy)) in self.policy.strategies().enumerate() {
                let (namespace, labels) = (pod.object().namespace(), pod.metadata.labels.as_ref());
                if strategy.scope.includes(namespace, labels, owner_kinds(pod)) {
                    scope.insert(position);
                }
            }
            let applying = self.applying(pod, scope.and(self.rules.masks.pods));
            if applying.is_empty() {
                continue;
            }
            match self.delete(pod, applying) {
                Ok(deletion) => self.moves.push(deletion),
                Err(Reason::NotSelected) => {}
                Err(reason) => {
                    if !self.lists(&reason) {
                        continue;
                    }
                    let violates = self.constraints_on(applying);
                    self.not_moved.push(NotMoved {
                        pod: pod_name(pod),
                        node: node_name(pod).into(),
                        violates,
                        reason,
                    });
                }
            }
        }
    }

    fn constraints_on(&mut self, strategies: StrategySet) -> Vec<Arc<Constraint>> {
        let positions = (0..crate::policy::STRATEGIES_MAX).filter(|at| strategies.contains(*at));
        let cluster = &self.simulation.cluster;
        positions
            .map(|at| self.rules.name(self.policy, cluster, RuleRef::Pod(at)))
            .collect()
    }

    fn delete(&mut self, pod: &Shared<Pod>, applying: StrategySet) -> Result<Move, Reason> {
        if let Some(reason) = self.protector.never(pod) {
            return Err(reason);
        }
        let node = NodeName::from(node_name(pod));
        let index = self.simulation.cluster.index_of(&node);
        let selects = |selector: &knarr_apimachinery::labels::Selector| {
            index.is_some_and(|index| selector.matches(self.simulation.cluster.at(index).labels()))
        };
        if !self.policy.node_selector.as_ref().is_none_or(selects) {
            return Err(Reason::NotSelected);
        }
        let budgets = self.snapshot.disruption_budgets.iter();
        let (namespace, labels) = (pod.object().namespace(), pod.metadata.labels.as_ref());
        let has_budget = budgets.into_iter().any(|b| b.selects(namespace, labels));
        let active = self.admitted(pod, applying, has_budget)?;
        let workload = self.snapshot.workload(pod).ok_or(Reason::NoController)?;
        if let Some(reason) = self.snapshot.held.get(&workload) {
            return Err(reason.clone());
        }
        if let Some(reason) = self.ledger.forbids(&node, &workload) {
            return Err(reason);
        }
        self.ledger.spend(&node, &workload);
        // PodDisruptionBudgets do not count finished pods.
        let wave = self.waves.place(&workload, &[], &[], None);
        let rule = self
            .policy
            .strategies()
            .enumerate()
            .find(|(at, _)| active.contains(*at))
            .map_or("FailedPods", |(_, (_, strategy))| strategy.rule.name());
        let changes = self.constraints_on(active).into_iter().map(|constraint| Change {
            constraint,
            before: 1,
            after: 0,
        });
        Ok(Move {
            pod: pod_name(pod),
            workload,
            from: node,
            to: None,
            equal_nodes: 0,
            wave,
            is_replacement: false,
            rule,
            changes: changes.collect(),
        })
    }

    pub(super) fn finish(mut self, before: Totals, after: &Totals) -> Plan {
        let mut plan = Plan {
            policy: self.policy.name.clone(),
            ..Plan::default()
        };
        self.explain_others();
        plan.not_moved = std::mem::take(&mut self.not_moved);
        plan.not_moved.sort_by(|a, b| a.pod.cmp(&b.pod));
        plan.not_listed = std::mem::take(&mut self.not_listed);
        let mut totals: BTreeMap<RuleRef, (u64, u64)> = BTreeMap::new();
        for (rule, value) in before {
            totals.entry(rule).or_default().0 = value;
        }
        for (rule, value) in after {
            totals.entry(*rule).or_default().1 = *value;
        }
        let mut totals: Vec<(RuleRef, (u64, u64))> = totals.into_iter().collect();
        let most = self.limits.violations;
        if totals.len() > most {
            totals.sort_by_key(|(_, (before, after))| before == after);
            plan.violations_not_listed = totals.len() - most;
            totals.truncate(most);
        }
        for (rule, (before, after)) in totals {
            let constraint = self.rules.name(self.policy, &self.simulation.cluster, rule);
            plan.violations.push(Total {
                constraint,
                before,
                after,
            });
        }
        plan.moves = self.moves;
        plan
    }

    /// Why the pods stay that violate rules after the moves.
    fn explain_others(&mut self) {
        for number in 0..self.rules.classes.len() {
            if self.rules.classes[number].strategies.is_empty() {
                continue;
            }
            let nodes: Vec<NodeIndex> = self.rules.classes[number].nodes.keys().copied().collect();
            for node in nodes {
                let cluster = &self.simulation.cluster;
                let of_cell = self.rules.violated(cluster, number, node, StrategySet::NONE);
                if of_cell.is_empty() && self.replaced_for.is_empty() {
                    continue;
                }
                let class = self.rules.classes[number].class.id;
                let pods = cluster.at(node).pods().iter();
                let pods = pods.filter(|p| p.class.id == class && !p.is_terminating());
                let pods: Vec<Arc<PodInfo>> = pods.cloned().collect();
                for pod in pods {
                    if self.moved.contains_key(pod.uid()) {
                        continue;
                    }
                    let mut violated = of_cell.clone();
                    if let Some(set) = self.replaced_for.get(pod.uid()) {
                        let positions = 0..crate::policy::STRATEGIES_MAX;
                        violated.extend(positions.filter(|at| set.contains(*at)).map(RuleRef::Pod));
                    }
                    if !violated.is_empty() {
                        self.explain_pod(&pod, number, node, &violated);
                    }
                }
            }
        }
    }

    /// Whether there is room to list a pod that stays; if not, it is counted.
    fn lists(&mut self, reason: &Reason) -> bool {
        let has_room = self.not_moved.len() < self.limits.not_moved;
        if !has_room {
            *self.not_listed.entry(reason.code()).or_default() += 1;
        }
        has_room
    }

    fn explain_pod(&mut self, pod: &PodInfo, number: ClassNumber, node: NodeIndex, violated: &[RuleRef]) {
        let reason = match self.permitted(pod, number, node) {
            Err(Reason::NotSelected) => return,
            Err(reason) => reason,
            Ok(_) => self.found(number, node, violated, pod),
        };
        if !self.lists(&reason) {
            return;
        }
        let mut violates = Vec::new();
        for rule in violated {
            violates.push(self.rules.name(self.policy, &self.simulation.cluster, *rule));
        }
        self.not_moved.push(NotMoved {
            pod: pod_name(&pod.pod),
            node: self.simulation.cluster.at(node).name.clone(),
            violates,
            reason,
        });
    }

    /// What the simulation found for the pod, or for others like it.
    fn found(&self, number: ClassNumber, node: NodeIndex, violated: &[RuleRef], pod: &PodInfo) -> Reason {
        let measures = |rule: &RuleRef| match rule {
            RuleRef::Low { rule, .. } => self.rules.low[*rule].1.policy.measured,
            _ => false,
        };
        if violated.iter().all(measures) && !self.rules.measured.knows(pod) {
            return Reason::NoMetrics;
        }
        if let Some(reason) = self.failures.get(&(number, node)) {
            return reason.clone();
        }
        for rule in violated {
            let gate = match rule {
                RuleRef::TopologySpread(at) => {
                    let domain = self.rules.spread[*at].domain(node).unwrap_or(u32::MAX);
                    let drivers = [Driver::DoNotSchedule(*at), Driver::ScheduleAnyway(*at)];
                    let mut stuck = drivers.iter();
                    if let Some(reason) = stuck.find_map(|of| self.stuck.get(&(*of, number, domain))) {
                        return reason.clone();
                    }
                    None
                }
                RuleRef::Low { rule, .. } => self.gates.low.get(*rule),
                RuleRef::High { rule, .. } => self.gates.high.get(*rule),
                _ => None,
            };
            if let Some(Gate::Closed {
                underutilized,
                needed,
            }) = gate
            {
                return Reason::NoUnderutilizedNodes {
                    underutilized: *underutilized,
                    needed: *needed,
                };
            }
        }
        if self.simulations_left == 0 && !self.ledger.is_exhausted() {
            let limit = self.limits.failed_simulations;
            return Reason::SimulationLimit { limit };
        }
        Reason::NotTried
    }
}
