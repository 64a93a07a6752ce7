//! The scheduler's state and its step: take the next pod, find it a node, reserve it there; or find out who would have
//! to go for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::{ObjectKey, Shared};

use crate::cluster::{Cluster, Place};
use crate::diagnosis::Diagnosis;
use crate::evaluation::{ClassState, PluginScores, Rejection, Scratch};
use crate::node_info::NodeInfo;
use crate::plugins::default_preemption::{self, Candidate, Outcome, Wanted};
use crate::plugins::volume_binding::VolumesToBind;
use crate::plugins::{Refusal, inter_pod_affinity, pod_topology_spread};
use crate::pod_info::{ClassId, Classes, PodInfo, is_finished, node_name, nominated_node_name};
use crate::profile::Profile;
use crate::queue::{Backoffs, Lengths, Queue};
use crate::queueing_hints as hints;
use crate::storage::Storage;
use crate::volumes;

/// What is kept of classes of pods at most, all together.
const STATES_BYTES: usize = 256 << 20;
/// What is kept of one class for one node, about.
const STATE_BYTES_PER_NODE: usize = 96;
/// So many classes are kept at least, and at most.
const STATES: (usize, usize) = (8, 512);

/// Where a pod goes, or why nowhere.
#[derive(Clone, Debug)]
pub enum Decision {
    Node {
        name: String,
        /// How many nodes would have had it, of those that were looked at.
        feasible: usize,
    },
    Nowhere(Diagnosis),
}

/// What becomes of a pod's status.nominatedNodeName.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nomination {
    Keep,
    Clear,
    Set(String),
}

/// What is to be done about a pod.
#[derive(Debug)]
pub enum Step {
    /// Bind its volumes, if any are to be bound, and wait until they are ([`Scheduler::volumes_bound`]); bind it; then
    /// tell [`Scheduler::bound`] or [`Scheduler::not_bound`].
    Bind {
        pod: Shared<Pod>,
        node: String,
        volumes: Option<Arc<VolumesToBind>>,
        waited: Waited,
    },
    /// Say that it could not be placed.
    Report {
        pod: Shared<Pod>,
        message: String,
        nomination: Nomination,
        /// The pod could not be judged: the fault is not the cluster's.
        is_error: bool,
    },
    /// Say that it could not be placed and is nominated to the node, clear the nominations of `cleared`, make the
    /// victims go; then tell [`Scheduler::preempted`].
    Preempt {
        pod: Shared<Pod>,
        message: String,
        node: String,
        victims: Vec<Shared<Pod>>,
        /// Pods of lower priority that were to go to that node.
        cleared: Vec<Shared<Pod>>,
    },
}

/// What it took until a pod was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    pub attempts: u32,
    pub since: Timestamp,
}

/// All that the rules say about one pod, for people.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// The pod was refused before any node was looked at.
    pub rejection: Option<Refusal>,
    /// The nodes the pod names; `None`: it names none.
    pub named: Option<BTreeSet<String>>,
    /// For each node what stands against it.
    pub nodes: BTreeMap<String, Option<Refusal>>,
    /// For each plugin that has a say, the scores of the feasible nodes.
    pub scores: BTreeMap<&'static str, BTreeMap<String, i64>>,
    pub totals: BTreeMap<String, i64>,
    pub diagnosis: Diagnosis,
    pub preemption: Option<Outcome>,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    profiles: Vec<Arc<Profile>>,
    cluster: Cluster,
    classes: Classes,
    live_classes: usize,
    states: BTreeMap<(usize, ClassId), Box<ClassState>>,
    surroundings_version: u64,
    scratch: Scratch,
    uses: u64,
    queue: Queue,
    /// Pods that wait for somebody to open their gates.
    gated: BTreeSet<ObjectKey>,
    /// On which node each pod counts, by uid, whether the API knows it yet or not.
    standing: BTreeMap<String, String>,
    /// Of those, the ones whose binding is under way.
    assumed: BTreeSet<String>,
    /// Volumes that are kept for pods whose binding is under way, by uid.
    reserved: BTreeMap<String, Arc<VolumesToBind>>,
    /// Where pods are nominated to, by uid.
    nominated: BTreeMap<String, String>,
    /// Pods whose victims are being told, by uid, and whether something has happened meanwhile that could help them.
    preempting: BTreeMap<String, bool>,
    /// Where the choice among equals begins.
    rotation: usize,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new(vec![Profile::default()], Backoffs::default())
    }
}

impl Scheduler {
    pub fn new(profiles: Vec<Profile>, backoffs: Backoffs) -> Self {
        Scheduler {
            profiles: profiles.into_iter().map(Arc::new).collect(),
            cluster: Cluster::default(),
            classes: Classes::default(),
            live_classes: 0,
            states: BTreeMap::new(),
            surroundings_version: 0,
            scratch: Scratch::default(),
            uses: 0,
            queue: Queue::with_backoffs(backoffs),
            gated: BTreeSet::new(),
            standing: BTreeMap::new(),
            assumed: BTreeSet::new(),
            reserved: BTreeMap::new(),
            nominated: BTreeMap::new(),
            preempting: BTreeMap::new(),
            rotation: 0,
        }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// For what rules look at besides nodes and pods: namespaces, budgets, workloads.
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Pods that wait for a node.
    pub fn pending(&self) -> usize {
        self.queue.len()
    }

    pub fn queue_lengths(&self) -> Lengths {
        self.queue.lengths()
    }

    /// Pods with scheduling gates.
    pub fn gated(&self) -> usize {
        self.gated.len()
    }

    /// How often a waiting pod was tried.
    pub fn attempts(&self, pod: &Shared<Pod>) -> u32 {
        self.queue.attempts(&ObjectKey::of(pod.object()))
    }

    /// How many pods stand on nodes, those included whose binding is under way.
    pub fn standing(&self) -> usize {
        self.standing.len()
    }

    /// How many pods' binding is under way.
    pub fn assumed(&self) -> usize {
        self.assumed.len()
    }

    /// How many pods each plugin is against, for each profile.
    pub fn unschedulable_by(&self) -> BTreeMap<(&'static str, String), usize> {
        let mut all = BTreeMap::new();
        for (plugin, pod) in self.queue.parked().filter(|(plugin, _)| !plugin.is_empty()) {
            let profile = &profile_for(&self.profiles, &pod.pod).scheduler_name;
            *all.entry((plugin, profile.clone())).or_default() += 1;
        }
        all
    }

    fn profile_of(&self, pod: &Pod) -> Option<usize> {
        let name = pod.spec.as_ref()?.scheduler_name.as_deref();
        let name = name.filter(|n| !n.is_empty());
        let name = name.unwrap_or(crate::profile::DEFAULT_SCHEDULER_NAME);
        self.profiles.iter().position(|p| p.scheduler_name == name)
    }

    /// Whether the scheduler that the pod names is this one.
    pub fn knows_profile(&self, pod: &Pod) -> bool {
        self.profile_of(pod).is_some()
    }

    /// Whether this scheduler is to find the pod a node, some time.
    fn is_mine(&self, pod: &Pod) -> bool {
        self.profile_of(pod).is_some()
            && node_name(pod).is_empty()
            && pod.metadata.deletion_timestamp.is_none()
            && !is_finished(pod)
    }

    /// A node is new, has changed or has gone (`None`).
    pub fn node_changed(&mut self, name: &str, node: Option<Shared<Node>>, now: Timestamp) {
        let before = self.cluster.get(name).and_then(|info| info.node.clone());
        self.cluster.set_node(name, node.clone());
        if self.queue.lengths().unschedulable == 0 {
            return;
        }
        let (before, after) = (before.map(NodeInfo::bare), node.map(NodeInfo::bare));
        let profiles = &self.profiles;
        self.queue.wake_where(now, |plugin, pod| {
            let profile = profile_for(profiles, &pod.pod);
            hints::node_changed(profile, plugin, pod, before.as_ref(), after.as_ref())
        });
    }

    /// Something of storage is new, has changed or has gone.
    pub fn storage_changed(&mut self, change: &volumes::Change, now: Timestamp) {
        self.cluster.volumes_mut().apply(change);
        if self.queue.awaits(hints::LOOK_AT_STORAGE) {
            self.queue
                .wake_where(now, |plugin, pod| hints::storage_changed(plugin, pod, change));
        }
    }

    /// Whether the volumes of a pod whose binding is under way are all bound; the error: they will not be, and the pod
    /// is to be given back. `volumes` has the objects as the API gave them back when they were written.
    pub fn volumes_bound(
        &self,
        pod: &Shared<Pod>,
        node: &str,
        volumes: &VolumesToBind,
    ) -> Result<bool, String> {
        if !self.assumed.contains(pod.object().uid()) {
            return Err("pod does not exist any more".into());
        }
        let info = self.cluster.get(node).filter(|info| info.node.is_some());
        let info = info.ok_or_else(|| format!("failed to get node {node:?}: node {node:?} not found"))?;
        volumes.are_bound(self.cluster.volumes(), info)
    }

    /// A pod is new, has changed or has gone (`new` is `None`).
    pub fn pod_changed(&mut self, old: Option<&Shared<Pod>>, new: Option<&Shared<Pod>>, now: Timestamp) {
        if let (Some(old), Some(new)) = (old, new)
            && old.object().uid() != new.object().uid()
        {
            self.pod_changed(Some(old), None, now);
            return self.pod_changed(None, Some(new), now);
        }
        let Some(pod) = new.or(old) else { return };
        let uid = pod.object().uid().to_string();
        let key = ObjectKey::of(pod.object());
        self.forget_dead_classes();
        let stands = new
            .filter(|p| !is_finished(p))
            .map(|p| node_name(p))
            .filter(|n| !n.is_empty());
        match (stands, new) {
            (Some(node), Some(new)) => {
                self.dequeue(&key, &uid, node, now);
                let was_expected = self.assumed.remove(&uid);
                self.reserved.remove(&uid);
                let info = Arc::new(self.classes.info(new));
                let changed = self.stand(node, &info);
                if changed && !was_expected {
                    self.pod_came(&info, now);
                }
                // Labels are known of objects whose typed value nobody keeps any more.
                let labels = &new.object().metadata().labels;
                if let Some(old) = old.filter(|old| old.object().metadata().labels != *labels) {
                    let old = self.classes.info(old);
                    self.pod_left(&old, now);
                }
            }
            (None, Some(new)) if self.is_mine(new) => {
                let gates = new.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref());
                if gates.is_some_and(|g| !g.is_empty()) {
                    self.dequeue(&key, &uid, "", now);
                    self.gated.insert(key);
                    return;
                }
                self.gated.remove(&key);
                // What is on its way to its node is not to be placed once more.
                if !self.assumed.contains(&uid) {
                    let same = |old: &Shared<Pod>| {
                        old.spec == new.spec && old.metadata.labels == new.metadata.labels
                    };
                    let changed = old.is_some_and(|old| !same(old));
                    let info = Arc::new(self.classes.info(new));
                    let named = old.map_or("", |old| nominated_node_name(old));
                    self.follow_nomination(&info, named, now);
                    self.queue.put(info, changed, now);
                }
            }
            // A pod of another scheduler that waits for its victims here counts where it is to go.
            (None, Some(new)) if !is_finished(new) && !nominated_node_name(new).is_empty() => {
                let node = nominated_node_name(new);
                self.dequeue(&key, &uid, node, now);
                let info = Arc::new(self.classes.info(new));
                self.follow_nomination(&info, "", now);
            }
            _ => {
                self.dequeue(&key, &uid, "", now);
                self.assumed.remove(&uid);
                self.take_back_volumes(&uid);
                if let Some(info) = self.leave(&uid) {
                    self.pod_left(&info, now);
                }
            }
        }
    }

    /// The pod waits no more, for whatever reason. `node`: it stands there now, or is to; else empty.
    fn dequeue(&mut self, key: &ObjectKey, uid: &str, node: &str, now: Timestamp) {
        self.gated.remove(key);
        if self.queue.get(key).is_some_and(|p| p.uid() == uid) {
            self.queue.remove(key);
        }
        self.preempting.remove(uid);
        self.move_nomination(uid, node, now);
    }

    /// Takes a pod's nomination from its status. One that was decided here and is not yet written stays.
    fn follow_nomination(&mut self, pod: &Arc<PodInfo>, before: &str, now: Timestamp) {
        let named = pod.nominated_node_name().to_string();
        let known = self.nominated.get(pod.uid()).cloned();
        let node = if !named.is_empty() {
            named
        } else if before.is_empty() {
            known.unwrap_or_default()
        } else {
            String::new()
        };
        if node.is_empty() {
            self.move_nomination(pod.uid(), "", now);
        } else {
            self.nominate(pod, &node, now);
        }
    }

    fn nominate(&mut self, pod: &Arc<PodInfo>, node: &str, now: Timestamp) {
        self.move_nomination(pod.uid(), node, now);
        self.cluster.nominate(node, pod);
        self.queue.set_nominated(&pod.key(), true);
        self.nominated.insert(pod.uid().to_string(), node.to_string());
    }

    /// Ends a nomination, because the pod goes to `to` (empty: nowhere). Room that was kept for it on another node is
    /// free for others.
    fn move_nomination(&mut self, uid: &str, to: &str, now: Timestamp) {
        let Some(node) = self.nominated.remove(uid) else {
            return;
        };
        let pod = self.cluster.end_nomination(&node, uid);
        if let Some(pod) = &pod {
            self.queue.set_nominated(&pod.key(), false);
        }
        if let Some(pod) = pod.filter(|_| node != to) {
            self.pod_left(&pod, now);
        }
    }

    /// Whether that is news.
    fn stand(&mut self, node: &str, pod: &Arc<PodInfo>) -> bool {
        let uid = pod.uid().to_string();
        let was = self.standing.get(&uid).cloned();
        if was.as_deref().is_some_and(|was| was != node) {
            self.leave(&uid);
        }
        self.cluster.add_pod(node, pod);
        self.standing.insert(uid, node.to_string());
        was.as_deref() != Some(node)
    }

    /// The pod, if it stood somewhere.
    fn leave(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let node = self.standing.remove(uid)?;
        self.cluster.remove_pod(&node, uid)
    }

    fn pod_came(&mut self, pod: &PodInfo, now: Timestamp) {
        if self
            .queue
            .awaits(&[pod_topology_spread::NAME, inter_pod_affinity::NAME])
        {
            self.queue.wake_where(now, |plugin, waiting| {
                hints::pod_changed(plugin, waiting, &pod.class, true)
            });
        }
    }

    fn pod_left(&mut self, pod: &PodInfo, now: Timestamp) {
        if self.queue.awaits(hints::LOOK_AT_PODS) {
            self.queue.wake_where(now, |plugin, waiting| {
                hints::pod_changed(plugin, waiting, &pod.class, false)
            });
        }
    }

    /// Numbers of classes are used again, so what is remembered by number goes with them.
    fn forget_dead_classes(&mut self) {
        if self.classes.are_many(self.live_classes) {
            self.states.clear();
            self.live_classes = self.classes.forget_dead();
        }
    }

    /// The pod with what its class shares, as the rules look at it.
    pub fn info(&mut self, pod: &Shared<Pod>) -> PodInfo {
        self.classes.info(pod)
    }

    /// Takes out what is known of the pod's class, up to date.
    fn state(&mut self, profile: usize, pod: &PodInfo) -> Result<Box<ClassState>, Rejection> {
        if self.surroundings_version != self.cluster.surroundings_version {
            self.surroundings_version = self.cluster.surroundings_version;
            self.states.clear();
        }
        let wanted = pod.node_name();
        let key = (profile, pod.class.id);
        let known = self.states.remove(&key);
        let known = known.filter(|s| wanted.is_empty() && s.knows_storage(&self.cluster));
        let settings = &self.profiles[profile];
        let mut state = match known {
            Some(state) => state,
            None => Box::new(ClassState::new(
                settings,
                &mut self.cluster,
                pod.class.clone(),
                wanted,
            )?),
        };
        state.catch_up(settings, &mut self.cluster);
        Ok(state)
    }

    fn put_back(&mut self, profile: usize, pod: &PodInfo, mut state: Box<ClassState>) {
        if !pod.node_name().is_empty() {
            return;
        }
        self.uses += 1;
        state.last_used = self.uses;
        let per_state = STATE_BYTES_PER_NODE * self.cluster.places().max(1);
        let most = (STATES_BYTES / per_state).clamp(STATES.0, STATES.1);
        if self.states.len() >= most {
            let oldest = self.states.iter().min_by_key(|(_, s)| s.last_used);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.states.remove(&key);
            }
        }
        self.states.insert((profile, pod.class.id), state);
    }

    fn rejected(&self, rejection: &Rejection) -> Diagnosis {
        let mut diagnosis = Diagnosis {
            nodes: self.cluster.len(),
            ..Diagnosis::default()
        };
        match rejection {
            Rejection::Refused(refusal) => {
                diagnosis.rejection = Some(refusal.reasons.join(", ").into());
                diagnosis.by.insert(refusal.plugin);
                // What kube-scheduler appends when PreFilter ended early: a later plugin misses what it had put by.
                diagnosis.preemption = "not found".into();
            }
            Rejection::Error(error) => {
                diagnosis.rejection = Some(error.clone().into());
                diagnosis.is_error = true;
            }
        }
        diagnosis
    }

    /// Finds the pod a node, or nodes where making room would help. Changes nothing in the picture.
    fn attempt(&mut self, profile: usize, pod: &PodInfo) -> (Decision, Option<Candidate>) {
        let nodes = self.cluster.len();
        if nodes == 0 {
            let diagnosis = Diagnosis::default();
            return (Decision::Nowhere(diagnosis), None);
        }
        let mut state = match self.state(profile, pod) {
            Ok(state) => state,
            Err(rejection) => return (Decision::Nowhere(self.rejected(&rejection)), None),
        };
        let result = self.attempt_with(profile, pod, &mut state);
        self.put_back(profile, pod, state);
        result
    }

    fn attempt_with(
        &mut self,
        profile: usize,
        pod: &PodInfo,
        state: &mut ClassState,
    ) -> (Decision, Option<Candidate>) {
        let settings = self.profiles[profile].clone();
        let node = |cluster: &Cluster, place: Place, feasible| Decision::Node {
            name: cluster.at(place).name.clone(),
            feasible,
        };
        // Room was made for it there.
        let own = self.own_nomination(pod);
        if let Some(place) = own
            && state.takes(&settings, &mut self.cluster, pod, place)
        {
            return (node(&self.cluster, place, 1), None);
        }
        if own.is_none()
            && let Some((place, feasible)) = state.best_by_sum(&settings, self.rotation)
        {
            self.rotation = self.rotation.wrapping_add(1);
            return (node(&self.cluster, place, feasible), None);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        state.filter(&settings, &mut self.cluster, pod, own, &mut scratch);
        if self.cluster.nominations().is_empty()
            && let Some((place, feasible)) =
                state.best_by_sum_of_filtered(&settings, &mut scratch, self.rotation)
        {
            self.scratch = scratch;
            self.rotation = self.rotation.wrapping_add(1);
            return (node(&self.cluster, place, feasible), None);
        }
        scratch.collect();
        let result = match scratch.feasible.as_slice() {
            [] => {
                let (diagnosis, candidate) = self.make_room(&settings, pod, state, &scratch);
                (Decision::Nowhere(diagnosis), candidate)
            }
            [only] => (node(&self.cluster, *only, 1), None),
            _ => {
                state.score(&settings, &self.cluster, &mut scratch, None);
                let place = self.choose(&scratch);
                (node(&self.cluster, place, scratch.feasible.len()), None)
            }
        };
        self.scratch = scratch;
        result
    }

    /// Where the pod is nominated to: what was decided here is newer than its status.
    fn own_nomination(&self, pod: &PodInfo) -> Option<Place> {
        let known = self.nominated.get(pod.uid()).map(String::as_str);
        self.cluster.place(known.unwrap_or(pod.nominated_node_name()))
    }

    /// One of the best, in turn.
    fn choose(&mut self, scratch: &Scratch) -> Place {
        let best = scratch.totals.iter().copied().max().unwrap_or(0);
        let equals = scratch.totals.iter().filter(|t| **t == best).count();
        let turn = self.rotation % equals.max(1);
        self.rotation = self.rotation.wrapping_add(1);
        let all = scratch.feasible.iter().zip(&scratch.totals);
        let mut equals = all.filter(|(_, total)| **total == best).map(|(place, _)| *place);
        // There is one: `turn` is less than their number.
        equals.nth(turn).unwrap_or_default()
    }

    fn diagnose(&self, state: &ClassState, scratch: &Scratch) -> Diagnosis {
        let mut diagnosis = Diagnosis {
            nodes: self.cluster.len(),
            ..Diagnosis::default()
        };
        if state.named().is_some() {
            diagnosis.by.insert(crate::plugins::node_affinity::NAME);
        }
        for (refusal, nodes) in state.histogram(scratch) {
            diagnosis.reasons.add(&refusal.reasons, nodes);
            if !refusal.plugin.is_empty() {
                diagnosis.by.insert(refusal.plugin);
            }
        }
        diagnosis
    }

    fn make_room(
        &mut self,
        profile: &Profile,
        pod: &PodInfo,
        state: &mut ClassState,
        scratch: &Scratch,
    ) -> (Diagnosis, Option<Candidate>) {
        let mut diagnosis = self.diagnose(state, scratch);
        if !profile.preemption {
            return (diagnosis, None);
        }
        let outcome = default_preemption::preempt(
            profile,
            &self.cluster,
            state,
            pod,
            self.own_nomination(pod),
            scratch,
            Wanted::OneOfTheBest(self.rotation),
        );
        let candidate = outcome.best().first().map(|c| (*c).clone());
        if candidate.is_some() {
            self.rotation = self.rotation.wrapping_add(1);
        }
        diagnosis.preemption = preemption_message(&outcome);
        (diagnosis, candidate)
    }

    /// The best node for a pod, as things stand. Changes nothing but the place where the next choice among
    /// equals begins.
    pub fn schedule(&mut self, pod: &PodInfo) -> Decision {
        let profile = self.profile_of(&pod.pod).unwrap_or(0);
        self.attempt(profile, pod).0
    }

    /// All that the rules say about a pod.
    pub fn explain(&mut self, pod: &PodInfo) -> Explanation {
        let profile = self.profile_of(&pod.pod).unwrap_or(0);
        let settings = self.profiles[profile].clone();
        let mut explanation = Explanation::default();
        let mut state = match self.state(profile, pod) {
            Ok(state) => state,
            Err(rejection) => {
                explanation.diagnosis = self.rejected(&rejection);
                if let Rejection::Refused(refusal) = rejection {
                    explanation.rejection = Some(refusal);
                    explanation.preemption = Some(Outcome::Nothing("not found".into()));
                }
                return explanation;
            }
        };
        let mut scratch = Scratch::default();
        let own = self.own_nomination(pod);
        state.filter(&settings, &mut self.cluster, pod, own, &mut scratch);
        scratch.collect();
        explanation.named = state.named().cloned();
        for (place, node) in self.cluster.iter() {
            let refusal = state.refusal(&scratch, place).cloned();
            explanation.nodes.insert(node.name.clone(), refusal);
        }
        if scratch.feasible.is_empty() {
            explanation.diagnosis = self.diagnose(&state, &scratch);
            if settings.preemption && !self.cluster.is_empty() {
                let outcome = default_preemption::preempt(
                    &settings,
                    &self.cluster,
                    &mut state,
                    pod,
                    own,
                    &scratch,
                    Wanted::All,
                );
                explanation.diagnosis.preemption = preemption_message(&outcome);
                explanation.preemption = Some(outcome);
            }
        } else {
            let mut apart: Vec<PluginScores> = Vec::new();
            state.score(&settings, &self.cluster, &mut scratch, Some(&mut apart));
            let names = || scratch.feasible.iter().map(|p| self.cluster.at(*p).name.clone());
            explanation.totals = names().zip(scratch.totals.iter().copied()).collect();
            let apart = apart.into_iter();
            explanation.scores = apart
                .map(|(name, of)| (name, names().zip(of).collect()))
                .collect();
        }
        self.put_back(profile, pod, state);
        explanation
    }

    /// Takes the next pod and says what to do with it. `None`: no pod is due.
    pub fn step(&mut self, now: Timestamp) -> Option<Step> {
        self.queue.wake_forgotten(now);
        loop {
            let pod = self.queue.pop(now)?;
            // Its victims are not told yet: it must not choose others.
            if let Some(missed) = self.preempting.get_mut(pod.uid()) {
                *missed = true;
                let by = hints::LOOK_AT_PODS.iter().copied().collect();
                self.queue.not_tried(&pod.key(), by, now);
                continue;
            }
            return Some(self.place(pod, now));
        }
    }

    fn place(&mut self, pod: Arc<PodInfo>, now: Timestamp) -> Step {
        let profile = self.profile_of(&pod.pod).unwrap_or(0);
        let (diagnosis, candidate) = match self.attempt(profile, &pod) {
            (Decision::Node { name, .. }, _) => {
                self.move_nomination(pod.uid(), &name, now);
                self.stand(&name, &pod);
                self.assumed.insert(pod.uid().to_string());
                self.pod_came(&pod, now);
                let volumes = self.reserve_volumes(profile, &pod, &name);
                let key = pod.key();
                let waited = Waited {
                    attempts: self.queue.attempts(&key),
                    since: self.queue.since(&key).unwrap_or(now),
                };
                return Step::Bind {
                    waited,
                    pod: pod.pod.clone(),
                    node: name,
                    volumes,
                };
            }
            (Decision::Nowhere(diagnosis), candidate) => (diagnosis, candidate),
        };
        let message = diagnosis.message();
        let node = candidate.as_ref().map(|c| self.cluster.at(c.place).name.clone());
        let eligible = !diagnosis.preemption.contains("preemption: not eligible");
        let had = self.nominated.contains_key(pod.uid());
        let clears = node.is_none() && eligible && !diagnosis.is_error && had;
        // Before it is parked, for what helps others does not help the pod itself.
        match &node {
            Some(node) => self.nominate(&pod, node, now),
            None if clears => self.move_nomination(pod.uid(), "", now),
            None => {}
        }
        if diagnosis.is_error {
            self.queue.retry(&pod.key(), now);
        } else {
            self.queue.park(&pod.key(), diagnosis.by, now);
        }
        let (Some(candidate), Some(node)) = (candidate, node) else {
            return Step::Report {
                pod: pod.pod.clone(),
                message,
                nomination: if clears {
                    Nomination::Clear
                } else {
                    Nomination::Keep
                },
                is_error: diagnosis.is_error,
            };
        };
        let lower = self.cluster.at(candidate.place).nominated.iter();
        let lower: Vec<Arc<PodInfo>> = lower.filter(|n| n.priority() < pod.priority()).cloned().collect();
        for pod in &lower {
            self.move_nomination(pod.uid(), "", now);
            // It may look for another place now.
            self.queue.wake_pod(&pod.key(), now);
        }
        self.preempting.insert(pod.uid().to_string(), false);
        Step::Preempt {
            message,
            node,
            victims: candidate.victims.iter().map(|v| v.pod.clone()).collect(),
            cleared: lower.iter().map(|p| p.pod.clone()).collect(),
            pod: pod.pod.clone(),
        }
    }

    /// Keeps volumes for the pod's claims that wait for it; `None`: none do.
    fn reserve_volumes(&mut self, profile: usize, pod: &PodInfo, node: &str) -> Option<Arc<VolumesToBind>> {
        pod.class.volumes.as_ref()?;
        let settings = self.profiles.get(profile)?.clone();
        let info = self.cluster.get(node)?;
        // The node took the pod just now, so it can be said what its claims are bound to there.
        let storage = Storage::new(&settings, self.cluster.volumes(), &pod.class).ok()??;
        let mut to_bind = storage.claims()?.find(self.cluster.volumes(), info).ok()?;
        if to_bind.is_empty() {
            return None;
        }
        to_bind.timeout = settings.bind_timeout;
        to_bind.reserve(self.cluster.volumes_mut(), node);
        let to_bind = Arc::new(to_bind);
        self.reserved.insert(pod.uid().to_string(), to_bind.clone());
        Some(to_bind)
    }

    fn take_back_volumes(&mut self, uid: &str) {
        if let Some(kept) = self.reserved.remove(uid) {
            kept.take_back(self.cluster.volumes_mut());
        }
    }

    /// The victims were told to go, or one could not be (`failed`): the pod is tried again then, and if one has gone
    /// before this was told.
    pub fn preempted(&mut self, pod: &Shared<Pod>, failed: bool, now: Timestamp) {
        let Some(missed) = self.preempting.remove(pod.object().uid()) else {
            return;
        };
        if failed {
            self.move_nomination(pod.object().uid(), "", now);
        }
        if failed || missed {
            self.queue.wake_pod(&ObjectKey::of(pod.object()), now);
        }
    }

    /// The API has taken the binding.
    pub fn bound(&mut self, pod: &Shared<Pod>) {
        self.reserved.remove(pod.object().uid());
        let key = ObjectKey::of(pod.object());
        // Another pod may have taken its name meanwhile.
        if self
            .queue
            .get(&key)
            .is_some_and(|p| p.uid() == pod.object().uid())
        {
            self.queue.remove(&key);
        }
    }

    /// The API has refused the binding: the room is free again and the pod comes back after its back-off.
    pub fn not_bound(&mut self, pod: &Shared<Pod>, now: Timestamp) {
        let uid = pod.object().uid();
        self.take_back_volumes(uid);
        // If the cache has shown the pod bound (or gone) meanwhile, that stands.
        if self.assumed.remove(uid) {
            self.leave(uid);
            self.queue.retry(&ObjectKey::of(pod.object()), now);
            let info = self.classes.info(pod);
            self.pod_left(&info, now);
        }
    }

    /// When [`Scheduler::step`] may have something to do though nothing changes.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.queue.next_due()
    }
}

fn profile_for<'a>(profiles: &'a [Arc<Profile>], pod: &Pod) -> &'a Profile {
    let name = pod.spec.as_ref().and_then(|s| s.scheduler_name.as_deref());
    let found = profiles.iter().find(|p| Some(p.scheduler_name.as_str()) == name);
    // There is one at least, and pods without a name mean the first.
    found.unwrap_or(&profiles[0])
}

/// What the condition says of it.
fn preemption_message(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Candidates(_) => String::new(),
        Outcome::Nothing(why) => format!("no new claims to deallocate, preemption: {why}"),
    }
}

#[cfg(test)]
mod tests;
