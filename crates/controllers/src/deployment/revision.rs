//! Revisions: every template that a Deployment has had is a ReplicaSet with a revision number, and the old ones are kept for
//! `kubectl rollout undo`, up to `revisionHistoryLimit`.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet};
use knarr_api::k8s_openapi;

use super::planned_replica_set::{DESIRED_REPLICAS, MAX_REPLICAS, PlannedReplicaSet};
use crate::action::{Action, Delete};

pub const REVISION: &str = "deployment.kubernetes.io/revision";
pub const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
/// The annotations of a Deployment that its ReplicaSets do not get.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
];
/// Bytes of revision history on one ReplicaSet; the oldest revisions are dropped first.
const HISTORY_BYTES: usize = 2000;

/// The revision number of a ReplicaSet; 0 if it has none that parses.
pub fn revision(set: &ReplicaSet) -> i64 {
    let annotations = set.metadata.annotations.as_ref();
    annotations
        .and_then(|a| a.get(REVISION))
        .and_then(|r| r.parse().ok())
        .unwrap_or(0)
}

/// The revision number of the current template: one more than the largest.
pub fn next(old: &[PlannedReplicaSet]) -> i64 {
    old.iter().map(|set| revision(&set.now)).max().unwrap_or(0) + 1
}

/// Copies the Deployment's annotations and sets the revision number, unless the set has a higher one already.
pub fn annotate(set: &mut ReplicaSet, deployment: &Deployment, number: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    for (key, value) in deployment.metadata.annotations.iter().flatten() {
        if !NOT_COPIED.contains(&key.as_str()) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let old = annotations.get(REVISION).cloned();
    let old_number = old.as_ref().and_then(|r| r.parse().ok()).unwrap_or(0);
    if old_number < number {
        annotations.insert(REVISION.into(), number.to_string());
        if let Some(old) = old.filter(|o| !o.is_empty()) {
            add_to_history(annotations, &old);
        }
    }
}

/// Adds a former revision number of the set to its history annotation.
fn add_to_history(annotations: &mut BTreeMap<String, String>, number: &str) {
    let history = annotations.get(REVISION_HISTORY).cloned().unwrap_or_default();
    let mut numbers: Vec<&str> = history.split(',').filter(|n| !n.is_empty()).collect();
    numbers.push(number);
    let length = |numbers: &[&str]| numbers.iter().map(|n| n.len() + 1).sum::<usize>();
    while length(&numbers) > HISTORY_BYTES {
        numbers.remove(0);
    }
    annotations.insert(REVISION_HISTORY.into(), numbers.join(","));
}

/// Deletes the oldest sets beyond the history limit that have no pods and are scaled to 0, at the resourceVersion at which that holds: a
/// rollback that is not in the cache yet may have scaled one of them up.
pub fn cleanup(spec: &DeploymentSpec, old: &[PlannedReplicaSet]) -> Vec<Action> {
    let Some(limit) = spec.revision_history_limit.filter(|limit| *limit != i32::MAX) else {
        return Vec::new();
    };
    let mut sets: Vec<&PlannedReplicaSet> = old
        .iter()
        .filter(|set| set.now.metadata.deletion_timestamp.is_none())
        .collect();
    let surplus = sets.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    sets.sort_by_key(|set| revision(&set.now));
    let idle = |set: &&PlannedReplicaSet| {
        let status = set.now.status.clone().unwrap_or_default();
        let seen = status.observed_generation.unwrap_or(0) >= set.now.metadata.generation.unwrap_or(0);
        status.replicas == 0 && set.replicas() == 0 && seen
    };
    let idle = sets.into_iter().take(surplus).filter(idle);
    idle.filter_map(|set| set.before.as_ref())
        .map(|set| {
            Action::Delete(Delete {
                resource_version: set.metadata.resource_version.clone(),
                ..Delete::of(set.object())
            })
        })
        .collect()
}
