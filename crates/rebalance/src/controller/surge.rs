//! Moves of pods with surge-first eviction (SPEC B6): the API server responds 429 until the pod is replaced. The move stays in
//! the status, where it counts once, and the same eviction is requested again; the policy plans nothing meanwhile, because a
//! plan would see the surplus.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::kinds::RecentMove;
use super::replacements::Workloads;
use super::state::{State, is_in_future};
use super::{Event, EvictionRequest, pod_reference};
use crate::plan::PodName;

/// The time between two requests, that of the response's `Retry-After`.
pub(super) const SURGE_RETRY: SignedDuration = SignedDuration::from_secs(5);

impl State {
    /// Whether the eviction of a pod waits for its replacement.
    pub fn waits_for_surge(&self) -> bool {
        self.surging().next().is_some()
    }

    fn surging(&self) -> impl Iterator<Item = &RecentMove> {
        let moves = self.status.recent_moves.iter();
        moves.filter(|recent| recent.surging && !recent.replaced)
    }

    /// The evictions to request again.
    pub fn requests_again(&self, workloads: &Workloads, now: Timestamp) -> Vec<EvictionRequest> {
        let is_degraded = self.degraded.as_ref().is_some_and(|finding| finding.holds);
        let retry_time = self.status.retry_time.as_ref();
        let is_too_early = retry_time.is_some_and(|time| is_in_future(time, now));
        let Some(policy) = self.spec().filter(|_| !is_degraded && !is_too_early) else {
            return Vec::new();
        };
        let live = self.surging().filter(|recent| workloads.is_live(&recent.uid));
        let requests = live.filter_map(|recent| {
            let mut rules = policy.strategies().map(|(_, strategy)| strategy.rule.name());
            let rule = rules.find(|rule| *rule == recent.rule)?;
            let pod = PodName {
                namespace: recent.namespace.clone(),
                name: recent.pod.clone(),
                uid: recent.uid.clone().into(),
            };
            let (kind, name) = (self.policy.kind().kind(), self.policy.name());
            let message = format!(
                "Evicted from node {} for {rule} by {kind} {name}, after it was replaced",
                recent.from
            );
            let event = Event {
                about: pod_reference(&pod),
                is_warning: false,
                reason: "RebalanceEvicted",
                message,
            };
            Some(EvictionRequest {
                pod,
                // As for the first request (SPEC S2).
                grace_period_seconds: policy.grace_period_seconds.map(|grace| grace.max(1)),
                rule,
                event,
            })
        });
        requests.collect()
    }
}
