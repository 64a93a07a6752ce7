//! The results of the filter and score plugins on every node for one class of pods, kept as columns and updated for
//! the nodes that changed since the last use. This is where the speed comes from: an attempt for a pod of a known
//! class costs the nodes that changed and a few passes over arrays, however large the cluster is.

mod feasible_sums;
mod filters;
mod nominated_in_domains;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::{Cluster, NodeIndex};
use crate::plugins::default_preemption::candidates::Candidates;
use crate::plugins::inter_pod_affinity::{self, InterPodAffinity};
use crate::plugins::pod_topology_spread::{self, Spread};
use crate::plugins::{
    self, PluginError, PreFilterError, UnschedulableStatus, image_locality, node_affinity,
    node_resources_balanced_allocation, node_resources_fit, taint_toleration,
};
use crate::pod_info::{ClassId, PodClass};
use crate::profile::Profile;
use crate::storage::Storage;
use crate::verdict::{FEASIBLE, NO_NODE, StatusTable};
use feasible_sums::{FeasibleSums, NOT_FEASIBLE};
use knarr_apimachinery::ids::NodeName;
pub use removal::{Removal, RemovedPod};

/// How the pods of one other class affect the counts of PodTopologySpread and InterPodAffinity.
#[derive(Clone, Debug, Default)]
struct Interaction {
    spread: pod_topology_spread::Interaction,
    affinity: inter_pod_affinity::Interaction,
}

/// Scores of the plugins that read one node only.
#[derive(Debug, Default)]
struct Columns {
    /// NodeResourcesFit, NodeResourcesBalancedAllocation.
    fit: Vec<i64>,
    balanced: Vec<i64>,
    image: Vec<i64>,
    /// The weighted sum of the above and of ImageLocality.
    sum: Vec<i64>,
    /// The sum, for nodes that pass the filters that read one node only.
    feasible_sums: FeasibleSums,
    /// Not yet normalized.
    taints: Vec<i64>,
    affinity: Vec<i64>,
    /// How many nodes have PreferNoSchedule taints that the pod does not tolerate.
    tainted: usize,
}

/// See the module.
#[derive(Debug)]
pub struct ClassState {
    pub class: Arc<PodClass>,
    /// `spec.nodeName` of its pods; such a state is not kept.
    node_name: NodeName,
    seen: u64,
    images_version: u64,
    nodes: usize,
    named: Option<BTreeSet<NodeName>>,
    statuses: StatusTable,
    storage: Option<Storage>,
    /// The verdicts of the filters that read one node only.
    local: Vec<u16>,
    columns: Columns,
    spread: Spread,
    affinity: InterPodAffinity,
    interactions: BTreeMap<ClassId, Option<Box<Interaction>>>,
    nothing: Interaction,
    pub(crate) candidates: Candidates,
    /// By node index, where there are any: nodes on which a pod of the class would take the place of a nominated pod.
    closed: Vec<bool>,
    pub(crate) last_used: u64,
}

/// The state of one scheduling cycle; its memory is used again for the next pod.
#[derive(Debug, Default)]
pub struct CycleState {
    /// The verdict of all filters, by node index.
    verdicts: Vec<u16>,
    pub feasible: Vec<NodeIndex>,
    pub totals: Vec<i64>,
    scores: Vec<i64>,
    seen: Vec<u32>,
    feasible_sums: Vec<i32>,
}

impl CycleState {
    /// Collects the feasible nodes.
    pub fn collect(&mut self) {
        self.feasible.clear();
        let feasible = (0..).zip(&self.verdicts).filter(|(_, v)| **v == FEASIBLE);
        self.feasible.extend(feasible.map(|(index, _)| index));
    }
}

/// One of the nodes with the best sum, chosen by `rotation`, and how many nodes are feasible. Short passes over small
/// numbers: this runs for every pod.
fn one_of_the_best(feasible_sums: &[i32], rotation: usize) -> Option<(NodeIndex, usize)> {
    let best = feasible_sums
        .iter()
        .copied()
        .max()
        .filter(|best| *best != NOT_FEASIBLE)?;
    let equals: usize = feasible_sums.iter().map(|r| usize::from(*r == best)).sum();
    let feasible: usize = feasible_sums
        .iter()
        .map(|r| usize::from(*r != NOT_FEASIBLE))
        .sum();
    let mut indices = (0..).zip(feasible_sums).filter(|(_, r)| **r == best);
    let (index, _) = indices.nth(rotation % equals.max(1))?;
    Some((index, feasible))
}

/// Scores of one plugin for the feasible nodes, in their order.
pub type PluginScores = (&'static str, Vec<i64>);

impl ClassState {
    /// `node_name` is the `spec.nodeName` of its pods; mostly empty.
    pub fn new(
        profile: &Profile,
        cluster: &mut Cluster,
        class: Arc<PodClass>,
        node_name: &str,
    ) -> Result<Self, PreFilterError> {
        let named = if profile.filters(node_affinity::NAME) {
            node_affinity::named_nodes(&class)
        } else {
            None
        };
        if named.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(PreFilterError::Unschedulable(UnschedulableStatus::unresolvable(
                node_affinity::NAME,
                node_affinity::CONFLICT,
            )));
        }
        let storage = Storage::new(profile, cluster.volumes(), &class)?;
        let spread = Spread::new(profile, cluster, &class)
            .map_err(|error| PreFilterError::Error(PluginError::PodTopologySpread(error)))?;
        let affinity = InterPodAffinity::new(profile, cluster, &class).map_err(|error| {
            PreFilterError::Unschedulable(UnschedulableStatus {
                plugin: inter_pod_affinity::NAME,
                reasons: vec![error.to_string().into()],
                resolvable: false,
            })
        })?;
        Ok(ClassState {
            class,
            node_name: node_name.into(),
            seen: u64::MAX,
            images_version: 0,
            nodes: 0,
            named,
            statuses: StatusTable::default(),
            storage,
            local: Vec::new(),
            columns: Columns::default(),
            spread,
            affinity,
            interactions: BTreeMap::new(),
            nothing: Interaction::default(),
            candidates: Candidates::default(),
            closed: Vec::new(),
            last_used: 0,
        })
    }

    /// Updates the results for the nodes that changed.
    pub fn catch_up(&mut self, profile: &Profile, cluster: &mut Cluster) {
        let slots = cluster.slots();
        self.local.resize(slots, NO_NODE);
        let columns = &mut self.columns;
        for column in [
            &mut columns.fit,
            &mut columns.balanced,
            &mut columns.image,
            &mut columns.sum,
            &mut columns.taints,
            &mut columns.affinity,
        ] {
            column.resize(slots, 0);
        }
        columns.feasible_sums.resize(slots);
        let changed: Option<Vec<NodeIndex>> = cluster.changes_since(self.seen).map(<[NodeIndex]>::to_vec);
        match changed {
            Some(changed) if changed.len() < slots => {
                for index in changed {
                    self.refresh(profile, cluster, index);
                }
            }
            _ => {
                for index in 0..NodeIndex::try_from(slots).unwrap_or(NodeIndex::MAX) {
                    self.refresh(profile, cluster, index);
                }
            }
        }
        self.seen = cluster.now();
        self.add_interactions_in_domains(cluster);
        if self.images_version != cluster.images_version || self.nodes != cluster.len() {
            self.images_version = cluster.images_version;
            self.nodes = cluster.len();
            let has_images = |name: &String| cluster.image(name).is_some();
            let any = self
                .class
                .images
                .iter()
                .chain(&self.class.image_volumes)
                .any(has_images);
            let weight = profile.weight(image_locality::NAME);
            for index in 0..NodeIndex::try_from(slots).unwrap_or(NodeIndex::MAX) {
                let score = if any && weight != 0 {
                    image_locality::score(cluster, &self.class, index)
                } else {
                    0
                };
                let at = index as usize;
                self.columns.sum[at] += (score - self.columns.image[at]) * weight;
                self.columns.image[at] = score;
                self.update_feasible_sum(at);
            }
        }
    }

    /// Computes the results of one node again.
    fn refresh(&mut self, profile: &Profile, cluster: &mut Cluster, index: NodeIndex) {
        let at = index as usize;
        self.add_interactions(cluster, index);
        let node = cluster.at(index);
        self.local[at] = match self.filter_local(profile, cluster, node) {
            None => NO_NODE,
            Some(Ok(())) => FEASIBLE,
            Some(Err(rejection)) => self.statuses.number(rejection),
        };
        let class = &self.class;
        let weight = |name| profile.weight(name);
        let columns = &mut self.columns;
        let was = columns.taints[at];
        columns.taints[at] = 0;
        if node.node.is_some() {
            columns.fit[at] = node_resources_fit::score(profile, class, node);
            if node_resources_balanced_allocation::scores(profile, class) {
                columns.balanced[at] = node_resources_balanced_allocation::score(profile, class, node);
            }
            columns.sum[at] = columns.fit[at] * weight(node_resources_fit::NAME)
                + columns.balanced[at] * weight(node_resources_balanced_allocation::NAME)
                + columns.image[at] * weight(image_locality::NAME);
            columns.taints[at] = taint_toleration::score(class, node);
            if node_affinity::scores(profile, class) {
                columns.affinity[at] = node_affinity::score(profile, class, node);
            }
        }
        columns.tainted = columns.tainted + usize::from(columns.taints[at] != 0) - usize::from(was != 0);
        self.update_feasible_sum(at);
        let of = |id| match self.interactions.get(&id) {
            Some(Some(interaction)) => interaction,
            _ => &self.nothing,
        };
        let groups = node.groups().iter();
        let live = groups
            .clone()
            .map(|g| (&of(g.class.id).spread, g.count - g.terminating));
        self.spread.refresh(cluster, &self.class, index, live);
        let all = groups.map(|g| (&of(g.class.id).affinity, g.count));
        self.affinity.refresh(cluster, index, all);
    }

    fn update_feasible_sum(&mut self, at: usize) {
        let sum = if self.local[at] == FEASIBLE {
            i32::try_from(self.columns.sum[at]).unwrap_or(i32::MAX).max(0)
        } else {
            NOT_FEASIBLE
        };
        self.columns.feasible_sums.set(at, sum);
    }

    /// The best node where only the sum of the plugins that read one node decides: one of the equally good ones,
    /// chosen by `rotation`, and how many nodes are feasible. `None`: other plugins have a say, or no node is
    /// feasible.
    pub fn best_by_sum(&self, profile: &Profile, rotation: usize) -> Option<(NodeIndex, usize)> {
        if !self.is_local() || !self.sum_decides(profile) {
            return None;
        }
        self.columns.feasible_sums.one_of_the_best(rotation)
    }

    /// Whether the feasible node with the best sum is the best node.
    fn sum_decides(&self, profile: &Profile) -> bool {
        self.columns.tainted == 0
            && !self.spread.scores()
            && !self.affinity.scores()
            && !node_affinity::scores(profile, &self.class)
    }

    /// As [`ClassState::best_by_sum`], of the nodes that [`ClassState::filter`] has left. Not valid with nominated
    /// pods: they change a node's result without changing its sum.
    pub fn best_by_sum_of_filtered(
        &self,
        profile: &Profile,
        cycle: &mut CycleState,
        rotation: usize,
    ) -> Option<(NodeIndex, usize)> {
        if !self.sum_decides(profile) {
            return None;
        }
        let CycleState {
            verdicts,
            feasible_sums,
            ..
        } = cycle;
        let both = verdicts.iter().zip(self.columns.feasible_sums.sums());
        feasible_sums.clear();
        feasible_sums
            .extend(both.map(|(verdict, sum)| if *verdict == FEASIBLE { *sum } else { NOT_FEASIBLE }));
        one_of_the_best(feasible_sums, rotation)
    }

    /// Computes how the pods there affect the class, for classes where that is not known yet.
    fn add_interactions(&mut self, cluster: &mut Cluster, index: NodeIndex) {
        let known = &self.interactions;
        let groups = cluster.at(index).groups().iter();
        let unknown: Vec<Arc<PodClass>> = groups
            .filter(|g| !known.contains_key(&g.class.id))
            .map(|g| g.class.clone())
            .collect();
        for other in unknown {
            self.interaction(cluster, &other);
        }
    }

    fn interaction(&mut self, cluster: &mut Cluster, other: &PodClass) {
        let interaction = Interaction {
            spread: self.spread.interaction(&self.class, other),
            affinity: self.affinity.interaction(cluster, &self.class, other),
        };
        let nothing = interaction.spread.is_nothing() && interaction.affinity.is_nothing();
        self.interactions
            .insert(other.id, (!nothing).then(|| Box::new(interaction)));
    }

    fn known(&self, id: ClassId) -> &Interaction {
        match self.interactions.get(&id) {
            Some(Some(interaction)) => interaction,
            _ => &self.nothing,
        }
    }

    /// Whether it was made from the present version of storage (or needs none).
    pub fn knows_storage(&self, cluster: &Cluster) -> bool {
        let storage = self.storage.as_ref();
        storage.is_none_or(|s| s.version == cluster.volumes().version)
    }

    /// The node names that the pod's node affinity allows; `None`: all.
    pub fn named(&self) -> Option<&BTreeSet<NodeName>> {
        self.named.as_ref()
    }

    /// Whether the verdict on a node depends on that node alone.
    pub fn is_local(&self) -> bool {
        self.affinity.is_local() && !self.spread.filters()
    }

    /// Rejects a node because of a plugin that runs outside of the columns.
    pub(crate) fn reject(
        &mut self,
        cycle: &mut CycleState,
        index: NodeIndex,
        rejection: UnschedulableStatus,
    ) {
        let number = self.statuses.number(rejection);
        if let Some(verdict) = cycle.verdicts.get_mut(index as usize) {
            *verdict = number;
        }
    }

    /// Excludes the node from the choice, without a reason.
    pub(crate) fn pass_over(cycle: &mut CycleState, index: NodeIndex) {
        if let Some(verdict) = cycle.verdicts.get_mut(index as usize) {
            *verdict = NO_NODE;
        }
    }

    /// Why a node was rejected; `None`: it was not.
    pub fn rejection(&self, cycle: &CycleState, index: NodeIndex) -> Option<&UnschedulableStatus> {
        self.statuses.get(cycle.verdicts.get(index as usize).copied()?)
    }

    /// Each status with the number of nodes.
    pub fn histogram<'a>(
        &'a self,
        cycle: &CycleState,
    ) -> impl Iterator<Item = (&'a UnschedulableStatus, usize)> {
        let mut counts = vec![0_usize; self.statuses.all().len() + 1];
        for verdict in &cycle.verdicts {
            if let Some(count) = counts.get_mut(usize::from(*verdict)) {
                *count += 1;
            }
        }
        let counts = counts.into_iter().skip(1);
        self.statuses.all().iter().zip(counts).filter(|(_, n)| *n > 0)
    }

    /// Computes the weighted sums of all scores of the feasible nodes. With `plugin_scores`, also each plugin's
    /// scores.
    pub fn score(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        cycle: &mut CycleState,
        mut plugin_scores: Option<&mut Vec<PluginScores>>,
    ) {
        let CycleState {
            feasible,
            totals,
            scores,
            seen,
            ..
        } = cycle;
        let columns = &self.columns;
        let of = |column: &[i64], index: &NodeIndex| column.get(*index as usize).copied().unwrap_or(0);
        totals.clear();
        totals.extend(feasible.iter().map(|p| of(&columns.sum, p)));
        if let Some(plugin_scores) = &mut plugin_scores {
            let mut column = |name, column: &[i64]| {
                if profile.weight(name) != 0 {
                    plugin_scores.push((name, feasible.iter().map(|p| of(column, p)).collect()));
                }
            };
            column(node_resources_fit::NAME, &columns.fit);
            column(image_locality::NAME, &columns.image);
            if node_resources_balanced_allocation::scores(profile, &self.class) {
                column(node_resources_balanced_allocation::NAME, &columns.balanced);
            }
        }
        let keeps_plugin_scores = plugin_scores.is_some();
        let mut add = |name: &'static str, scores: &[i64], totals: &mut [i64]| {
            let weight = profile.weight(name);
            for (total, score) in totals.iter_mut().zip(scores) {
                *total += score * weight;
            }
            if let Some(plugin_scores) = &mut plugin_scores
                && weight != 0
            {
                plugin_scores.push((name, scores.to_vec()));
            }
        };
        // Without PreferNoSchedule taints all nodes score the same, which decides nothing.
        if columns.tainted > 0 || keeps_plugin_scores {
            scores.clear();
            scores.extend(feasible.iter().map(|p| of(&columns.taints, p)));
            plugins::normalize(scores, true);
            add(taint_toleration::NAME, scores, totals);
        }
        if node_affinity::scores(profile, &self.class) {
            scores.clear();
            scores.extend(feasible.iter().map(|p| of(&columns.affinity, p)));
            plugins::normalize(scores, false);
            add(node_affinity::NAME, scores, totals);
        }
        if self.spread.scores() {
            self.spread.score(cluster, feasible, scores, seen);
            add(pod_topology_spread::NAME, scores, totals);
        }
        if self.affinity.scores() {
            self.affinity.score(cluster, feasible, scores);
            add(inter_pod_affinity::NAME, scores, totals);
        }
    }
}
