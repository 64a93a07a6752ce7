//! B7: TERM waits until no node's proxy sends new connections to the pod any more, for its bound at the most.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::world::{Seen, World, is_heard};

/// How long TERM waits at the most in these histories …
pub(crate) const BOUND: SignedDuration = SignedDuration::from_secs(1);
/// … by the fastest of their clocks.
const WAITED: SignedDuration = SignedDuration::from_millis(950);
/// Deletions with a shorter grace do not wait: TERM comes at once, so that there are two seconds left.
const SHORTEST_GRACE_SECONDS: i64 = 3;
/// A node counts whose link and agent have been well for so long: its report and the summary are there. It need not be Ready:
/// its kernel forwards all the same.
const SETTLED: SignedDuration = SignedDuration::from_secs(60);

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Asked(process) = seen else { return Ok(()) };
    let Some(life) = world.pods.get(&process.uid) else {
        return Ok(());
    };
    let (Some(deleted), false) = (life.deleted_at, life.released || process.homeless) else {
        return Ok(());
    };
    let grace = life.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    let waited = world.now.duration_since(deleted);
    // A kubelet that was started since resumes, and does not wait again.
    let own = format!("node/{}", process.node);
    let well = world.all_well_since(|name| name == own);
    let is_resumed = well.is_none_or(|since| world.now.duration_since(since) < SETTLED);
    if grace <= SHORTEST_GRACE_SECONDS || waited >= WAITED || is_resumed {
        return Ok(());
    }
    let ips = life.pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    let ips: Vec<_> = ips.filter_map(|ip| ip.ip.parse().ok()).collect();
    for (node, offered) in &world.kernels {
        let agent = format!("node/{node}");
        let is_settled = world
            .all_well_since(|name| name == agent)
            .is_some_and(|since| world.now.duration_since(since) >= SETTLED);
        let counts = is_settled && world.nodes.get(node).is_some_and(is_heard);
        if counts && ips.iter().any(|ip| offered.contains(ip)) {
            return Err(format!(
                "container {} of {} gets TERM {waited:#} after its deletion, and {node} still sends it new connections",
                process.container, process.name
            ));
        }
    }
    Ok(())
}
