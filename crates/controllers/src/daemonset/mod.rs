//! DaemonSet: one pod on every node that its template fits.
//!
//! Its pods are pinned to their node by affinity, and the scheduler binds them; whether a node is one of theirs is
//! decided here, by name, selector, affinity and taints only ([`placement`]). A pod stays through its node's troubles.

mod placement;
mod rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};

use self::placement::Placement;
use crate::action::{Action, Create, Delete, Report, reference};
use crate::controller::{Changed, Context, Controller, View};
use crate::history::{self, REVISION_HASH, label};
use crate::owner::{claim, owners_of, selecting};
use crate::pod::{self, Availability};
use crate::replicaset::count;

/// Pods created or deleted for one DaemonSet at one time.
const BURST: usize = 250;
/// A pod that failed is replaced at once if it is older than this, else when it is: a kubelet that refuses a pod is
/// not asked in a tight loop. (Kubernetes doubles its wait up to 15 minutes and forgets it when it restarts.)
const FAILED_POD_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const TEMPLATE_GENERATION_LABEL: &str = "pod-template-generation";

/// See the module.
pub struct DaemonSets;

/// The number of the template, by which pods were told apart before there were revisions.
fn template_generation(set: &DaemonSet) -> Option<i64> {
    let annotations = set.metadata.annotations.as_ref()?;
    annotations.get(TEMPLATE_GENERATION)?.parse().ok()
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

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::DAEMON_SET) {
            return vec![key];
        }
        if changed.kind == &registry::NODE {
            // Heartbeats move no daemon.
            let matters = |node: &Node| {
                let taints = node.spec.as_ref().and_then(|s| s.taints.clone());
                (node.metadata.labels.clone(), taints, node.metadata.uid.clone())
            };
            let state = |of: Option<&knarr_api::Object>| of.and_then(|n| n.get::<Node>()).map(matters);
            if state(changed.old) == state(changed.new) {
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
        let Some(selector) = selecting(&spec.selector) else {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            return vec![Action::warning(&reference(owner), "SelectingAll", message)];
        };
        // Its history may be gone before its pods are: nothing about it can be said any more.
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
        let pod_spec = placement::tolerant(&spec.template);
        let nodes: Vec<Shared<Node>> = context.view.list_as("");
        let look = Look {
            now: context.now,
            set: &set,
            spec,
            pod_spec: &pod_spec,
            hash: &hash,
            nodes: nodes
                .iter()
                .map(|n| (n.object().name(), placement::placement(&pod_spec, n)))
                .collect(),
        };
        let mut by_node: BTreeMap<String, Vec<&Shared<Pod>>> = BTreeMap::new();
        for pod in &claimed.objects {
            // Its end is only a matter of a finalizer or of the kubelet's last word.
            if pod::is_finished(pod) && pod::is_deleting(pod) {
                continue;
            }
            if let Some(node) = placement::target(pod) {
                by_node.entry(node.to_string()).or_default().push(pod);
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
            let mut managed = look.manage(&by_node);
            if managed.actions.is_empty() && rollout::is_rolling(spec) {
                let step = rollout::step(&look, &by_node);
                managed.actions = look.sync(step.end, step.start);
            }
            actions.extend(managed.actions);
            next = managed.wait;
        }
        let mut status = look.status(&by_node);
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
            // Live ones count against the limit, the current one apart.
            let limit = usize::try_from(spec.revision_history_limit.unwrap_or(10)).unwrap_or(0);
            let left = (limit + 1).saturating_sub(live.len());
            actions.extend(history::truncate(&history.objects, &live, Some(count(left))));
        }
        let ready = claimed.objects.iter().filter_map(|p| match look.availability(p) {
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
    /// Until a failed pod may be replaced.
    wait: Option<Duration>,
}

/// All that one look goes by.
struct Look<'a> {
    now: Timestamp,
    set: &'a Shared<DaemonSet>,
    spec: &'a DaemonSetSpec,
    /// The template's, with a daemon's tolerations.
    pod_spec: &'a PodSpec,
    hash: &'a str,
    nodes: BTreeMap<&'a str, Placement>,
}

impl Look<'_> {
    fn availability(&self, pod: &Pod) -> Availability {
        pod::availability(pod, self.spec.min_ready_seconds.unwrap_or(0), self.now)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        self.availability(pod) == Availability::Available
    }

    /// Whether it is of the current template.
    fn is_updated(&self, pod: &Pod) -> bool {
        let labels = pod.metadata.labels.as_ref();
        let generation = template_generation(self.set).map(|g| g.to_string());
        label(labels, REVISION_HASH) == self.hash
            || generation.is_some_and(|g| label(labels, TEMPLATE_GENERATION_LABEL) == g)
    }

    /// One pod where one belongs, none where none does.
    fn manage(&self, by_node: &BTreeMap<String, Vec<&Shared<Pod>>>) -> Managed {
        let mut managed = Managed::default();
        let mut start = Vec::new();
        let mut end: Vec<&Shared<Pod>> = Vec::new();
        let mut events = Vec::new();
        for (node, placement) in &self.nodes {
            let Some(pods) = by_node.get(*node) else {
                if placement.should_run {
                    start.push(node.to_string());
                }
                continue;
            };
            let alive = pods.iter().filter(|p| !pod::is_deleting(p)).copied();
            if !placement.may_stay {
                end.extend(alive);
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
                        end.push(pod);
                    }
                    "Succeeded" => {
                        events.push(self.found("succeeded", pod, node, "SucceededDaemonPod"));
                        end.push(pod);
                    }
                    _ => running.push(pod),
                }
            }
            if rollout::max_surge(self.spec, 1) == 0 {
                end.extend(running.into_iter().skip(1));
            } else if running.is_empty() {
                if placement.should_run {
                    start.push(node.to_string());
                }
            } else if running.len() > 1 {
                self.surplus(&running, &mut end);
            }
        }
        // Made for a node that is gone before it was bound: nobody else would remove it.
        for (node, pods) in by_node {
            if !self.nodes.contains_key(node.as_str()) {
                end.extend(
                    pods.iter()
                        .filter(|p| pod::node_name(p).is_empty() && !pod::is_deleting(p)),
                );
            }
        }
        managed.actions = events;
        managed.actions.extend(self.sync(end, start));
        managed
    }

    fn found(&self, how: &str, pod: &Shared<Pod>, node: &str, reason: &'static str) -> Action {
        let (about, key) = (reference(self.set.object()), ObjectKey::of(pod.object()));
        if how == "failed" {
            let message = format!("Found failed daemon pod {key} on node {node}, will try to kill it");
            Action::warning(&about, reason, message)
        } else {
            let message = format!("Found succeeded daemon pod {key} on node {node}, will try to delete it");
            Action::event(&about, reason, message)
        }
    }

    /// While surging, a node has the oldest pod of the new template and the oldest of an old one, this until the new one serves.
    fn surplus<'p>(&self, running: &[&'p Shared<Pod>], end: &mut Vec<&'p Shared<Pod>>) {
        let (mut new, mut old) = (None, None);
        for pod in running {
            let is_new = label(pod.metadata.labels.as_ref(), REVISION_HASH) == self.hash;
            let place = if is_new { &mut new } else { &mut old };
            match place {
                None => *place = Some(*pod),
                Some(_) => end.push(*pod),
            }
        }
        if let (Some(new), Some(old)) = (new, old)
            && (!pod::is_ready(old) || self.is_available(new))
        {
            end.push(old);
        }
    }

    /// Starts and ends these pods, so many at one time.
    fn sync(&self, mut end: Vec<&Shared<Pod>>, mut start: Vec<String>) -> Vec<Action> {
        end.truncate(BURST);
        start.truncate(BURST);
        let owner = self.set.object();
        let report = |done: (&'static str, &str), failed: (&'static str, &str)| Report {
            about: reference(owner),
            done: Some((done.0, done.1.into())),
            failed: (failed.0, failed.1.into()),
        };
        let mut actions = Vec::new();
        if !start.is_empty() {
            let report = report(
                ("SuccessfulCreate", "Created pod: "),
                ("FailedCreate", "Error creating: "),
            );
            let pods = start
                .iter()
                .filter_map(|node| placement::new_pod(owner, self.set, self.pod_spec, self.hash, node));
            let creates = pods.map(|pod| Create {
                report: Some(report.clone()),
                ..Create::new(pod)
            });
            actions.push(Action::CreateMany(creates.collect()));
        }
        if !end.is_empty() {
            let report = report(
                ("SuccessfulDelete", "Deleted pod: "),
                ("FailedDelete", "Error deleting: "),
            );
            let deletes = end.iter().map(|pod| Delete {
                report: Some(report.clone()),
                ..Delete::of(pod.object())
            });
            actions.push(Action::DeleteMany(deletes.collect()));
        }
        actions
    }

    fn status(&self, by_node: &BTreeMap<String, Vec<&Shared<Pod>>>) -> DaemonSetStatus {
        let mut status = DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for (node, placement) in &self.nodes {
            let first = by_node.get(*node).and_then(|pods| pods.first());
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
