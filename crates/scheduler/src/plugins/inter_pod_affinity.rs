//! InterPodAffinity: pods that require or prefer to be in the same topology domain as others, or in a different one;
//! and the terms of existing pods that match the incoming pod.
//!
//! For one class of pods the matching pods are counted in each domain; the counts are updated node by node
//! ([`InterPodAffinity::refresh`]), so that no decision iterates over pods.

use std::collections::BTreeMap;

use knarr_apimachinery::labels::SelectorError;

use super::{MAX_NODE_SCORE, PodChange, UnschedulableStatus};
use crate::cluster::{Cluster, ColumnId, NO_VALUE, NodeIndex};
use crate::node_info::NodeInfo;
use crate::pod_info::{AffinityTerm, AffinityTerms, PodClass};
use crate::profile::Profile;
use crate::verdict::FEASIBLE;

pub const NAME: &str = "InterPodAffinity";

/// Sums by topology key and value.
#[derive(Debug, Default)]
struct Sums {
    columns: Vec<(ColumnId, Vec<i64>, usize)>,
    /// How many sums are not 0.
    pairs: usize,
}

impl Sums {
    fn get(&self, column: ColumnId, value: u32) -> i64 {
        let of = self.columns.iter().find(|(id, ..)| *id == column);
        of.and_then(|(_, sums, _)| sums.get(value as usize))
            .copied()
            .unwrap_or(0)
    }

    fn add(&mut self, column: ColumnId, value: u32, more: i64) {
        let at = match self.columns.iter().position(|(id, ..)| *id == column) {
            Some(at) => at,
            None => {
                self.columns.push((column, Vec::new(), 0));
                self.columns.len() - 1
            }
        };
        let (_, sums, pairs) = &mut self.columns[at];
        let value = value as usize;
        if sums.len() <= value {
            sums.resize(value + 1, 0);
        }
        let was = usize::from(sums[value] != 0);
        sums[value] += more;
        let is = usize::from(sums[value] != 0);
        *pairs = *pairs + is - was;
        self.pairs = self.pairs + is - was;
    }
}

/// Which sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sum {
    /// Pods that match all required affinity terms of the class.
    Affinity,
    /// Pods that match a required anti-affinity term of the class.
    AntiAffinity,
    /// Required anti-affinity terms of existing pods that match a pod of the class.
    Existing,
    /// Weights of preferred terms, of the class and of existing pods.
    Score,
}

/// What one pod of another class adds, in its domain of these topology keys.
#[derive(Clone, Debug, Default)]
pub struct Interaction {
    adds: Vec<(Sum, ColumnId, i64)>,
}

impl Interaction {
    pub fn is_nothing(&self) -> bool {
        self.adds.is_empty()
    }

    /// The topology keys in whose domains one such pod may change which nodes are feasible.
    pub fn filter_columns(&self) -> impl Iterator<Item = ColumnId> {
        let filtering = self.adds.iter().filter(|(sum, ..)| *sum != Sum::Score);
        filtering.map(|(_, column, _)| *column)
    }

    /// The topology keys in whose domain one such pod excludes the class, by a required anti-affinity term of either.
    pub fn excludes(&self) -> impl Iterator<Item = ColumnId> {
        let excluding = self.adds.iter().filter(|(sum, ..)| is_anti(*sum));
        excluding.map(|(_, column, _)| *column)
    }
}

fn is_anti(sum: Sum) -> bool {
    matches!(sum, Sum::AntiAffinity | Sum::Existing)
}

type Terms = Vec<(AffinityTerm, ColumnId)>;

/// See the module.
#[derive(Debug, Default)]
pub struct InterPodAffinity {
    required: Terms,
    required_anti: Terms,
    preferred: Terms,
    preferred_anti: Terms,
    matches_itself: bool,
    hard_weight: i64,
    ignores_preferences: bool,
    filters: bool,
    weighs: bool,
    affinity: Sums,
    anti_affinity: Sums,
    existing: Sums,
    score: Sums,
    /// How many preferred terms contribute to the score.
    preferences: i64,
    /// What each node adds: per pod, and how many pods.
    adds: Vec<Vec<(Sum, ColumnId, u32, i64)>>,
}

/// Why PreFilter rejects the pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("parsing pod: {0}")]
pub struct InvalidTerm(#[source] SelectorError);

impl InterPodAffinity {
    pub fn new(profile: &Profile, cluster: &mut Cluster, pod: &PodClass) -> Result<Self, InvalidTerm> {
        let terms = pod.affinity.as_ref().map_err(|e| InvalidTerm(e.clone()))?;
        let mut resolve = |terms: &[AffinityTerm]| -> Terms {
            let one = |term: &AffinityTerm| (resolved(cluster, term), cluster.column_of(&term.topology_key));
            terms.iter().map(one).collect()
        };
        let AffinityTerms {
            required,
            required_anti,
            preferred,
            preferred_anti,
        } = terms;
        let required = resolve(required);
        let matches_itself = !required.is_empty() && required.iter().all(|(t, _)| is_for(t, pod));
        let args = &profile.inter_pod_affinity;
        Ok(InterPodAffinity {
            required_anti: resolve(required_anti),
            preferred: resolve(preferred),
            preferred_anti: resolve(preferred_anti),
            required,
            matches_itself,
            hard_weight: args.hard_pod_affinity_weight,
            ignores_preferences: args.ignore_preferred_terms_of_existing_pods,
            filters: profile.filters(NAME),
            weighs: profile.weight(NAME) != 0,
            ..InterPodAffinity::default()
        })
    }

    /// Whether the plugin can reject a node at present. If not, simulated changes of pods do not matter to it.
    pub fn filters(&self) -> bool {
        self.filters
            && !(self.required.is_empty() && self.required_anti.is_empty() && self.existing.pairs == 0)
    }

    /// Whether the profile has the plugin's filter.
    pub fn is_enabled(&self) -> bool {
        self.filters
    }

    /// The topology keys on whose values the verdict on a node depends, with the present pods.
    pub fn filter_columns(&self) -> impl Iterator<Item = ColumnId> {
        let own = self.required.iter().chain(&self.required_anti);
        let existing = self.existing.columns.iter().map(|(column, ..)| *column);
        own.map(|(_, column)| *column).chain(existing)
    }

    pub fn scores(&self) -> bool {
        let own = !self.preferred.is_empty() || !self.preferred_anti.is_empty();
        self.weighs && self.preferences > 0 && (own || !self.ignores_preferences)
    }

    /// Whether the verdict on a node depends on that node alone (for this class, with the present pods).
    pub fn is_local(&self) -> bool {
        !self.filters()
    }

    pub fn interaction(&self, cluster: &mut Cluster, pod: &PodClass, other: &PodClass) -> Interaction {
        let mut adds = Vec::new();
        if !self.required.is_empty() && self.required.iter().all(|(t, _)| is_for(t, other)) {
            adds.extend(
                self.required
                    .iter()
                    .map(|(_, column)| (Sum::Affinity, *column, 1)),
            );
        }
        let met = |terms: &Terms| -> Vec<(ColumnId, i64)> {
            let met = terms.iter().filter(|(t, _)| is_for(t, other));
            met.map(|(t, column)| (*column, t.weight)).collect()
        };
        let anti = met(&self.required_anti);
        adds.extend(anti.into_iter().map(|(column, _)| (Sum::AntiAffinity, column, 1)));
        let mut score = met(&self.preferred);
        score.extend(met(&self.preferred_anti).into_iter().map(|(c, w)| (c, -w)));
        if let Ok(theirs) = &other.affinity
            && !theirs.is_empty()
        {
            let own_labels = cluster.namespace_labels(pod.namespace()).cloned();
            let mut met = |terms: &[AffinityTerm]| -> Vec<(ColumnId, i64)> {
                let met = terms
                    .iter()
                    .filter(|t| t.matches(pod.namespace(), own_labels.as_ref(), pod.labels()));
                met.map(|t| (cluster.column_of(&t.topology_key), t.weight))
                    .collect()
            };
            let existing = met(&theirs.required_anti);
            adds.extend(existing.into_iter().map(|(column, _)| (Sum::Existing, column, 1)));
            if self.hard_weight > 0 {
                let hard = met(&theirs.required);
                score.extend(hard.into_iter().map(|(column, _)| (column, self.hard_weight)));
            }
            score.extend(met(&theirs.preferred));
            score.extend(met(&theirs.preferred_anti).into_iter().map(|(c, w)| (c, -w)));
        }
        if self.weighs {
            adds.extend(
                score
                    .into_iter()
                    .map(|(column, weight)| (Sum::Score, column, weight)),
            );
        }
        Interaction { adds }
    }

    fn add(&mut self, sum: Sum, column: ColumnId, value: u32, more: i64, times: i64) {
        match sum {
            Sum::Affinity => self.affinity.add(column, value, more),
            Sum::AntiAffinity => self.anti_affinity.add(column, value, more),
            Sum::Existing => self.existing.add(column, value, more),
            Sum::Score => {
                self.score.add(column, value, more);
                self.preferences += times;
            }
        }
    }

    /// Counts the pods on a node again: `pods` are the groups there.
    pub fn refresh<'a>(
        &mut self,
        cluster: &Cluster,
        index: NodeIndex,
        pods: impl Iterator<Item = (&'a Interaction, u32)>,
    ) {
        let at = index as usize;
        if let Some(was) = self.adds.get_mut(at) {
            for (sum, column, value, more) in std::mem::take(was) {
                self.add(sum, column, value, -more, -1);
            }
        }
        let mut now = Vec::new();
        if cluster.at(index).node.is_some() {
            for (interaction, count) in pods {
                for (sum, column, weight) in &interaction.adds {
                    let value = cluster.column(*column).at(index);
                    if value != NO_VALUE {
                        now.push((*sum, *column, value, weight * i64::from(count)));
                    }
                }
            }
        }
        for (sum, column, value, more) in &now {
            self.add(*sum, *column, *value, *more, 1);
        }
        if !now.is_empty() || self.adds.len() > at {
            if self.adds.len() <= at {
                self.adds.resize_with(at + 1, Vec::new);
            }
            self.adds[at] = now;
        }
    }

    /// Filters all nodes that no plugin has rejected yet; `number` registers a status.
    pub fn filter_all(
        &self,
        cluster: &Cluster,
        verdicts: &mut [u16],
        mut number: impl FnMut(UnschedulableStatus) -> u16,
    ) {
        if !self.required.is_empty() {
            let anywhere = self.matches_itself && self.affinity.pairs == 0;
            let mut rejection = None;
            for (index, verdict) in (0..).zip(verdicts.iter_mut()) {
                let near = |column: ColumnId| {
                    let value = cluster.column(column).at(index);
                    value != NO_VALUE && (anywhere || self.affinity.get(column, value) > 0)
                };
                if *verdict == FEASIBLE && !self.required.iter().all(|(_, column)| near(*column)) {
                    *verdict = *rejection.get_or_insert_with(|| number(rejected(AFFINITY)));
                }
            }
        }
        for (sums, reason) in [(&self.anti_affinity, ANTI_AFFINITY), (&self.existing, EXISTING)] {
            let mut rejection = None;
            for (column, sums, _) in sums.columns.iter().filter(|(.., pairs)| *pairs > 0) {
                let values = cluster.column(*column).all();
                for (verdict, value) in verdicts.iter_mut().zip(values) {
                    // A node without the value is past the end.
                    let there = sums.get(*value as usize).is_some_and(|n| *n > 0);
                    if there && *verdict == FEASIBLE {
                        *verdict = *rejection.get_or_insert_with(|| number(rejected(reason)));
                    }
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
        let value = |column: ColumnId| Some(cluster.column(column).at(index)).filter(|v| *v != NO_VALUE);
        let more = |sum: Sum, column: ColumnId| -> i64 {
            let adds = pod_changes
                .clone()
                .flat_map(|(other, one)| other.adds.iter().map(move |add| (add, one)));
            let of = adds.filter(|((s, c, _), _)| *s == sum && *c == column);
            of.map(|((_, _, n), one)| n * one).sum()
        };
        let mut near = true;
        for (_, column) in &self.required {
            match value(*column) {
                None => return Err(rejected(AFFINITY)),
                Some(v) => near &= self.affinity.get(*column, v) + more(Sum::Affinity, *column) > 0,
            }
        }
        // The first pod of a group with affinity to itself fits any node with the topology key.
        let is_first_of_group = || self.matches_itself && self.nowhere(&value, &more);
        if !near && !is_first_of_group() {
            return Err(rejected(AFFINITY));
        }
        for (_, column) in &self.required_anti {
            if let Some(v) = value(*column)
                && self.anti_affinity.get(*column, v) + more(Sum::AntiAffinity, *column) > 0
            {
                return Err(rejected(ANTI_AFFINITY));
            }
        }
        for (column, sums, _) in &self.existing.columns {
            if let Some(v) = value(*column)
                && sums.get(v as usize).copied().unwrap_or(0) + more(Sum::Existing, *column) > 0
            {
                return Err(rejected(EXISTING));
            }
        }
        // Topology keys that only the added pods have terms for.
        for (other, _) in pod_changes.clone() {
            for (_, column, _) in other.adds.iter().filter(|(sum, ..)| *sum == Sum::Existing) {
                let known = self.existing.columns.iter().any(|(id, ..)| id == column);
                if !known && value(*column).is_some() && more(Sum::Existing, *column) > 0 {
                    return Err(rejected(EXISTING));
                }
            }
        }
        Ok(())
    }

    /// Whether a pod of the class fits a node, with these pods added or removed anywhere.
    pub fn filter_with_changes_elsewhere<'a>(
        &self,
        cluster: &Cluster,
        index: NodeIndex,
        pod_changes: impl Iterator<Item = PodChange<'a, Interaction>> + Clone,
    ) -> Result<(), UnschedulableStatus> {
        // For each sum and topology key, by value.
        let mut more: BTreeMap<(Sum, ColumnId, u32), i64> = BTreeMap::new();
        for change in pod_changes {
            for (sum, column, weight) in &change.interaction.adds {
                let value = cluster.column(*column).at(change.node);
                if value != NO_VALUE {
                    *more.entry((*sum, *column, value)).or_default() += weight * change.count;
                }
            }
        }
        let more_at = |sum, column, value| more.get(&(sum, column, value)).copied().unwrap_or(0);
        let value = |column: ColumnId| Some(cluster.column(column).at(index)).filter(|v| *v != NO_VALUE);
        let mut near = true;
        for (_, column) in &self.required {
            let Some(v) = value(*column) else {
                return Err(rejected(AFFINITY));
            };
            near &= self.affinity.get(*column, v) + more_at(Sum::Affinity, *column, v) > 0;
        }
        if !near {
            let mut pairs = self.affinity.pairs;
            for ((_, column, v), more) in more.iter().filter(|((sum, ..), _)| *sum == Sum::Affinity) {
                let is = self.affinity.get(*column, *v);
                pairs = pairs + usize::from(is + more != 0) - usize::from(is != 0);
            }
            // The first pod of a group with affinity to itself fits any node with the topology key.
            if !(self.matches_itself && pairs == 0) {
                return Err(rejected(AFFINITY));
            }
        }
        for (_, column) in &self.required_anti {
            if let Some(v) = value(*column)
                && self.anti_affinity.get(*column, v) + more_at(Sum::AntiAffinity, *column, v) > 0
            {
                return Err(rejected(ANTI_AFFINITY));
            }
        }
        let known = self.existing.columns.iter().map(|(column, ..)| *column);
        let added = more
            .keys()
            .filter(|(sum, ..)| *sum == Sum::Existing)
            .map(|(_, column, _)| *column);
        for column in known.chain(added) {
            if let Some(v) = value(column)
                && self.existing.get(column, v) + more_at(Sum::Existing, column, v) > 0
            {
                return Err(rejected(EXISTING));
            }
        }
        Ok(())
    }

    /// The topology keys in whose domains pods exclude the class now.
    pub fn excluding_columns(&self) -> impl Iterator<Item = ColumnId> {
        let all = self.anti_affinity.columns.iter().chain(&self.existing.columns);
        all.filter(|(.., pairs)| *pairs > 0).map(|(column, ..)| *column)
    }

    /// Whether a pod on the node excludes the class from a domain.
    pub fn excludes_by_pods_on(&self, index: NodeIndex) -> bool {
        let mut adds = self.adds.get(index as usize).into_iter().flatten();
        adds.any(|(sum, ..)| is_anti(*sum))
    }

    /// Whether no pod anywhere matches the required terms.
    fn nowhere(&self, value: &dyn Fn(ColumnId) -> Option<u32>, more: &dyn Fn(Sum, ColumnId) -> i64) -> bool {
        let mut pairs = self.affinity.pairs;
        let mut done: Vec<ColumnId> = Vec::new();
        for (_, column) in &self.required {
            if done.contains(column) {
                continue;
            }
            done.push(*column);
            if let Some(v) = value(*column) {
                let is = self.affinity.get(*column, v);
                let would = is + more(Sum::Affinity, *column);
                pairs = pairs + usize::from(would != 0) - usize::from(is != 0);
            }
        }
        pairs == 0
    }

    /// The normalized scores of nodes.
    pub fn score(&self, cluster: &Cluster, indices: &[NodeIndex], scores: &mut Vec<i64>) {
        scores.clear();
        scores.resize(indices.len(), 0);
        for (column, sums, pairs) in &self.score.columns {
            if *pairs == 0 {
                continue;
            }
            let column = cluster.column(*column);
            for (index, score) in indices.iter().zip(scores.iter_mut()) {
                // A node without the value is past the end.
                *score += sums.get(column.at(*index) as usize).copied().unwrap_or(0);
            }
        }
        let min = scores.iter().copied().min().unwrap_or(0);
        let max = scores.iter().copied().max().unwrap_or(0);
        for score in scores {
            *score = if max > min {
                (MAX_NODE_SCORE as f64 * ((*score - min) as f64 / (max - min) as f64)) as i64
            } else {
                0
            };
        }
    }
}

const AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

fn rejected(reason: &'static str) -> UnschedulableStatus {
    if reason == AFFINITY {
        UnschedulableStatus::unresolvable(NAME, reason)
    } else {
        UnschedulableStatus::unschedulable(NAME, reason)
    }
}

/// The term, with the namespaces that its selector matches now added by name.
fn resolved(cluster: &Cluster, term: &AffinityTerm) -> AffinityTerm {
    let mut term = term.clone();
    if let Some(selector) = &term.namespace_selector
        && !selector.is_everything()
    {
        let selected: Vec<String> = cluster.namespaces(selector).cloned().collect();
        term.namespaces.extend(selected);
    }
    term
}

/// Whether a term of the incoming pod matches another pod. As in v1.36, a namespace selector that a namespace without
/// labels matches (NotIn, DoesNotExist) matches all namespaces.
fn is_for(term: &AffinityTerm, other: &PodClass) -> bool {
    term.matches(other.namespace(), None, other.labels())
}

/// Whether a change of a node may make a pod schedulable that this plugin rejected.
pub fn node_change_helps(pod: &PodClass, before: Option<&NodeInfo>, after: Option<&NodeInfo>) -> bool {
    let Ok(terms) = &pod.affinity else { return true };
    let Some(after) = after else { return false };
    let Some(before) = before else {
        return !terms.required_anti.is_empty()
            || terms
                .required
                .iter()
                .any(|t| after.label(&t.topology_key).is_some())
            || (terms.required.is_empty() && terms.required_anti.is_empty());
    };
    let changed = |t: &&AffinityTerm| before.label(&t.topology_key) != after.label(&t.topology_key);
    terms
        .required
        .iter()
        .filter(changed)
        .any(|t| after.label(&t.topology_key).is_some())
        || terms
            .required_anti
            .iter()
            .filter(changed)
            .any(|t| before.label(&t.topology_key).is_some())
        || (terms.required.is_empty() && terms.required_anti.is_empty() && before.labels() != after.labels())
}

/// Whether a pod that was added to a node (`came`) or removed from one may make a pod schedulable that this plugin
/// rejected.
pub fn pod_change_helps(pod: &PodClass, other: &PodClass, came: bool) -> bool {
    let (Ok(mine), Ok(theirs)) = (&pod.affinity, &other.affinity) else {
        return true;
    };
    // Namespaces by selector: taken as matching, because this is only a hint.
    let may_be_for = |t: &AffinityTerm, pod: &PodClass| {
        (t.namespaces.contains(pod.namespace()) || t.namespace_selector.is_some())
            && crate::pod_info::selects(&t.selector, pod.labels())
    };
    if came {
        return !mine.required.is_empty() && mine.required.iter().all(|t| may_be_for(t, other));
    }
    mine.required_anti.iter().any(|t| may_be_for(t, other))
        || theirs.required_anti.iter().any(|t| may_be_for(t, pod))
}
