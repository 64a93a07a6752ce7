//! The state that one sync decides from, and what follows from it without running an agent: which fencings are missing, what
//! each of them waits for, and when a node is trusted again.

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::kinds::persistent_volume::ATTACHER;
use knarr_api::kinds::pod::at_most_one;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{ObjectKey, Shared, k8s_openapi, registry};
use knarr_apimachinery::labels::Selector;

use super::attempt::Attempt;
use super::kinds::{Custom, FencingPolicy, FencingSpec, NodeFencing, Phase};
use super::node_state::{has_come_back, tainted, unknown_since};
use super::status::set;
use super::{Decision, FENCE_ANNOTATION};
use crate::action::{Action, Create, LiveCheck};
use crate::controller::View;
use crate::{pod, protection};

const HOUR: SignedDuration = SignedDuration::from_hours(1);
/// An unfenced node must have been Ready for this long before its taint is removed: by then its kubelet has synced all its pods.
const READY_BEFORE_TRUSTED: SignedDuration = SignedDuration::from_secs(10);

/// The state that one sync decides from.
pub(super) struct Snapshot<'a> {
    pub(super) view: &'a dyn View,
    pub(super) now: Timestamp,
    pub(super) nodes: Vec<Shared<Node>>,
    pub(super) policies: Vec<&'a FencingPolicy>,
    pub(super) fencings: Vec<&'a NodeFencing>,
}

pub(super) fn name_of(fencing: &NodeFencing) -> &str {
    fencing.metadata.name.as_deref().unwrap_or("")
}

pub(super) fn is_active(fencing: &NodeFencing) -> bool {
    !matches!(fencing.status.phase, Phase::Returned | Phase::Cancelled)
}

/// Whether a wait of this length that ends at `at` is over. If it would last longer than its length, it was started by a clock
/// that was ahead, and is over.
pub(super) fn is_due_at(at: &Time, wait: SignedDuration, now: Timestamp) -> bool {
    at.0 <= now || at.0.duration_since(now) > wait
}

pub(super) fn retry(policy: &FencingPolicy) -> SignedDuration {
    SignedDuration::from_secs(policy.spec.retry_seconds)
}

impl Snapshot<'_> {
    /// The Node of the fencing, if it still has the same uid.
    pub(super) fn node(&self, fencing: &NodeFencing) -> Option<&Shared<Node>> {
        let spec = &fencing.spec;
        let node = self.nodes.iter().find(|n| n.object().name() == spec.node_name)?;
        (spec.node_uid.is_empty() || node.object().uid() == spec.node_uid).then_some(node)
    }

    fn selects(policy: &FencingPolicy, node: &Node) -> bool {
        let Some(selector) = &policy.spec.node_selector else {
            return true;
        };
        // A selector that does not parse selects nothing: no node is fenced because of an invalid selector.
        let selector = Selector::from_label_selector(selector);
        selector.is_ok_and(|s| s.matches(node.metadata.labels.as_ref()))
    }

    pub(super) fn policy(&self, fencing: &NodeFencing) -> Option<&FencingPolicy> {
        let policy_name = &fencing.spec.policy;
        if !policy_name.is_empty() {
            let named = |p: &&FencingPolicy| p.metadata.name.as_deref() == Some(policy_name);
            return self.policies.iter().copied().find(named);
        }
        let node = self.node(fencing)?;
        self.policies.iter().copied().find(|p| Self::selects(p, node))
    }

    /// How many fencings were started in the last hour.
    pub(super) fn started(&self) -> usize {
        let lately = |f: &&NodeFencing| {
            let start = f.status.start_time.as_ref();
            start.is_some_and(|t| self.now.duration_since(t.0) < HOUR)
        };
        self.fencings.iter().copied().filter(lately).count()
    }

    /// Creates the fencings that policies or annotations request and that do not exist yet.
    pub(super) fn missing_fencings(&self) -> Vec<Vec<Action>> {
        let mut lists = Vec::new();
        for node in &self.nodes {
            let name = node.object().name();
            let mut active = self.fencings.iter().filter(|f| is_active(f));
            let has_one = active.any(|f| f.spec.node_name == name);
            let annotations = node.metadata.annotations.as_ref();
            let requested = annotations.and_then(|a| a.get(FENCE_ANNOTATION));
            let automatic = self.policies.iter().find(|p| self.is_due(p, node));
            if let Some(reason) = requested {
                let mut answered = (**node).clone();
                answered
                    .metadata
                    .annotations
                    .get_or_insert_default()
                    .remove(FENCE_ANNOTATION);
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
        policy.spec.automatic && long && Self::selects(policy, node) && self.has_pods_to_release(policy, node)
    }

    /// Whether the node has pods that it has to be fenced for.
    fn has_pods_to_release(&self, policy: &FencingPolicy, node: &Shared<Node>) -> bool {
        let pods = self.view.pods_on(node.object().name());
        let mut pods = pods.iter().filter_map(|o| o.get::<Pod>());
        pods.any(|p| !is_terminal(p) && (policy.spec.workloads == "Any" || self.needs_at_most_one(p)))
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
            spec: FencingSpec {
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
            ignore_already_exists: true,
            report: None,
        }))
    }

    /// Whether the next attempt is not due yet.
    fn is_too_early(&self, fencing: &NodeFencing) -> bool {
        let Some(at) = &fencing.status.next_try_time else {
            return false;
        };
        let wait = self.policy(fencing).map_or(HOUR, retry);
        !is_due_at(at, wait, self.now)
    }

    /// Starts the fencing, or sets what it waits for.
    pub(super) fn waiting(
        &self,
        fencing: &NodeFencing,
        node: Option<&Shared<Node>>,
        started: usize,
        next: &mut NodeFencing,
    ) {
        let Some(node) = node else {
            return set(next, Phase::Cancelled, "the Node was deleted", self.now);
        };
        let is_fencing_it = |f: &&NodeFencing| {
            f.spec.node_name == fencing.spec.node_name
                && name_of(f) != name_of(fencing)
                && matches!(f.status.phase, Phase::Fencing | Phase::Fenced | Phase::Returning)
        };
        if let Some(other) = self.fencings.iter().copied().find(is_fencing_it) {
            let message = format!("NodeFencing {} already fences the node", name_of(other));
            return set(next, Phase::Cancelled, &message, self.now);
        }
        if fencing.spec.automatic && unknown_since(node).is_none() {
            return set(
                next,
                Phase::Cancelled,
                "the node reports its status again",
                self.now,
            );
        }
        if self.is_too_early(fencing) {
            return;
        }
        // The message of a failure stays until the next attempt starts.
        let phase = fencing.status.phase;
        match self.blocked_by(fencing, started) {
            Some(why) if phase == Phase::Pending => set(next, phase, &why, self.now),
            Some(_) => {}
            None => set(next, Phase::Fencing, "running the fence agents", self.now),
        }
    }

    /// Why it cannot start now.
    fn blocked_by(&self, fencing: &NodeFencing, started: usize) -> Option<String> {
        let Some(policy) = self.policy(fencing) else {
            let policy = &fencing.spec.policy;
            return Some(if policy.is_empty() {
                "waiting for a FencingPolicy that selects the node".into()
            } else {
                format!("waiting for FencingPolicy {policy:?}, which does not exist")
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
        // The limits below do not apply to a user's request.
        if !fencing.spec.automatic {
            return None;
        }
        let again = usize::from(fencing.status.start_time.is_some());
        if started.saturating_sub(again) >= spec.max_per_hour {
            return Some(format!(
                "waiting: {started} fencings were started in the last hour (maxPerHour {})",
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

    /// Phase Fenced: waits until pods and volumes are released, and then until the node may be unfenced.
    pub(super) fn fenced(&self, fencing: &NodeFencing, node: &Shared<Node>, next: &mut NodeFencing) {
        let name = node.object().name();
        let pods = self.view.pods_on(name);
        let left = pods
            .iter()
            .filter_map(|o| o.get::<Pod>())
            .filter(|p| !is_terminal(p))
            // Others may stay: pods of DaemonSets tolerate the taint.
            .filter(|p| pod::is_deleting(p) || self.needs_at_most_one(p))
            .count();
        let attached = self.view.list_as::<VolumeAttachment>("");
        let held = attached
            .iter()
            .filter(|a| a.spec.attacher == ATTACHER && a.spec.node_name == name)
            .count();
        let ready = has_come_back(fencing, node);
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
            set(
                next,
                Phase::Returning,
                "running the fence agents with action on",
                self.now,
            );
        } else {
            next.status.message =
                "all pods and volumes are released; switch the node on again: it is unfenced when it is Ready".into();
        }
    }

    /// Runs the agents' `on` again after a while if the node does not report although `on` succeeded: no other component would notice
    /// an agent that did nothing, and `on` does nothing to a node that is on.
    fn retry_unfencing(&self, policy: &FencingPolicy, attempt: &mut Attempt, next: &mut NodeFencing) {
        let wait = retry(policy);
        match &next.status.next_try_time {
            None => next.status.next_try_time = self.now.checked_add(wait).ok().map(Time),
            Some(at) if is_due_at(at, wait, self.now) => {
                next.status.next_try_time = None;
                attempt.begin_again(next);
            }
            Some(_) => {}
        }
    }

    /// Unfenced by its agents: the taint is removed once the node is Ready and uses no volumes from before.
    pub(super) fn returned(
        &self,
        policy: &FencingPolicy,
        node: &Shared<Node>,
        attempt: &mut Attempt,
        next: &mut NodeFencing,
        decision: &mut Decision,
    ) {
        let back = has_come_back(next, node);
        if back {
            next.status.next_try_time = None;
        } else {
            self.retry_unfencing(policy, attempt, next);
        }
        let is_trusted = attempt.has_been_ready_for(READY_BEFORE_TRUSTED, back, self.now);
        let status = node.status.as_ref();
        let used = status.iter().flat_map(|s| s.volumes_in_use.iter().flatten());
        let used: Vec<&str> = used
            .map(String::as_str)
            .filter(|v| v.starts_with(ATTACHER))
            .collect();
        let free = tainted(node, false, self.now);
        let is_tainted = free != **node;
        // Volumes that it uses without the taint were attached since.
        if !is_trusted || (is_tainted && !used.is_empty()) {
            let mut message = "unfenced; waiting for the node to be Ready".to_owned();
            if !used.is_empty() {
                message.push_str(&format!(
                    " and to use no volume from before its fencing ({})",
                    used.join(", ")
                ));
            }
            return set(next, Phase::Returning, &message, self.now);
        }
        if is_tainted {
            let alive = Action::Require(LiveCheck::Exists {
                kind: registry::NODE.clone(),
                key: ObjectKey::of(node.object()),
                uid: node.object().uid().into(),
            });
            decision.actions.push(vec![alive, Action::update(free)]);
            // Finished once the node is seen without the taint: if the write fails it has to be repeated.
            return set(
                next,
                Phase::Returning,
                "the node is Ready; removing its taint",
                self.now,
            );
        }
        set(next, Phase::Returned, "the node is Ready again", self.now);
    }
}
