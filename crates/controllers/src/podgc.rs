//! Pod garbage collection: the only component that force-deletes pods, and only where no other component completes their deletion
//! (SPEC S2): pods whose Node does not exist, terminating pods that were never scheduled, and terminating pods on a node with
//! the out-of-service taint (KEP-2268). And of too many finished pods the oldest are deleted (SPEC L12).
//!
//! It checks all pods periodically, so it reads only fields that the caches have without decoding the object
//! ([`Object::slim`](knarr_api::Object::slim)).

pub mod release;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::node::{has_out_of_service_taint, is_ready};
use knarr_api::kinds::pod::{is_terminal, is_terminal_phase};
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey};
use knarr_apimachinery::ids::NodeName;

use crate::action::{Action, LiveCheck};
use crate::controller::View;
use crate::node::eviction::with_disruption_target;
use crate::sweep::Sweep;
use release::Release;

/// How long a node must not have existed before its pods are released.
pub const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
const REASON: &str = "DeletionByPodGC";

/// See the module.
pub struct PodGc {
    /// How many finished pods may exist (kube-controller-manager's terminated-pod-gc-threshold).
    pub threshold: usize,
    missing_since: BTreeMap<NodeName, Timestamp>,
}

impl PodGc {
    pub fn new(threshold: usize) -> Self {
        PodGc {
            threshold,
            missing_since: BTreeMap::new(),
        }
    }
}

impl Sweep for PodGc {
    fn name(&self) -> &'static str {
        "pod-garbage-collector-controller"
    }

    fn account(&self) -> &'static str {
        "pod-garbage-collector"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::POD, &registry::NODE]
    }

    fn period(&self) -> Duration {
        Duration::from_secs(20)
    }

    fn sweep(&mut self, view: &dyn View, now: Timestamp) -> Vec<Vec<Action>> {
        let pods: Vec<PodSummary> = view
            .list(&registry::POD, "")
            .into_iter()
            .map(PodSummary::of)
            .collect();
        let mut lists = excess_finished(&pods, self.threshold);
        lists.extend(self.orphaned(view, &pods, now));
        for pod in pods.iter().filter(|p| p.deleting) {
            if pod.node.is_empty() {
                // It runs on no node: no other component would complete this deletion.
                lists.extend(pod.remove(failed));
            } else if let Some(node) = view.get_as::<Node>("", &pod.node)
                && is_out_of_service(&node)
            {
                let lost = |p: &Pod| {
                    with_disruption_target(&failed(p), REASON, "PodGC: node is out-of-service", now)
                };
                // The cache may lag: the taint may have been removed and the node be Ready again.
                let sure = Action::Require(LiveCheck::OutOfService {
                    node: pod.node.clone(),
                });
                lists.extend(pod.remove(lost).map(|mut actions| {
                    actions.insert(0, sure);
                    actions
                }));
            }
        }
        lists
    }
}

impl PodGc {
    fn orphaned(&mut self, view: &dyn View, pods: &[PodSummary], now: Timestamp) -> Vec<Vec<Action>> {
        let mut missing = BTreeMap::new();
        let mut lists = Vec::new();
        for pod in pods {
            let node = &pod.node;
            if node.is_empty() || view.get(&registry::NODE, "", node).is_some() {
                continue;
            }
            let since = self.missing_since.get(node).copied().unwrap_or(now);
            missing.insert(node.clone(), since);
            if now.duration_since(since) < QUARANTINE {
                continue;
            }
            // The cache may lag: a live read has to confirm that the node does not exist.
            let absent = Action::Require(LiveCheck::Absent {
                kind: registry::NODE.clone(),
                key: ObjectKey::new("", node.as_str()),
            });
            let lost =
                |p: &Pod| with_disruption_target(&failed(p), REASON, "PodGC: node no longer exists", now);
            lists.extend(pod.remove(lost).map(|mut actions| {
                actions.insert(0, absent);
                actions
            }));
        }
        self.missing_since = missing;
        lists
    }
}

/// Whether the node has the out-of-service taint: nothing of it runs any more.
pub fn is_out_of_service(node: &Node) -> bool {
    !is_ready(node) && has_out_of_service_taint(node)
}

/// The fields of a pod that are read.
struct PodSummary {
    object: Arc<Object>,
    node: NodeName,
    deleting: bool,
    finished: bool,
}

impl PodSummary {
    fn of(object: Arc<Object>) -> Self {
        // An object that is no pod has neither and is skipped.
        let field = |path| object.field(path).unwrap_or_default();
        PodSummary {
            node: field("spec.nodeName").into(),
            deleting: object.metadata().deletion_timestamp.is_some(),
            finished: is_terminal_phase(&field("status.phase")),
            object,
        }
    }

    /// Force-deletes the pod, with the status that `last` sets unless it is finished already.
    fn remove(&self, last: impl Fn(&Pod) -> Pod) -> Option<Vec<Action>> {
        let pod: &Pod = self.object.get()?;
        let mut actions = Vec::new();
        let last = last(pod);
        if *pod != last && !self.finished {
            actions.push(Action::update_status(last));
        }
        actions.push(self.delete());
        Some(actions)
    }

    fn delete(&self) -> Action {
        Action::Release(Release {
            key: ObjectKey::of(&self.object),
            uid: self.object.uid().into(),
        })
    }
}

/// The pod with phase Failed, unless it is finished already.
fn failed(pod: &Pod) -> Pod {
    let mut changed = pod.clone();
    if !is_terminal(pod) {
        changed.status.get_or_insert_default().phase = Some("Failed".into());
    }
    changed
}

fn excess_finished(pods: &[PodSummary], threshold: usize) -> Vec<Vec<Action>> {
    if threshold == 0 {
        return Vec::new();
    }
    let mut finished: Vec<&PodSummary> = pods.iter().filter(|p| p.finished && !p.deleting).collect();
    let surplus = finished.len().saturating_sub(threshold);
    finished.sort_by_key(|p| {
        let created = p.object.metadata().creation_timestamp.clone();
        (created, ObjectKey::of(&p.object))
    });
    let oldest = finished.into_iter().take(surplus);
    oldest.map(|p| vec![p.delete()]).collect()
}

#[cfg(test)]
mod tests {
    use knarr_api::kinds::node::OUT_OF_SERVICE;
    use serde_json::{Value, json};

    use super::*;
    use crate::world::{World, at, lines, updated};

    fn pod(name: &str, node: &str, status: Value, deleting: bool) -> Pod {
        let mut value = json!({
            "metadata": {"namespace": "a", "name": name},
            "spec": {"containers": [], "nodeName": node},
            "status": status,
        });
        if deleting {
            value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        serde_json::from_value(value).unwrap()
    }

    fn sweep(gc: &mut PodGc, world: &World, second: i64) -> Vec<Vec<String>> {
        gc.sweep(world, at(second))
            .iter()
            .map(|list| lines(list))
            .collect()
    }

    #[test]
    fn s2_a_pod_whose_node_was_deleted_is_released_after_a_quarantine_and_a_live_read() {
        let mut world = World::default();
        world.put(pod("p", "gone", json!({"phase": "Running"}), false));
        let mut gc = PodGc::new(0);
        assert_eq!(sweep(&mut gc, &world, 0), [[""; 0]; 0]);
        assert_eq!(sweep(&mut gc, &world, 39), [[""; 0]; 0]);
        assert_eq!(
            sweep(&mut gc, &world, 40),
            [[
                "require no nodes gone",
                "update pods/status a/p",
                "release pods a/p"
            ]]
        );
        // A node that is created again restarts the quarantine.
        world.put::<Node>(serde_json::from_value(json!({"metadata": {"name": "gone"}})).unwrap());
        assert_eq!(sweep(&mut gc, &world, 60), [[""; 0]; 0]);
        world.remove(&registry::NODE, "", "gone");
        assert_eq!(sweep(&mut gc, &world, 80), [[""; 0]; 0]);
    }

    #[test]
    fn s2_only_pods_whose_deletion_no_other_component_completes_are_force_deleted() {
        let node = |taint: &str, ready: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "n"},
                "spec": {"taints": [{"key": taint, "effect": "NoExecute"}]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap()
        };
        let out = OUT_OF_SERVICE;
        // node's taint and readiness, the pod's node, deleting -> removed
        let table = [
            ("other", "True", "", true, true),
            ("other", "True", "", false, false),
            ("other", "Unknown", "n", true, false),
            (out, "Unknown", "n", true, true),
            (out, "True", "n", true, false),
            (out, "Unknown", "n", false, false),
        ];
        for (taint, ready, on, deleting, removed) in table {
            let mut world = World::default();
            world.put(node(taint, ready));
            world.put(pod("p", on, json!({"phase": "Running"}), deleting));
            let lists = PodGc::new(0).sweep(&world, at(0));
            assert_eq!(!lists.is_empty(), removed, "{taint} {ready} {on:?} {deleting}");
            for action in lists.iter().flatten() {
                match action {
                    Action::Release(release) => {
                        assert_eq!(release.uid(), "uid-p");
                        let sure = lines(&lists[0]).contains(&"require node n out of service".to_string());
                        assert_eq!(sure, on == "n", "the cache may lag");
                    }
                    Action::Delete(_) | Action::DeleteMany(_) => panic!("{action} is left to the node"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn l12_of_too_many_finished_pods_the_oldest_are_deleted() {
        let mut world = World::default();
        for n in 0..5 {
            let mut finished = pod(&format!("p{n}"), "", json!({"phase": "Succeeded"}), false);
            finished.metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(10 - n)));
            world.put(finished);
        }
        world.put(pod("running", "", json!({"phase": "Running"}), false));
        assert_eq!(
            sweep(&mut PodGc::new(3), &world, 0),
            [["release pods a/p4"], ["release pods a/p3"]]
        );
        assert_eq!(sweep(&mut PodGc::new(0), &world, 0), [[""; 0]; 0]);
    }

    #[test]
    fn s2_the_last_status_is_failed_and_a_finished_pod_keeps_its_own() {
        for (phase, lines_) in [
            (
                "Running",
                vec![
                    "require no nodes gone",
                    "update pods/status a/p",
                    "release pods a/p",
                ],
            ),
            ("Succeeded", vec!["require no nodes gone", "release pods a/p"]),
        ] {
            let mut world = World::default();
            world.put(pod("p", "gone", json!({"phase": phase}), false));
            let mut gc = PodGc::new(0);
            gc.sweep(&world, at(0));
            let actions: Vec<Action> = gc.sweep(&world, at(40)).into_iter().flatten().collect();
            assert_eq!(lines(&actions), lines_, "{phase}");
            let last = updated::<Pod>(&actions, "status").map(|p| p.status.unwrap().phase.unwrap());
            assert_eq!(last.as_deref(), (phase == "Running").then_some("Failed"));
        }
    }
}
