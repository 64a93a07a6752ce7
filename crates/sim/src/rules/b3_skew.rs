//! B3: at rest, where a RebalancePolicy has nothing to do, the pods of a workload are spread as its constraint says: no zone has more pods
//! than the fewest of a zone and maxSkew.
//!
//! What is promised is not the smallest skew, but that no possible move that violates no rule more is left out. So the rule holds only
//!
//! - while the policy's last status says `NothingToDo`: not if a budget, a PodDisruptionBudget, a workload that is held, or a replacement
//!   that is not Ready keeps it from moving a pod, which its condition says;
//! - five minutes after the last write of a pod there, ten periods of the rebalancer, without faults and without a controller manager that
//!   ignores the lease;
//! - if all nodes are Ready, schedulable and without taints, so that all zones count, and all pods of the workload are Ready;
//! - if every node of the emptiest zones could take a pod: pods with requests leave room on it, and with one pod more it has not more
//!   of the workload than an even distribution over all nodes, which is a rule of its own (`Duplicates`). If that is not so for one of these
//!   nodes, the scheduler may choose it, and the move is not planned.
//!
//! No pod here has opted out, runs at most once, or has a volume.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod;

use super::placed::{counts, is_calm, zone_of_node};
use crate::finding::Finding;
use crate::placement::{SPREAD, is_of, is_recorded};
use crate::world::{Life, Observation, World, is_ready, node_of};

/// The maxSkew of the constraint.
const SKEW_MAX: usize = 1;
/// The rebalancer makes a plan every 30 s.
const QUIET_FOR: SignedDuration = SignedDuration::from_mins(5);

fn is_available(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let is_tainted = spec.is_some_and(|s| s.taints.as_ref().is_some_and(|taints| !taints.is_empty()));
    let is_cordoned = spec.and_then(|s| s.unschedulable) == Some(true);
    is_ready(node) && !is_tainted && !is_cordoned
}

fn has_requests(pod: &Pod) -> bool {
    let mut containers = pod.spec.iter().flat_map(|s| &s.containers);
    containers.any(|container| {
        let resources = container.resources.as_ref();
        resources.is_some_and(|r| r.requests.is_some())
    })
}

/// The pods of the workload by their nodes; none if the rule does not hold now.
fn by_node(world: &World) -> Option<BTreeMap<&str, usize>> {
    let is_plain = |life: &Life| {
        let pod = &life.pod;
        life.deleted_at.is_none() && pod::is_ready(pod) && !is_recorded(pod) && !node_of(pod).is_empty()
    };
    let mut by_node = BTreeMap::new();
    for life in world.pods.values().filter(|life| !life.removed()) {
        if !is_of(&life.pod, SPREAD) {
            continue;
        }
        if !is_plain(life) {
            return None;
        }
        *by_node.entry(node_of(&life.pod)).or_default() += 1;
    }
    Some(by_node)
}

fn check_at_rest(world: &World) -> Result<(), Finding> {
    let placement = &world.placement;
    let is_promised = placement.has_nothing_to_move
        && world.now.duration_since(placement.changed) >= QUIET_FOR
        && world.nodes.values().all(is_available)
        && is_calm(world);
    let Some(by_node) = is_promised.then(|| by_node(world)).flatten() else {
        return Ok(());
    };
    let counts = counts(world, false);
    let pods = |zone: &str| counts.get(zone).copied().unwrap_or_default();
    let zones: BTreeMap<&str, &str> = world
        .nodes
        .keys()
        .filter_map(|node| Some((node.as_str(), zone_of_node(world, node)?)))
        .collect();
    let fewest = zones.values().map(|zone| pods(zone)).min().unwrap_or_default();
    let most = zones.values().map(|zone| pods(zone)).max().unwrap_or_default();
    if most <= fewest + SKEW_MAX {
        return Ok(());
    }
    let even = by_node.values().sum::<usize>().div_ceil(zones.len().max(1));
    let can_take = |node: &str| {
        let there = by_node.get(node).copied().unwrap_or_default();
        let mut others = world
            .pods
            .values()
            .filter(|life| !life.removed() && life.node() == node);
        there < even && !others.any(|life| has_requests(&life.pod))
    };
    let mut emptiest = zones.iter().filter(|(_, zone)| pods(zone) == fewest);
    match emptiest.all(|(node, _)| can_take(node)) {
        true => Err(Finding(format!(
            "the rebalancer has nothing to do, and {SPREAD} has {most} pods in a zone and {fewest} in another"
        ))),
        false => Ok(()),
    }
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    match seen {
        Observation::Tick if world.resting => check_at_rest(world),
        _ => Ok(()),
    }
}
