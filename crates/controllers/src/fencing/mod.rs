//! Fencing: makes sure that a lost node runs nothing any more, and only then releases its pods and volumes (SPEC S6).
//!
//! A [`FencingPolicy`] sets which nodes are fenced, when, how many at once, and by which agents. A [`NodeFencing`] is the fencing
//! of one node, created by the policy, for the annotation `knarr.io/fence` on a Node, or by a user (`knarr fence NODE`). Agents are
//! programs with ClusterLabs' fence-agent interface; the driver in `control` runs them and returns their [`AgentResult`]s.
//!
//! **What counts as evidence**: after `off` succeeded, `status` of the same agent must report `off`, for each agent of the level.
//! `reboot` counts if it succeeds: a node that was rebooted runs nothing from before. An agent that fails, hangs, cannot be
//! started, or reports that the node is on, is retried, then its level has failed; the next level starts from the beginning.
//! If no level succeeds **nothing is released**, and the status reports it.
//!
//! The evidence is written first, as phase `Fenced`. Then the node gets the out-of-service taint (KEP-2268), and the usual
//! controllers do the rest: taint eviction deletes the pods, PodGC completes their deletion, volumes are detached. A node is
//! unfenced by its agents' `on`, and keeps the taint until it is Ready and uses no volumes from before.

pub mod attempt;
pub mod description;
pub mod kinds;
mod node_state;
pub mod parameters;
mod snapshot;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::node::{OUT_OF_SERVICE, has_out_of_service_taint};
use knarr_api::{Kind, Object, k8s_openapi, registry};
use knarr_apimachinery::time::seconds;

use crate::action::{Action, LiveCheck};
use crate::controller::View;
use crate::node::condition;
pub use attempt::{AgentResult, Run};
use attempt::{Attempt, Direction, Progress};
use description::{Descriptions, METADATA};
use kinds::{Custom, FencingPolicy, NodeFencing, Parsed, Phase};
use node_state::{has_reported_since, last_heartbeat, tainted};
use parameters::Allowed;
use snapshot::{Snapshot, is_active, name_of, retry};
use status::{set, set_conditions, status_update};

/// Annotation of a Node by which a user requests its fencing; its value is the reason.
pub const FENCE_ANNOTATION: &str = "knarr.io/fence";
/// How many results of agents a status keeps, the newest.
const EVIDENCE_MAX: usize = 20;

/// The controller, with the state that is in no object: which agents are running.
#[derive(Default)]
pub struct Fencing {
    /// By the NodeFencing's name.
    attempts: BTreeMap<String, Attempt>,
    /// The number of attempts that were started: the id of the last one.
    started: u64,
    descriptions: Descriptions,
    /// The agents and parameters that policies may name.
    allowed: Allowed,
    policies: Parsed<FencingPolicy>,
    fencings: Parsed<NodeFencing>,
}

/// What a sync has decided.
#[derive(Debug, Default)]
pub struct Decision {
    /// Lists of actions, each carried out in order; a list that fails does not stop the others.
    pub actions: Vec<Vec<Action>>,
    /// The agents to run; each result is passed to [`Fencing::record_result`].
    pub runs: Vec<Run>,
}

/// The kinds that it watches.
pub fn watches() -> Vec<&'static Kind> {
    vec![
        FencingPolicy::kind(),
        NodeFencing::kind(),
        &registry::NODE,
        &registry::POD,
        &registry::PERSISTENT_VOLUME_CLAIM,
        &registry::VOLUME_ATTACHMENT,
    ]
}

impl Fencing {
    pub fn new(allowed: Allowed) -> Self {
        Fencing {
            allowed,
            ..Fencing::default()
        }
    }

    /// Syncs all policies and fencings.
    pub fn sync(&mut self, view: &dyn View, now: Timestamp) -> Decision {
        let mut policies = std::mem::take(&mut self.policies);
        let mut fencings = std::mem::take(&mut self.fencings);
        let snapshot = Snapshot {
            view,
            now,
            nodes: view.list_as(""),
            policies: policies.parse(view),
            fencings: fencings.parse(view),
        };
        let decision = self.decide(&snapshot);
        self.policies = policies;
        self.fencings = fencings;
        decision
    }

    fn decide(&mut self, snapshot: &Snapshot<'_>) -> Decision {
        let there: Vec<&str> = snapshot.fencings.iter().map(|f| name_of(f)).collect();
        self.attempts.retain(|name, _| there.contains(&name.as_str()));
        let mut decision = Decision {
            actions: snapshot.missing_fencings(),
            runs: Vec::new(),
        };
        let policies = snapshot.policies.iter().copied();
        let runs = self.descriptions.due_runs(policies, &self.allowed, snapshot.now);
        decision.runs.extend(runs);
        decision.actions.extend(self.policy_statuses(&snapshot.policies));
        let mut started = snapshot.started();
        for fencing in &snapshot.fencings {
            self.sync_fencing(snapshot, fencing, &mut started, &mut decision);
        }
        decision
    }

    /// The updates of policies whose status has changed.
    fn policy_statuses(&self, policies: &[&FencingPolicy]) -> Vec<Vec<Action>> {
        let changed = policies.iter().filter_map(|policy| {
            let status = self
                .descriptions
                .status(policy, &self.allowed)
                .filter(|s| *s != policy.status)?;
            let next = FencingPolicy {
                status,
                ..FencingPolicy::clone(policy)
            };
            let object = next.to_object().ok()?;
            Some(vec![Action::Update {
                kind: FencingPolicy::kind().clone(),
                object,
                subresource: "status",
            }])
        });
        changed.collect()
    }

    /// Records the result of a run.
    pub fn record_result(&mut self, run: &Run, result: AgentResult, now: Timestamp) {
        if run.action == METADATA {
            return self.descriptions.record_result(&run.agent, result, now);
        }
        if let Some(attempt) = self.attempts.get_mut(&run.fencing) {
            attempt.record_result(run, result, now);
        }
    }

    fn sync_fencing(
        &mut self,
        snapshot: &Snapshot<'_>,
        fencing: &NodeFencing,
        started: &mut usize,
        decision: &mut Decision,
    ) {
        let name = name_of(fencing);
        // Finished, perhaps by another controller: late results of its agents do not count for the next attempt.
        if !matches!(fencing.status.phase, Phase::Fencing | Phase::Returning) {
            self.attempts.remove(name);
        }
        if !is_active(fencing) {
            return;
        }
        let mut next = fencing.clone();
        let node = snapshot.node(fencing);
        match fencing.status.phase {
            Phase::Returned | Phase::Cancelled => {}
            Phase::Pending | Phase::Failed => snapshot.waiting(fencing, node, *started, &mut next),
            Phase::Fencing => {
                if let Some(policy) = snapshot.policy(fencing) {
                    self.run_agents(snapshot, policy, fencing, Direction::Fence, &mut next, decision);
                } else {
                    set(
                        &mut next,
                        Phase::Failed,
                        "the FencingPolicy was deleted: nothing is released",
                        snapshot.now,
                    );
                }
            }
            Phase::Fenced => {
                if let Some(node) = node {
                    if has_out_of_service_taint(node) {
                        snapshot.fenced(fencing, node, &mut next);
                    } else if has_reported_since(fencing.status.last_heartbeat_time.as_ref(), node) {
                        // The node was switched on: the results of its agents no longer hold.
                        let message =
                            "the node reported its status before its pods were released: nothing is released";
                        set(&mut next, Phase::Failed, message, snapshot.now);
                        next.status.next_try_time = Some(seconds(snapshot.now));
                    } else {
                        // If the node has reported in between, its resourceVersion has changed, and this update fails.
                        decision
                            .actions
                            .push(vec![Action::update(tainted(node, true, snapshot.now))]);
                        snapshot.fenced(fencing, node, &mut next);
                    }
                } else {
                    let message = "the Node was deleted, and its pods and volumes are released";
                    set(&mut next, Phase::Returned, message, snapshot.now);
                }
            }
            Phase::Returning => match (snapshot.policy(fencing), node) {
                (Some(policy), Some(node)) => {
                    self.run_agents(snapshot, policy, fencing, Direction::Unfence, &mut next, decision);
                    let attempt = self.attempts.get_mut(name);
                    if let Some(attempt) = attempt.filter(|_| next.status.phase == Phase::Returned) {
                        snapshot.returned(policy, node, attempt, &mut next, decision);
                    }
                }
                _ => {
                    let message = "the FencingPolicy or the Node was deleted: the node is not unfenced";
                    set(&mut next, Phase::Returned, message, snapshot.now);
                }
            },
        }
        let starts = next.status.phase == Phase::Fencing && fencing.status.phase != Phase::Fencing;
        if starts {
            *started += 1;
        }
        if next.status != fencing.status {
            set_conditions(&mut next, snapshot.now);
            let mut update = status_update(&next, fencing, node);
            if starts && fencing.spec.automatic {
                // The cache may lag: agents would switch off a node that reports its status again.
                let node = fencing.spec.node_name.as_str().into();
                update.insert(0, Action::Require(LiveCheck::Unreachable { node }));
            }
            decision.actions.push(update);
        }
        if next.status.phase != fencing.status.phase {
            self.attempts.remove(name);
        }
    }

    fn new_attempt(&mut self, direction: Direction, fencing: &NodeFencing) -> Attempt {
        self.started += 1;
        Attempt::new(self.started, direction, fencing)
    }

    /// Runs the agents for this direction one after the other, and sets the phase by their results.
    fn run_agents(
        &mut self,
        snapshot: &Snapshot<'_>,
        policy: &FencingPolicy,
        fencing: &NodeFencing,
        direction: Direction,
        next: &mut NodeFencing,
        decision: &mut Decision,
    ) {
        let name = name_of(fencing);
        if !self
            .attempts
            .get(name)
            .is_some_and(|a| a.is_of(direction, fencing))
        {
            let attempt = self.new_attempt(direction, fencing);
            self.attempts.insert(name.to_string(), attempt);
        }
        let Some(attempt) = self.attempts.get_mut(name) else {
            return;
        };
        // Results are recorded in the status before anything follows from them.
        next.status.evidence.append(&mut attempt.evidence_to_record);
        let surplus = next.status.evidence.len().saturating_sub(EVIDENCE_MAX);
        next.status.evidence.drain(..surplus);
        match attempt.next(policy, fencing) {
            Progress::Run(run) => {
                attempt.agent_started(
                    snapshot
                        .node(fencing)
                        .and_then(|n| last_heartbeat(n))
                        .map(|(_, at)| at),
                );
                next.status.message = format!("waiting for agent {} (action {})", run.agent, run.action);
                decision.runs.push(*run);
            }
            Progress::AgentRunning => {}
            Progress::Succeeded { level } => match direction {
                Direction::Fence
                    if snapshot
                        .node(fencing)
                        .is_some_and(|n| has_reported_since(attempt.last_heartbeat(), n)) =>
                {
                    next.status.next_try_time = Some(seconds(snapshot.now));
                    let message =
                        "the node reported its status after its agents had run: nothing is released";
                    set(next, Phase::Failed, message, snapshot.now);
                }
                Direction::Fence => {
                    next.status.last_heartbeat_time = attempt.last_heartbeat().cloned();
                    next.status.level = Some(level);
                    next.status.completion_time = Some(seconds(snapshot.now));
                    let message = "its pods are being released";
                    set(next, Phase::Fenced, message, snapshot.now);
                }
                Direction::Unfence => set(next, Phase::Returned, "unfenced", snapshot.now),
            },
            Progress::Failed { why } => {
                next.status.next_try_time = snapshot.now.checked_add(retry(policy)).ok().map(Time);
                match direction {
                    Direction::Fence => {
                        let message = format!(
                            "{why}: nothing is released. If you are sure that the node is off, taint it {OUT_OF_SERVICE}=nodeshutdown:NoExecute"
                        );
                        set(next, Phase::Failed, &message, snapshot.now);
                    }
                    // The phase is Fenced again; unfencing is retried at the next try time.
                    Direction::Unfence => set(
                        next,
                        Phase::Fenced,
                        &format!("cannot unfence the node: {why}"),
                        snapshot.now,
                    ),
                }
            }
        }
    }
}

/// Whether a change of this object needs a sync at once: heartbeats of nodes and changes of pods wait for the next period.
pub fn is_relevant(old: Option<&Object>, new: Option<&Object>) -> bool {
    let Some(object) = new.or(old) else {
        return false;
    };
    if object.kind() != &registry::NODE {
        return [FencingPolicy::kind().plural(), NodeFencing::kind().plural()]
            .contains(&object.kind().plural());
    }
    let relevant = |o: Option<&Object>| {
        let node = o?.get::<Node>()?;
        let ready = condition(node, "Ready").map(|c| c.status.clone());
        Some((
            ready,
            node.metadata.annotations.clone(),
            has_out_of_service_taint(node),
        ))
    };
    relevant(old) != relevant(new)
}
