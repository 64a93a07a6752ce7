//! StatefulSet: pods with a stable name and storage, never two of one name (SPEC S1).
//!
//! A pod is replaced only once its object is removed, which only its kubelet does (or PodGC, for a node that was deleted or is out of
//! service); this controller deletes pods with their grace period and waits. `OrderedReady` creates pods one by one, each after those
//! before it are available, and deletes them in the reverse order; `Parallel` does not wait. A rolling update deletes the pod of the
//! highest ordinal that has another revision first; [`claims`] manages the claims.
//!
//! The cache of sets may be older than those of pods and claims: of a set that was scaled up since, the new pods count as surplus, and their
//! claims are deleted with them where the retention policy says so. So the set's generation is read live before a pod is deleted or a
//! claim gets another owner.

mod claims;
mod identity;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};

use self::claims::Claims;
use crate::action::{Action, Create, Delete, Report, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::deployment::rollout_bounds::scaled;
use crate::history;
use crate::owner::{claim_if, non_empty_selector, owners_of, require_generation};
use crate::pod::{self, Availability};
use crate::replicaset::count;

/// See the module.
pub struct StatefulSets;

impl Controller for StatefulSets {
    fn name(&self) -> &'static str {
        "statefulset-controller"
    }

    fn account(&self) -> &'static str {
        "statefulset-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![
            &registry::STATEFUL_SET,
            &registry::POD,
            &registry::CONTROLLER_REVISION,
            &registry::PERSISTENT_VOLUME_CLAIM,
        ]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::STATEFUL_SET) {
            return vec![key];
        }
        if changed.kind == &registry::PERSISTENT_VOLUME_CLAIM {
            return of_claim(view, changed);
        }
        owners_of::<StatefulSet>(view, changed, |set| set.spec.as_ref().map(|s| &s.selector))
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let key = context.key;
        let Some(set) = context.view.get_as::<StatefulSet>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        let Some(spec) = &set.spec else { return Vec::new() };
        let Some(selector) = non_empty_selector(&spec.selector) else {
            return Vec::new();
        };
        let owner = set.object();
        let mut known: Vec<Shared<Pod>> = context.view.controlled_by_as(owner.uid());
        known.extend(context.view.orphans_as(owner.namespace()));
        let claimed = claim_if(owner, known, |p| {
            selector.matches(p.metadata.labels.as_ref())
                && identity::ordinal(owner.name(), p.object().name()).is_some()
        });
        let history = history::list(context.view, owner, &selector);
        let old = set.status.clone().unwrap_or_default();
        let collisions = old.collision_count.unwrap_or(0);
        let update = history::update(context.view, owner, &spec.template, &history.objects, collisions);
        let update_name = update.revision.metadata.name.clone().unwrap_or_default();
        let current = history
            .objects
            .iter()
            .find(|r| Some(r.object().name()) == old.current_revision.as_deref());
        let current_name = current.map_or(update_name.clone(), |r| r.object().name().to_string());
        let current_template = match current {
            Some(revision) if current_name != update_name => history::template_of(revision),
            _ => None,
        };

        let mut plan = Plan {
            view: context.view,
            now: context.now,
            set: &set,
            spec,
            status: StatefulSetStatus {
                observed_generation: set.metadata.generation,
                current_revision: Some(current_name.clone()),
                update_revision: Some(update_name.clone()),
                collision_count: Some(update.collisions),
                conditions: old.conditions.clone(),
                ..StatefulSetStatus::default()
            },
            current_template: current_template.as_ref().unwrap_or(&spec.template),
            actions: Vec::new(),
        };
        let is_deleting = set.metadata.deletion_timestamp.is_some();
        if context.failure.is_none() {
            plan.actions = claimed.actions;
            plan.actions.extend(history.actions);
            if !is_deleting {
                plan.actions.extend(update.action);
            }
        }
        plan.count(&claimed.objects);
        let mut status = plan.status.clone();
        if context.failure.is_none() && !is_deleting {
            let deleted = plan.pods(&claimed.objects);
            status.current_replicas = status
                .current_replicas
                .map(|n| n.saturating_sub(count(deleted)))
                .filter(|n| *n > 0);
        }
        let mut actions = plan.actions;
        if actions.iter().any(needs_current_spec) {
            actions.insert(0, require_generation(owner));
        }
        complete(spec, &mut status);
        if differs(&old, &status) {
            let mut changed = (*set).clone();
            changed.status = Some(status);
            actions.push(Action::update_status(changed));
        }
        if context.failure.is_none() && !is_deleting {
            let mut live: BTreeSet<String> = [current_name, update_name].into();
            live.extend(claimed.objects.iter().map(|p| identity::revision(p).to_string()));
            let limit = spec.revision_history_limit.or(Some(10));
            actions.extend(history::truncate(&history.objects, &live, limit));
        }
        actions.extend(next_available(spec, &claimed.objects, context.now).map(Action::RequeueAfter));
        actions
    }
}

/// Whether an action on a pod or a claim would be wrong for a newer spec of the set, and is not undone by the next sync.
fn needs_current_spec(action: &Action) -> bool {
    match action {
        Action::Delete(_) => true,
        Action::Update { kind, .. } => *kind == registry::PERSISTENT_VOLUME_CLAIM,
        _ => false,
    }
}

/// The keys of the sets of this claim: a pod may wait for its removal.
fn of_claim(view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
    let Some(claim) = changed.object() else {
        return Vec::new();
    };
    // Most claims belong to no set, and the creation of a claim needs no sync: only deletions are waited for.
    if changed.new.is_some() && claim.metadata().deletion_timestamp.is_none() {
        return Vec::new();
    }
    let sets = view.list_as::<StatefulSet>(claim.namespace());
    let is_of = |set: &&Shared<StatefulSet>| {
        let templates = set
            .spec
            .iter()
            .flat_map(|s| s.volume_claim_templates.iter().flatten());
        templates.into_iter().any(|template| {
            let template = template.metadata.name.as_deref().unwrap_or("");
            let rest = claim
                .name()
                .strip_prefix(template)
                .and_then(|r| r.strip_prefix('-'));
            rest.is_some_and(|rest| identity::ordinal(set.object().name(), rest).is_some())
        })
    };
    sets.iter()
        .filter(is_of)
        .map(|s| ObjectKey::of(s.object()))
        .collect()
}

fn is_running_and_ready(pod: &Pod) -> bool {
    pod::phase(pod) == "Running" && pod::is_ready(pod)
}

/// The pod of one ordinal.
enum Replica<'p> {
    There(&'p Shared<Pod>),
    /// Created in this sync, or to be created, from this revision.
    New {
        revision: String,
    },
}

/// Whether the sync continues after a pod.
enum Progress {
    Next,
    /// OrderedReady: the following pods wait.
    Wait,
}

struct Plan<'a> {
    view: &'a dyn View,
    now: Timestamp,
    set: &'a Shared<StatefulSet>,
    spec: &'a StatefulSetSpec,
    status: StatefulSetStatus,
    current_template: &'a PodTemplateSpec,
    actions: Vec<Action>,
}

impl Plan<'_> {
    fn is_monotonic(&self) -> bool {
        self.spec.pod_management_policy.as_deref() != Some("Parallel")
    }

    fn is_available(&self, pod: &Pod) -> bool {
        let seconds = self.spec.min_ready_seconds.unwrap_or(0);
        pod::availability(pod, seconds, self.now) == Availability::Available
    }

    fn is_unavailable(&self, replica: &Replica<'_>) -> bool {
        match replica {
            Replica::There(p) => !self.is_available(p) || pod::is_deleting(p),
            Replica::New { .. } => true,
        }
    }

    /// Counts the replicas for the status.
    fn count(&mut self, pods: &[Shared<Pod>]) {
        let number = |is: &dyn Fn(&Pod) -> bool| count(pods.iter().filter(|p| is(p)).count());
        let (current, update) = (self.revision(false), self.revision(true));
        let of = |pod: &Pod, name: &str| {
            !pod::phase(pod).is_empty() && !pod::is_deleting(pod) && identity::revision(pod) == name
        };
        let ready = number(&is_running_and_ready);
        let available = number(&|p| is_running_and_ready(p) && self.is_available(p));
        let current = number(&|p| of(p, &current));
        let updated = number(&|p| of(p, &update));
        let replicas = number(&|p| !pod::phase(p).is_empty());
        // Kubernetes leaves these out when they are 0, availableReplicas apart.
        let some = |n: i32| (n > 0).then_some(n);
        self.status.replicas = replicas;
        self.status.ready_replicas = some(ready);
        self.status.available_replicas = Some(available);
        self.status.current_replicas = some(current);
        self.status.updated_replicas = some(updated);
    }

    fn revision(&self, update: bool) -> String {
        let status = &self.status;
        let name = if update {
            &status.update_revision
        } else {
            &status.current_revision
        };
        name.clone().unwrap_or_default()
    }

    /// Whether a new pod of this ordinal is still created from the current revision.
    fn is_of_current(&self, ordinal: i64) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            // With OnDelete a partition has no meaning, but Kubernetes evaluates it nevertheless.
            let partition = strategy
                .and_then(|s| s.rolling_update.as_ref())
                .and_then(|r| r.partition);
            return partition.is_some_and(|p| ordinal < identity::start(self.spec) + i64::from(p));
        }
        let below = match strategy.and_then(|s| s.rolling_update.as_ref()) {
            Some(rolling) => rolling.partition.unwrap_or(0),
            None => {
                let status = self.set.status.as_ref();
                status.and_then(|s| s.current_replicas).unwrap_or(0)
            }
        };
        ordinal < identity::start(self.spec) + i64::from(below)
    }

    /// Brings the pods one step nearer to the desired state; returns how many of the current revision were deleted.
    fn pods(&mut self, pods: &[Shared<Pod>]) -> usize {
        let start = identity::start(self.spec);
        let mut there: BTreeMap<i64, &Shared<Pod>> = BTreeMap::new();
        for pod in pods {
            if let Some(ordinal) = identity::ordinal(self.set.object().name(), pod.object().name()) {
                there.insert(ordinal, pod);
            }
        }
        let replicas: Vec<(i64, Replica<'_>)> = (start..start + identity::replicas(self.spec))
            .map(|ordinal| {
                let replica = match there.remove(&ordinal) {
                    Some(pod) => Replica::There(pod),
                    None => Replica::New {
                        revision: self.revision(!self.is_of_current(ordinal)),
                    },
                };
                (ordinal, replica)
            })
            .collect();
        // The remaining pods are condemned, the highest ordinal first.
        let condemned: Vec<(i64, &Shared<Pod>)> = there.into_iter().rev().collect();

        let first_unavailable = if replicas.iter().any(|(_, r)| self.is_unavailable(r)) {
            None
        } else {
            let mut lowest_first = condemned.iter().rev();
            lowest_first
                .find(|(_, p)| self.is_unavailable(&Replica::There(p)))
                .map(|(n, _)| *n)
        };
        for (ordinal, replica) in &replicas {
            if let Progress::Wait = self.replica(*ordinal, replica)
                && self.is_monotonic()
            {
                return 0;
            }
        }
        for (ordinal, pod) in &condemned {
            let actions = claims::retain(self.view, self.set, pod, *ordinal);
            self.actions.extend(actions);
        }
        for (ordinal, pod) in &condemned {
            let waits = pod::is_deleting(pod)
                || ((!is_running_and_ready(pod) || !self.is_available(pod))
                    && first_unavailable != Some(*ordinal));
            if self.is_monotonic() {
                if !waits {
                    self.delete_pod(pod);
                }
                // One at a time.
                return 0;
            }
            if !pod::is_deleting(pod) {
                self.delete_pod(pod);
            }
        }
        self.update(&replicas)
    }

    fn replica(&mut self, ordinal: i64, replica: &Replica<'_>) -> Progress {
        let pod = match replica {
            Replica::New { revision } => {
                match claims::missing(self.view, self.set, ordinal, None) {
                    Claims::Missing(actions) => self.actions.extend(actions),
                    Claims::InTheWay(name) => {
                        self.report_deleted_claim(ordinal, &name);
                        return Progress::Wait;
                    }
                }
                self.create(ordinal, revision);
                return Progress::Wait;
            }
            Replica::There(pod) => *pod,
        };
        if is_terminal(pod) {
            // A finished pod is replaced whatever its exit codes, once its object is removed.
            if !pod::is_deleting(pod) {
                self.delete_pod(pod);
            }
            return Progress::Wait;
        }
        if pod::phase(pod) == "Pending" {
            let uid = Some(pod.object().uid());
            if let Claims::Missing(actions) = claims::missing(self.view, self.set, ordinal, uid) {
                self.actions.extend(actions);
            }
        }
        let is_well = !pod::is_deleting(pod) && is_running_and_ready(pod) && self.is_available(pod);
        if !is_well && self.is_monotonic() {
            return Progress::Wait;
        }
        let actions = claims::retain(self.view, self.set, pod, ordinal);
        self.actions.extend(actions);
        if !identity::is_labelled(pod) {
            let mut changed = (**pod).clone();
            identity::set_labels(&mut changed, ordinal);
            self.actions.push(Action::update(changed));
            self.done("SuccessfulUpdate", "Update", pod.object().name());
        }
        Progress::Next
    }

    fn create(&mut self, ordinal: i64, revision: &str) {
        let is_update = revision == self.revision(true);
        let template = if is_update {
            &self.spec.template
        } else {
            self.current_template
        };
        let pod = identity::new_pod(self.set, template, revision, ordinal);
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.actions.push(Action::Create(Create {
            report: Some(self.report("FailedCreate", "Create", &name)),
            ..Create::new(pod)
        }));
        self.done("SuccessfulCreate", "Create", &name);
    }

    /// Deletes a pod, with its own grace period.
    fn delete_pod(&mut self, pod: &Shared<Pod>) {
        let name = pod.object().name();
        self.actions.push(Action::Delete(Delete {
            report: Some(self.report("FailedDelete", "Delete", name)),
            ..Delete::of(pod.object())
        }));
        self.done("SuccessfulDelete", "Delete", name);
    }

    fn report(&self, reason: &'static str, verb: &str, pod: &str) -> Report {
        let set = self.set.object();
        Report {
            about: reference(set),
            done: None,
            failed: (
                reason,
                format!("{verb} Pod {pod} in StatefulSet {} failed error: ", set.name()),
            ),
        }
    }

    fn done(&mut self, reason: &'static str, verb: &str, pod: &str) {
        let set = self.set.object();
        let message = format!("{verb} Pod {pod} in StatefulSet {} successful", set.name());
        self.actions.push(Action::event(&reference(set), reason, message));
    }

    fn report_deleted_claim(&mut self, ordinal: i64, claim: &str) {
        let set = self.set.object();
        let name = set.name();
        let message = format!(
            "Create Pod {name}-{ordinal} in StatefulSet {name} failed error: pvc {claim} is being deleted"
        );
        self.actions
            .push(Action::warning(&reference(set), "FailedCreate", message));
    }

    /// Deletes pods of other revisions, from the highest ordinal down to the partition.
    fn update(&mut self, replicas: &[(i64, Replica<'_>)]) -> usize {
        let strategy = self.spec.update_strategy.as_ref();
        if strategy.and_then(|s| s.type_.as_deref()) == Some("OnDelete") {
            return 0;
        }
        let rolling = strategy.and_then(|s| s.rolling_update.clone());
        let RollingUpdateStatefulSetStrategy {
            max_unavailable,
            partition,
        } = rolling.unwrap_or_default();
        let from = usize::try_from(partition.unwrap_or(0)).unwrap_or(0);
        let update = self.revision(true);
        let to_update = replicas.iter().skip(from).rev();
        let outdated = |p: &Shared<Pod>| identity::revision(p) != update && !pod::is_deleting(p);

        let Some(max_unavailable) = max_unavailable else {
            for (_, replica) in to_update {
                if let Replica::There(pod) = replica
                    && outdated(pod)
                {
                    self.delete_pod(pod);
                    return 1;
                }
                if self.is_unavailable(replica) {
                    return 0;
                }
            }
            return 0;
        };
        let allowed = scaled(&max_unavailable, self.spec.replicas.unwrap_or(1), false).max(1);
        let unavailable = replicas.iter().filter(|(_, r)| self.is_unavailable(r)).count();
        let room = usize::try_from(allowed).unwrap_or(0).saturating_sub(unavailable);
        let pods: Vec<&Shared<Pod>> = to_update
            .filter_map(|(_, replica)| match replica {
                Replica::There(pod) if outdated(pod) => Some(*pod),
                _ => None,
            })
            .take(room)
            .collect();
        for pod in &pods {
            self.delete_pod(pod);
        }
        pods.len()
    }
}

/// Once every pod has the update revision and is ready, that becomes the current revision.
fn complete(spec: &StatefulSetSpec, status: &mut StatefulSetStatus) {
    let strategy = spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
    let desired = spec.replicas.unwrap_or(1);
    if strategy != Some("OnDelete")
        && status.updated_replicas.unwrap_or(0) == desired
        && status.ready_replicas.unwrap_or(0) == desired
        && status.replicas == desired
    {
        status.current_replicas = status.updated_replicas;
        status.current_revision.clone_from(&status.update_revision);
    }
}

/// Whether anything but the collision count has changed.
fn differs(old: &StatefulSetStatus, new: &StatefulSetStatus) -> bool {
    let plain = |s: &StatefulSetStatus| {
        (
            s.replicas,
            [
                s.ready_replicas,
                s.available_replicas,
                s.current_replicas,
                s.updated_replicas,
            ]
            .map(|n| n.unwrap_or(0)),
            s.current_revision.clone().unwrap_or_default(),
            s.update_revision.clone().unwrap_or_default(),
            s.observed_generation.unwrap_or(0),
        )
    };
    plain(old) != plain(new)
}

/// When the next pod becomes available.
fn next_available(spec: &StatefulSetSpec, pods: &[Shared<Pod>], now: Timestamp) -> Option<Duration> {
    let seconds = spec.min_ready_seconds.unwrap_or(0);
    let waits = pods
        .iter()
        .filter_map(|p| match pod::availability(p, seconds, now) {
            Availability::In(wait) => Some(wait),
            Availability::Available | Availability::NotReady => None,
        });
    waits.min()
}

#[cfg(test)]
mod tests;
