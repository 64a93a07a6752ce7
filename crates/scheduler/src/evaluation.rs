//! What the rules say of every node for one class of pods, kept as columns and brought up to date with the nodes that
//! changed since it was asked last. This is where the speed comes from: a pod of a known class costs the nodes that
//! changed and a few passes over arrays, whatever stands in the cluster.

mod ready;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::{Cluster, Place};
use crate::node_info::NodeInfo;
use crate::plugins::default_preemption::Candidates;
use crate::plugins::inter_pod_affinity::{self, InterPodAffinity};
use crate::plugins::pod_topology_spread::{self, Spread};
use crate::plugins::{
    self, Refusal, image_locality, node_affinity, node_name, node_resources_balanced_allocation,
    node_resources_fit, taint_toleration,
};
use crate::pod_info::{ClassId, PodClass, PodInfo};
use crate::profile::Profile;
use crate::storage::Storage;
use ready::{NOT_READY, Ready};

/// What no node is looked at for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// A rule refused the pod itself.
    Refused(Refusal),
    /// The pod cannot be judged (a selector that does not parse).
    Error(String),
}

/// Verdict on a place without a node.
const NO_NODE: u16 = u16::MAX;
/// Verdict on a node that takes the pod.
pub(crate) const FEASIBLE: u16 = 0;

/// How a pod of one class and what stands bear on each other across nodes.
#[derive(Clone, Debug, Default)]
struct Interaction {
    spread: pod_topology_spread::Interaction,
    affinity: inter_pod_affinity::Interaction,
}

/// The refusals that occur, numbered from 1.
#[derive(Debug, Default)]
struct Refusals {
    all: Vec<Refusal>,
}

impl Refusals {
    fn number(&mut self, refusal: Refusal) -> u16 {
        let at = match self.all.iter().position(|r| *r == refusal) {
            Some(at) => at,
            None => {
                self.all.push(refusal);
                self.all.len() - 1
            }
        };
        // As many different ones as there are ways to lack resources: a few dozen.
        u16::try_from(at + 1).unwrap_or(NO_NODE - 1)
    }

    fn get(&self, number: u16) -> Option<&Refusal> {
        self.all.get(usize::from(number).checked_sub(1)?)
    }
}

/// Scores of the rules that look at one node.
#[derive(Debug, Default)]
struct Columns {
    /// NodeResourcesFit, NodeResourcesBalancedAllocation.
    fit: Vec<i64>,
    balanced: Vec<i64>,
    image: Vec<i64>,
    /// Both of the above and images, weighted.
    sum: Vec<i64>,
    /// The sum where the rules on one node take the pod.
    ready: Ready,
    /// Not yet normalised.
    taints: Vec<i64>,
    affinity: Vec<i64>,
    /// How many nodes have taints that count.
    tainted: usize,
}

/// See the module.
#[derive(Debug)]
pub struct ClassState {
    pub class: Arc<PodClass>,
    /// The node that its pods name, if they do: such a state is not kept.
    wanted: String,
    seen: u64,
    images_version: u64,
    nodes: usize,
    named: Option<BTreeSet<String>>,
    refusals: Refusals,
    storage: Option<Storage>,
    /// By the rules on one node.
    local: Vec<u16>,
    columns: Columns,
    spread: Spread,
    affinity: InterPodAffinity,
    interactions: BTreeMap<ClassId, Option<Box<Interaction>>>,
    nothing: Interaction,
    pub(crate) candidates: Candidates,
    pub(crate) last_used: u64,
}

/// Space that is used again for every pod.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The verdict of all rules, by place.
    verdicts: Vec<u16>,
    pub feasible: Vec<Place>,
    pub totals: Vec<i64>,
    scores: Vec<i64>,
    seen: Vec<u32>,
    ready: Vec<i32>,
}

impl Scratch {
    /// The nodes that will do.
    pub fn collect(&mut self) {
        self.feasible.clear();
        let feasible = (0..).zip(&self.verdicts).filter(|(_, v)| **v == FEASIBLE);
        self.feasible.extend(feasible.map(|(place, _)| place));
    }
}

/// Of places with their sums one of the best, which one is `turn`'s, and how many will do. Short passes over small
/// numbers: this is done for every pod.
fn one_of_the_best(ready: &[i32], turn: usize) -> Option<(Place, usize)> {
    let best = ready.iter().copied().max().filter(|best| *best != NOT_READY)?;
    let equals: usize = ready.iter().map(|r| usize::from(*r == best)).sum();
    let feasible: usize = ready.iter().map(|r| usize::from(*r != NOT_READY)).sum();
    let mut places = (0..).zip(ready).filter(|(_, r)| **r == best);
    let (place, _) = places.nth(turn % equals.max(1))?;
    Some((place, feasible))
}

/// Scores of one plugin for the feasible nodes, in their order.
pub type PluginScores = (&'static str, Vec<i64>);

impl ClassState {
    /// `wanted` is the node its pods name; mostly empty.
    pub fn new(
        profile: &Profile,
        cluster: &mut Cluster,
        class: Arc<PodClass>,
        wanted: &str,
    ) -> Result<Self, Rejection> {
        let named = if profile.filters(node_affinity::NAME) {
            node_affinity::named_nodes(&class)
        } else {
            None
        };
        if named.as_ref().is_some_and(BTreeSet::is_empty) {
            return Err(Rejection::Refused(Refusal::of_node(
                node_affinity::NAME,
                node_affinity::CONFLICT,
            )));
        }
        let storage = Storage::new(profile, cluster.volumes(), &class)?;
        let spread = Spread::new(profile, cluster, &class).map_err(Rejection::Error)?;
        let affinity = InterPodAffinity::new(profile, cluster, &class).map_err(|error| {
            Rejection::Refused(Refusal {
                plugin: inter_pod_affinity::NAME,
                reasons: vec![error.into()],
                pods_in_the_way: false,
            })
        })?;
        Ok(ClassState {
            class,
            wanted: wanted.to_string(),
            seen: u64::MAX,
            images_version: 0,
            nodes: 0,
            named,
            refusals: Refusals::default(),
            storage,
            local: Vec::new(),
            columns: Columns::default(),
            spread,
            affinity,
            interactions: BTreeMap::new(),
            nothing: Interaction::default(),
            candidates: Candidates::default(),
            last_used: 0,
        })
    }

    /// Brings it up to date.
    pub fn catch_up(&mut self, profile: &Profile, cluster: &mut Cluster) {
        let places = cluster.places();
        self.local.resize(places, NO_NODE);
        let columns = &mut self.columns;
        for column in [
            &mut columns.fit,
            &mut columns.balanced,
            &mut columns.image,
            &mut columns.sum,
            &mut columns.taints,
            &mut columns.affinity,
        ] {
            column.resize(places, 0);
        }
        columns.ready.resize(places);
        let changed: Option<Vec<Place>> = cluster.changes_since(self.seen).map(<[Place]>::to_vec);
        match changed {
            Some(changed) if changed.len() < places => {
                for place in changed {
                    self.refresh(profile, cluster, place);
                }
            }
            _ => {
                for place in 0..Place::try_from(places).unwrap_or(Place::MAX) {
                    self.refresh(profile, cluster, place);
                }
            }
        }
        self.seen = cluster.now();
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
            for place in 0..Place::try_from(places).unwrap_or(Place::MAX) {
                let score = if any && weight != 0 {
                    image_locality::score(cluster, &self.class, place)
                } else {
                    0
                };
                let at = place as usize;
                self.columns.sum[at] += (score - self.columns.image[at]) * weight;
                self.columns.image[at] = score;
                self.ready(at);
            }
        }
    }

    /// Works out anew what one node is to the class.
    fn refresh(&mut self, profile: &Profile, cluster: &mut Cluster, place: Place) {
        let at = place as usize;
        self.learn(cluster, place);
        let node = cluster.at(place);
        self.local[at] = match self.judge_local(profile, cluster, node) {
            None => NO_NODE,
            Some(Ok(())) => FEASIBLE,
            Some(Err(refusal)) => self.refusals.number(refusal),
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
        self.ready(at);
        let of = |id| match self.interactions.get(&id) {
            Some(Some(interaction)) => interaction,
            _ => &self.nothing,
        };
        let groups = node.groups().iter();
        let live = groups
            .clone()
            .map(|g| (&of(g.class.id).spread, g.count - g.terminating));
        self.spread.refresh(cluster, &self.class, place, live);
        let all = groups.map(|g| (&of(g.class.id).affinity, g.count));
        self.affinity.refresh(cluster, place, all);
    }

    fn ready(&mut self, at: usize) {
        let sum = if self.local[at] == FEASIBLE {
            i32::try_from(self.columns.sum[at]).unwrap_or(i32::MAX).max(0)
        } else {
            NOT_READY
        };
        self.columns.ready.set(at, sum);
    }

    /// The best node where the sum of the rules on one node is all there is: one of the equally good, which one is
    /// `turn`'s; and how many nodes would do. `None`: it takes all rules to say, or no node will do.
    pub fn best_by_sum(&self, profile: &Profile, turn: usize) -> Option<(Place, usize)> {
        if !self.is_local() || !self.sum_decides(profile) {
            return None;
        }
        self.columns.ready.one_of_the_best(turn)
    }

    /// Whether of the nodes that will do the one with the best sum of the rules on one node is the best.
    fn sum_decides(&self, profile: &Profile) -> bool {
        self.columns.tainted == 0
            && !self.spread.scores()
            && !self.affinity.scores()
            && !node_affinity::scores(profile, &self.class)
    }

    /// The same as [`ClassState::best_by_sum`] of the nodes that [`ClassState::filter`] has left. Not to be asked where
    /// pods are nominated: those change what a node is beside its sum.
    pub fn best_by_sum_of_filtered(
        &self,
        profile: &Profile,
        scratch: &mut Scratch,
        turn: usize,
    ) -> Option<(Place, usize)> {
        if !self.sum_decides(profile) {
            return None;
        }
        let Scratch { verdicts, ready, .. } = scratch;
        let both = verdicts.iter().zip(self.columns.ready.sums());
        ready.clear();
        ready.extend(both.map(|(verdict, sum)| if *verdict == FEASIBLE { *sum } else { NOT_READY }));
        one_of_the_best(ready, turn)
    }

    /// Works out how pods there bear on the class, where that is not known.
    fn learn(&mut self, cluster: &mut Cluster, place: Place) {
        let known = &self.interactions;
        let groups = cluster.at(place).groups().iter();
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

    /// What the rules on one node say; `None`: there is none.
    fn judge(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        node: &NodeInfo,
        pictured: &[(&PodInfo, i64)],
    ) -> Option<Result<(), Refusal>> {
        node.node.as_ref()?;
        if let Some(named) = &self.named
            && !named.contains(&node.name)
        {
            return Some(Err(Refusal {
                plugin: "",
                reasons: vec![Cow::Borrowed("node(s) didn't satisfy plugin(s) [NodeAffinity]")],
                pods_in_the_way: false,
            }));
        }
        if profile.filters(node_name::NAME)
            && let Err(refusal) = node_name::filter(&self.wanted, node)
        {
            // A cordoned node is refused for that first.
            let first = plugins::FILTERS.first().filter(|(name, _)| profile.filters(name));
            let earlier = first.and_then(|(_, filter)| filter(profile, &self.class, node).err());
            return Some(Err(earlier.unwrap_or(refusal)));
        }
        let verdict = plugins::filter(profile, &self.class, node);
        Some(match &self.storage {
            Some(storage) => verdict.and_then(|()| storage.filter(cluster.volumes(), node, pictured)),
            None => verdict,
        })
    }

    /// The same, with and without the pods that are nominated to it and of no lower priority.
    fn judge_local(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        node: &NodeInfo,
    ) -> Option<Result<(), Refusal>> {
        let ahead = node.nominated.iter();
        let mut ahead = ahead.filter(|n| n.priority() >= self.class.priority).peekable();
        if ahead.peek().is_some() {
            let mut with = node.clone();
            let mut more: Vec<(&PodInfo, i64)> = Vec::new();
            for nominated in ahead {
                with.add_pod(nominated);
                more.push((nominated, 1));
            }
            match self.judge(profile, cluster, &with, &more) {
                Some(Ok(())) => {}
                verdict => return verdict,
            }
        }
        self.judge(profile, cluster, node, &[])
    }

    /// Whether it was made from what is known of storage now (or looks at none).
    pub fn knows_storage(&self, cluster: &Cluster) -> bool {
        let storage = self.storage.as_ref();
        storage.is_none_or(|s| s.version == cluster.volumes().version)
    }

    /// The nodes that were named by the pod; `None`: all.
    pub fn named(&self) -> Option<&BTreeSet<String>> {
        self.named.as_ref()
    }

    /// Whether what a node is to the class depends on that node alone.
    pub fn is_local(&self) -> bool {
        self.affinity.is_local() && !self.spread.filters()
    }

    /// What all rules say of a node, were it as given and these pods more or less on it than the picture has.
    fn judge_pictured(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        place: Place,
        node: &NodeInfo,
        pictured: &[(&PodInfo, i64)],
    ) -> Result<(), Refusal> {
        match self.judge(profile, cluster, node, pictured) {
            None => return Err(Refusal::of_node("", "node not found")),
            Some(verdict) => verdict?,
        }
        let spread = pictured
            .iter()
            .map(|(p, one)| (&self.known(p.class.id).spread, *one));
        if self.spread.filters() {
            self.spread.filter(cluster, place, spread)?;
        }
        let affinity = pictured
            .iter()
            .map(|(p, one)| (&self.known(p.class.id).affinity, *one));
        if self.affinity.filters() {
            self.affinity.filter(cluster, place, affinity)?;
        }
        Ok(())
    }

    /// Makes [`ClassState::judge_with_nominated`] know the pods nominated to a node.
    pub fn learn_nominated(&mut self, cluster: &mut Cluster, place: Place) {
        let nominated = cluster.at(place).nominated.clone();
        for pod in nominated {
            if !self.interactions.contains_key(&pod.class.id) {
                self.interaction(cluster, &pod.class);
            }
        }
    }

    /// What all rules say of a node that may be pictured: it must take the pod with the pods that are nominated to it
    /// (those of no lower priority) and without them.
    pub fn judge_with_nominated(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        pod: &PodInfo,
        place: Place,
        node: &NodeInfo,
        pictured: &[(&PodInfo, i64)],
    ) -> Result<(), Refusal> {
        let nominated = cluster.at(place).nominated.iter();
        let nominated: Vec<&Arc<PodInfo>> = nominated
            .filter(|n| n.priority() >= pod.priority() && n.uid() != pod.uid())
            .collect();
        if !nominated.is_empty() {
            let mut with = node.clone();
            let mut more = pictured.to_vec();
            for nominated in nominated {
                with.add_pod(nominated);
                more.push((nominated, 1));
            }
            self.judge_pictured(profile, cluster, place, &with, &more)?;
        }
        self.judge_pictured(profile, cluster, place, node, pictured)
    }

    /// Judges all nodes for a pod of the class; [`Scratch::collect`] then has the feasible ones.
    /// `own` is where the pod itself is nominated to.
    pub fn filter(
        &mut self,
        profile: &Profile,
        cluster: &mut Cluster,
        pod: &PodInfo,
        own: Option<Place>,
        scratch: &mut Scratch,
    ) {
        // Where the rules on one node are all there is, the columns know of nominations already.
        let nominations: Vec<Place> = if self.is_local() {
            own.into_iter().collect()
        } else {
            cluster.nominations().iter().copied().collect()
        };
        for place in &nominations {
            self.learn_nominated(cluster, *place);
        }
        let (spread, affinity) = (self.spread.filters(), self.affinity.filters());
        scratch.verdicts.clear();
        scratch.verdicts.extend_from_slice(&self.local);
        let verdicts = scratch.verdicts.as_mut_slice();
        let refusals = &mut self.refusals;
        if spread {
            self.spread.filter_all(cluster, verdicts, |r| refusals.number(r));
        }
        if affinity {
            self.affinity
                .filter_all(cluster, verdicts, |r| refusals.number(r));
        }
        for place in nominations {
            let node = cluster.at(place);
            let at = place as usize;
            let matters = node.nominated.iter().any(|n| n.priority() >= pod.priority());
            let open = own == Some(place) || self.local.get(at) == Some(&FEASIBLE);
            if matters && open && scratch.verdicts.get(at).is_some_and(|v| *v != NO_NODE) {
                scratch.verdicts[at] =
                    match self.judge_with_nominated(profile, cluster, pod, place, node, &[]) {
                        Ok(()) => FEASIBLE,
                        Err(refusal) => self.refusals.number(refusal),
                    };
            }
        }
    }

    /// Whether one node takes the pod.
    pub fn takes(&mut self, profile: &Profile, cluster: &mut Cluster, pod: &PodInfo, place: Place) -> bool {
        self.learn_nominated(cluster, place);
        let node = cluster.at(place);
        self.judge_with_nominated(profile, cluster, pod, place, node, &[])
            .is_ok()
    }

    /// What a rule says of a node that is asked apart from the others.
    pub(crate) fn refuse(&mut self, scratch: &mut Scratch, place: Place, refusal: Refusal) {
        let number = self.refusals.number(refusal);
        if let Some(verdict) = scratch.verdicts.get_mut(place as usize) {
            *verdict = number;
        }
    }

    /// The node is not among those that are chosen from, and counts nowhere.
    pub(crate) fn pass_over(scratch: &mut Scratch, place: Place) {
        if let Some(verdict) = scratch.verdicts.get_mut(place as usize) {
            *verdict = NO_NODE;
        }
    }

    /// What stands against a node; `None`: nothing.
    pub fn refusal(&self, scratch: &Scratch, place: Place) -> Option<&Refusal> {
        self.refusals.get(scratch.verdicts.get(place as usize).copied()?)
    }

    /// Each refusal with the number of nodes.
    pub fn histogram<'a>(&'a self, scratch: &Scratch) -> impl Iterator<Item = (&'a Refusal, usize)> {
        let mut counts = vec![0_usize; self.refusals.all.len() + 1];
        for verdict in &scratch.verdicts {
            if let Some(count) = counts.get_mut(usize::from(*verdict)) {
                *count += 1;
            }
        }
        let counts = counts.into_iter().skip(1);
        self.refusals.all.iter().zip(counts).filter(|(_, n)| *n > 0)
    }

    /// The weighted sums of all scores of the feasible nodes. With `apart`, each plugin's scores, too.
    pub fn score(
        &self,
        profile: &Profile,
        cluster: &Cluster,
        scratch: &mut Scratch,
        mut apart: Option<&mut Vec<PluginScores>>,
    ) {
        let Scratch {
            feasible,
            totals,
            scores,
            seen,
            ..
        } = scratch;
        let columns = &self.columns;
        let of = |column: &[i64], place: &Place| column.get(*place as usize).copied().unwrap_or(0);
        totals.clear();
        totals.extend(feasible.iter().map(|p| of(&columns.sum, p)));
        if let Some(apart) = &mut apart {
            let mut column = |name, column: &[i64]| {
                if profile.weight(name) != 0 {
                    apart.push((name, feasible.iter().map(|p| of(column, p)).collect()));
                }
            };
            column(node_resources_fit::NAME, &columns.fit);
            column(image_locality::NAME, &columns.image);
            if node_resources_balanced_allocation::scores(profile, &self.class) {
                column(node_resources_balanced_allocation::NAME, &columns.balanced);
            }
        }
        let apart_wanted = apart.is_some();
        let mut add = |name: &'static str, scores: &[i64], totals: &mut [i64]| {
            let weight = profile.weight(name);
            for (total, score) in totals.iter_mut().zip(scores) {
                *total += score * weight;
            }
            if let Some(apart) = &mut apart
                && weight != 0
            {
                apart.push((name, scores.to_vec()));
            }
        };
        // Without soft taints all are alike, which chooses nothing.
        if columns.tainted > 0 || apart_wanted {
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
