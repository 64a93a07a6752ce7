//! Pods that still carry the tracking finalizer though no Job counts them any more: without help they would never go.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{ObjectKey, Shared};

use super::pods;
use crate::action::{Action, Fact};
use crate::controller::{Changed, Context};
use crate::history::label;
use crate::owner::controller_of;

const JOB_NAME: &str = "batch.kubernetes.io/job-name";

/// The Job that a tracked pod belonged to, by its label; of one that has lost that too, no name.
pub fn key(changed: Changed<'_>) -> Option<ObjectKey> {
    let pod: &Pod = changed.new?.get()?;
    let name = label(pod.metadata.labels.as_ref(), JOB_NAME);
    let is_orphan = controller_of(&pod.metadata).is_none();
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    (is_orphan && pods::is_tracked(pod)).then(|| ObjectKey::new(namespace, name))
}

fn release(tracked: Vec<Shared<Pod>>) -> Vec<Action> {
    tracked
        .iter()
        .map(|p| Action::update(pods::without_finalizer(p)))
        .collect()
}

/// There is no Job of this name: its pods are let go, after the API has said so too.
pub fn of_no_job(context: &Context<'_>) -> Vec<Action> {
    if context.failure.is_some() {
        return Vec::new();
    }
    let key = context.key;
    let mut left: Vec<Shared<Pod>> = context.view.list_as(&key.namespace);
    left.retain(|p| {
        pods::is_tracked(p)
            && match controller_of(&p.metadata) {
                Some(owner) => owner.kind == "Job" && owner.name == key.name,
                None => label(p.metadata.labels.as_ref(), JOB_NAME) == key.name,
            }
    });
    if left.is_empty() {
        return Vec::new();
    }
    let mut actions = Vec::new();
    if !key.name.is_empty() {
        actions.push(Action::Require(Fact::Absent {
            kind: registry::JOB.clone(),
            key: key.clone(),
        }));
    }
    actions.extend(release(left));
    actions
}

/// Pods of a Job that had this one's name before it: nobody counts them any more, once the API has said that this one
/// has the name now.
pub fn of_predecessors(context: &Context<'_>, job: &Shared<Job>) -> Vec<Action> {
    if context.failure.is_some() {
        return Vec::new();
    }
    let key = context.key;
    let mut left: Vec<Shared<Pod>> = context.view.list_as(&key.namespace);
    left.retain(|p| {
        let owner = controller_of(&p.metadata).filter(|o| o.kind == "Job" && o.name == key.name);
        pods::is_tracked(p) && owner.is_some_and(|o| o.uid != job.object().uid())
    });
    if left.is_empty() {
        return Vec::new();
    }
    let mut actions = vec![Action::Require(Fact::Alive {
        kind: registry::JOB.clone(),
        key: key.clone(),
        uid: job.object().uid().to_string(),
    })];
    actions.extend(release(left));
    actions
}

/// A Job that has ended counts no more.
pub fn of_finished(context: &Context<'_>, job: &Shared<Job>) -> Vec<Action> {
    if context.failure.is_some() {
        return Vec::new();
    }
    let mut left: Vec<Shared<Pod>> = context.view.controlled_by_as(job.object().uid());
    left.retain(|p| pods::is_tracked(p));
    release(left)
}
