//! Fencing: making sure that a lost node does nothing any more, and only then letting go of what it held (SPEC S6).
//!
//! A [`FencingPolicy`] says which nodes, when, how many at once, and by which agents; a [`NodeFencing`] is one node's way
//! through it, asked for by the policy, by the annotation `knarr.io/fence` on a Node, or by a user who creates it
//! (`knarr fence NODE`). Agents are programs that speak ClusterLabs' fence-agent convention; the driver in `control` runs
//! them, what they answered comes back as [`Answer`]s.
//!
//! **What counts as evidence**: after `off` succeeded, the same agent must say `off` when asked for its `status`; each
//! agent of the level. `reboot` counts by its success: a node that has gone through it runs nothing of before. An agent
//! that fails, hangs, cannot be started, or says that the node is on, is tried again, then its level has failed; the next
//! level begins from nothing. If no level succeeds **nothing is released**, and the status says so.
//!
//! The evidence is written first, as phase `Fenced`. What follows from it is done by whoever always does it: the node
//! gets the out-of-service taint, pods are asked to end, PodGC completes their deletion, attachments are broken. A node
//! comes back by its agents' `on`, and keeps the taint until it is ready and uses no volume of before.

pub mod attempt;
pub mod description;
pub mod kinds;
pub mod parameters;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Taint};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::kinds::node::OUT_OF_SERVICE;
use knarr_api::kinds::persistent_volume::ATTACHER;
use knarr_api::kinds::pod::at_most_one;
use knarr_api::selector::label::Selector;
use knarr_api::time::seconds;
use knarr_api::{Kind, Object, ObjectKey, Shared, k8s_openapi, registry};

use crate::action::{Action, Create, Fact, reference};
use crate::controller::View;
use crate::node::{NO_EXECUTE, condition};
use crate::{pod, protection};
pub use attempt::{Answer, Run};
use attempt::{Attempt, Course, Done};
use description::{Descriptions, METADATA};
use kinds::{Custom, Evidence, FencingPolicy, NodeFencing, Parsed, Phase};
use parameters::Allowed;

/// Annotation of a Node that asks for its fencing; its value is the reason.
pub const ASKED: &str = "knarr.io/fence";
/// The taint's value, so that it is known whose it is.
const BY_US: &str = "fenced";
/// How many answers of agents a status keeps, the newest.
const EVIDENCE_MAX: usize = 20;
const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// A node that is back must have been ready for so long before it is trusted: its kubelet has looked over all it runs.
const SETTLED: SignedDuration = SignedDuration::from_secs(10);

/// What has begun and is not written in any object: which agents are at work.
#[derive(Default)]
pub struct Fencing {
    /// By the NodeFencing's name.
    attempts: BTreeMap<String, Attempt>,
    /// How many attempts were begun, which are their numbers.
    begun: u64,
    descriptions: Descriptions,
    /// What policies may say.
    allowed: Allowed,
    policies: Parsed<FencingPolicy>,
    fencings: Parsed<NodeFencing>,
}

/// What is to be done after a look.
#[derive(Debug, Default)]
pub struct Todo {
    /// Lists of actions, each in order; one list that fails does not keep the others.
    pub actions: Vec<Vec<Action>>,
    /// Agents to be run, each answered by [`Fencing::answered`].
    pub runs: Vec<Run>,
}

/// The kinds it looks at.
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

/// Everything one look goes by.
struct Known<'a> {
    view: &'a dyn View,
    now: Timestamp,
    nodes: Vec<Shared<Node>>,
    policies: Vec<&'a FencingPolicy>,
    fencings: Vec<&'a NodeFencing>,
}

impl Fencing {
    pub fn new(allowed: Allowed) -> Self {
        Fencing {
            allowed,
            ..Fencing::default()
        }
    }

    /// Looks at everything.
    pub fn look(&mut self, view: &dyn View, now: Timestamp) -> Todo {
        let mut policies = std::mem::take(&mut self.policies);
        let mut fencings = std::mem::take(&mut self.fencings);
        let known = Known {
            view,
            now,
            nodes: view.list_as(""),
            policies: policies.parse(view),
            fencings: fencings.parse(view),
        };
        let todo = self.decide(&known);
        self.policies = policies;
        self.fencings = fencings;
        todo
    }

    fn decide(&mut self, known: &Known<'_>) -> Todo {
        let there: Vec<&str> = known.fencings.iter().map(|f| name_of(f)).collect();
        self.attempts.retain(|name, _| there.contains(&name.as_str()));
        let mut todo = Todo {
            actions: known.wanted(),
            runs: Vec::new(),
        };
        let policies = known.policies.iter().copied();
        let runs = self.descriptions.wanted(policies, &self.allowed, known.now);
        todo.runs.extend(runs);
        todo.actions.extend(self.described(&known.policies));
        let mut begun = known.begun();
        for fencing in &known.fencings {
            self.one(known, fencing, &mut begun, &mut todo);
        }
        todo
    }

    /// The statuses of policies that are not what their agents say.
    fn described(&self, policies: &[&FencingPolicy]) -> Vec<Vec<Action>> {
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

    /// What came of a run.
    pub fn answered(&mut self, run: &Run, answer: Answer, now: Timestamp) {
        if run.action == METADATA {
            return self.descriptions.answered(&run.agent, answer, now);
        }
        if let Some(attempt) = self.attempts.get_mut(&run.fencing) {
            attempt.answered(run, answer, now);
        }
    }

    fn one(&mut self, known: &Known<'_>, fencing: &NodeFencing, begun: &mut usize, todo: &mut Todo) {
        let name = name_of(fencing);
        // Ended, perhaps by another controller: late answers of its agents are of no use to the next attempt.
        if !matches!(fencing.status.phase, Phase::Fencing | Phase::Returning) {
            self.attempts.remove(name);
        }
        if !is_active(fencing) {
            return;
        }
        let mut next = fencing.clone();
        let node = known.node(fencing);
        match fencing.status.phase {
            Phase::Returned | Phase::Cancelled => {}
            Phase::Pending | Phase::Failed => known.waiting(fencing, node, *begun, &mut next),
            Phase::Fencing => {
                if let Some(policy) = known.policy(fencing) {
                    self.work(known, policy, fencing, Course::Away, &mut next, todo);
                } else {
                    set(
                        &mut next,
                        Phase::Failed,
                        "its policy has gone; nothing is released",
                        known.now,
                    );
                }
            }
            Phase::Fenced => {
                if let Some(node) = node {
                    if has_taint(node) {
                        known.fenced(fencing, node, &mut next);
                    } else if is_heard(fencing.status.last_heartbeat_time.as_ref(), node) {
                        // Somebody has switched it on: what its agents have said of it holds no more.
                        let message = "the node was heard before its pods were released: nothing is released";
                        set(&mut next, Phase::Failed, message, known.now);
                        next.status.next_try_time = Some(seconds(known.now));
                    } else {
                        // If the node is heard in between, it has written to its object, and this fails.
                        todo.actions
                            .push(vec![Action::update(tainted(node, true, known.now))]);
                        known.fenced(fencing, node, &mut next);
                    }
                } else {
                    let message = "the Node object has gone, and all that was on it is released";
                    set(&mut next, Phase::Returned, message, known.now);
                }
            }
            Phase::Returning => match (known.policy(fencing), node) {
                (Some(policy), Some(node)) => {
                    self.work(known, policy, fencing, Course::Back, &mut next, todo);
                    let attempt = self.attempts.get_mut(name);
                    if let Some(attempt) = attempt.filter(|_| next.status.phase == Phase::Returned) {
                        known.returned(policy, node, attempt, &mut next, todo);
                    }
                }
                _ => {
                    let message = "its policy or its Node object has gone: it is left as it is";
                    set(&mut next, Phase::Returned, message, known.now);
                }
            },
        }
        if next.status.phase == Phase::Fencing && fencing.status.phase != Phase::Fencing {
            *begun += 1;
        }
        if next.status != fencing.status {
            settle(&mut next, known.now);
            todo.actions.push(written(&next, fencing, node));
        }
        if next.status.phase != fencing.status.phase {
            self.attempts.remove(name);
        }
    }

    fn new_attempt(&mut self, course: Course, fencing: &NodeFencing) -> Attempt {
        self.begun += 1;
        Attempt::new(self.begun, course, fencing)
    }

    /// Runs the agents of its course one after the other, and says what came of it.
    fn work(
        &mut self,
        known: &Known<'_>,
        policy: &FencingPolicy,
        fencing: &NodeFencing,
        course: Course,
        next: &mut NodeFencing,
        todo: &mut Todo,
    ) {
        let name = name_of(fencing);
        if !self.attempts.get(name).is_some_and(|a| a.is_of(course, fencing)) {
            let attempt = self.new_attempt(course, fencing);
            self.attempts.insert(name.to_string(), attempt);
        }
        let Some(attempt) = self.attempts.get_mut(name) else {
            return;
        };
        // What was answered is written down before anything follows from it.
        next.status.evidence.append(&mut attempt.answers);
        let surplus = next.status.evidence.len().saturating_sub(EVIDENCE_MAX);
        next.status.evidence.drain(..surplus);
        match attempt.next(policy, fencing) {
            Done::Run(run) => {
                attempt.asked_of(known.node(fencing).and_then(|n| last_word(n)).map(|(_, at)| at));
                next.status.message = format!("waiting for {}, asked for {}", run.agent, run.action);
                todo.runs.push(*run);
            }
            Done::Waits => {}
            Done::Succeeded { level } => match course {
                Course::Away if known.node(fencing).is_some_and(|n| is_heard(attempt.heard(), n)) => {
                    next.status.next_try_time = Some(seconds(known.now));
                    let message = "the node was heard after its agents had answered: nothing is released";
                    set(next, Phase::Failed, message, known.now);
                }
                Course::Away => {
                    next.status.last_heartbeat_time = attempt.heard().cloned();
                    next.status.level = Some(level);
                    next.status.completion_time = Some(seconds(known.now));
                    let message = "its pods are being released";
                    set(next, Phase::Fenced, message, known.now);
                }
                Course::Back => set(next, Phase::Returned, "let back in", known.now),
            },
            Done::Failed { why } => {
                next.status.next_try_time = known.now.checked_add(retry(policy)).ok().map(Time);
                match course {
                    Course::Away => {
                        let message = format!(
                            "{why}: nothing is released. If you are sure that the node is off, taint it {OUT_OF_SERVICE}=nodeshutdown:NoExecute"
                        );
                        set(next, Phase::Failed, &message, known.now);
                    }
                    // Back to where it was; it is tried again when its time has come.
                    Course::Back => set(
                        next,
                        Phase::Fenced,
                        &format!("cannot let it back in: {why}"),
                        known.now,
                    ),
                }
            }
        }
    }
}

fn name_of(fencing: &NodeFencing) -> &str {
    fencing.metadata.name.as_deref().unwrap_or("")
}

fn is_active(fencing: &NodeFencing) -> bool {
    !matches!(fencing.status.phase, Phase::Returned | Phase::Cancelled)
}

/// Since when the node control plane cannot say how it is.
fn unknown_since(node: &Node) -> Option<Timestamp> {
    let ready = condition(node, "Ready").filter(|c| c.status == "Unknown")?;
    ready.last_transition_time.as_ref().map(|t| t.0)
}

/// What a node said of itself last, and when, by its own clock.
fn last_word(node: &Node) -> Option<(bool, Time)> {
    let ready = condition(node, "Ready")?;
    Some((ready.status == "True", ready.last_heartbeat_time.clone()?))
}

/// Whether a node has said anything of itself since then.
fn is_heard(since: Option<&Time>, node: &Node) -> bool {
    last_word(node).map(|(_, at)| at).as_ref() != since
}

/// Whether a fenced node lives again: it is ready and has said so since. That it was ready before says nothing: whoever is
/// switched off does not tell. No clock is compared with another: any of them may have been set.
fn is_back(fencing: &NodeFencing, node: &Node) -> bool {
    last_word(node).is_some_and(|(ready, at)| ready && Some(at) != fencing.status.last_heartbeat_time)
}

/// Whether a wait of such a length is over that was to last until then. One that is to last for longer than that was begun
/// by a clock that was ahead.
fn has_come(at: &Time, wait: SignedDuration, now: Timestamp) -> bool {
    at.0 <= now || at.0.duration_since(now) > wait
}

fn retry(policy: &FencingPolicy) -> SignedDuration {
    SignedDuration::from_secs(policy.spec.retry_seconds)
}

fn set(fencing: &mut NodeFencing, phase: Phase, message: &str, now: Timestamp) {
    if fencing.status.phase != phase && phase == Phase::Fencing {
        fencing.status.start_time = Some(seconds(now));
        fencing.status.next_try_time = None;
    }
    fencing.status.phase = phase;
    fencing.status.message = message.into();
}

/// The conditions that follow from the phase.
fn settle(fencing: &mut NodeFencing, now: Timestamp) {
    let (is, reason) = match fencing.status.phase {
        Phase::Pending => ("False", "Waiting"),
        Phase::Fencing => ("False", "AgentsAtWork"),
        Phase::Failed => ("False", "NoEvidence"),
        Phase::Fenced => ("True", "Evidence"),
        Phase::Returning => ("True", "Returning"),
        Phase::Returned => ("False", "Returned"),
        Phase::Cancelled => ("False", "Cancelled"),
    };
    let old = fencing.status.conditions.iter().find(|c| c.type_ == "Fenced");
    let since = old
        .filter(|c| c.status == is)
        .map(|c| c.last_transition_time.clone());
    fencing.status.conditions = vec![Condition {
        type_: "Fenced".into(),
        status: is.into(),
        reason: reason.into(),
        message: fencing.status.message.clone(),
        last_transition_time: since.unwrap_or(seconds(now)),
        observed_generation: fencing.metadata.generation,
    }];
}

/// The new status, and an event on the node where the phase has changed.
fn written(next: &NodeFencing, before: &NodeFencing, node: Option<&Shared<Node>>) -> Vec<Action> {
    let object = match next.to_object() {
        Ok(object) => object,
        // A status of our own that does not encode is a bug; the fencing stays where it is.
        Err(error) => {
            debug_assert!(false, "{error}");
            return Vec::new();
        }
    };
    let mut actions = vec![Action::Update {
        kind: NodeFencing::kind().clone(),
        object,
        subresource: "status",
    }];
    let (phase, message) = (next.status.phase, &next.status.message);
    if let Some(node) = node.filter(|_| phase != before.status.phase) {
        let about = reference(node.object());
        let name = node.object().name();
        let told = |what: &str| format!("Fencing of node {name} {what}: {message}");
        actions.extend(match phase {
            Phase::Fencing => Some(Action::warning(&about, "FencingStarted", told("begins"))),
            Phase::Failed => Some(Action::warning(&about, "FencingFailed", told("failed"))),
            Phase::Fenced => Some(Action::warning(&about, "NodeFenced", told("succeeded"))),
            Phase::Returned => Some(Action::event(&about, "NodeReturned", told("is over"))),
            Phase::Cancelled => Some(Action::event(&about, "FencingCancelled", told("is given up"))),
            Phase::Pending | Phase::Returning => None,
        });
    }
    actions
}

fn has_taint(node: &Node) -> bool {
    let mut taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    taints.any(|t| t.key == OUT_OF_SERVICE)
}

/// The node with or without the taint that vouches for its silence.
fn tainted(node: &Node, out: bool, now: Timestamp) -> Node {
    let mut changed = node.clone();
    let spec = changed.spec.get_or_insert_default();
    let mut taints = spec.taints.take().unwrap_or_default();
    taints.retain(|t| t.key != OUT_OF_SERVICE || t.value.as_deref() != Some(BY_US));
    if out {
        taints.push(Taint {
            key: OUT_OF_SERVICE.into(),
            effect: NO_EXECUTE.into(),
            value: Some(BY_US.into()),
            time_added: Some(seconds(now)),
        });
    }
    spec.taints = (!taints.is_empty()).then_some(taints);
    changed
}

impl Known<'_> {
    /// The node that is meant, if it still is the one.
    fn node(&self, fencing: &NodeFencing) -> Option<&Shared<Node>> {
        let spec = &fencing.spec;
        let node = self.nodes.iter().find(|n| n.object().name() == spec.node_name)?;
        (spec.node_uid.is_empty() || node.object().uid() == spec.node_uid).then_some(node)
    }

    fn selects(policy: &FencingPolicy, node: &Node) -> bool {
        let Some(selector) = &policy.spec.node_selector else {
            return true;
        };
        // One that does not parse selects nothing: no node is fenced by mistake.
        let selector = Selector::from_label_selector(selector);
        selector.is_ok_and(|s| s.matches(node.metadata.labels.as_ref()))
    }

    fn policy(&self, fencing: &NodeFencing) -> Option<&FencingPolicy> {
        let wanted = &fencing.spec.policy;
        if !wanted.is_empty() {
            let named = |p: &&FencingPolicy| p.metadata.name.as_deref() == Some(wanted);
            return self.policies.iter().copied().find(named);
        }
        let node = self.node(fencing)?;
        self.policies.iter().copied().find(|p| Self::selects(p, node))
    }

    /// How many were begun in the last hour.
    fn begun(&self) -> usize {
        let lately = |f: &&NodeFencing| {
            let start = f.status.start_time.as_ref();
            start.is_some_and(|t| self.now.duration_since(t.0) < HOUR)
        };
        self.fencings.iter().copied().filter(lately).count()
    }

    /// Fencings that policies or annotations ask for and that are not there yet.
    fn wanted(&self) -> Vec<Vec<Action>> {
        let mut lists = Vec::new();
        for node in &self.nodes {
            let name = node.object().name();
            let mut active = self.fencings.iter().filter(|f| is_active(f));
            let has_one = active.any(|f| f.spec.node_name == name);
            let annotations = node.metadata.annotations.as_ref();
            let asked = annotations.and_then(|a| a.get(ASKED));
            let automatic = self.policies.iter().find(|p| self.is_due(p, node));
            if let Some(reason) = asked {
                let mut answered = (**node).clone();
                answered
                    .metadata
                    .annotations
                    .get_or_insert_default()
                    .remove(ASKED);
                let mut list = Vec::new();
                if !has_one {
                    list.extend(self.create(node, "", reason, false));
                }
                list.push(Action::update(answered));
                lists.push(list);
            } else if let Some(policy) = automatic.filter(|_| !has_one) {
                let of = policy.metadata.name.clone().unwrap_or_default();
                let reason = format!("unreachable for {} s", policy.spec.unreachable_seconds);
                lists.extend(self.create(node, &of, &reason, true).map(|create| vec![create]));
            }
        }
        lists
    }

    fn is_due(&self, policy: &FencingPolicy, node: &Shared<Node>) -> bool {
        let wait = SignedDuration::from_secs(policy.spec.unreachable_seconds);
        let long = unknown_since(node).is_some_and(|since| self.now.duration_since(since) >= wait);
        policy.spec.automatic && long && Self::selects(policy, node) && self.is_worth(policy, node)
    }

    /// Whether something is on the node that waits for its fencing.
    fn is_worth(&self, policy: &FencingPolicy, node: &Shared<Node>) -> bool {
        let pods = self.view.pods_on(node.object().name());
        let mut pods = pods.iter().filter_map(|o| o.get::<Pod>());
        pods.any(|p| !pod::is_finished(p) && (policy.spec.workloads == "Any" || self.needs_at_most_one(p)))
    }

    fn needs_at_most_one(&self, pod: &Pod) -> bool {
        at_most_one(pod).unwrap_or_else(|| {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            protection::claims(pod).any(|name| {
                let claim = self.view.get_as::<PersistentVolumeClaim>(namespace, &name);
                let modes = claim.and_then(|c| c.spec.as_ref()?.access_modes.clone());
                modes
                    .unwrap_or_default()
                    .iter()
                    .all(|m| m.starts_with("ReadWriteOnce"))
            })
        })
    }

    fn create(&self, node: &Shared<Node>, policy: &str, reason: &str, automatic: bool) -> Option<Action> {
        let name = node.object().name();
        let fencing = NodeFencing {
            metadata: ObjectMeta {
                name: Some(format!("{name}-{}", self.now.as_second())),
                ..ObjectMeta::default()
            },
            spec: kinds::FencingSpec {
                node_name: name.into(),
                node_uid: node.object().uid().into(),
                policy: policy.into(),
                reason: reason.into(),
                automatic,
            },
            ..NodeFencing::default()
        };
        let object = fencing.to_object().ok()?;
        Some(Action::Create(Create {
            kind: NodeFencing::kind().clone(),
            object,
            or_exists: true,
            report: None,
        }))
    }

    /// Whether it failed and is not tried again yet.
    fn is_too_early(&self, fencing: &NodeFencing) -> bool {
        let Some(at) = &fencing.status.next_try_time else {
            return false;
        };
        let wait = self.policy(fencing).map_or(HOUR, retry);
        !has_come(at, wait, self.now)
    }

    /// What it waits for before agents may begin; or begins.
    fn waiting(
        &self,
        fencing: &NodeFencing,
        node: Option<&Shared<Node>>,
        begun: usize,
        next: &mut NodeFencing,
    ) {
        let Some(node) = node else {
            return set(next, Phase::Cancelled, "there is no such node any more", self.now);
        };
        let begun_already = |f: &&NodeFencing| {
            f.spec.node_name == fencing.spec.node_name
                && name_of(f) != name_of(fencing)
                && matches!(f.status.phase, Phase::Fencing | Phase::Fenced | Phase::Returning)
        };
        if let Some(other) = self.fencings.iter().copied().find(begun_already) {
            let message = format!("{} is at it already", name_of(other));
            return set(next, Phase::Cancelled, &message, self.now);
        }
        if fencing.spec.automatic && unknown_since(node).is_none() {
            return set(next, Phase::Cancelled, "the node is back", self.now);
        }
        if self.is_too_early(fencing) {
            return;
        }
        // A failure stays on show until there is something new to say.
        let phase = fencing.status.phase;
        match self.hindrance(fencing, begun) {
            Some(why) if phase == Phase::Pending => set(next, phase, &why, self.now),
            Some(_) => {}
            None => set(next, Phase::Fencing, "agents begin", self.now),
        }
    }

    /// What keeps it from beginning now.
    fn hindrance(&self, fencing: &NodeFencing, begun: usize) -> Option<String> {
        let Some(policy) = self.policy(fencing) else {
            let wanted = &fencing.spec.policy;
            return Some(if wanted.is_empty() {
                "waiting for a FencingPolicy that selects the node".into()
            } else {
                format!("waiting for the FencingPolicy {wanted:?}, which does not exist")
            });
        };
        let spec = &policy.spec;
        let at_work = self.fencings.iter().filter(|f| f.status.phase == Phase::Fencing);
        if at_work.count() >= spec.max_concurrent {
            return Some(format!(
                "waiting for another fencing to end (maxConcurrent {})",
                spec.max_concurrent
            ));
        }
        // A user who asks has decided, storm or not.
        if !fencing.spec.automatic {
            return None;
        }
        let again = usize::from(fencing.status.start_time.is_some());
        if begun.saturating_sub(again) >= spec.max_per_hour {
            return Some(format!(
                "waiting: {begun} fencings were begun in the last hour (maxPerHour {})",
                spec.max_per_hour
            ));
        }
        let mine: Vec<_> = self.nodes.iter().filter(|n| Self::selects(policy, n)).collect();
        let lost = mine.iter().filter(|n| unknown_since(n).is_some()).count();
        if lost * 100 > mine.len() * spec.max_lost_percent {
            return Some(format!(
                "waiting: {lost} of {} nodes are lost, more than maxLostPercent {}: more likely this server is cut off",
                mine.len(),
                spec.max_lost_percent
            ));
        }
        None
    }

    /// Fenced: until all is released, and then until the node may come back.
    fn fenced(&self, fencing: &NodeFencing, node: &Shared<Node>, next: &mut NodeFencing) {
        let name = node.object().name();
        let pods = self.view.pods_on(name);
        let left = pods
            .iter()
            .filter_map(|o| o.get::<Pod>())
            .filter(|p| !pod::is_finished(p))
            // Others may stay: those of DaemonSets tolerate everything.
            .filter(|p| pod::is_deleting(p) || self.needs_at_most_one(p))
            .count();
        let attached = self.view.list_as::<VolumeAttachment>("");
        let held = attached
            .iter()
            .filter(|a| a.spec.attacher == ATTACHER && a.spec.node_name == name)
            .count();
        let ready = is_back(fencing, node);
        if left > 0 || held > 0 {
            next.status.message = format!("releasing {left} pods and {held} volumes");
            return;
        }
        if self.is_too_early(fencing) {
            return;
        }
        let automatic = self.policy(fencing).is_some_and(|p| p.spec.automatic_return);
        if automatic || ready {
            next.status.next_try_time = None;
            set(next, Phase::Returning, "its agents let it back in", self.now);
        } else {
            next.status.message =
                "all is released; switch the node on again, and it is let back in when it is ready".into();
        }
    }

    /// Of a node that gives no sign of life though its agents say that they have let it in: they are asked again after a
    /// while. One that said so and did nothing is found out by nobody else, and `on` does nothing to a node that is on.
    fn ask_again(&self, policy: &FencingPolicy, attempt: &mut Attempt, next: &mut NodeFencing) {
        let wait = retry(policy);
        match &next.status.next_try_time {
            None => next.status.next_try_time = self.now.checked_add(wait).ok().map(Time),
            Some(at) if has_come(at, wait, self.now) => {
                next.status.next_try_time = None;
                attempt.begin_again(next);
            }
            Some(_) => {}
        }
    }

    /// Let back in by its agents: trusted again once it is ready and uses nothing of before.
    fn returned(
        &self,
        policy: &FencingPolicy,
        node: &Shared<Node>,
        attempt: &mut Attempt,
        next: &mut NodeFencing,
        todo: &mut Todo,
    ) {
        let back = is_back(next, node);
        if back {
            next.status.next_try_time = None;
        } else {
            self.ask_again(policy, attempt, next);
        }
        let settled = attempt.is_well_for(SETTLED, back, self.now);
        let status = node.status.as_ref();
        let used = status.iter().flat_map(|s| s.volumes_in_use.iter().flatten());
        let used: Vec<&str> = used
            .map(String::as_str)
            .filter(|v| v.starts_with(ATTACHER))
            .collect();
        let free = tainted(node, false, self.now);
        let is_kept_away = free != **node;
        // What it uses once the taint is off it was given since.
        if !settled || (is_kept_away && !used.is_empty()) {
            let mut message = "let back in by its agents; waiting for it to be ready".to_owned();
            if !used.is_empty() {
                message.push_str(&format!(" and to use no volume of before ({})", used.join(", ")));
            }
            return set(next, Phase::Returning, &message, self.now);
        }
        if is_kept_away {
            let alive = Action::Require(Fact::Alive {
                kind: registry::NODE.clone(),
                key: ObjectKey::of(node.object()),
                uid: node.object().uid().into(),
            });
            todo.actions.push(vec![alive, Action::update(free)]);
            // Over when that is seen: if the write fails, nobody would look at the taint again.
            return set(
                next,
                Phase::Returning,
                "well again; its taint is being taken off",
                self.now,
            );
        }
        set(next, Phase::Returned, "the node is back and well", self.now);
    }
}

/// What an agent said, for the record.
fn evidence(run: &Run, outcome: String, output: &str, now: Timestamp) -> Evidence {
    Evidence {
        agent: run.agent.clone(),
        action: run.action.into(),
        time: seconds(now),
        outcome,
        output: output.trim().into(),
    }
}

/// Whether a change of this object is to be looked at at once: of a node no heartbeat, and what pods do can wait.
pub fn matters(old: Option<&Object>, new: Option<&Object>) -> bool {
    let Some(object) = new.or(old) else {
        return false;
    };
    if object.kind() != &registry::NODE {
        return [FencingPolicy::kind().plural(), NodeFencing::kind().plural()]
            .contains(&object.kind().plural());
    }
    let told = |o: Option<&Object>| {
        let node = o?.get::<Node>()?;
        let ready = condition(node, "Ready").map(|c| c.status.clone());
        Some((ready, node.metadata.annotations.clone(), has_taint(node)))
    };
    told(old) != told(new)
}
