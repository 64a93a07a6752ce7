//! What happened in the cluster goes into the picture here: nodes, pods and storage that came, changed or went, and
//! whom that wakes. Each change is taken in once; what was decided here and is not yet written stands until the API
//! says otherwise.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::{ObjectKey, Shared};

use super::{Scheduler, profile_for};
use crate::dynamic_resources::claims;
use crate::node_info::NodeInfo;
use crate::plugins::{dynamic_resources, inter_pod_affinity, node_resources_fit, pod_topology_spread};
use crate::pod_info::{PodInfo, is_finished, is_same_spec, node_name, nominated_node_name};
use crate::queueing_hints as hints;
use crate::volumes;

impl Scheduler {
    /// Whether this scheduler is to find the pod a node, some time.
    pub(super) fn is_mine(&self, pod: &Pod) -> bool {
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
        let classes = self.cluster.devices().inventory.class_resources();
        let bare = |node| {
            let mut info = NodeInfo::bare(node);
            info.device_class_resources = classes.clone();
            info
        };
        let (before, after) = (before.map(bare), node.map(bare));
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

    /// Something of dynamic resource allocation is new, has changed or has gone.
    pub fn devices_changed(&mut self, change: &claims::Change, now: Timestamp) {
        self.cluster.devices_changed(change);
        if self.queue.awaits(hints::LOOK_AT_DEVICES) {
            let devices = self.cluster.devices();
            self.queue.wake_where(now, |plugin, pod| match plugin {
                dynamic_resources::NAME => dynamic_resources::change_helps(devices, pod, change),
                node_resources_fit::NAME => node_resources_fit::class_change_helps(pod, change),
                _ => false,
            });
        }
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
                let known = self.known(&key, &uid);
                self.dequeue(&key, &uid, node, now);
                let was_expected = self.assumed.remove(&uid);
                self.reserved.remove(&uid);
                self.reserved_claims.remove(&uid);
                let info = Arc::new(self.classes.info_after(known.as_deref(), new));
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
                        is_same_spec(old, new)
                            || (old.spec == new.spec && old.metadata.labels == new.metadata.labels)
                    };
                    // The names of its claims are news that its spec does not have.
                    let made = |pod: &Shared<Pod>| {
                        let status = pod.status.as_ref();
                        status.and_then(|s| s.resource_claim_statuses.clone())
                    };
                    let has_claims = !dynamic_resources::entries(new).is_empty();
                    let changed = old.is_some_and(|old| !same(old) || (has_claims && made(old) != made(new)));
                    let known = self.known(&key, &uid);
                    let info = Arc::new(self.classes.info_after(known.as_deref(), new));
                    // What is known needs not be read again.
                    let was = known.as_deref().map(|known| &known.pod).or(old);
                    let named = was.map_or("", |was| nominated_node_name(was));
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
                self.take_back_claims(&uid);
                if let Some(info) = self.leave(&uid) {
                    self.pod_left(&info, now);
                }
            }
        }
    }

    /// The pod as it was when it was looked at last.
    fn known(&self, key: &ObjectKey, uid: &str) -> Option<Arc<PodInfo>> {
        let waiting = self.queue.get(key).filter(|p| p.uid() == uid);
        let standing = || {
            let node = self.cluster.get(self.standing.get(uid)?)?;
            node.pods().iter().find(|p| p.uid() == uid)
        };
        waiting.or_else(standing).cloned()
    }

    /// The pod waits no more, for whatever reason. `node`: it stands there now, or is to; else empty.
    pub(super) fn dequeue(&mut self, key: &ObjectKey, uid: &str, node: &str, now: Timestamp) {
        self.gated.remove(key);
        if self.queue.get(key).is_some_and(|p| p.uid() == uid) {
            self.queue.remove(key);
        }
        self.preempting.remove(uid);
        self.move_nomination(uid, node, now);
    }

    /// Takes a pod's nomination from its status. One that was decided here and is not yet written stays.
    pub(super) fn follow_nomination(&mut self, pod: &Arc<PodInfo>, before: &str, now: Timestamp) {
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

    pub(super) fn nominate(&mut self, pod: &Arc<PodInfo>, node: &str, now: Timestamp) {
        self.move_nomination(pod.uid(), node, now);
        self.cluster.nominate(node, pod);
        self.queue.set_nominated(&pod.key(), true);
        self.nominated.insert(pod.uid().to_string(), node.to_string());
    }

    /// Ends a nomination, because the pod goes to `to` (empty: nowhere). Room that was kept for it on another node is
    /// free for others.
    pub(super) fn move_nomination(&mut self, uid: &str, to: &str, now: Timestamp) {
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
    pub(super) fn stand(&mut self, node: &str, pod: &Arc<PodInfo>) -> bool {
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
    pub(super) fn leave(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let node = self.standing.remove(uid)?;
        self.cluster.remove_pod(&node, uid)
    }

    pub(super) fn pod_came(&mut self, pod: &PodInfo, now: Timestamp) {
        if self
            .queue
            .awaits(&[pod_topology_spread::NAME, inter_pod_affinity::NAME])
        {
            self.queue.wake_where(now, |plugin, waiting| {
                hints::pod_changed(plugin, waiting, &pod.class, true)
            });
        }
    }

    pub(super) fn pod_left(&mut self, pod: &PodInfo, now: Timestamp) {
        if self.queue.awaits(hints::LOOK_AT_PODS) {
            self.queue.wake_where(now, |plugin, waiting| {
                hints::pod_changed(plugin, waiting, &pod.class, false)
            });
        }
    }

    /// Numbers of classes are used again, so what is remembered by number goes with them.
    pub(super) fn forget_dead_classes(&mut self) {
        if self.classes.are_many(self.live_classes) {
            self.states.clear();
            self.live_classes = self.classes.forget_dead();
        }
    }
}
