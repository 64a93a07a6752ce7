//! T3, T4: no process is killed before the grace period in force has run out since TERM. The latest value counts: a
//! shorter grace period takes effect at once.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_node::runtime::fake::End;

use crate::finding::Finding;
use crate::world::{Observation, Process, World};

/// Deadlines are kept in whole seconds, and the call that sends TERM may take as long as a runtime is slow (3 s, see
/// `faults`): that time is taken from the process, not by the kubelet.
const SLACK: SignedDuration = SignedDuration::from_secs(1 + 3);
/// A node whose lease was renewed again after a silence has begun to terminate its at-most-one pods so long ago, at
/// most.
const RENEWED_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// As the default of the API.
const DEFAULT_SECONDS: i64 = 30;

/// Whether the process may have been terminated because its node's lease was not renewed, with the time that was left
/// (SPEC B4).
fn may_fence_itself(process: &Process, pod: &Pod, world: &World) -> bool {
    // Whether its volumes are exclusive to one node does not always follow from what it has open.
    let concerned = world.self_fencing.applies_to(pod, true);
    let Some(renewal) = world.lease_renewals.get(&format!("node/{}", process.node)) else {
        return concerned;
    };
    let stop_requested = process.stop_requested.unwrap_or(world.now);
    let silent = world.now.duration_since(renewal.sent) >= world.may_fence_itself_after(&process.node);
    let was = |until: Timestamp| stop_requested.duration_since(until) <= RENEWED_WITHIN;
    concerned && (silent || renewal.silent_until.is_some_and(was))
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Ended(process, End::Killed) = seen else {
        return Ok(());
    };
    let Some(life) = world.pods.get(&process.uid) else {
        return Ok(());
    };
    // A pod that a user released has no grace period left.
    if life.released || life.removed() {
        return Ok(());
    }
    let pod = &life.pod;
    if may_fence_itself(process, pod, world) {
        return Ok(());
    }
    let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let asked_for = pod.metadata.deletion_grace_period_seconds;
    // A longer grace period does not lengthen a termination that has begun for another reason.
    let grace = match asked_for.zip(own) {
        Some((asked_for, own)) if process.is_sandbox_broken => Some(asked_for.min(own)),
        _ => asked_for.or(own),
    };
    let grace = grace.unwrap_or(DEFAULT_SECONDS);
    let Some(stop_requested) = process.stop_requested else {
        return Err(Finding(format!(
            "container {} was killed without having been asked to end (it has {grace} s)",
            process.container
        )));
    };
    // By a clock of its node.
    let had = world
        .rate(&process.node)
        .counted_by_either(world.now.duration_since(stop_requested));
    if had + SLACK < SignedDuration::from_secs(grace) {
        return Err(Finding(format!(
            "container {} was killed {had:#} after TERM, it has {grace} s",
            process.container
        )));
    }
    Ok(())
}
