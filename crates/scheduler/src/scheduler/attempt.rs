//! One attempt: a node for one pod, as the picture is now, or the nodes where making room would help; and the same with
//! all that the rules say, for people. Nothing in the picture changes but what is remembered of the pod's class.

use knarr_api::Shared;
use knarr_api::k8s_openapi::api::core::v1::Pod;

use super::{Decision, Explanation, Scheduler};
use crate::cluster::{Cluster, Place};
use crate::diagnosis::Diagnosis;
use crate::evaluation::{ClassState, PluginScores, Rejection, Scratch};
use crate::plugins::Refusal;
use crate::plugins::default_preemption::{self, Candidate, Outcome, Wanted};
use crate::plugins::dynamic_resources::{self, PodClaims};
use crate::pod_info::PodInfo;
use crate::profile::Profile;

/// What is kept of classes of pods at most, all together.
const STATES_BYTES: usize = 256 << 20;
/// What is kept of one class for one node, about.
const STATE_BYTES_PER_NODE: usize = 96;
/// So many classes are kept at least, and at most.
const STATES: (usize, usize) = (8, 512);

impl Scheduler {
    /// The pod with what its class shares, as the rules look at it.
    pub fn info(&mut self, pod: &Shared<Pod>) -> PodInfo {
        self.classes.info(pod)
    }

    /// Takes out what is known of the pod's class, up to date.
    pub(super) fn state(&mut self, profile: usize, pod: &PodInfo) -> Result<Box<ClassState>, Rejection> {
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

    pub(super) fn put_back(&mut self, profile: usize, pod: &PodInfo, mut state: Box<ClassState>) {
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

    pub(super) fn rejected(&self, rejection: &Rejection) -> Diagnosis {
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
    pub(super) fn attempt(&mut self, profile: usize, pod: &PodInfo) -> (Decision, Option<Candidate>) {
        let nodes = self.cluster.len();
        if nodes == 0 {
            let diagnosis = Diagnosis::default();
            return (Decision::Nowhere(diagnosis), None);
        }
        let mut state = match self.state(profile, pod) {
            Ok(state) => state,
            Err(rejection) => return (Decision::Nowhere(self.rejected(&rejection)), None),
        };
        let claims = if self.profiles[profile].filters(dynamic_resources::NAME) {
            PodClaims::new(self.cluster.devices(), pod)
        } else {
            Ok(None)
        };
        let result = match claims {
            Ok(None) => self.attempt_with(profile, pod, &mut state),
            Ok(Some(claims)) => self.attempt_with_claims(profile, pod, &mut state, &claims),
            Err(why) => (Decision::Nowhere(self.rejected_for_claims(why)), None),
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
                let (diagnosis, candidate) = self.make_room(&settings, pod, state, &mut scratch, None);
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
    pub(super) fn own_nomination(&self, pod: &PodInfo) -> Option<Place> {
        let known = self.nominated.get(pod.uid()).map(String::as_str);
        self.cluster.place(known.unwrap_or(pod.nominated_node_name()))
    }

    /// One of the best, in turn.
    pub(super) fn choose(&mut self, scratch: &Scratch) -> Place {
        let best = scratch.totals.iter().copied().max().unwrap_or(0);
        let equals = scratch.totals.iter().filter(|t| **t == best).count();
        let turn = self.rotation % equals.max(1);
        self.rotation = self.rotation.wrapping_add(1);
        let all = scratch.feasible.iter().zip(&scratch.totals);
        let mut equals = all.filter(|(_, total)| **total == best).map(|(place, _)| *place);
        // There is one: `turn` is less than their number.
        equals.nth(turn).unwrap_or_default()
    }

    pub(super) fn diagnose(&self, state: &ClassState, scratch: &Scratch) -> Diagnosis {
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

    pub(super) fn make_room(
        &mut self,
        profile: &Profile,
        pod: &PodInfo,
        state: &mut ClassState,
        scratch: &mut Scratch,
        claims: Option<&PodClaims>,
    ) -> (Diagnosis, Option<Candidate>) {
        let mut diagnosis = self.diagnose(state, scratch);
        if let Some(claims) = claims {
            self.rule_out_for_claims(claims, state, scratch);
        }
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
        let claims = if settings.filters(dynamic_resources::NAME) {
            PodClaims::new(self.cluster.devices(), pod)
        } else {
            Ok(None)
        };
        match claims.map(|c| c.map(|claims| self.filter_claims(&claims, &mut state, &mut scratch))) {
            Ok(None | Some(Ok(_))) => {}
            Ok(Some(Err(error))) => {
                explanation.diagnosis = self.rejected(&Rejection::Error(error));
                return explanation;
            }
            Err(why) => {
                explanation.rejection = Some(Refusal::of_pod(dynamic_resources::NAME, why.clone()));
                explanation.diagnosis = self.rejected_for_claims(why);
                return explanation;
            }
        }
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
}

/// What the condition says of it.
fn preemption_message(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Candidates(_) => String::new(),
        Outcome::Nothing(why) => format!("no new claims to deallocate, preemption: {why}"),
    }
}
