//! How many pods a Deployment may have and must have, and proportional scaling of its ReplicaSets.

use k8s_openapi::api::apps::v1::DeploymentSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;

use super::revision::MAX_REPLICAS;
use super::rollout::{PlannedReplicaSet, Rollout};

/// `maxSurge` and `maxUnavailable` as numbers of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutBounds {
    pub surge: i32,
    pub unavailable: i32,
}

/// Whether the strategy is RollingUpdate (the default).
pub fn is_rolling(spec: &DeploymentSpec) -> bool {
    let strategy = spec.strategy.as_ref().and_then(|s| s.type_.as_deref());
    strategy != Some("Recreate")
}

/// maxSurge is rounded up, maxUnavailable down; if both are 0 the rollout would make no progress, so one pod may be unavailable
/// (upstream: ResolveFenceposts).
pub fn rollout_bounds(spec: &DeploymentSpec) -> RolloutBounds {
    let replicas = spec.replicas.unwrap_or(1);
    if !is_rolling(spec) {
        return RolloutBounds {
            surge: 0,
            unavailable: 0,
        };
    }
    let rolling = spec.strategy.as_ref().and_then(|s| s.rolling_update.clone());
    let rolling = rolling.unwrap_or_default();
    let quarter = IntOrString::String("25%".into());
    let surge = scaled(rolling.max_surge.as_ref().unwrap_or(&quarter), replicas, true);
    let unavailable = scaled(
        rolling.max_unavailable.as_ref().unwrap_or(&quarter),
        replicas,
        false,
    );
    let unavailable = if surge == 0 && unavailable == 0 {
        1
    } else {
        unavailable
    };
    RolloutBounds {
        surge,
        unavailable: unavailable.min(replicas),
    }
}

/// A number, or a percentage of `total`. What does not parse is 0 (validation rejects it).
pub(crate) fn scaled(value: &IntOrString, total: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(n) => *n,
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%').and_then(|n| n.parse().ok()).unwrap_or(0);
            let hundredths = percent * i64::from(total);
            let n = if up {
                (hundredths + 99).div_euclid(100)
            } else {
                hundredths.div_euclid(100)
            };
            i32::try_from(n).unwrap_or(i32::MAX)
        }
    }
}

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
    let desired = new.annotation(super::revision::DESIRED_REPLICAS);
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
