//! DaemonSet: one pod on every node that its template fits.
//!
//! Its pods are pinned to their node by affinity, and the scheduler binds them; whether a node should run one is decided
//! here, by name, selector, affinity and taints only ([`placement`]). A pod stays while its node is not ready.

mod placement;
mod rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};
use knarr_apimachinery::ids::NodeName;

use self::placement::Placement;
use crate::action::{Action, Create, Delete, Report, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::history::{self, REVISION_HASH, label};
use crate::owner::{claim, non_empty_selector, owners_of, require_generation};
use crate::pod::{self, Availability};
use crate::replicaset::count;

/// Pods created or deleted in one sync of a DaemonSet (kube-controller-manager's BurstReplicas).
const BURST: usize = 250;
/// A failed pod is replaced once it is older than this: a kubelet that rejects a pod does not get another one in a tight loop.
/// (Kubernetes doubles the wait up to 15 minutes, and forgets it when it restarts.)
const FAILED_POD_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const TEMPLATE_GENERATION_LABEL: &str = "pod-template-generation";

/// See the module.
pub struct DaemonSets;

/// The template generation, by which pods of different templates were distinguished before there were revisions.
fn template_generation(set: &DaemonSet) -> Option<i64> {
    let annotations = set.metadata.annotations.as_ref()?;
    annotations.get(TEMPLATE_GENERATION)?.parse().ok()
}

/// The fields of a node on which its pods of DaemonSets depend.
fn placement_fields(node: &Node) -> impl PartialEq + '_ {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    (node.metadata.labels.as_ref(), taints, node.metadata.uid.as_ref())
}

impl Controller for DaemonSets {
    fn name(&self) -> &'static str {
        "daemonset-controller"
    }

    fn account(&self) -> &'static str {
        "daemon-set-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::DAEMON_SET,
            &registry::POD,
            &registry::NODE,
            &registry::CONTROLLER_REVISION,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::DAEMON_SET) {
            return vec![key];
        }
        if changed.kind == &registry::NODE {
            // Heartbeats of nodes change nothing.
            let [old, new] =
                [changed.old, changed.new].map(|of| of.and_then(|n| n.get::<Node>()).map(placement_fields));
            if old == new {
                return Vec::new();
            }
            let all = view.list(&registry::DAEMON_SET, "");
            return all.iter().map(|set| ObjectKey::of(set)).collect();
        }
        owners_of::<DaemonSet>(view, changed, |set| set.spec.as_ref().map(|s| &s.selector))
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(set) = context.view.get_as::<DaemonSet>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        let Some(spec) = &set.spec else { return Vec::new() };
        let owner = set.object();
        let Some(selector) = non_empty_selector(&spec.selector) else {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            return vec![Action::warning(&reference(owner), "SelectingAll", message)];
        };
        // Its revisions may be deleted before its pods: its status can no longer be computed.
        if set.metadata.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let history = history::list(context.view, owner, &selector);
        let old = set.status.clone().unwrap_or_default();
        let collisions = old.collision_count.unwrap_or(0);
        let update = history::update(context.view, owner, &spec.template, &history.objects, collisions);
        let hash = label(update.revision.metadata.labels.as_ref(), REVISION_HASH).to_string();

        let mut known: Vec<Shared<Pod>> = context.view.controlled_by_as(owner.uid());
        known.extend(context.view.orphans_as(owner.namespace()));
        let claimed = claim(owner, &selector, known);
        let pod_spec = placement::with_daemon_tolerations(&spec.template);
        let nodes: Vec<Shared<Node>> = context.view.list_as("");
        let sync = SyncDaemonSet {
            now: context.now,
            set: &set,
            spec,
            pod_spec: &pod_spec,
            hash: &hash,
            nodes: nodes
                .iter()
                .map(|n| (n.object().name().into(), placement::placement(&pod_spec, n)))
                .collect(),
        };
        let mut by_node: BTreeMap<NodeName, Vec<&Shared<Pod>>> = BTreeMap::new();
        for pod in &claimed.objects {
            // Its deletion waits only for a finalizer or for the kubelet.
            if is_terminal(pod) && pod::is_deleting(pod) {
                continue;
            }
            if let Some(node) = placement::target_node(pod) {
                by_node.entry(node.into()).or_default().push(pod);
            }
        }
        for pods in by_node.values_mut() {
            pods.sort_by_key(|p| {
                (
                    pod::node_name(p).is_empty(),
                    p.metadata.creation_timestamp.clone(),
                    p.metadata.name.clone(),
                )
            });
        }

        let mut actions = Vec::new();
        let mut next: Option<Duration> = None;
        if context.failure.is_none() {
            actions.extend(claimed.actions);
            actions.extend(history.actions);
            actions.extend(update.action);
            let mut managed = sync.manage(&by_node);
            if managed.actions.is_empty() && rollout::is_rolling(spec) {
                let step = rollout::rolling_update(&sync, &by_node);
                managed.actions = sync.sync_nodes(step.pods_to_delete, step.nodes_needing_pods);
            }
            actions.extend(managed.actions);
            next = managed.wait;
        }
        let mut status = sync.status(&by_node);
        status.collision_count = (update.collisions != 0)
            .then_some(update.collisions)
            .or(old.collision_count);
        status.conditions.clone_from(&old.conditions);
        if status != old {
            let mut changed = (*set).clone();
            changed.status = Some(status);
            actions.push(Action::update_status(changed));
        }
        if context.failure.is_none() {
            let hashes: BTreeSet<&str> = claimed
                .objects
                .iter()
                .map(|p| label(p.metadata.labels.as_ref(), REVISION_HASH))
                .chain([hash.as_str()])
                .collect();
            let is_live = |r: &&Shared<k8s_openapi::api::apps::v1::ControllerRevision>| {
                hashes.contains(label(r.metadata.labels.as_ref(), REVISION_HASH))
            };
            let live = history
                .objects
                .iter()
                .filter(is_live)
                .map(|r| r.object().name().to_string());
            let live: BTreeSet<String> = live.collect();
            // Live revisions count against the limit, except the current one.
            let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
            let left = (limit + 1).saturating_sub(live.len());
            actions.extend(history::truncate(&history.objects, &live, Some(count(left))));
        }
        let ready = claimed.objects.iter().filter_map(|p| match sync.availability(p) {
            Availability::In(wait) => Some(wait),
            Availability::Available | Availability::NotReady => None,
        });
        actions.extend(ready.chain(next).min().map(Action::RequeueAfter));
        actions
    }
}

#[derive(Default)]
struct Managed {
    actions: Vec<Action>,
    /// The time until a failed pod may be replaced.
    wait: Option<Duration>,
}

/// One sync of a DaemonSet.
struct SyncDaemonSet<'a> {
    now: Timestamp,
    set: &'a Shared<DaemonSet>,
    spec: &'a DaemonSetSpec,
    /// The template's pod spec, with the tolerations of daemon pods.
    pod_spec: &'a PodSpec,
    hash: &'a str,
    nodes: BTreeMap<NodeName, Placement>,
}

impl SyncDaemonSet<'_> {
    fn availability(&self, pod: &Pod) -> Availability {
        pod::availability(pod, self.spec.min_ready_seconds.unwrap_or(0), self.now)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        self.availability(pod) == Availability::Available
    }

    /// Whether the pod has the current template.
    fn is_updated(&self, pod: &Pod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let generation = template_generation(self.set).map(|g| g.to_string());
        label(labels, REVISION_HASH) == self.hash
            || generation.is_some_and(|g| label(labels, TEMPLATE_GENERATION_LABEL) == g)
    }

    /// One pod on each node that should run one, none on the others.
    fn manage(&self, by_node: &BTreeMap<NodeName, Vec<&Shared<Pod>>>) -> Managed {
        let mut managed = Managed::default();
        let mut nodes_needing_pods = Vec::new();
        let mut pods_to_delete: Vec<&Shared<Pod>> = Vec::new();
        let mut events = Vec::new();
        for (node, placement) in &self.nodes {
            let Some(pods) = by_node.get(node) else {
                if placement.should_run {
                    nodes_needing_pods.push(node.clone());
                }
                continue;
            };
            let alive = pods.iter().filter(|p| !pod::is_deleting(p)).copied();
            if !placement.may_stay {
                pods_to_delete.extend(alive);
                continue;
            }
            let mut running: Vec<&Shared<Pod>> = Vec::new();
            for pod in alive {
                match pod::phase(pod) {
                    "Failed" => {
                        let created = pod.metadata.creation_timestamp.as_ref().map_or(self.now, |t| t.0);
                        let rest = FAILED_POD_BACKOFF - self.now.duration_since(created);
                        if let Ok(rest) = Duration::try_from(rest)
                            && !rest.is_zero()
                        {
                            managed.wait = Some(managed.wait.map_or(rest, |w| w.min(rest)));
                            continue;
                        }
                        events.push(self.found("failed", pod, node, "FailedDaemonPod"));
                        pods_to_delete.push(pod);
                    }
                    "Succeeded" => {
                        events.push(self.found("succeeded", pod, node, "SucceededDaemonPod"));
                        pods_to_delete.push(pod);
                    }
                    _ => running.push(pod),
                }
            }
            if rollout::max_surge(self.spec, 1) == 0 {
                pods_to_delete.extend(running.into_iter().skip(1));
            } else if running.is_empty() {
                if placement.should_run {
                    nodes_needing_pods.push(node.clone());
                }
            } else if running.len() > 1 {
                self.surplus(&running, &mut pods_to_delete);
            }
        }
        // Its node was deleted before it was bound: no other component would delete the pod.
        for (node, pods) in by_node {
            if !self.nodes.contains_key(node) {
                pods_to_delete.extend(
                    pods.iter()
                        .filter(|p| pod::node_name(p).is_empty() && !pod::is_deleting(p)),
                );
            }
        }
        managed.actions = self.sync_nodes(pods_to_delete, nodes_needing_pods);
        // They are about pods that are deleted, which is the last action: a sync whose live read fails records none.
        if !events.is_empty() {
            let deletions = managed.actions.pop();
            managed.actions.extend(events);
            managed.actions.extend(deletions);
        }
        managed
    }

    fn found(&self, how: &str, pod: &Shared<Pod>, node: &NodeName, reason: &'static str) -> Action {
        let (about, key) = (reference(self.set.object()), ObjectKey::of(pod.object()));
        if how == "failed" {
            let message = format!("Found failed daemon pod {key} on node {node}, will try to kill it");
            Action::warning(&about, reason, message)
        } else {
            let message = format!("Found succeeded daemon pod {key} on node {node}, will try to delete it");
            Action::event(&about, reason, message)
        }
    }

    /// With maxSurge, a node keeps the oldest pod of the new template and the oldest of an old one, the latter until the new one is available.
    fn surplus<'p>(&self, running: &[&'p Shared<Pod>], pods_to_delete: &mut Vec<&'p Shared<Pod>>) {
        let (mut new, mut old) = (None, None);
        for pod in running {
            let is_new = label(pod.metadata.labels.as_ref(), REVISION_HASH) == self.hash;
            let slot = if is_new { &mut new } else { &mut old };
            match slot {
                None => *slot = Some(*pod),
                Some(_) => pods_to_delete.push(*pod),
            }
        }
        if let (Some(new), Some(old)) = (new, old)
            && (!pod::is_ready(old) || self.is_available(new))
        {
            pods_to_delete.push(old);
        }
    }

    /// Deletes and creates these pods, at most [`BURST`] at one time.
    fn sync_nodes(
        &self,
        mut pods_to_delete: Vec<&Shared<Pod>>,
        mut nodes_needing_pods: Vec<NodeName>,
    ) -> Vec<Action> {
        pods_to_delete.truncate(BURST);
        nodes_needing_pods.truncate(BURST);
        let owner = self.set.object();
        let report = |done: (&'static str, &str), failed: (&'static str, &str)| Report {
            about: reference(owner),
            done: Some((done.0, done.1.into())),
            failed: (failed.0, failed.1.into()),
        };
        let mut actions = Vec::new();
        if !nodes_needing_pods.is_empty() {
            let report = report(
                ("SuccessfulCreate", "Created pod: "),
                ("FailedCreate", "Error creating: "),
            );
            let pods = nodes_needing_pods
                .iter()
                .filter_map(|node| placement::new_pod(owner, self.set, self.pod_spec, self.hash, node));
            let creates = pods.map(|pod| Create {
                report: Some(report.clone()),
                ..Create::new(pod)
            });
            actions.push(Action::CreateMany(creates.collect()));
        }
        if !pods_to_delete.is_empty() {
            let report = report(
                ("SuccessfulDelete", "Deleted pod: "),
                ("FailedDelete", "Error deleting: "),
            );
            let deletes = pods_to_delete.iter().map(|pod| Delete {
                report: Some(report.clone()),
                ..Delete::of(pod.object())
            });
            actions.push(require_generation(owner));
            actions.push(Action::DeleteMany(deletes.collect()));
        }
        actions
    }

    fn status(&self, by_node: &BTreeMap<NodeName, Vec<&Shared<Pod>>>) -> DaemonSetStatus {
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for (node, placement) in &self.nodes {
            let first = by_node.get(node).and_then(|pods| pods.first());
            if !placement.should_run {
                status.number_misscheduled += i32::from(first.is_some());
                continue;
            }
            status.desired_number_scheduled += 1;
            let Some(pod) = first else { continue };
            status.current_number_scheduled += 1;
            status.number_ready += i32::from(pod::is_ready(pod));
            available += i32::from(self.is_available(pod));
            updated += i32::from(self.is_updated(pod));
        }
        let unavailable = status.desired_number_scheduled - available;
        // Kubernetes leaves these out when they are 0.
        let some = |n: i32| (n > 0).then_some(n);
        status.updated_number_scheduled = some(updated);
        status.number_available = some(available);
        status.number_unavailable = some(unavailable);
        status
    }
}

#[cfg(test)]
mod tests;
