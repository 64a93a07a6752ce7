//! B7: TERM waits until no node's proxy sends new connections to the pod, up to its bound.

use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use crate::finding::Finding;
use crate::world::{Observation, World, addresses_of, is_reporting};

/// The longest wait of TERM in these histories …
pub(crate) const BOUND: SignedDuration = SignedDuration::from_secs(1);
/// … by the fastest of their clocks.
const WAITED: SignedDuration = SignedDuration::from_millis(950);
/// Deletions with a shorter grace period do not wait: TERM is sent at once, so that two seconds are left.
const SHORTEST_GRACE_SECONDS: i64 = 3;
/// A node counts if its link and agent have been free of faults for so long: its report and the summary exist. It
/// need not be Ready: its kernel forwards nevertheless.
const SETTLED: SignedDuration = SignedDuration::from_secs(60);

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::Asked(process) = seen else {
        return Ok(());
    };
    let Some(life) = world.pods.get(&process.uid) else {
        return Ok(());
    };
    let (Some(deleted), false) = (life.deleted_at, life.released || process.is_sandbox_broken) else {
        return Ok(());
    };
    let grace = life.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
    let waited = world.now.duration_since(deleted);
    // A kubelet that was started since then resumes, and does not wait again.
    let own = format!("node/{}", process.node);
    let well = world.all_well_since(|name| name == own);
    let was_away = well.is_none_or(|since| world.now.duration_since(since) < SETTLED);
    // A replacement without a pause is no fault.
    let kubelet = world.kubelets.get(&process.node);
    let is_resumed = was_away || kubelet.is_some_and(|kubelet| kubelet.began >= deleted);
    if grace <= SHORTEST_GRACE_SECONDS || waited >= WAITED || is_resumed {
        return Ok(());
    }
    let ips: Vec<_> = addresses_of(&life.pod).collect();
    for (node, offered) in &world.kernels {
        let agent = format!("node/{node}");
        let is_settled = world
            .all_well_since(|name| name == agent)
            .is_some_and(|since| world.now.duration_since(since) >= SETTLED);
        let counts = is_settled && world.nodes.get(node).is_some_and(is_reporting);
        if counts && ips.iter().any(|ip| offered.contains(ip)) {
            return Err(Finding(format!(
                "container {} of {} gets TERM {waited:#} after its deletion, and {node} still sends it new connections",
                process.container, process.name
            )));
        }
    }
    Ok(())
}
