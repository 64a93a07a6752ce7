//! ReplicaSet: keeps `spec.replicas` pods of the template running.
//!
//! Terminating and finished pods are not counted (SPEC T7, S8). It prefers availability: while an old pod is terminating its
//! replacement may run. [`scale_down`](knarr_api::scale_down) decides which pods are deleted first (SPEC B3), [`eviction_surge`] how
//! many there are above `spec.replicas` while evictions wait for replacements.

pub mod eviction_surge;

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod, PodTemplateSpec};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::scale_down::{BURST_REPLICAS, Policy, ScaleDown, Topology};
use knarr_api::{Kind, Object, ObjectKey, Shared};
use knarr_apimachinery::time::seconds;

use crate::action::{Action, Create, Delete, Failure, Report, Verb, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::{claim, controller_of, non_empty_selector, owners_of, require_generation};
use crate::pod::{self, Availability};

use eviction_surge::EvictionSurge;

/// See the module.
#[derive(Default)]
pub struct ReplicaSets {
    /// The cluster's scale-down policy.
    pub scale_down: Policy,
}

impl Controller for ReplicaSets {
    fn name(&self) -> &'static str {
        "replicaset-controller"
    }

    fn account(&self) -> &'static str {
        "replicaset-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::REPLICA_SET, &registry::POD, &registry::NODE]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        // Nodes are read only when pods are deleted: a change of a node is no reason to delete any.
        if *changed.kind == registry::NODE {
            return Vec::new();
        }
        match changed.key_of(&registry::REPLICA_SET) {
            Some(key) => vec![key],
            None => owners_of::<ReplicaSet>(view, changed, |set| set.spec.as_ref().map(|s| &s.selector)),
        }
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(set) = context
            .view
            .get_as::<ReplicaSet>(&context.key.namespace, &context.key.name)
        else {
            return Vec::new();
        };
        let owner = set.object();
        let Some(spec) = &set.spec else { return Vec::new() };
        let Some(selector) = non_empty_selector(&spec.selector) else {
            return Vec::new();
        };

        let mut known: Vec<Shared<Pod>> = context.view.controlled_by_as(owner.uid());
        let terminating = known.iter().filter(|p| pod::is_terminating(p)).count();
        known.extend(context.view.orphans_as(owner.namespace()));
        known.retain(|p| pod::is_active(p));
        let claimed = claim(owner, &selector, known);
        let pods = claimed.objects;
        let mut actions = claimed.actions;
        let replicas = spec.replicas.unwrap_or(1);
        let surge = EvictionSurge::of(&pods, replicas, context.now);

        if context.failure.is_none() && set.metadata.deletion_timestamp.is_none() {
            let desired = Desired {
                replicas: replicas.saturating_add(count(surge.pods)),
                template: spec.template.as_ref(),
                scale_down: Policy::of(&set.metadata, self.scale_down),
            };
            actions.extend(manage(context, owner, &desired, &pods));
        } else {
            actions.clear();
        }

        let mut status = status(&set, &pods, surge.surplus(pods.len(), replicas), context);
        status.terminating_replicas = Some(count(terminating));
        if set.status.as_ref() != Some(&status) {
            let mut changed = (*set).clone();
            changed.status = Some(status);
            actions.push(Action::update_status(changed));
        }
        let min_ready_seconds = spec.min_ready_seconds.unwrap_or(0);
        let next = pods
            .iter()
            .filter_map(|p| match pod::availability(p, min_ready_seconds, context.now) {
                Availability::In(wait) => Some(wait),
                Availability::Available | Availability::NotReady => None,
            });
        let next = next.chain(surge.changes_in).min();
        actions.extend(next.map(Action::RequeueAfter));
        actions
    }
}

pub(crate) fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// What a ReplicaSet or a ReplicationController should have.
pub(crate) struct Desired<'a> {
    pub replicas: i32,
    pub template: Option<&'a PodTemplateSpec>,
    /// Which pods are deleted first.
    pub scale_down: Policy,
}

/// Brings the pods to the desired number, for a ReplicaSet or a ReplicationController.
pub(crate) fn manage(
    context: &Context<'_>,
    owner: &Object,
    desired: &Desired<'_>,
    pods: &[Shared<Pod>],
) -> Vec<Action> {
    let replicas = usize::try_from(desired.replicas).unwrap_or(0);
    if pods.len() < replicas {
        let Some(template) = desired.template else {
            return Vec::new();
        };
        let report = Report {
            about: reference(owner),
            done: Some(("SuccessfulCreate", "Created pod: ".into())),
            failed: ("FailedCreate", "Error creating: ".into()),
        };
        let missing = (replicas - pods.len()).min(BURST_REPLICAS);
        let creates = (0..missing).map(|_| Create {
            report: Some(report.clone()),
            ..Create::new(pod::from_template(owner, template))
        });
        return vec![Action::CreateMany(creates.collect())];
    }
    if pods.len() > replicas {
        let report = Report {
            about: reference(owner),
            done: Some(("SuccessfulDelete", "Deleted pod: ".into())),
            failed: ("FailedDelete", "Error deleting: ".into()),
        };
        let scale_down = ScaleDown {
            pods,
            number: (pods.len() - replicas).min(BURST_REPLICAS),
            related_by_node: related_by_node(context.view, owner),
            now: context.now,
        };
        let by_spread = desired.scale_down == Policy::Spread && scale_down.depends_on_spread();
        let topology = by_spread.then(|| Topology {
            nodes: context.view.list_as::<Node>(""),
            pods: context.view.list_as::<Pod>(owner.namespace()),
        });
        let chosen = scale_down.choose(topology.as_ref());
        let deletes = chosen.into_iter().map(|p| Delete {
            report: Some(report.clone()),
            ..Delete::of(p.object())
        });
        return vec![require_generation(owner), Action::DeleteMany(deletes.collect())];
    }
    Vec::new()
}

/// The number of active pods on each node, of this set and of the sets with the same controller.
fn related_by_node(view: &dyn View, owner: &Object) -> BTreeMap<String, usize> {
    let sets: Vec<String> = match controller_of(owner.metadata()) {
        Some(controller) => {
            let siblings = view.controlled_by(&registry::REPLICA_SET, &controller.uid);
            siblings.iter().map(|s| s.uid().to_string()).collect()
        }
        None => vec![owner.uid().to_string()],
    };
    let mut related_by_node = BTreeMap::new();
    for uid in sets {
        for p in view.controlled_by_as::<Pod>(&uid) {
            if pod::is_active(&p) {
                *related_by_node.entry(pod::node_name(&p).to_string()).or_default() += 1;
            }
        }
    }
    related_by_node
}

/// The status, in which `surplus` of the pods are not counted.
fn status(set: &ReplicaSet, pods: &[Shared<Pod>], surplus: usize, context: &Context<'_>) -> ReplicaSetStatus {
    let spec = set.spec.clone().unwrap_or_default();
    let template = spec.template.unwrap_or_default();
    let labels = template.metadata.and_then(|m| m.labels).unwrap_or_default();
    let fully_labeled = |p: &&Shared<Pod>| {
        let has = p.metadata.labels.clone().unwrap_or_default();
        labels.iter().all(|(k, v)| has.get(k) == Some(v))
    };
    let min_ready_seconds = spec.min_ready_seconds.unwrap_or(0);
    let available =
        |p: &&Shared<Pod>| pod::availability(p, min_ready_seconds, context.now) == Availability::Available;
    let counted = pods.len().saturating_sub(surplus);
    // Kubernetes leaves these out when they are 0.
    let some = |n: usize| (n > 0).then(|| count(n.min(counted)));
    ReplicaSetStatus {
        replicas: count(counted),
        fully_labeled_replicas: some(pods.iter().filter(fully_labeled).count()),
        ready_replicas: some(pods.iter().filter(|p| pod::is_ready(p)).count()),
        available_replicas: some(pods.iter().filter(available).count()),
        terminating_replicas: None,
        observed_generation: set.metadata.generation,
        conditions: conditions(set, context),
    }
}

/// Sets the condition ReplicaFailure while pods cannot be created or deleted.
fn conditions(set: &ReplicaSet, context: &Context<'_>) -> Option<Vec<ReplicaSetCondition>> {
    const TYPE: &str = "ReplicaFailure";
    let had = set
        .status
        .as_ref()
        .and_then(|s| s.conditions.clone())
        .unwrap_or_default();
    let old = had.iter().find(|c| c.type_ == TYPE).cloned();
    let mut conditions = had;
    conditions.retain(|c| c.type_ != TYPE);
    if let Some((reason, failure)) = context.failure.and_then(failed) {
        // The first failure is kept while it lasts, so that the condition does not change with every attempt.
        conditions.push(old.unwrap_or_else(|| ReplicaSetCondition {
            type_: TYPE.into(),
            status: "True".into(),
            reason: Some(reason.into()),
            message: Some(failure.error.message().to_string()),
            last_transition_time: Some(seconds(context.now)),
        }));
    }
    (!conditions.is_empty()).then_some(conditions)
}

pub(crate) fn failed(failure: &Failure) -> Option<(&'static str, &Failure)> {
    match failure.verb {
        Verb::Create => Some(("FailedCreate", failure)),
        Verb::Delete => Some(("FailedDelete", failure)),
        Verb::Update | Verb::Require => None,
    }
}

#[cfg(test)]
mod tests;
