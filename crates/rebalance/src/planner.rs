//! Makes a plan: takes the rules by their importance, and for each tries the pods that violate it most, one after the other,
//! until no move is left that makes no rule worse and one of the policy's better.
//!
//! That ends, because every move lessens a sum of natural numbers; and a plan made from the result is empty, because the
//! last pass over all rules found nothing in that very state (or a limit ended the plan, see [`crate::limits`]). Neither depends on
//! pods' names.

mod cells;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_api::Shared;
use knarr_api::k8s_openapi::api::core::v1::Pod;
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::pod_info::PodInfo;

use crate::budget::{Ledger, Waves, forbidden_by};
use crate::limits::Limits;
use crate::plan::{Change, Move, NotMoved, Plan, PodName};
use crate::policy::{Policy, Profile, Rule, StrategySet};
use crate::protection::{Protector, prefers_no_eviction};
use crate::reason::{Growth, Reason};
use crate::rules::effect::{Gates, Mover, Verdict};
use crate::rules::{ClassNumber, RuleRef, Rules};
use crate::simulation::Simulation;
use crate::snapshot::{Snapshot, is_ready};
use cells::{Cell, Driver};

/// Which pods to move so that the rules of the policy are violated less, and why the others stay.
///
/// Pure: equal arguments give equal plans, in whatever order the snapshot's objects were.
pub fn plan(snapshot: &Snapshot, policy: &Policy) -> Plan {
    plan_within(snapshot, policy, &Limits::DEFAULT)
}

/// As [`plan()`], with other limits.
pub fn plan_within(snapshot: &Snapshot, policy: &Policy, limits: &Limits) -> Plan {
    let found = plan_from(snapshot, policy, limits, 0);
    if found.not_simulated() == 0 || !found.moves.is_empty() {
        return found;
    }
    // The same pods would always be the first, and those behind them never be simulated: they take turns, hour by hour, so that a plan that
    // is only shown does not change with each step.
    let turn = usize::try_from(snapshot.now.as_second() / SECONDS_OF_TURN).unwrap_or(0);
    plan_from(snapshot, policy, limits, turn)
}

/// The plan that begins with the rule and the pods whose turn it is.
fn plan_from(snapshot: &Snapshot, policy: &Policy, limits: &Limits, turn: usize) -> Plan {
    let mut planner = Planner::new(snapshot, policy, limits);
    planner.begin_with(turn);
    let before = planner.totals();
    planner.delete_finished();
    planner.run();
    let after = planner.totals();
    planner.finish(before, &after)
}

/// How long pods that are not all simulated for one plan have their turn.
const SECONDS_OF_TURN: i64 = 60 * 60;

/// Whether pods may be moved away from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Yes,
    NotReady,
    /// The policy is not for its pods.
    NotSelected,
}

struct Planner<'a> {
    snapshot: &'a Snapshot,
    policy: &'a Policy,
    protector: Protector<'a>,
    rules: Rules,
    simulation: Simulation,
    gates: Gates,
    ledger: Ledger,
    waves: Waves,
    /// The strategies of each profile of the policy.
    profiles: Vec<(&'a Profile, StrategySet)>,
    sources: Vec<Source>,
    /// The strategies that would replace a pod, by its UID.
    replaced_for: BTreeMap<PodUid, StrategySet>,
    /// Whether some pod prefers not to be evicted.
    has_preferences: bool,
    /// The wave of the last move of each pod, by UID.
    moved: BTreeMap<PodUid, u32>,
    /// Why the pods of a class on a node were not moved in this pass.
    failures: BTreeMap<(ClassNumber, NodeIndex), Reason>,
    /// The same for all nodes of a domain: the scheduler places pods of one class from one domain alike.
    stuck: BTreeMap<(Driver, ClassNumber, u32), Reason>,
    moves: Vec<Move>,
    not_moved: Vec<NotMoved>,
    /// How many others stay, by the code of the reason.
    not_listed: BTreeMap<&'static str, usize>,
    limits: Limits,
    /// How many simulations may still fail.
    simulations_left: usize,
    /// The positions of the rule and of the cell that the plan begins with.
    first_driver: usize,
    first_cell: usize,
}

impl<'a> Planner<'a> {
    fn new(snapshot: &'a Snapshot, policy: &'a Policy, limits: &Limits) -> Self {
        let mut cluster = snapshot.cluster.copy_without_devices();
        let rules = Rules::new(snapshot, policy, &mut cluster);
        let mut profiles: Vec<(&Profile, StrategySet)> = Vec::new();
        for (position, (profile, _)) in policy.strategies().enumerate() {
            match profiles.last_mut() {
                Some((last, set)) if std::ptr::eq(*last, profile) => set.insert(position),
                _ => {
                    let mut set = StrategySet::NONE;
                    set.insert(position);
                    profiles.push((profile, set));
                }
            }
        }
        let slots = NodeIndex::try_from(cluster.slots()).unwrap_or(NodeIndex::MAX);
        let source = |index: NodeIndex| {
            let node = cluster.at(index);
            let selector = policy.node_selector.as_ref();
            if node.node.is_none() || selector.is_some_and(|s| !s.matches(node.labels())) {
                Source::NotSelected
            } else if is_ready(node) {
                Source::Yes
            } else {
                Source::NotReady
            }
        };
        let sources = (0..slots).map(source).collect();
        let mut planner = Planner {
            snapshot,
            policy,
            protector: Protector::new(snapshot, &policy.profiles),
            gates: rules.gates(&cluster),
            rules,
            simulation: Simulation::new(cluster),
            ledger: Ledger::new(&policy.name, &policy.budgets, snapshot),
            waves: Waves::new(policy.budgets.at_once_per_workload),
            profiles,
            sources,
            replaced_for: BTreeMap::new(),
            has_preferences: false,
            moved: BTreeMap::new(),
            failures: BTreeMap::new(),
            stuck: BTreeMap::new(),
            moves: Vec::new(),
            not_moved: Vec::new(),
            not_listed: BTreeMap::new(),
            limits: *limits,
            simulations_left: limits.failed_simulations,
            first_driver: 0,
            first_cell: 0,
        };
        planner.read_pods();
        planner
    }

    /// Whether no further pod is tried.
    fn is_exhausted(&self) -> bool {
        self.ledger.is_exhausted() || self.simulations_left == 0
    }

    /// The one pass over pods.
    fn read_pods(&mut self) {
        let on_pods = !self.rules.masks.pods.is_empty();
        for (_, node) in self.snapshot.cluster.iter() {
            for pod in node.pods() {
                self.has_preferences |= prefers_no_eviction(&pod.pod);
                if !on_pods || pod.is_terminating() {
                    continue;
                }
                let Some(number) = self.rules.number(pod) else {
                    continue;
                };
                let wanted = self.rules.classes[number].strategies.and(self.rules.masks.pods);
                let applying = self.applying(&pod.pod, wanted);
                if !applying.is_empty() {
                    self.replaced_for.insert(pod.uid().clone(), applying);
                }
            }
        }
    }

    /// Those of the strategies on pods alone that would replace the pod.
    fn applying(&self, pod: &Pod, wanted: StrategySet) -> StrategySet {
        let mut applying = StrategySet::NONE;
        if wanted.is_empty() {
            return applying;
        }
        let now = self.snapshot.now;
        for (position, (_, strategy)) in self.policy.strategies().enumerate() {
            let applies = wanted.contains(position)
                && match &strategy.rule {
                    Rule::PodLifeTime(rule) => rule.applies(pod, now),
                    Rule::TooManyRestarts(rule) => rule.applies(pod),
                    Rule::FailedPods(rule) => rule.applies(pod, now),
                    _ => false,
                };
            if applies {
                applying.insert(position);
            }
        }
        applying
    }

    fn run(&mut self) {
        loop {
            self.failures.clear();
            self.stuck.clear();
            let mut moved = false;
            for driver in self.drivers() {
                moved |= self.drive(driver);
                if self.is_exhausted() {
                    return;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Moves pods for one rule while that works. Returns whether it did.
    fn drive(&mut self, driver: Driver) -> bool {
        let mut moved = false;
        loop {
            let mut again = false;
            for cell in self.cells(driver) {
                // A move changes which pods violate a rule that counts several pods most; a rule on one pod and its node
                // stays as it is for the others.
                if driver.is_on_one_pod() {
                    while self.try_cell(driver, cell) {
                        moved = true;
                    }
                } else if self.try_cell(driver, cell) {
                    moved = true;
                    again = true;
                }
                if self.is_exhausted() {
                    return moved;
                }
                if again {
                    break;
                }
            }
            if !again {
                return moved;
            }
        }
    }

    /// Moves one pod of the cell, unless that was tried in this pass.
    fn try_cell(&mut self, driver: Driver, cell: Cell) -> bool {
        let key = (cell.class, cell.node);
        let domain = self.domain(driver, cell.node);
        let stuck = domain.map(|domain| (driver, cell.class, domain));
        let is_known =
            self.failures.contains_key(&key) || stuck.is_some_and(|key| self.stuck.contains_key(&key));
        let has_pods = self.rules.classes[cell.class].nodes.contains_key(&cell.node);
        if is_known || !has_pods || self.is_exhausted() {
            return false;
        }
        match self.attempt(driver, cell) {
            Ok(()) => true,
            Err(Failure { reason, simulated }) => {
                if simulated {
                    self.simulations_left = self.simulations_left.saturating_sub(1);
                    if let Some(key) = stuck {
                        self.stuck.insert(key, reason.clone());
                    }
                }
                self.failures.insert(key, reason);
                false
            }
        }
    }

    /// The pods of a cell in the order in which they may be moved: those that prefer not to be evicted last, else the
    /// youngest first, whose work is the least to lose.
    fn pods(&self, driver: Driver, cell: Cell) -> Vec<Arc<PodInfo>> {
        let class = self.rules.classes[cell.class].class.id;
        let all = self.simulation.cluster.at(cell.node).pods().iter();
        let wanted = |pod: &&Arc<PodInfo>| {
            pod.class.id == class
                && !pod.is_terminating()
                && (driver != Driver::Pods || self.replaced_for.contains_key(pod.uid()))
        };
        let mut pods: Vec<Arc<PodInfo>> = all.filter(wanted).cloned().collect();
        pods.sort_by_cached_key(|pod| {
            let created = pod.pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (
                prefers_no_eviction(&pod.pod),
                std::cmp::Reverse(created),
                pod.pod.object().name().to_string(),
            )
        });
        pods
    }

    /// Moves one pod of the cell.
    fn attempt(&mut self, driver: Driver, cell: Cell) -> Result<(), Failure> {
        let mut first: Option<Reason> = None;
        for pod in self.pods(driver, cell) {
            match self.permitted(&pod, cell.class, cell.node) {
                Ok(active) => {
                    return self
                        .simulate(driver, &pod, cell, active)
                        .map_err(|reason| Failure {
                            reason,
                            simulated: true,
                        });
                }
                Err(reason) => drop(first.get_or_insert(reason)),
            }
        }
        Err(Failure {
            reason: first.unwrap_or(Reason::Terminating),
            simulated: false,
        })
    }

    /// The strategies that the pod may be moved for now, or why it may not be moved.
    fn permitted(&self, pod: &PodInfo, number: ClassNumber, node: NodeIndex) -> Result<StrategySet, Reason> {
        match self.sources.get(node as usize) {
            Some(Source::Yes) => {}
            Some(Source::NotReady) => return Err(Reason::NodeNotReady),
            Some(Source::NotSelected) | None => return Err(Reason::NotSelected),
        }
        let class = &self.rules.classes[number];
        let found = self.protector.never(&pod.pod);
        let found = found.or_else(|| self.protector.not_simulated(&pod.pod));
        if let Some(reason) = found {
            return Err(reason);
        }
        if self.simulation.needs_devices(&pod.class, node) {
            return Err(Reason::ResourceClaims);
        }
        let active = self.admitted(&pod.pod, class.strategies, !class.disruption_budgets.is_empty())?;
        let budgets = &self.snapshot.disruption_budgets;
        if let Some(reason) = forbidden_by(budgets, &class.disruption_budgets) {
            return Err(reason);
        }
        let Some(workload) = &class.workload else {
            return Err(Reason::NoController);
        };
        if let Some(reason) = self.snapshot.held.get(workload) {
            return Err(reason.clone());
        }
        let name = &self.simulation.cluster.at(node).name;
        match self.ledger.forbids(name, workload) {
            Some(reason) => Err(reason),
            None => Ok(active),
        }
    }

    /// Of the strategies, those whose profile does not protect the pod.
    fn admitted(&self, pod: &Shared<Pod>, of: StrategySet, has_budget: bool) -> Result<StrategySet, Reason> {
        let mut active = StrategySet::NONE;
        let mut first = None;
        for (profile, strategies) in &self.profiles {
            let strategies = strategies.and(of);
            if strategies.is_empty() {
                continue;
            }
            match self.protector.protected(pod, &profile.protections, has_budget) {
                None => active = active.or(strategies),
                Some(reason) => drop(first.get_or_insert(reason)),
            }
        }
        if active.is_empty() {
            return Err(first.unwrap_or(Reason::NotSelected));
        }
        Ok(active)
    }

    /// Takes the pod away, asks the scheduler, and puts it where that is good; else back.
    fn simulate(
        &mut self,
        driver: Driver,
        pod: &Arc<PodInfo>,
        cell: Cell,
        active: StrategySet,
    ) -> Result<(), Reason> {
        let Cell { class, node, .. } = cell;
        let replaced_for = self.replaced_for.get(pod.uid()).copied().unwrap_or_default();
        let replaced_for = replaced_for.and(active);
        let cluster = &mut self.simulation.cluster;
        let mover = self.rules.mover(cluster, pod, class, node, active, replaced_for);
        let from = cluster.at(node).name.clone();
        self.rules.remove(cluster, class, node, pod);
        cluster.remove_pod(&from, pod.uid());
        let found = self.destination(&mover);
        let cluster = &mut self.simulation.cluster;
        match found {
            Ok((to, equal_nodes)) => {
                let changes = self.rules.changes(cluster, &self.gates, &mover, to);
                let to_name = cluster.at(to).name.clone();
                // As its controller creates it again.
                cluster.add_pod(&to_name, &Arc::new(pod.unassigned()));
                self.rules.add(cluster, class, to, pod);
                self.gates = self.rules.gates(cluster);
                self.record(driver, pod, class, from, Some((to_name, equal_nodes)), changes);
                Ok(())
            }
            Err(reason) => {
                cluster.add_pod(&from, pod);
                self.rules.add(cluster, class, node, pod);
                Err(reason)
            }
        }
    }

    /// The first of the nodes that the scheduler may choose, and their number; all of them must be good.
    fn destination(&mut self, mover: &Mover) -> Result<(NodeIndex, usize), Reason> {
        let Some(profile) = self.snapshot.profile_of(&mover.pod.pod).cloned() else {
            return Err(Reason::NotSelected);
        };
        if mover.replaced_for.is_empty() {
            self.any_good_node(&profile, mover)?;
        }
        let nodes = self.simulation.best_nodes(&profile, mover.pod)?;
        for node in &nodes {
            self.is_good(mover, *node)?;
        }
        match nodes.first() {
            Some(first) => Ok((*first, nodes.len())),
            None => Err(Reason::NoNodeFits {
                rejected_by: BTreeMap::new(),
            }),
        }
    }

    /// Whether some node would be good, by the filters that read one node. Much cheaper than to ask the scheduler.
    fn any_good_node(&mut self, profile: &knarr_scheduler::Profile, mover: &Mover) -> Result<(), Reason> {
        let cluster = &self.simulation.cluster;
        let mut rejected_by: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut nodes = 0;
        let mut grows = None;
        let mut not_selected = None;
        let slots = NodeIndex::try_from(cluster.slots()).unwrap_or(NodeIndex::MAX);
        for node in (0..slots).filter(|node| *node != mover.from) {
            match self.simulation.fits(profile, &mover.pod.class, node) {
                Err("") => continue,
                Err(plugin) => {
                    *rejected_by.entry(plugin).or_default() += 1;
                    continue;
                }
                Ok(()) => nodes += 1,
            }
            match self.rules.check(cluster, &self.gates, mover, node) {
                Verdict::Good if self.is_destination(mover, node) => return Ok(()),
                Verdict::Good => not_selected = Some(node),
                Verdict::NoGain => {}
                growth => drop(grows.get_or_insert((node, growth))),
            }
        }
        if nodes == 0 {
            return Err(Reason::NoNodeFits { rejected_by });
        }
        if let Some(node) = not_selected {
            return Err(self.explain(mover, node, Verdict::Good));
        }
        let grows = grows.and_then(|(node, verdict)| match self.explain(mover, node, verdict) {
            Reason::WouldGrow(growth) => Some(growth),
            _ => None,
        });
        Err(Reason::NoBetterNode { nodes, grows })
    }

    fn is_good(&mut self, mover: &Mover, node: NodeIndex) -> Result<(), Reason> {
        let verdict = self
            .rules
            .check(&self.simulation.cluster, &self.gates, mover, node);
        if verdict == Verdict::Good && self.is_destination(mover, node) {
            return Ok(());
        }
        Err(self.explain(mover, node, verdict))
    }

    /// Whether a profile that the pod may be moved for selects the node.
    fn is_destination(&self, mover: &Mover, node: NodeIndex) -> bool {
        let labels = self.simulation.cluster.at(node).labels();
        let mut profiles = self.profiles.iter().filter(|(_, set)| set.meets(mover.active));
        profiles.any(|(profile, _)| {
            let selector = profile.protections.node_selector.as_ref();
            selector.is_none_or(|s| s.matches(labels))
        })
    }

    fn explain(&mut self, mover: &Mover, node: NodeIndex, verdict: Verdict) -> Reason {
        let cluster = &self.simulation.cluster;
        let name = cluster.at(node).name.clone();
        match verdict {
            Verdict::NoGain if node == mover.from => Reason::SameNode,
            Verdict::NoGain => Reason::NoGain { node: name },
            Verdict::Grows { rule, before, after } => Reason::WouldGrow(Growth {
                node: name,
                constraint: self.rules.name(self.policy, cluster, rule),
                before,
                after,
            }),
            Verdict::Good => Reason::NodeNotSelected { node: name },
        }
    }

    fn record(
        &mut self,
        driver: Driver,
        pod: &PodInfo,
        number: ClassNumber,
        from: NodeName,
        to: Option<(NodeName, usize)>,
        changes: Vec<(RuleRef, u64, u64)>,
    ) {
        let class = &self.rules.classes[number];
        // Pods without a workload are not permitted to move.
        let Some(workload) = class.workload.clone() else {
            return;
        };
        let uid = pod.uid().clone();
        let after = self.moved.get(&uid).copied();
        let budgets = &self.snapshot.disruption_budgets;
        let wave = self
            .waves
            .place(&workload, budgets, &class.disruption_budgets, after);
        self.ledger.spend(&from, &workload);
        self.replaced_for.remove(&uid);
        self.moved.insert(uid, wave);
        let (to, equal_nodes) = match to {
            Some((to, equal)) => (Some(to), equal),
            None => (None, 0),
        };
        let replaced_for = changes.iter().find_map(|(rule, ..)| match rule {
            RuleRef::Pod(position) => self.policy.strategies().nth(*position),
            _ => None,
        });
        let rule = match replaced_for {
            Some((_, strategy)) if driver == Driver::Pods => strategy.rule.name(),
            _ => driver.name(),
        };
        let mut named = Vec::new();
        for (rule, before, after) in changes {
            let constraint = self.rules.name(self.policy, &self.simulation.cluster, rule);
            named.push(Change {
                constraint,
                before,
                after,
            });
        }
        self.moves.push(Move {
            pod: pod_name(&pod.pod),
            workload,
            from,
            to,
            equal_nodes,
            wave,
            is_replacement: after.is_some(),
            rule,
            changes: named,
        });
    }
}

/// Why no pod of a cell was moved, and whether the scheduler was asked.
struct Failure {
    reason: Reason,
    simulated: bool,
}

fn pod_name(pod: &Shared<Pod>) -> PodName {
    let object = pod.object();
    PodName {
        namespace: object.namespace().to_string(),
        name: object.name().to_string(),
        uid: object.uid().into(),
    }
}
