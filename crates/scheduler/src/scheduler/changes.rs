//! Changes of objects are applied to the snapshot here: nodes, pods and storage that were added, updated or deleted,
//! and which pods they requeue. Each change is applied once; what was decided here and is not yet written (assumed)
//! is kept until the API shows something newer.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{is_terminal, requests_cross_node_preemption};
use knarr_api::{Object, ObjectKey, Shared};
use knarr_apimachinery::ids::{NodeName, PodUid};

use super::{Scheduler, profile_for};
use crate::dynamic_resources::claims;
use crate::event;
use crate::node_info::NodeInfo;
use crate::plugins::{
    cross_node_preemption, dynamic_resources, inter_pod_affinity, node_resources_fit, pod_topology_spread,
    volume_restrictions,
};
use crate::pod_info::{PodInfo, is_same_spec, node_name, nominated_node_name};
use crate::queue::QueueingHint;
use crate::queueing_hints as hints;
use crate::topology_domains::TopologyDomains;
use crate::volumes;

impl Scheduler {
    /// Whether this scheduler is responsible for finding a node for the pod (responsibleForPod).
    pub(super) fn is_responsible_for_pod(&self, pod: &Pod) -> bool {
        self.profile_of(pod).is_some()
            && node_name(pod).is_empty()
            && pod.metadata.deletion_timestamp.is_none()
            && !is_terminal(pod)
    }

    /// A node was added, updated or deleted (`None`).
    pub fn node_changed(&mut self, name: &str, node: Option<Shared<Node>>, now: Timestamp) {
        let before = self.cluster.get(name).and_then(|info| info.node.clone());
        self.cluster.set_node(name, node.clone());
        if self.queue.lengths().unschedulable == 0 {
            return;
        }
        let classes = self.cluster.devices().inventory.class_resources();
        let bare = |node| {
            let mut info = NodeInfo::bare(node);
            info.device_class_resources = classes.clone();
            info
        };
        let (before, after) = (before.map(bare), node.map(bare));
        let (before, after) = (before.as_ref(), after.as_ref());
        let profiles = &self.profiles;
        self.queue.requeue_where(
            |plugin| event::of_node(plugin, before, after),
            now,
            |plugin, pod| {
                let profile = profile_for(profiles, &pod.pod);
                hints::node_changed(profile, plugin, pod, before, after)
            },
        );
    }

    /// A storage object was added, updated or deleted.
    pub fn storage_changed(&mut self, change: &volumes::Change, now: Timestamp) {
        self.cluster.volumes_mut().apply(change);
        if self.queue.any_unschedulable_by(hints::STORAGE_EVENT_PLUGINS) {
            self.queue.requeue_where(
                |_| event::of_storage(change),
                now,
                |plugin, pod| hints::storage_changed(plugin, pod, change),
            );
        }
    }

    /// A TopologyDomains object was added, updated or deleted (`None`).
    pub fn topology_domains_changed(&mut self, name: &str, object: Option<&Object>, now: Timestamp) {
        let keys = self
            .cluster
            .set_topology_domains(name, object.and_then(TopologyDomains::of));
        if !keys.is_empty() && self.queue.any_unschedulable_by(&[pod_topology_spread::NAME]) {
            self.queue.requeue_where(
                |_| event::TOPOLOGY_DOMAINS_UPDATE,
                now,
                |plugin, pod| hints::topology_domains_changed(plugin, pod, &keys),
            );
        }
    }

    /// An object of dynamic resource allocation was added, updated or deleted.
    pub fn devices_changed(&mut self, change: &claims::Change, now: Timestamp) {
        self.cluster.devices_changed(change);
        if self.queue.any_unschedulable_by(hints::DEVICE_EVENT_PLUGINS) {
            let devices = self.cluster.devices();
            self.queue.requeue_where(
                |_| event::of_devices(change),
                now,
                |plugin, pod| match plugin {
                    dynamic_resources::NAME => dynamic_resources::change_helps(devices, pod, change),
                    node_resources_fit::NAME => node_resources_fit::class_change_helps(pod, change),
                    _ => false,
                },
            );
        }
    }

    /// A pod was added, updated or deleted (`new` is `None`).
    pub fn pod_changed(&mut self, old: Option<&Shared<Pod>>, new: Option<&Shared<Pod>>, now: Timestamp) {
        if let (Some(old), Some(new)) = (old, new)
            && old.object().uid() != new.object().uid()
        {
            self.pod_changed(Some(old), None, now);
            return self.pod_changed(None, Some(new), now);
        }
        let Some(pod) = new.or(old) else { return };
        let uid = PodUid::from(pod.object().uid());
        let key = ObjectKey::of(pod.object());
        if self.cluster.budgets().has_pending()
            && new.is_none_or(|new| new.object().metadata().deletion_timestamp.is_some())
        {
            self.cluster.budgets_mut().left(&uid);
        }
        self.forget_dead_classes();
        let assigned_to = new
            .filter(|p| !is_terminal(p))
            .map(|p| node_name(p))
            .filter(|n| !n.is_empty())
            .map(NodeName::from);
        match (assigned_to, new) {
            (Some(node), Some(new)) => {
                let known = self.known(&key, &uid);
                self.dequeue(&key, &uid, Some(&node), now);
                let was_expected = self.assumed.remove(&uid);
                self.reserved.remove(&uid);
                self.reserved_claims.remove(&uid);
                let info = Arc::new(self.classes.info_after(known.as_deref(), new));
                let changed = self.assign(&node, &info);
                if changed && !was_expected {
                    self.assigned_pod_added(&info, now);
                }
                let labels = &new.object().metadata().labels;
                let was = old.map(|old| known_or(known.as_deref(), old));
                if let Some(was) = was.filter(|was| was.object().metadata().labels != *labels) {
                    let was = self.classes.info(was);
                    self.assigned_pod_left(event::ASSIGNED_POD_UPDATE_LABEL, &was, now);
                }
            }
            (None, Some(new)) if self.is_responsible_for_pod(new) => {
                let gates = new.spec.as_ref().and_then(|s| s.scheduling_gates.as_ref());
                if gates.is_some_and(|g| !g.is_empty()) {
                    if !self.gated.contains(&key) {
                        self.queue.count_gated();
                    }
                    self.dequeue(&key, &uid, None, now);
                    self.gated.insert(key);
                    return;
                }
                let was_gated = self.gated.remove(&key);
                // A pod whose binding is in progress must not be scheduled again.
                if !self.assumed.contains(&uid) {
                    let same = |old: &Shared<Pod>| {
                        let cross_node = |pod: &Shared<Pod>| {
                            requests_cross_node_preemption(pod.object().metadata().annotations.as_ref())
                        };
                        (is_same_spec(old, new)
                            || (old.spec == new.spec && old.metadata.labels == new.metadata.labels))
                            && cross_node(old) == cross_node(new)
                    };
                    // The names of its generated claims are in its status, not in its spec.
                    let made = |pod: &Shared<Pod>| {
                        let status = pod.status.as_ref();
                        status.and_then(|s| s.resource_claim_statuses.clone())
                    };
                    let has_claims = !dynamic_resources::entries(new).is_empty();
                    let known = self.known(&key, &uid);
                    let changed = old.is_some_and(|old| {
                        let was = known_or(known.as_deref(), old);
                        !same(was) || (has_claims && made(was) != made(new))
                    });
                    let info = Arc::new(self.classes.info_after(known.as_deref(), new));
                    let was = known.as_deref().map(|known| &known.pod).or(old);
                    let named = was.map_or("", |was| nominated_node_name(was));
                    self.follow_nomination(&info, named, now);
                    let event = if was_gated {
                        Some(event::POD_GATES_ELIMINATED)
                    } else if changed {
                        let update = |known| event::of_pod_update(known, &info);
                        Some(known.as_deref().map_or(event::POD_UPDATE, update))
                    } else {
                        None
                    };
                    self.queue.put(info, event, now);
                }
            }
            // A pod of another scheduler that is nominated to a node counts there.
            (None, Some(new)) if !is_terminal(new) && !nominated_node_name(new).is_empty() => {
                let node = NodeName::from(nominated_node_name(new));
                self.dequeue(&key, &uid, Some(&node), now);
                let info = Arc::new(self.classes.info(new));
                self.follow_nomination(&info, "", now);
            }
            _ => {
                self.dequeue(&key, &uid, None, now);
                self.assumed.remove(&uid);
                self.unreserve_volumes(&uid);
                self.unreserve_claims(&uid);
                if let Some(info) = self.unassign(&uid) {
                    self.assigned_pod_deleted(&info, now);
                }
            }
        }
    }

    /// The last version of the pod that was applied.
    fn known(&self, key: &ObjectKey, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let waiting = self.queue.get(key).filter(|p| p.uid() == uid);
        let assigned = || {
            let node = self.cluster.get(self.assigned.get(uid)?)?;
            node.pods().iter().find(|p| p.uid() == uid)
        };
        waiting.or_else(assigned).cloned()
    }

    /// Removes a pod from the queue. `node`: the node that it is assigned or nominated to now.
    pub(super) fn dequeue(&mut self, key: &ObjectKey, uid: &PodUid, node: Option<&NodeName>, now: Timestamp) {
        self.gated.remove(key);
        self.held_by_budgets.remove(key);
        if self.queue.get(key).is_some_and(|p| p.uid() == uid) {
            self.queue.remove(key);
        }
        self.preempting.remove(uid);
        self.move_nomination(uid, node, now);
    }

    /// Applies a pod's nomination from its status. One that was decided here and is not yet written is kept.
    pub(super) fn follow_nomination(&mut self, pod: &Arc<PodInfo>, before: &str, now: Timestamp) {
        let node = match pod.nominated_node_name() {
            "" if before.is_empty() => self.nominated.get(pod.uid()).cloned(),
            "" => None,
            named => Some(NodeName::from(named)),
        };
        match node {
            Some(node) => self.nominate(pod, &node, now),
            None => self.move_nomination(pod.uid(), None, now),
        }
    }

    pub(super) fn nominate(&mut self, pod: &Arc<PodInfo>, node: &NodeName, now: Timestamp) {
        if self.nominated.get(pod.uid()).is_some_and(|known| known == node) {
            self.cluster.end_nomination(node, pod.uid());
        } else {
            self.move_nomination(pod.uid(), Some(node), now);
        }
        // Also one of preemption on its node, and one that was read from the status after a restart.
        let keeps_domains = !pod.is_terminating()
            && self
                .profile_of(&pod.pod)
                .and_then(|profile| self.profiles.get(profile))
                .is_some_and(|profile| cross_node_preemption::is_requested(profile, pod));
        if keeps_domains {
            self.cluster.nominate_in_domains(node, pod);
        } else {
            self.cluster.nominate(node, pod);
        }
        self.queue.set_nominated(&pod.key(), true);
        self.nominated.insert(pod.uid().clone(), node.clone());
    }

    /// Ends a nomination, because the pod is assigned to `to` (`None`: to no node). What was kept free for it on
    /// another node is free for other pods.
    pub(super) fn move_nomination(&mut self, uid: &PodUid, to: Option<&NodeName>, now: Timestamp) {
        let Some(node) = self.nominated.remove(uid) else {
            return;
        };
        let kept = self.cluster.nominated_in_domains().version();
        let pod = self.cluster.end_nomination(&node, uid);
        if let Some(pod) = &pod {
            self.queue.set_nominated(&pod.key(), false);
        }
        if let Some(pod) = pod.filter(|_| Some(&node) != to) {
            self.assigned_pod_deleted(&pod, now);
        }
        if self.cluster.nominated_in_domains().version() != kept {
            self.requeue_pods_behind_nomination(now);
        }
    }

    /// A pod is not nominated in topology domains any more: what its rules have closed is open, or is closed by a pod that
    /// is assigned now.
    fn requeue_pods_behind_nomination(&mut self, now: Timestamp) {
        const PLUGINS: &[&str] = &[
            pod_topology_spread::NAME,
            inter_pod_affinity::NAME,
            volume_restrictions::NAME,
        ];
        if self.queue.any_unschedulable_by(PLUGINS) {
            self.queue.requeue_where(
                |_| event::ASSIGNED_POD_DELETE,
                now,
                |plugin, _| PLUGINS.contains(&plugin),
            );
        }
    }

    /// Returns whether the pod was not assigned to this node before.
    pub(super) fn assign(&mut self, node: &NodeName, pod: &Arc<PodInfo>) -> bool {
        let uid = pod.uid();
        let was = self.assigned.get(uid).cloned();
        if was.as_ref().is_some_and(|was| was != node) {
            self.unassign(uid);
        }
        self.cluster.add_pod(node, pod);
        let is_new = was.as_ref() != Some(node);
        if is_new {
            self.assigned.insert(uid.clone(), node.clone());
        }
        is_new
    }

    /// Returns the pod, if it was assigned.
    pub(super) fn unassign(&mut self, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let node = self.assigned.remove(uid)?;
        self.cluster.remove_pod(&node, uid)
    }

    pub(super) fn assigned_pod_added(&mut self, pod: &PodInfo, now: Timestamp) {
        if self
            .queue
            .any_unschedulable_by(&[pod_topology_spread::NAME, inter_pod_affinity::NAME])
        {
            let preempting = &mut self.preempting;
            self.queue.requeue_by_hint(
                |_| event::ASSIGNED_POD_ADD,
                now,
                |plugin, waiting| {
                    let helps = || hints::pod_changed(plugin, waiting, &pod.class, true);
                    hint(preempting, waiting, helps)
                },
            );
        }
    }

    pub(super) fn assigned_pod_deleted(&mut self, pod: &PodInfo, now: Timestamp) {
        self.assigned_pod_left(event::ASSIGNED_POD_DELETE, pod, now);
    }

    /// The pod is not there any more as it was, because of the event.
    fn assigned_pod_left(&mut self, event: &'static str, pod: &PodInfo, now: Timestamp) {
        if self.queue.any_unschedulable_by(hints::POD_EVENT_PLUGINS) {
            let preempting = &mut self.preempting;
            self.queue.requeue_by_hint(
                |_| event,
                now,
                |plugin, waiting| {
                    let helps = || hints::pod_changed(plugin, waiting, &pod.class, false);
                    hint(preempting, waiting, helps)
                },
            );
        }
    }

    /// Numbers of classes are used again, so what is cached under them is dropped with them.
    pub(super) fn forget_dead_classes(&mut self) {
        if self.classes.are_many(self.live_classes) {
            self.states.clear();
            self.live_classes = self.classes.forget_dead();
        }
    }
}

/// The version of a pod before a change: the one that is known, which does not have to be decoded again, or that of
/// the event.
fn known_or<'a>(known: Option<&'a PodInfo>, old: &'a Shared<Pod>) -> &'a Shared<Pod> {
    known.map_or(old, |known| &known.pod)
}

/// What an event of a pod does for the waiting pod. For one whose victims are being evicted it is noted, and
/// [`Scheduler::preempted`] requeues the pod: until then it would only be popped and returned, once for each victim of
/// every preemption in progress. In kube-scheduler such a pod is gated by the PreEnqueue of DefaultPreemption (KEP-4832).
fn hint(
    preempting: &mut BTreeMap<PodUid, bool>,
    waiting: &PodInfo,
    helps: impl FnOnce() -> bool,
) -> QueueingHint {
    let Some(missed_event) = preempting.get_mut(waiting.uid()) else {
        return match helps() {
            true => QueueingHint::Queue,
            false => QueueingHint::Skip,
        };
    };
    *missed_event = *missed_event || helps();
    match *missed_event {
        true => QueueingHint::Defer,
        false => QueueingHint::Skip,
    }
}
