//! How many pods a Deployment may have and must have during a rollout: `maxSurge` and `maxUnavailable`. The percentages of DaemonSets, StatefulSets and
//! PodDisruptionBudgets are computed here, too (`scaled`).

use k8s_openapi::api::apps::v1::DeploymentSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;

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
