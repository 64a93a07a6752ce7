//! Proportional scaling of a Deployment's ReplicaSets.

use super::planned_replica_set::{DESIRED_REPLICAS, MAX_REPLICAS, PlannedReplicaSet};
use super::rollout::Rollout;
use super::rollout_bounds::{is_rolling, rollout_bounds};

/// Scales the sets to the Deployment's size without a rollout step: during a rollout, or while paused.
pub fn scale(rollout: &mut Rollout<'_>) {
    let deployment_replicas = rollout.replicas();
    let bounds = rollout_bounds(rollout.spec);
    let deployment_sizes = rollout.sizes();

    // If only one set has pods (or none has: the newest), it gets all of the Deployment's replicas.
    let active = rollout.all().filter(|s| s.replicas() > 0).count();
    if active <= 1 {
        let has_active = active == 1;
        let new_is_it = rollout
            .new
            .as_ref()
            .is_some_and(|s| s.replicas() > 0 || !has_active);
        let set = if new_is_it {
            rollout.new.as_mut()
        } else if has_active {
            rollout.old.iter_mut().find(|s| s.replicas() > 0)
        } else {
            rollout.old.last_mut()
        };
        if let Some(set) = set {
            set.scale(deployment_replicas, deployment_sizes);
        }
        return;
    }

    if rollout
        .new
        .as_ref()
        .is_some_and(|new| is_saturated(new, deployment_replicas))
    {
        for set in rollout.old.iter_mut().filter(|s| s.replicas() > 0) {
            set.scale(0, deployment_sizes);
        }
        return;
    }

    if !is_rolling(rollout.spec) {
        return;
    }
    let allowed = if deployment_replicas > 0 {
        deployment_replicas + bounds.surge
    } else {
        0
    };
    let before_fallback = rollout
        .deployment
        .status
        .as_ref()
        .and_then(|s| s.replicas)
        .unwrap_or(0);
    let mut sets: Vec<&mut PlannedReplicaSet> = rollout
        .old
        .iter_mut()
        .chain(rollout.new.as_mut())
        .filter(|s| s.replicas() > 0)
        .collect();
    let change = allowed - sets.iter().map(|s| s.replicas()).sum::<i32>();
    // The largest first; of equal ones the newest when scaling up, the oldest when scaling down.
    sets.sort_by(|a, b| {
        let by_size = b.replicas().cmp(&a.replicas());
        let by_age = a.created().cmp(&b.created());
        by_size.then(if change > 0 { by_age.reverse() } else { by_age })
    });
    let mut shared_out = 0;
    let mut sizes: Vec<i32> = Vec::with_capacity(sets.len());
    for set in &sets {
        let share = replica_set_proportion(
            set,
            deployment_replicas,
            deployment_replicas + bounds.surge,
            before_fallback,
        );
        let rest = change - shared_out;
        let share = if change > 0 {
            share.min(rest)
        } else if change < 0 {
            share.max(rest)
        } else {
            0
        };
        shared_out += share;
        sizes.push(set.replicas() + share);
    }
    // The largest gets the rest from rounding.
    if let Some(first) = sizes.first_mut() {
        *first = (*first + change - shared_out).max(0);
    }
    for (set, size) in sets.into_iter().zip(sizes) {
        set.scale(size, deployment_sizes);
    }
}

/// Whether the new set is as large as the Deployment, and all its pods are available (upstream: IsSaturated).
fn is_saturated(new: &PlannedReplicaSet, deployment_replicas: i32) -> bool {
    let desired = new.annotation(DESIRED_REPLICAS);
    new.replicas() == deployment_replicas
        && desired == Some(deployment_replicas)
        && new.available() == deployment_replicas
}

/// By how much a set is scaled so that it keeps its proportion of the Deployment (upstream: getReplicaSetFraction).
fn replica_set_proportion(
    set: &PlannedReplicaSet,
    deployment_replicas: i32,
    max_after: i32,
    status_replicas: i32,
) -> i32 {
    if deployment_replicas == 0 {
        return -set.replicas();
    }
    let max_before = set.annotation(MAX_REPLICAS).unwrap_or(status_replicas);
    if max_before == 0 {
        return 0;
    }
    let size = f64::from(set.replicas()) * f64::from(max_after) / f64::from(max_before);
    // In range, as a proportion of two 32-bit sizes; otherwise `as` saturates.
    size.round() as i32 - set.replicas()
}
