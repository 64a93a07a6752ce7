//! The pods that a ReplicaSet has above its size while evictions of its pods wait for replacements (SPEC B6).

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::surge_first::{replaced_first, surge_remaining};

/// How many pods more than `spec.replicas` are desired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictionSurge {
    pub pods: usize,
    /// When it changes if nothing else does.
    pub changes_in: Option<Duration>,
}

impl EvictionSurge {
    /// One for each recorded request that has not expired, at most a quarter of the size. `pods` are the active ones.
    pub fn of(pods: &[Shared<Pod>], replicas: i32, now: Timestamp) -> Self {
        let active = || pods.iter().map(|p| &**p);
        EvictionSurge {
            pods: replaced_first(active(), replicas, now).len(),
            changes_in: active().filter_map(|p| surge_remaining(p, now)).min(),
        }
    }

    /// How many of so many pods are above the desired size because of it. The status does not count them: a Deployment would
    /// scale down other ReplicaSets for pods that are about to be evicted, and `kubectl rollout status` would wait for them.
    pub fn surplus(&self, pods: usize, replicas: i32) -> usize {
        let desired = usize::try_from(replicas).unwrap_or(0);
        pods.saturating_sub(desired).min(self.pods)
    }
}
