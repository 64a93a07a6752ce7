//! B5: the nomination of the preemptor is the record of a preemption across nodes. It is written before the first victim is evicted. What it
//! records is finished or undone, also if the process that executes it dies in between: once all components have been free of faults for
//! [`DONE_WITHIN`], a preemptor that was nominated before is bound, removed or no longer nominated; and at rest no pod is nominated.
//!
//! Not promised: that a victim whose eviction was not requested before the preemption was undone has no condition DisruptionTarget.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use super::placed::{is_calm, zone_of_node};
use crate::finding::Finding;
use crate::placement::{LANDLORD, NAMESPACE, TENANT, is_of, nominated_node};
use crate::world::{Life, Observation, World, disrupted_by, node_of};

/// A preemptor that was bound or removed so long ago may still have requests in progress, as for P4.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// Four times the longest time for which a pod stays in the scheduler's queue of unschedulable pods (five minutes): less than the time
/// until the desired state has to be reached.
const DONE_WITHIN: SignedDuration = SignedDuration::from_mins(20);

/// The preemptors that are nominated and not bound, by UID.
pub(crate) fn preemptors(world: &World) -> impl Iterator<Item = (&String, &Life)> {
    world.pods.iter().filter(|(_, life)| {
        !life.removed()
            && is_of(&life.pod, LANDLORD)
            && node_of(&life.pod).is_empty()
            && !nominated_node(&life.pod).is_empty()
    })
}

/// The nodes with pods in the zone of this node that exclude a preemptor.
fn tenants_nodes<'a>(world: &'a World, node: &str) -> BTreeSet<&'a str> {
    let zone = zone_of_node(world, node);
    let tenants = world
        .pods
        .values()
        .filter(|life| !life.removed() && is_of(&life.pod, TENANT));
    tenants
        .map(|life| node_of(&life.pod))
        .filter(|node| zone_of_node(world, node) == zone)
        .collect()
}

/// The nodes with pods that a preemptor waits for.
pub(crate) fn blocked_on(world: &World) -> BTreeSet<&str> {
    let nodes = preemptors(world).map(|(_, life)| nominated_node(&life.pod));
    nodes
        .filter(|node| zone_of_node(world, node).is_some())
        .flat_map(|node| tenants_nodes(world, node))
        .collect()
}

fn has_record(uid: &str, life: &Life, world: &World) -> bool {
    let lately = |at: Option<_>| at.is_some_and(|at| world.now.duration_since(at) <= DECIDED_WITHIN);
    let is_nominated = !nominated_node(&life.pod).is_empty();
    // A request that got no answer may be carried out after the preemption was undone (seed 981000860).
    let was_nominated = world.placement.nominated.get(uid).copied();
    let is_over = lately(life.bound_at) || lately(life.removed_at) || lately(was_nominated);
    !life.removed() && is_nominated || is_over
}

/// A recorded preemption that is neither finished nor undone although nothing hinders it.
fn unfinished(world: &World) -> Result<(), Finding> {
    // Most histories have no preemptors.
    if world.placement.nominated.is_empty() {
        return Ok(());
    }
    let Some(well_since) = world.all_well_since(|_| true) else {
        return Ok(());
    };
    for (uid, life) in preemptors(world) {
        let Some(recorded) = world.placement.nominated.get(uid) else {
            continue;
        };
        if world.now.duration_since(well_since.max(*recorded)) > DONE_WITHIN {
            return Err(Finding(format!(
                "the preemption for {}, recorded {recorded} with the node {}, is neither finished nor undone",
                life.pod.metadata.name.as_deref().unwrap_or_default(),
                nominated_node(&life.pod)
            )));
        }
    }
    Ok(())
}

fn at_rest(world: &World) -> Result<(), Finding> {
    let nominated = world.pods.values().find(|life| {
        let is_placed = life.pod.metadata.namespace.as_deref() == Some(NAMESPACE);
        is_placed && !life.removed() && !nominated_node(&life.pod).is_empty()
    });
    match nominated {
        Some(life) => Err(Finding(format!(
            "{} is nominated to {}, with nothing left to be done",
            life.pod.metadata.name.as_deref().unwrap_or_default(),
            nominated_node(&life.pod)
        ))),
        None => Ok(()),
    }
}

fn preempted(before: Option<&Pod>, after: &Pod, world: &World) -> Result<(), Finding> {
    let is_preempted = |pod: &Pod| disrupted_by(pod) == Some("PreemptionByScheduler");
    if !is_of(after, TENANT) || !is_preempted(after) || before.is_some_and(is_preempted) {
        return Ok(());
    }
    // If all pods in the way are on one node, preemption on that node is enough, whose order is kube-scheduler's.
    if tenants_nodes(world, node_of(after)).len() < 2 || !is_calm(world) {
        return Ok(());
    }
    let mut preemptors = world.pods.iter().filter(|(_, life)| is_of(&life.pod, LANDLORD));
    match preemptors.any(|(uid, life)| has_record(uid, life, world)) {
        true => Ok(()),
        false => Err(Finding(format!(
            "{} is preempted across nodes, and no preemptor is nominated",
            after.metadata.name.as_deref().unwrap_or_default()
        ))),
    }
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    match seen {
        Observation::PodWritten { before, after, .. } => preempted(*before, after, world),
        Observation::Tick if world.resting => at_rest(world),
        Observation::Tick => unfinished(world),
        _ => Ok(()),
    }
}
