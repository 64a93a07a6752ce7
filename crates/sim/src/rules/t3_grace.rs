//! T3, T4: nobody is killed before the grace in force has run out since it was asked to end. The newest word counts:
//! a grace that shrinks takes effect at once.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_node::runtime::fake::End;

use crate::world::{Process, Seen, World};

/// Deadlines are kept in whole seconds, and TERM may be underway for as long as a runtime is slow
/// (3 s, see `faults`): that is taken from the process, not by the kubelet.
const SLACK: SignedDuration = SignedDuration::from_secs(1 + 3);
/// A node that has not heard of its lease and then does has begun to end what was not to run so long ago, at the most.
const HEARD_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// As the API's default.
const DEFAULT_SECONDS: i64 = 30;

/// Whether it may have been ended because its node did not hear of its lease, with the time that was left (SPEC B4).
fn may_fence_itself(process: &Process, pod: &Pod, world: &World) -> bool {
    // Whether its volumes are for one node is not always told by what it has open.
    let concerned = world.self_fencing.ends(pod, true);
    let Some(heard) = world.heard.get(&format!("node/{}", process.node)) else {
        return concerned;
    };
    let asked = process.asked.unwrap_or(world.now);
    let silent = world.now.duration_since(heard.sent) >= world.may_fence_itself_after(&process.node);
    let was = |until: Timestamp| asked.duration_since(until) <= HEARD_AGAIN;
    concerned && (silent || heard.silent_until.is_some_and(was))
}

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Ended(process, End::Killed) = seen else {
        return Ok(());
    };
    let Some(life) = world.pods.get(&process.uid) else {
        return Ok(());
    };
    // Nobody has to wait for what is gone by a user's word.
    if life.released || life.removed() {
        return Ok(());
    }
    let pod = &life.pod;
    if may_fence_itself(process, pod, world) {
        return Ok(());
    }
    let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let asked_for = pod.metadata.deletion_grace_period_seconds;
    // A longer grace does not lengthen an end that has begun for another reason.
    let grace = match asked_for.zip(own) {
        Some((asked_for, own)) if process.homeless => Some(asked_for.min(own)),
        _ => asked_for.or(own),
    };
    let grace = grace.unwrap_or(DEFAULT_SECONDS);
    let Some(asked) = process.asked else {
        return Err(format!(
            "container {} was killed without having been asked to end (it has {grace} s)",
            process.container
        ));
    };
    // By the clock of its node.
    let had = world
        .rate(&process.node)
        .counted_signed(world.now.duration_since(asked));
    if had + SLACK < SignedDuration::from_secs(grace) {
        return Err(format!(
            "container {} was killed {had:#} after TERM, it has {grace} s",
            process.container
        ));
    }
    Ok(())
}
