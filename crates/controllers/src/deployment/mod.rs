//! Deployment: pods of one template, replaced by those of the next one step by step.
//!
//! Each template has a ReplicaSet, and the Deployment only changes their sizes. Rollout ([`rollout`]), proportional scaling
//! ([`scaling`]), rollback ([`revision`]) and status ([`status`]) follow kube-controller-manager v1.36.

pub mod conditions;
pub mod planned_replica_set;
pub mod revision;
pub mod rollout;
pub mod rollout_bounds;
pub mod scaling;
pub mod status;
pub mod template;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey, Shared};

use crate::action::{Action, Verb, reference};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::owner::{claim, controller_of, non_empty_selector, owners_of};

use planned_replica_set::{DESIRED_REPLICAS, PlannedReplicaSet};
use revision::REVISION;
use rollout::{Collision, Rollout};

/// See the module.
pub struct Deployments;

impl Controller for Deployments {
    fn name(&self) -> &'static str {
        "deployment-controller"
    }

    fn account(&self) -> &'static str {
        "deployment-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::DEPLOYMENT, &registry::REPLICA_SET, &registry::POD]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::DEPLOYMENT) {
            return vec![key];
        }
        if changed.kind == &registry::REPLICA_SET {
            return owners_of::<Deployment>(view, changed, |d| d.spec.as_ref().map(|s| &s.selector));
        }
        waiting_for_pod_deletion(view, changed).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let Some(deployment) = context
            .view
            .get_as::<Deployment>(&context.key.namespace, &context.key.name)
        else {
            return Vec::new();
        };
        let Some(spec) = &deployment.spec else {
            return Vec::new();
        };
        let owner = deployment.object();
        let Some(selector) = non_empty_selector(&spec.selector) else {
            let message = "This deployment is selecting all pods. A non-empty selector is required.";
            let mut actions = vec![Action::warning(&reference(owner), "SelectingAll", message)];
            let observed = deployment.status.as_ref().and_then(|s| s.observed_generation);
            if observed < deployment.metadata.generation {
                let mut changed = (*deployment).clone();
                changed.status.get_or_insert_default().observed_generation = changed.metadata.generation;
                actions.push(Action::update_status(changed));
            }
            return actions;
        };

        let mut known: Vec<Shared<ReplicaSet>> = context.view.controlled_by_as(owner.uid());
        known.extend(context.view.orphans_as(owner.namespace()));
        let claimed = claim(owner, &selector, known);
        if !claimed.actions.is_empty() && context.failure.is_none() {
            // The adopted sets come back as changes; the next sync uses them.
            return claimed.actions;
        }
        let mut sets = claimed.objects;
        sets.sort_by(|a, b| {
            let (a, b) = (&a.metadata, &b.metadata);
            a.creation_timestamp
                .cmp(&b.creation_timestamp)
                .then_with(|| a.name.cmp(&b.name))
        });
        let is_new = |set: &Shared<ReplicaSet>| {
            let template = set.spec.as_ref().and_then(|s| s.template.as_ref());
            template.is_some_and(|t| template::equal_ignoring_hash(t, &spec.template))
        };
        let new = sets.iter().position(is_new).map(|at| sets.remove(at));
        let rollout = Rollout {
            view: context.view,
            now: context.now,
            deployment: &deployment,
            spec,
            old: sets.into_iter().map(PlannedReplicaSet::new).collect(),
            new: new.map(PlannedReplicaSet::new),
            status: deployment.status.clone().unwrap_or_default(),
            revision: None,
        };
        if let Some(failure) = context.failure {
            return report_failure(rollout, failure);
        }
        match advance(rollout) {
            Ok(actions) => actions,
            Err(Collision) => {
                let mut changed = (*deployment).clone();
                let count = &mut changed.status.get_or_insert_default().collision_count;
                *count = Some(count.unwrap_or(0) + 1);
                vec![Action::update_status(changed)]
            }
        }
    }
}

/// The Deployment of type Recreate that waits for this pod's deletion before it creates new pods.
fn waiting_for_pod_deletion(view: &dyn View, changed: ObjectChange<'_>) -> Option<ObjectKey> {
    let old: &k8s_openapi::api::core::v1::Pod = changed.old?.get()?;
    let new: Option<&k8s_openapi::api::core::v1::Pod> = changed.new.and_then(|n| n.get());
    if new.is_some_and(|new| !is_terminal(new) || is_terminal(old)) {
        return None;
    }
    let namespace = old.metadata.namespace.as_deref().unwrap_or("");
    let set = controller_of(&old.metadata).filter(|c| c.kind == registry::REPLICA_SET.kind())?;
    let set = view.get(&registry::REPLICA_SET, namespace, &set.name)?;
    let deployment = controller_of(set.metadata())?;
    let deployment = view.get_as::<Deployment>(namespace, &deployment.name)?;
    let rolling = deployment.spec.as_ref().is_none_or(rollout_bounds::is_rolling);
    (!rolling).then(|| ObjectKey::of(deployment.object()))
}

fn advance(mut rollout: Rollout<'_>) -> Result<Vec<Action>, Collision> {
    if rollout.deployment.metadata.deletion_timestamp.is_some() {
        status::count(&mut rollout);
        return Ok(status_action(&rollout).into_iter().collect());
    }
    status::pause_or_resume(&mut rollout);
    let paused = rollout.spec.paused == Some(true);
    let mut cleanup = paused;
    if paused || is_scaling_event(&rollout) {
        rollout.get_new_replica_set(false)?;
        scaling::scale(&mut rollout);
        status::count(&mut rollout);
    } else {
        if rollout_bounds::is_rolling(rollout.spec) {
            rollout.get_new_replica_set(true)?;
            rollout.roll_out();
        } else {
            rollout.get_new_replica_set(false)?;
            rollout.recreate()?;
        }
        let before = rollout.deployment.status.clone().unwrap_or_default();
        cleanup = status::is_complete(&rollout, &before);
        status::sync_rollout(&mut rollout);
    }
    let mut actions = rollout.actions();
    actions.extend(status_action(&rollout));
    if cleanup {
        actions.extend(revision::cleanup(rollout.spec, &rollout.old));
    }
    actions.extend(status::next_progress_check(&rollout).map(Action::RequeueAfter));
    Ok(actions)
}

/// Whether `spec.replicas` has changed since the sets were last scaled (upstream: isScalingEvent).
fn is_scaling_event(rollout: &Rollout<'_>) -> bool {
    let desired = rollout.replicas();
    let mut active = rollout.all().filter(|s| s.replicas() > 0);
    active.any(|s| s.annotation(DESIRED_REPLICAS).is_some_and(|n| n != desired))
}

fn report_failure(mut rollout: Rollout<'_>, failure: &crate::action::Failure) -> Vec<Action> {
    if failure.verb != Verb::Create {
        return Vec::new();
    }
    let message = format!(
        "Failed to create new replica set {:?}: {}",
        failure.name, failure.error
    );
    status::create_failed(&mut rollout, message);
    status_action(&rollout).into_iter().collect()
}

/// Status and revision in one write: the revision is an annotation, and writing it with the spec would
/// increase the generation.
fn status_action(rollout: &Rollout<'_>) -> Option<Action> {
    let mut changed = (**rollout.deployment).clone();
    let empty = DeploymentStatus::default();
    changed.status = (rollout.status != empty).then(|| rollout.status.clone());
    if let Some(revision) = &rollout.revision {
        let annotations = changed.metadata.annotations.get_or_insert_default();
        annotations.insert(REVISION.into(), revision.clone());
    }
    (changed != **rollout.deployment).then(|| Action::update_status(changed))
}

#[cfg(test)]
mod tests;
