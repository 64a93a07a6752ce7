//! The annotations that say whether a pod may be moved.

use knarr_scheduler::pod_info::Labels;

/// Of a pod or a Namespace: `"false"` forbids moving the pod (the pods), `"true"` consents to the replacement of pods
/// that must never run twice and of those that a policy protects. The pod's own comes first.
pub const REBALANCE: &str = "knarr.io/rebalance";
/// The descheduler's: whatever its value, it lifts a policy's protections, as `knarr.io/rebalance: "true"`.
pub const EVICT: &str = "descheduler.alpha.kubernetes.io/evict";
/// The descheduler's: such pods are the last, or are not moved if the policy says so.
pub const PREFER_NO_EVICTION: &str = "descheduler.alpha.kubernetes.io/prefer-no-eviction";

/// What [`REBALANCE`] or [`EVICT`] says; `None`: nothing.
pub fn opt_in(annotations: Option<&Labels>) -> Option<bool> {
    let annotations = annotations?;
    match annotations.get(REBALANCE).map(String::as_str) {
        Some("false") => Some(false),
        Some("true") => Some(true),
        _ => annotations.contains_key(EVICT).then_some(true),
    }
}

pub fn has(annotations: Option<&Labels>, name: &str) -> bool {
    annotations.is_some_and(|a| a.contains_key(name))
}
