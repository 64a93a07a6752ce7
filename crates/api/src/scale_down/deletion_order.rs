//! v1.36's order of deletion when there are too many pods (upstream: ActivePodsWithRanks).

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use crate::Shared;
use crate::kinds::pod;
use crate::kinds::pod::surge_first::surge_remaining;
use crate::well_known::POD_DELETION_COST;

/// The first criteria: a pod that gives no service, or is being replaced, and the user's own preference, come before everything
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    is_assigned: bool,
    phase: u8,
    is_ready: bool,
    stays: bool,
    deletion_cost: i32,
}

impl Precedence {
    /// Unassigned before assigned; Pending before Unknown before Running; not ready before ready; with an eviction that waits for a
    /// replacement (SPEC B6) before others; lower pod-deletion-cost before higher.
    pub fn of(pod: &Pod, now: Timestamp) -> Self {
        Precedence {
            is_assigned: !pod::node_name(pod).is_empty(),
            phase: match pod::phase(pod) {
                "Pending" => 0,
                "Unknown" => 1,
                _ => 2,
            },
            is_ready: pod::is_ready(pod),
            stays: surge_remaining(pod, now).is_none(),
            deletion_cost: deletion_cost(pod),
        }
    }
}

/// Sorts pods in the order of deletion. `related_by_node` is the number of related pods on each node.
///
/// By [`Precedence`]; then on a node with more related pods before on one with fewer; ready for less time; restarted more often;
/// newer. Times are compared by magnitude only (powers of two), ties by uid, so that not always the youngest pods are deleted
/// (LogarithmicScaleDown, KEP-2185).
///
/// That is no total order: of three pods of one magnitude, two of which became ready in the same second, each may come before
/// the next one. The standard library's sorts may panic then; this one takes some order.
pub fn sort(pods: &mut [&Shared<Pod>], related_by_node: &BTreeMap<String, usize>, now: Timestamp) {
    let mut sorted: Vec<&Shared<Pod>> = Vec::with_capacity(pods.len());
    for &pod in pods.iter() {
        let at = sorted.partition_point(|p| compare(p, pod, related_by_node, now) != Ordering::Greater);
        sorted.insert(at, pod);
    }
    pods.copy_from_slice(&sorted);
}

fn compare(a: &Pod, b: &Pod, related_by_node: &BTreeMap<String, usize>, now: Timestamp) -> Ordering {
    let related = |p: &Pod| Reverse(related_by_node.get(pod::node_name(p)).copied().unwrap_or(0));
    Precedence::of(a, now)
        .cmp(&Precedence::of(b, now))
        .then_with(|| related(a).cmp(&related(b)))
        .then_with(|| {
            if pod::is_ready(a) && pod::is_ready(b) {
                younger_first(a, b, pod::ready_since(a), pod::ready_since(b), now)
            } else {
                Ordering::Equal
            }
        })
        .then_with(|| restarts(b).cmp(&restarts(a)))
        .then_with(|| younger_first(a, b, created(a), created(b), now))
}

fn created(pod: &Pod) -> Option<Timestamp> {
    pod.metadata.creation_timestamp.as_ref().map(|t| t.0)
}

fn younger_first(
    a: &Pod,
    b: &Pod,
    time_a: Option<Timestamp>,
    time_b: Option<Timestamp>,
    now: Timestamp,
) -> Ordering {
    match (time_a, time_b) {
        (Some(x), Some(y)) if x == y => Ordering::Equal,
        (Some(x), Some(y)) => magnitude(x, now)
            .cmp(&magnitude(y, now))
            .then_with(|| a.metadata.uid.cmp(&b.metadata.uid)),
        (None, None) => Ordering::Equal,
        // A missing time counts as the youngest.
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
    }
}

/// The binary logarithm of the nanoseconds since `time`; -1 if it has not passed.
fn magnitude(time: Timestamp, now: Timestamp) -> i64 {
    let nanoseconds = now.duration_since(time).as_nanos();
    match u128::try_from(nanoseconds) {
        Ok(n) if n > 0 => i64::from(n.ilog2()),
        _ => -1,
    }
}

fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    let cost = annotations.and_then(|a| a.get(POD_DELETION_COST));
    cost.and_then(|c| c.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref());
    let counts = statuses.unwrap_or_default().iter().map(|c| c.restart_count);
    counts.max().unwrap_or(0)
}
