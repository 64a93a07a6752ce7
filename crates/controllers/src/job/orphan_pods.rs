//! Pods that have the tracking finalizer although no Job counts them (upstream: syncOrphanPod): it is removed, as they could not be
//! deleted otherwise.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::JOB_NAME;
use knarr_api::{ObjectKey, Shared};

use super::pods;
use crate::action::{Action, LiveCheck};
use crate::controller::{Context, ObjectChange};
use crate::history::label;
use crate::owner::controller_of;

/// The key of the Job of a tracked pod, by its label; without the label the name is empty.
pub fn key(changed: ObjectChange<'_>) -> Option<ObjectKey> {
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

/// There is no Job of this name: the finalizers of its pods are removed, after a live read has confirmed that.
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
        actions.push(Action::Require(LiveCheck::Absent {
            kind: registry::JOB.clone(),
            key: key.clone(),
        }));
    }
    actions.extend(release(left));
    actions
}

/// Pods of former Jobs of the same name: their finalizers are removed, after live reads have confirmed that these Jobs are gone. The Job that has
/// the name now may be terminating.
pub fn of_predecessors(context: &Context<'_>, job: &Shared<Job>) -> Vec<Action> {
    if context.failure.is_some() {
        return Vec::new();
    }
    let key = context.key;
    let former_owner = |p: &Shared<Pod>| {
        let owner = controller_of(&p.metadata).filter(|o| o.kind == "Job" && o.name == key.name);
        let is_former = owner.is_some_and(|o| o.uid != job.object().uid()) && pods::is_tracked(p);
        owner.filter(|_| is_former).map(|o| o.uid.clone())
    };
    let mut left: Vec<Shared<Pod>> = context.view.list_as(&key.namespace);
    left.retain(|p| former_owner(p).is_some());
    let former: BTreeSet<String> = left.iter().filter_map(former_owner).collect();
    let gone = former.into_iter().map(|uid| {
        Action::Require(LiveCheck::AbsentUid {
            kind: registry::JOB.clone(),
            key: key.clone(),
            uid,
        })
    });
    gone.chain(release(left)).collect()
}

/// A finished Job counts no more pods.
pub fn of_finished(context: &Context<'_>, job: &Shared<Job>) -> Vec<Action> {
    if context.failure.is_some() {
        return Vec::new();
    }
    let mut left: Vec<Shared<Pod>> = context.view.controlled_by_as(job.object().uid());
    left.retain(|p| pods::is_tracked(p));
    release(left)
}
