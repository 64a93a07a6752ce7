//! One scheduling attempt: a node for one pod in the present snapshot, or the nodes where preemption would help; and
//! the same with all results of the plugins, for `knarr why`. The snapshot does not change, only the cached state of
//! the pod's class.

use knarr_api::Shared;
use knarr_api::k8s_openapi::api::core::v1::Pod;
use knarr_apimachinery::ids::NodeName;

use super::{Decision, Explanation, Scheduler};
use crate::cluster::{Cluster, NodeIndex, NominatedPod};
use crate::diagnosis::{Diagnosis, PostFilter};
use crate::evaluation::{ClassState, CycleState, PluginScores};
use crate::plugins::cross_node_preemption;
use crate::plugins::default_preemption::{self, Candidate, Outcome, Selection};
use crate::plugins::dynamic_resources::{self, PodClaims};
use crate::plugins::{PreFilterError, UnschedulableStatus};
use crate::pod_info::PodInfo;

/// The most memory for the cached states of all classes.
const STATES_BYTES: usize = 256 << 20;
/// The approximate memory of the state of one class for one node.
const STATE_BYTES_PER_NODE: usize = 96;
/// The fewest and the most classes whose state is cached.
const STATES: (usize, usize) = (8, 512);

impl Scheduler {
    /// The pod with its class.
    pub fn info(&mut self, pod: &Shared<Pod>) -> PodInfo {
        self.classes.info(pod)
    }

    /// Takes the cached state of the pod's class out of the cache, updated to the present snapshot, with the nodes that
    /// are closed for the pod.
    pub(super) fn state(&mut self, profile: usize, pod: &PodInfo) -> Result<Box<ClassState>, PreFilterError> {
        let mut state = self.state_of_class(profile, pod)?;
        state.set_closed(Vec::new());
        if !self.cluster.nominated_in_domains().is_empty() {
            state.set_closed(self.nodes_in_the_way_of_nominated(pod));
        }
        Ok(state)
    }

    /// The nodes on which the pod would violate the spread constraints of a pod that is nominated in topology domains, of
    /// equal or higher priority (SPEC B5).
    fn nodes_in_the_way_of_nominated(&mut self, pod: &PodInfo) -> Vec<bool> {
        let nominated = self.cluster.nominated_in_domains().iter();
        let ahead = |n: &&NominatedPod| n.pod.priority() >= pod.priority() && n.pod.uid() != pod.uid();
        let nominated: Vec<NominatedPod> = nominated.filter(ahead).cloned().collect();
        let mut all: Vec<bool> = Vec::new();
        for NominatedPod { node, pod: other } in nominated {
            if other.class.id == pod.class.id {
                // The pod's own constraints, which count the nominated pod, say the same.
                continue;
            }
            let profile = self.profile_of(&other.pod).unwrap_or(0);
            // A pod whose own state has an error is not bound either: it keeps nothing.
            let Ok(mut state) = self.state_of_class(profile, &other) else {
                continue;
            };
            let closed = state.nodes_in_the_way(&mut self.cluster, node, &pod.class);
            self.put_back(profile, &other, state);
            all.resize(all.len().max(closed.len()), false);
            for (all, closed) in all.iter_mut().zip(closed) {
                *all |= closed;
            }
        }
        all
    }

    fn state_of_class(&mut self, profile: usize, pod: &PodInfo) -> Result<Box<ClassState>, PreFilterError> {
        if self.related_objects_version != self.cluster.related_objects_version {
            self.related_objects_version = self.cluster.related_objects_version;
            self.states.clear();
        }
        let node_name = pod.node_name();
        let key = (profile, pod.class.id);
        let known = self.states.remove(&key);
        let known = known.filter(|s| node_name.is_empty() && s.knows_storage(&self.cluster));
        let settings = &self.profiles[profile];
        let mut state = match known {
            Some(state) => state,
            None => Box::new(ClassState::new(
                settings,
                &mut self.cluster,
                pod.class.clone(),
                node_name,
            )?),
        };
        state.catch_up(settings, &mut self.cluster);
        Ok(state)
    }

    pub(super) fn put_back(&mut self, profile: usize, pod: &PodInfo, mut state: Box<ClassState>) {
        if !pod.node_name().is_empty() {
            return;
        }
        self.uses += 1;
        state.last_used = self.uses;
        let per_state = STATE_BYTES_PER_NODE * self.cluster.slots().max(1);
        let most = (STATES_BYTES / per_state).clamp(STATES.0, STATES.1);
        if self.states.len() >= most {
            let oldest = self.states.iter().min_by_key(|(_, s)| s.last_used);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.states.remove(&key);
            }
        }
        self.states.insert((profile, pod.class.id), state);
    }

    pub(super) fn rejected(&self, rejection: &PreFilterError) -> Diagnosis {
        let mut diagnosis = Diagnosis {
            nodes: self.cluster.len(),
            ..Diagnosis::default()
        };
        match rejection {
            PreFilterError::Unschedulable(rejection) => {
                diagnosis.rejection = Some(rejection.reasons.join(", ").into());
                diagnosis.plugins.insert(rejection.plugin);
                diagnosis.post_filter = PostFilter::NoState;
            }
            PreFilterError::Error(error) => {
                diagnosis.rejection = Some(error.to_string().into());
                diagnosis.is_error = true;
            }
        }
        diagnosis
    }

    /// Finds a node for the pod, or nodes where preemption would help. Does not change the snapshot.
    pub(super) fn attempt(&mut self, profile: usize, pod: &PodInfo) -> (Decision, Option<Candidate>) {
        let nodes = self.cluster.len();
        if nodes == 0 {
            let diagnosis = Diagnosis::default();
            return (Decision::Unschedulable(diagnosis), None);
        }
        let mut state = match self.state(profile, pod) {
            Ok(state) => state,
            Err(rejection) => return (Decision::Unschedulable(self.rejected(&rejection)), None),
        };
        let claims = if self.profiles[profile].filters(dynamic_resources::NAME) {
            PodClaims::new(self.cluster.devices(), pod)
        } else {
            Ok(None)
        };
        let result = match claims {
            Ok(None) => self.attempt_with(profile, pod, &mut state),
            Ok(Some(claims)) => self.attempt_with_claims(profile, pod, &mut state, &claims),
            Err(why) => (Decision::Unschedulable(self.rejected_for_claims(&why)), None),
        };
        self.put_back(profile, pod, state);
        result
    }

    pub(super) fn attempt_with(
        &mut self,
        profile: usize,
        pod: &PodInfo,
        state: &mut ClassState,
    ) -> (Decision, Option<Candidate>) {
        let settings = self.profiles[profile].clone();
        let node = |cluster: &Cluster, index: NodeIndex, feasible| Decision::Node {
            name: cluster.at(index).name.clone(),
            feasible,
        };
        // The node that it is nominated to comes first.
        let own = self.own_nomination(pod);
        if let Some(index) = own
            && state.takes(&settings, &mut self.cluster, pod, index)
        {
            return (node(&self.cluster, index, 1), None);
        }
        if own.is_none()
            && !state.is_affected_by_nominated(&settings, &self.cluster)
            && let Some((index, feasible)) = state.best_by_sum(&settings, self.rotation)
        {
            self.rotation = self.rotation.wrapping_add(1);
            return (node(&self.cluster, index, feasible), None);
        }
        let mut cycle = std::mem::take(&mut self.cycle);
        state.filter(&settings, &mut self.cluster, pod, own, &mut cycle);
        if self.cluster.nominations().is_empty()
            && let Some((index, feasible)) =
                state.best_by_sum_of_filtered(&settings, &mut cycle, self.rotation)
        {
            self.cycle = cycle;
            self.rotation = self.rotation.wrapping_add(1);
            return (node(&self.cluster, index, feasible), None);
        }
        cycle.collect();
        let result = match cycle.feasible.as_slice() {
            [] => {
                let (diagnosis, candidate) = self.post_filter(&settings, pod, state, &mut cycle, None);
                (Decision::Unschedulable(diagnosis), candidate)
            }
            [only] => (node(&self.cluster, *only, 1), None),
            _ => {
                state.score(&settings, &self.cluster, &mut cycle, None);
                let index = self.choose(&cycle);
                (node(&self.cluster, index, cycle.feasible.len()), None)
            }
        };
        self.cycle = cycle;
        result
    }

    /// The node that the pod is nominated to: a decision made here is newer than its status.
    pub(super) fn own_nomination(&self, pod: &PodInfo) -> Option<NodeIndex> {
        let known = self.nominated.get(pod.uid()).map(NodeName::as_str);
        self.cluster.index_of(known.unwrap_or(pod.nominated_node_name()))
    }

    /// One of the best nodes, rotating among equals.
    pub(super) fn choose(&mut self, cycle: &CycleState) -> NodeIndex {
        let best = cycle.totals.iter().copied().max().unwrap_or(0);
        let equals = cycle.totals.iter().filter(|t| **t == best).count();
        let offset = self.rotation % equals.max(1);
        self.rotation = self.rotation.wrapping_add(1);
        let all = cycle.feasible.iter().zip(&cycle.totals);
        let mut equals = all.filter(|(_, total)| **total == best).map(|(index, _)| *index);
        // There is one: `offset` is less than their number.
        equals.nth(offset).unwrap_or_default()
    }

    pub(super) fn diagnose(&self, state: &ClassState, cycle: &CycleState) -> Diagnosis {
        let mut diagnosis = Diagnosis {
            nodes: self.cluster.len(),
            ..Diagnosis::default()
        };
        if state.named().is_some() {
            diagnosis.plugins.insert(crate::plugins::node_affinity::NAME);
        }
        for (rejection, nodes) in state.histogram(cycle) {
            diagnosis.reasons.add(&rejection.reasons, nodes);
            if !rejection.plugin.is_empty() {
                diagnosis.plugins.insert(rejection.plugin);
            }
        }
        diagnosis
    }

    /// The best node for a pod in the present snapshot. Changes nothing but the rotation among equally good nodes.
    pub fn schedule(&mut self, pod: &PodInfo) -> Decision {
        let profile = self.profile_of(&pod.pod).unwrap_or(0);
        self.attempt(profile, pod).0
    }

    /// All results of the plugins for a pod.
    pub fn explain(&mut self, pod: &PodInfo) -> Explanation {
        let profile = self.profile_of(&pod.pod).unwrap_or(0);
        let settings = self.profiles[profile].clone();
        let mut explanation = Explanation::default();
        let mut state = match self.state(profile, pod) {
            Ok(state) => state,
            Err(rejection) => {
                explanation.diagnosis = self.rejected(&rejection);
                if let PreFilterError::Unschedulable(rejection) = rejection {
                    explanation.rejection = Some(rejection);
                    explanation.preemption = Some(Outcome::NoState);
                }
                return explanation;
            }
        };
        let mut cycle = CycleState::default();
        let own = self.own_nomination(pod);
        state.filter(&settings, &mut self.cluster, pod, own, &mut cycle);
        cycle.collect();
        let claims = if settings.filters(dynamic_resources::NAME) {
            PodClaims::new(self.cluster.devices(), pod)
        } else {
            Ok(None)
        };
        let has_claims = matches!(claims, Ok(Some(_)));
        match claims.map(|c| c.map(|claims| self.filter_claims(&claims, &mut state, &mut cycle))) {
            Ok(None | Some(Ok(_))) => {}
            Ok(Some(Err(error))) => {
                explanation.diagnosis = self.rejected(&PreFilterError::Error(error));
                return explanation;
            }
            Err(why) => {
                explanation.rejection = Some(UnschedulableStatus::unresolvable(
                    dynamic_resources::NAME,
                    why.to_string(),
                ));
                explanation.diagnosis = self.rejected_for_claims(&why);
                return explanation;
            }
        }
        explanation.named = state.named().cloned();
        for (index, node) in self.cluster.iter() {
            let rejection = state.rejection(&cycle, index).cloned();
            explanation.nodes.insert(node.name.clone(), rejection);
        }
        if cycle.feasible.is_empty() {
            explanation.diagnosis = self.diagnose(&state, &cycle);
            if settings.preemption && !self.cluster.is_empty() {
                let mut outcome = default_preemption::preempt(
                    &settings,
                    &self.cluster,
                    &mut state,
                    pod,
                    own,
                    &cycle,
                    Selection::All,
                );
                explanation.budgets_in_the_way = state.candidates.budgets_in_the_way();
                if !has_claims
                    && matches!(outcome, Outcome::NoCandidates(_))
                    && cross_node_preemption::is_requested(&settings, pod)
                {
                    let across = self.preempt_across_nodes(&settings, pod, &state, &cycle, own, outcome);
                    outcome = across.outcome;
                    explanation.budgets_in_the_way.extend(across.budgets_in_the_way);
                }
                explanation.diagnosis.post_filter = outcome.post_filter();
                explanation.preemption = Some(outcome);
            }
        } else {
            let mut plugin_scores: Vec<PluginScores> = Vec::new();
            state.score(&settings, &self.cluster, &mut cycle, Some(&mut plugin_scores));
            let names = || cycle.feasible.iter().map(|p| self.cluster.at(*p).name.clone());
            explanation.totals = names().zip(cycle.totals.iter().copied()).collect();
            let plugin_scores = plugin_scores.into_iter();
            explanation.scores = plugin_scores
                .map(|(name, of)| (name, names().zip(of).collect()))
                .collect();
        }
        self.put_back(profile, pod, state);
        explanation
    }
}
