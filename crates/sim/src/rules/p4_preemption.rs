//! P4: a pod is preempted only for one of a higher priority whose preemptionPolicy allows it, and which has no node
//! or had none just now, as far as a scheduler can know that.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{Life, Observation, WITHOUT_LEASE, World, disrupted_by};

/// The longest time that a request of the scheduler is in progress.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

fn priority(pod: &Pod) -> i32 {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.priority).unwrap_or_default()
}

fn preempts(pod: &Pod) -> bool {
    let policy = pod.spec.as_ref().and_then(|s| s.preemption_policy.as_deref());
    policy != Some("Never")
}

/// Whether the pod may have waited for a node as far as the scheduler knew when it decided, at most so long ago.
fn waited(life: &Life, world: &World) -> bool {
    let lately = |at| world.now.duration_since(at) <= DECIDED_WITHIN;
    is_view_old(world) || life.bound_at.is_none_or(lately) && life.removed_at.is_none_or(lately)
}

/// Whether a manager that ignores the lease may decide by what was true before a fault: its watches resume, and it receives the
/// changes since then one after the other.
fn is_view_old(world: &World) -> bool {
    let well = world.all_well_since(|name| name == WITHOUT_LEASE);
    let is_settled = well.is_some_and(|since| world.now.duration_since(since) > DECIDED_WITHIN);
    world.has_manager_without_lease() && !is_settled
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::PodWritten { before, after, .. } = seen else {
        return Ok(());
    };
    let is_preempted = |pod: &Pod| disrupted_by(pod) == Some("PreemptionByScheduler");
    if !is_preempted(after) || before.is_some_and(is_preempted) {
        return Ok(());
    }
    let victim = priority(after);
    let mut others = world.pods.values();
    if others.any(|life| priority(&life.pod) > victim && preempts(&life.pod) && waited(life, world)) {
        return Ok(());
    }
    Err(Finding(format!(
        "{}, of priority {victim}, is preempted, and nothing of a higher priority that may preempt waits for a node",
        after.metadata.name.as_deref().unwrap_or_default()
    )))
}
