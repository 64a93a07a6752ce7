//! P4: a pod is preempted only for one of a higher priority, which may preempt, and which is or was just now without a node.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::world::{Life, Seen, World, disrupted_by};

/// No request of the scheduler's is under way for longer.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

fn priority(pod: &Pod) -> i32 {
    let spec = pod.spec.as_ref();
    spec.and_then(|s| s.priority).unwrap_or_default()
}

fn preempts(pod: &Pod) -> bool {
    let policy = pod.spec.as_ref().and_then(|s| s.preemption_policy.as_deref());
    policy != Some("Never")
}

/// Whether it waited for a node when somebody decided, at the most so long ago.
fn waited(life: &Life, world: &World) -> bool {
    let lately = |at| world.now.duration_since(at) <= DECIDED_WITHIN;
    life.bound_at.is_none_or(lately) && life.removed_at.is_none_or(lately)
}

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::PodWritten { before, after, .. } = seen else {
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
    Err(format!(
        "{}, of priority {victim}, is preempted, and nothing of a higher priority that may preempt waits for a node",
        after.metadata.name.as_deref().unwrap_or_default()
    ))
}
