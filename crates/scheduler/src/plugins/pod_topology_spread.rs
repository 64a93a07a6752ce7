//! PodTopologySpread (SPEC D1–D4): the matching pods are spread over the domains of a topology key, as a requirement
//! (DoNotSchedule) or as a preference (ScheduleAnyway).
//!
//! A domain that TopologyDomains declares (SPEC B3) counts as one with a node and no pods, as if it were not scaled to
//! zero, if a node there would be eligible; the pods of a lost domain do not count for the global minimum.
//!
//! For one class of pods the matching pods are counted in each domain; the counts are updated node by node
//! ([`Spread::refresh`]), so that no decision iterates over pods.

use std::collections::{BTreeMap, BTreeSet};

use knarr_api::well_known::HOSTNAME;
use knarr_apimachinery::labels::SelectorError;

use super::node_affinity::meets_required;
use super::taint_toleration::untolerated;
use super::{MAX_NODE_SCORE, PodChange, UnschedulableStatus};
use crate::cluster::{Cluster, ColumnId, NO_VALUE, NodeIndex};
use crate::node_info::NodeInfo;
use crate::pod_info::{PodClass, SpreadConstraint, selects};
use crate::profile::Profile;
use crate::verdict::FEASIBLE;

pub const NAME: &str = "PodTopologySpread";

const SKEWED: &str = "node(s) didn't match pod topology spread constraints";
/// How many declared domains without nodes a message names.
const NAMED_MAX: usize = 3;

/// One constraint with its counts.
#[derive(Debug)]
struct Counted {
    constraint: SpreadConstraint,
    column: ColumnId,
    is_hostname: bool,
    /// Whether the constraint matches a pod of the class itself.
    selects_itself: bool,
    /// What each node adds: its domain ([`NO_VALUE`]: it does not count) and the pods on it.
    adds: Vec<(u32, u32)>,
    /// The matching pods on each node, whether it counts or not.
    on_node: Vec<u32>,
    pods: Vec<i64>,
    nodes: Vec<u32>,
    /// With lost ones.
    domains: usize,
    /// How many domains there are with each number of pods, without lost ones.
    histogram: BTreeMap<i64, u32>,
    /// Declared domains in which a node would be eligible. Each has one more in `nodes`.
    declared: BTreeMap<u32, String>,
    lost: BTreeSet<u32>,
}

impl Counted {
    fn set(&mut self, index: NodeIndex, domain: u32, count: u32) {
        let index = index as usize;
        if self.adds.len() <= index {
            self.adds.resize(index + 1, (NO_VALUE, 0));
        }
        let was = std::mem::replace(&mut self.adds[index], (domain, count));
        if was == (domain, count) {
            return;
        }
        self.change(was.0, -i64::from(was.1), -1);
        self.change(domain, i64::from(count), 1);
    }

    fn change(&mut self, domain: u32, pods: i64, nodes: i32) {
        if domain == NO_VALUE {
            return;
        }
        let at = domain as usize;
        if self.pods.len() <= at {
            self.pods.resize(at + 1, 0);
            self.nodes.resize(at + 1, 0);
        }
        let is_lost = self.lost.contains(&domain);
        if self.nodes[at] > 0 {
            self.domains -= 1;
            if !is_lost && let Some(number) = self.histogram.get_mut(&self.pods[at]) {
                *number -= 1;
                if *number == 0 {
                    self.histogram.remove(&self.pods[at]);
                }
            }
        }
        self.pods[at] += pods;
        self.nodes[at] = self.nodes[at].saturating_add_signed(nodes);
        if self.nodes[at] > 0 {
            self.domains += 1;
            if !is_lost {
                *self.histogram.entry(self.pods[at]).or_default() += 1;
            }
        }
    }

    /// The domain in which the node's pods count.
    fn domain_of(&self, index: NodeIndex) -> Option<u32> {
        let (domain, _) = self.adds.get(index as usize)?;
        Some(*domain).filter(|d| *d != NO_VALUE)
    }

    fn count(&self, domain: u32) -> i64 {
        self.pods.get(domain as usize).copied().unwrap_or(0)
    }

    fn has_nodes(&self, domain: u32) -> bool {
        self.nodes.get(domain as usize).is_some_and(|n| *n > 0)
    }

    /// Takes over what is declared for the topology key. `keys`: those of all constraints of this kind.
    fn declare(&mut self, cluster: &mut Cluster, pod: &PodClass, keys: &[String]) {
        let Some(of_key) = cluster.topology_domains().of(&self.constraint.topology_key) else {
            return;
        };
        for domain in &of_key.clone().domains {
            let mut templates = domain.templates().iter();
            let is_declared = templates.any(|node| is_eligible(pod, &self.constraint, keys, node));
            let number = cluster.domain_number(self.column, domain.name());
            if domain.is_lost() {
                self.lost.insert(number);
            }
            if is_declared {
                self.declared.insert(number, domain.name().to_string());
                self.change(number, 0, 1);
            }
        }
    }

    /// A domain has more pods than the constraint allows. If there are declared domains without nodes, a node there would
    /// satisfy it.
    fn too_skewed(&self) -> UnschedulableStatus {
        let is_absent = |domain: &u32| {
            // One of its nodes is the declaration.
            !self.lost.contains(domain) && self.nodes.get(*domain as usize) == Some(&1)
        };
        let absent = self.declared.iter().filter(|(number, _)| is_absent(number));
        let mut absent: Vec<&str> = absent.map(|(_, name)| name.as_str()).collect();
        if absent.is_empty() {
            return too_skewed();
        }
        absent.sort_unstable();
        let more = absent.len().saturating_sub(NAMED_MAX);
        absent.truncate(NAMED_MAX);
        let mut names = absent.join(" or ");
        if more > 0 {
            names = format!("{names} or {more} more");
        }
        let key = &self.constraint.topology_key;
        UnschedulableStatus {
            plugin: NAME,
            reasons: vec![format!("{SKEWED} (waiting for a node in {key}={names})").into()],
            resolvable: true,
        }
    }

    /// The fewest pods in a domain, with `more` added in this one.
    fn minimum(&self, domain: u32, more: i64) -> i64 {
        if self.domains < self.constraint.min_domains {
            return 0;
        }
        if self.histogram.is_empty() {
            // All of the pod's domains are lost: there are no others to be blocked.
            let lost = self.lost.iter().filter(|d| self.has_nodes(**d));
            let counts = lost.map(|d| self.count(*d) + if *d == domain { more } else { 0 });
            return counts.min().unwrap_or(0);
        }
        let has_nodes = self.has_nodes(domain) && !self.lost.contains(&domain);
        let mut fewest = self.histogram.iter().map(|(count, number)| (*count, *number));
        if more == 0 || !has_nodes {
            return fewest.next().map_or(0, |(count, _)| count);
        }
        let own = self.count(domain);
        let others = fewest.find(|(count, number)| *count != own || *number > 1);
        others.map_or(own + more, |(count, _)| count.min(own + more))
    }

    /// The fewest pods in a domain, with these numbers of pods added in several.
    fn minimum_with(&self, more: &BTreeMap<u32, i64>) -> i64 {
        if self.domains < self.constraint.min_domains {
            return 0;
        }
        let has_nodes = |domain: u32| self.nodes.get(domain as usize).is_some_and(|n| *n > 0);
        let changed = || more.iter().filter(|(domain, _)| has_nodes(**domain));
        let mut moved: BTreeMap<i64, u32> = BTreeMap::new();
        for (domain, _) in changed() {
            *moved.entry(self.count(*domain)).or_default() += 1;
        }
        let left = |(count, number): &(&i64, &u32)| **number > moved.get(*count).copied().unwrap_or(0);
        let unchanged = self.histogram.iter().find(left).map(|(count, _)| *count);
        let changed = changed().map(|(domain, more)| self.count(*domain) + more);
        unchanged.into_iter().chain(changed).min().unwrap_or(0)
    }
}

/// Which constraints match the pods of another class.
#[derive(Clone, Debug, Default)]
pub struct Interaction {
    /// For counting: an empty selector matches no pods.
    counted: Vec<usize>,
    /// For pods that are added or removed in a simulation: an empty selector matches all pods.
    simulated: Vec<usize>,
}

impl Interaction {
    pub fn is_nothing(&self) -> bool {
        self.simulated.is_empty()
    }

    /// Whether the constraint of this number counts the pods.
    pub fn counts_for(&self, constraint: usize) -> bool {
        self.counted.contains(&constraint)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Spread {
    constraints: Vec<Counted>,
    hard: usize,
    /// Whether a node must have the topology keys of all ScheduleAnyway constraints to be scored.
    require_all: bool,
}

impl Spread {
    /// Those of the pod, or the default ones.
    pub fn new(profile: &Profile, cluster: &mut Cluster, pod: &PodClass) -> Result<Self, SelectorError> {
        let own = pod.spread.as_ref().map_err(SelectorError::clone)?;
        let mut read = own.clone();
        if own.is_empty()
            && !profile.spread.default_constraints.is_empty()
            && let Some(selector) = cluster.default_selector(pod)
        {
            read = profile.spread.default_constraints.clone();
            for constraint in &mut read {
                constraint.selector = Some(selector.clone());
            }
        }
        if !profile.filters(NAME) {
            read.retain(|c| !c.hard);
        }
        if profile.weight(NAME) == 0 {
            read.retain(|c| c.hard);
        }
        // DoNotSchedule first, so that each kind is one range.
        read.sort_by_key(|c| !c.hard);
        let hard = read.iter().filter(|c| c.hard).count();
        let counted = |constraint: SpreadConstraint| Counted {
            column: cluster.column_of(&constraint.topology_key),
            is_hostname: constraint.topology_key == HOSTNAME,
            selects_itself: selects(&constraint.selector, pod.labels()),
            constraint,
            adds: Vec::new(),
            on_node: Vec::new(),
            pods: Vec::new(),
            nodes: Vec::new(),
            domains: 0,
            histogram: BTreeMap::new(),
            declared: BTreeMap::new(),
            lost: BTreeSet::new(),
        };
        let mut constraints: Vec<Counted> = read.into_iter().map(counted).collect();
        let (required, _) = constraints.split_at_mut(hard);
        let keys: Vec<String> = required
            .iter()
            .map(|c| c.constraint.topology_key.clone())
            .collect();
        for counted in required {
            counted.declare(cluster, pod, &keys);
        }
        Ok(Spread {
            constraints,
            hard,
            require_all: !own.is_empty() || !profile.spread.system,
        })
    }

    pub fn filters(&self) -> bool {
        self.hard > 0
    }

    pub fn scores(&self) -> bool {
        self.constraints.len() > self.hard
    }

    pub fn is_empty(&self) -> bool {
        self.constraints.is_empty()
    }

    pub fn interaction(&self, pod: &PodClass, other: &PodClass) -> Interaction {
        let mut interaction = Interaction::default();
        if pod.namespace() != other.namespace() {
            return interaction;
        }
        for (i, counted) in self.constraints.iter().enumerate() {
            let selector = &counted.constraint.selector;
            if selects(selector, other.labels()) {
                interaction.simulated.push(i);
                if selector.as_ref().is_some_and(|s| !s.is_everything()) {
                    interaction.counted.push(i);
                }
            }
        }
        interaction
    }

    fn has_keys(cluster: &Cluster, of: &[Counted], index: NodeIndex) -> bool {
        of.iter().all(|c| cluster.column(c.column).at(index) != NO_VALUE)
    }

    /// Counts the pods on a node again: `pods` are the groups there (without terminating pods).
    pub fn refresh<'a>(
        &mut self,
        cluster: &Cluster,
        pod: &PodClass,
        index: NodeIndex,
        pods: impl Iterator<Item = (&'a Interaction, u32)>,
    ) {
        if self.constraints.is_empty() {
            return;
        }
        let at = index as usize;
        for counted in &mut self.constraints {
            if counted.on_node.len() <= at {
                counted.on_node.resize(at + 1, 0);
            }
            counted.on_node[at] = 0;
        }
        for (interaction, count) in pods {
            for i in &interaction.counted {
                self.constraints[*i].on_node[at] += count;
            }
        }
        let node = cluster.at(index);
        let (hard, soft) = self.constraints.split_at(self.hard);
        let hard_counts = Self::has_keys(cluster, hard, index);
        let soft_counts = !self.require_all || Self::has_keys(cluster, soft, index);
        let mut affine = None;
        let mut tolerated = None;
        for (i, counted) in self.constraints.iter_mut().enumerate() {
            let keys = if i < self.hard { hard_counts } else { soft_counts };
            let counts = keys
                && node.node.is_some()
                && (!counted.constraint.honor_node_affinity
                    || *affine.get_or_insert_with(|| meets_required(pod, node)))
                && (!counted.constraint.honor_node_taints
                    || *tolerated.get_or_insert_with(|| untolerated(pod, node).is_none()));
            let domain = if counts {
                cluster.column(counted.column).at(index)
            } else {
                NO_VALUE
            };
            let pods = counted.on_node[at];
            counted.set(index, domain, pods);
        }
    }

    /// Filters all nodes that no plugin has rejected yet; `number` registers a status.
    pub fn filter_all(
        &self,
        cluster: &Cluster,
        verdicts: &mut [u16],
        mut number: impl FnMut(UnschedulableStatus) -> u16,
    ) {
        for counted in &self.constraints[..self.hard] {
            let domains = cluster.column(counted.column).all();
            let itself = i64::from(counted.selects_itself);
            let most = counted.constraint.max_skew + counted.minimum(NO_VALUE, 0) - itself;
            let (mut missing, mut skewed) = (None, None);
            for (verdict, domain) in verdicts.iter_mut().zip(domains) {
                if *verdict != FEASIBLE {
                    continue;
                }
                if *domain == NO_VALUE {
                    *verdict = *missing.get_or_insert_with(|| number(missing_label()));
                } else if counted.count(*domain) > most {
                    *verdict = *skewed.get_or_insert_with(|| number(counted.too_skewed()));
                }
            }
        }
    }

    /// Whether a pod of the class fits a node, with these pods added (1) or removed (-1).
    pub fn filter<'a>(
        &self,
        cluster: &Cluster,
        index: NodeIndex,
        pod_changes: impl Iterator<Item = (&'a Interaction, i64)> + Clone,
    ) -> Result<(), UnschedulableStatus> {
        for (i, counted) in self.constraints[..self.hard].iter().enumerate() {
            let domain = cluster.column(counted.column).at(index);
            if domain == NO_VALUE {
                return Err(missing_label());
            }
            let counts = counted.adds.get(index as usize).is_some_and(|a| a.0 != NO_VALUE);
            let more: i64 = if counts {
                let selected = pod_changes
                    .clone()
                    .filter(|(other, _)| other.simulated.contains(&i));
                selected.map(|(_, one)| one).sum()
            } else {
                0
            };
            let itself = i64::from(counted.selects_itself);
            let skew = counted.count(domain) + more + itself - counted.minimum(domain, more);
            if skew > counted.constraint.max_skew {
                return Err(counted.too_skewed());
            }
        }
        Ok(())
    }

    /// How many pods too many the node's domain has for a pod of the class, with these pods added or removed anywhere: by
    /// number of the DoNotSchedule constraint, 0 if it is met.
    pub fn excess<'a>(
        &self,
        cluster: &Cluster,
        index: NodeIndex,
        pod_changes: impl Iterator<Item = PodChange<'a, Interaction>> + Clone,
    ) -> Result<Vec<i64>, UnschedulableStatus> {
        let constraints = self.constraints[..self.hard].iter().enumerate();
        let excess = constraints.map(|(i, counted)| {
            let domain = cluster.column(counted.column).at(index);
            if domain == NO_VALUE {
                return Err(missing_label());
            }
            let mut more: BTreeMap<u32, i64> = BTreeMap::new();
            for change in pod_changes.clone().filter(|c| c.interaction.counted.contains(&i)) {
                if let Some(at) = counted.domain_of(change.node) {
                    *more.entry(at).or_default() += change.count;
                }
            }
            let here = counted.count(domain) + more.get(&domain).copied().unwrap_or(0);
            let skew = here + i64::from(counted.selects_itself) - counted.minimum_with(&more);
            Ok((skew - counted.constraint.max_skew).max(0))
        });
        excess.collect()
    }

    /// Whether a DoNotSchedule constraint counts such pods.
    pub fn filters_for(&self, other: &Interaction) -> bool {
        (0..self.hard).any(|constraint| other.counts_for(constraint))
    }

    /// The node's domain for each DoNotSchedule constraint; `None`: its pods do not count.
    pub fn counted_domains(&self, index: NodeIndex) -> Vec<Option<u32>> {
        let constraints = self.constraints.iter().take(self.hard);
        constraints.map(|counted| counted.domain_of(index)).collect()
    }

    /// The columns of the topology keys of the DoNotSchedule constraints.
    pub fn hard_columns(&self) -> impl Iterator<Item = ColumnId> {
        self.constraints[..self.hard].iter().map(|c| c.column)
    }

    /// The DoNotSchedule constraints, by number, for which pods on the node count, with the node's domain.
    pub fn counted_on(&self, index: NodeIndex) -> impl Iterator<Item = (usize, u32)> {
        let constraints = self.constraints[..self.hard].iter().enumerate();
        constraints.filter_map(move |(i, counted)| {
            let pods = counted.on_node.get(index as usize).copied().unwrap_or(0);
            Some((i, counted.domain_of(index).filter(|_| pods > 0)?))
        })
    }

    /// The normalized scores of nodes.
    pub fn score(
        &self,
        cluster: &Cluster,
        indices: &[NodeIndex],
        scores: &mut Vec<i64>,
        seen: &mut Vec<u32>,
    ) {
        const IGNORED: i64 = -1;
        let soft = &self.constraints[self.hard..];
        let is_ignored = |index| self.require_all && !Self::has_keys(cluster, soft, index);
        scores.clear();
        scores.extend(indices.iter().map(|p| if is_ignored(*p) { IGNORED } else { 0 }));
        let compared = scores.iter().filter(|s| **s != IGNORED).count();
        let mut sums = vec![0.0_f64; indices.len()];
        for counted in soft {
            let column = cluster.column(counted.column);
            let size = if counted.is_hostname {
                compared
            } else {
                // Each domain counts once; the nodes without the key are one, too.
                seen.clear();
                seen.resize(column.values() + 1, 0);
                let mut size = 0;
                for (index, score) in indices.iter().zip(scores.iter()) {
                    let value = (column.at(*index) as usize).min(column.values());
                    if *score != IGNORED && seen[value] == 0 {
                        seen[value] = 1;
                        size += 1;
                    }
                }
                size
            };
            let weight = ((size + 2) as f64).ln();
            let more = (counted.constraint.max_skew - 1) as f64;
            for (index, sum) in indices.iter().zip(&mut sums) {
                let value = column.at(*index);
                if value != NO_VALUE {
                    let count = if counted.is_hostname {
                        counted.on_node.get(*index as usize).copied().unwrap_or(0).into()
                    } else {
                        counted.count(value)
                    };
                    *sum += count as f64 * weight + more;
                }
            }
        }
        let (mut min, mut max) = (i64::MAX, 0);
        for (score, sum) in scores.iter_mut().zip(&sums) {
            if *score != IGNORED {
                *score = sum.round() as i64;
                min = min.min(*score);
                max = max.max(*score);
            }
        }
        for score in scores {
            *score = if *score == IGNORED {
                0
            } else if max == 0 {
                MAX_NODE_SCORE
            } else {
                MAX_NODE_SCORE * (max + min - *score) / max
            };
        }
    }

    /// The topology keys of its constraints, DoNotSchedule first.
    pub fn constraints(&self) -> impl Iterator<Item = &SpreadConstraint> {
        self.constraints.iter().map(|c| &c.constraint)
    }
}

pub fn missing_label() -> UnschedulableStatus {
    UnschedulableStatus::unresolvable(
        NAME,
        "node(s) didn't match pod topology spread constraints (missing required label)",
    )
}

pub fn too_skewed() -> UnschedulableStatus {
    UnschedulableStatus::unschedulable(NAME, SKEWED)
}

/// Whether a node counts for the constraint. `keys`: those of all constraints of its kind.
pub fn is_eligible(pod: &PodClass, constraint: &SpreadConstraint, keys: &[String], node: &NodeInfo) -> bool {
    keys.iter().all(|key| node.label(key).is_some())
        && (!constraint.honor_node_affinity || meets_required(pod, node))
        && (!constraint.honor_node_taints || untolerated(pod, node).is_none())
}

/// Whether a change of a node may make a pod schedulable that this plugin rejected (labels or taints of a node that
/// has the topology keys, or which of the keys it has).
pub fn node_change_helps(pod: &PodClass, before: Option<&NodeInfo>, after: Option<&NodeInfo>) -> bool {
    let Ok(constraints) = &pod.spread else { return true };
    let hard = || constraints.iter().filter(|c| c.hard);
    let has_keys = |node: Option<&NodeInfo>| {
        node.is_some_and(|node| hard().all(|c| node.label(&c.topology_key).is_some()))
    };
    match (before, after) {
        (Some(b), Some(a)) => {
            let moved = || hard().any(|c| b.label(&c.topology_key) != a.label(&c.topology_key));
            has_keys(before) != has_keys(after) || (has_keys(after) && (moved() || a.taints() != b.taints()))
        }
        _ => has_keys(before) || has_keys(after),
    }
}
