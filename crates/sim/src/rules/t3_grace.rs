//! T3, T4: nobody is killed before the grace in force has run out since it was asked to end. The newest word counts:
//! a grace that shrinks takes effect at once.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_node::runtime::fake::End;

use crate::world::{Seen, World};

/// Deadlines are kept in whole seconds, and TERM may be underway for as long as a runtime is slow
/// (3 s, see `faults`): that is taken from the process, not by the kubelet.
const SLACK: SignedDuration = SignedDuration::from_secs(1 + 3);
/// As the API's default.
const DEFAULT_SECONDS: i64 = 30;

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
    let own = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
    let grace = pod.metadata.deletion_grace_period_seconds.or(own);
    let grace = grace.unwrap_or(DEFAULT_SECONDS);
    let Some(asked) = process.asked else {
        return Err(format!(
            "container {} was killed without having been asked to end (it has {grace} s)",
            process.container
        ));
    };
    let had = world.now.duration_since(asked);
    if had + SLACK < SignedDuration::from_secs(grace) {
        return Err(format!(
            "container {} was killed {had:#} after TERM, it has {grace} s",
            process.container
        ));
    }
    Ok(())
}
