//! B4: a pod that must not run twice (by its annotation or, where nodes are told so, by what it is) runs no longer where its
//! node's lease has not moved for the 40 s after which others may take the node for lost. A kubelet that died since, or whose runtime was not well, ends it
//! when it is back (docs/promises.md).
//!
//! Where nodes' clocks count at different rates, those within the bound end such a pod before the fastest clock within the bound
//! has counted these 40 s. A clock beyond the bound ends it before it has counted 40 s itself, which may be late for others:
//! no other rule holds any less then.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_kubelet::self_fencing::{DRIFT_PERCENT, LOST};

use crate::world::{Seen, World};

/// How long a kubelet that comes back, or whose runtime does, needs for what should have ended long ago, at the most.
const CATCHES_UP_WITHIN: SignedDuration = SignedDuration::from_secs(15);

/// What a node's hands are called among what is well or not: its kubelet and its runtime, whatever its link is like.
pub(crate) fn hands(node: &str) -> String {
    format!("hands/{node}")
}

/// After which silence nothing of such a pod may run on this node any more.
fn ended_by(node: &str, world: &World) -> std::time::Duration {
    let Some(rate) = world.rates.get(node) else {
        return LOST;
    };
    let by_the_fastest = LOST * 100 / (100 + DRIFT_PERCENT);
    // The order to KILL is given in time; carrying it out takes a slow runtime longer.
    let slowest = world.slowest.get(node).map_or(0, |slowest| slowest.as_millis());
    let by_the_fastest =
        by_the_fastest + std::time::Duration::from_millis(u64::try_from(slowest).unwrap_or(0));
    match rate.is_within_bound() {
        true => by_the_fastest,
        false => by_the_fastest.max(rate.passes(LOST)),
    }
}

pub(crate) fn check(seen: &Seen<'_>, world: &World) -> Result<(), String> {
    let Seen::Tick = seen else { return Ok(()) };
    for process in world.processes.values() {
        let concerned = world
            .pods
            .get(&process.uid)
            .is_some_and(|life| world.is_fenced_by_its_node(&process.uid, &life.pod));
        let Some(renewed) = world.renewed.get(&process.node).filter(|_| concerned) else {
            continue;
        };
        let silent = world.now.duration_since(*renewed);
        let Ok(lost) = SignedDuration::try_from(ended_by(&process.node, world)) else {
            continue;
        };
        let able = hands(&process.node);
        let able = world.all_well_since(|name| name == able);
        // What it made does not say how it is to be ended: a kubelet that begins while it is cut off leaves it alone.
        let made = (process.node.clone(), process.id.clone());
        let says_how = !world.made_by_former.contains(&made);
        let in_time = |since: Timestamp| {
            since <= *renewed || says_how && world.now.duration_since(since) >= CATCHES_UP_WITHIN
        };
        if silent >= lost && able.is_some_and(in_time) {
            return Err(format!(
                "container {} of {} still runs on {}, whose lease has not moved for {silent:#}",
                process.container, process.name, process.node
            ));
        }
    }
    Ok(())
}
