//! B5: the nomination of the preemptor is the record of a preemption across nodes: it is written before the first victim is evicted.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::SignedDuration;
use knarr_api::k8s_openapi;

use super::placed::{is_calm, zone_of_node};
use crate::finding::Finding;
use crate::placement::{LANDLORD, TENANT, is_of};
use crate::world::{Life, Observation, World, disrupted_by};

/// A preemptor that was bound or removed so long ago may still have requests in progress, as for P4.
const DECIDED_WITHIN: SignedDuration = SignedDuration::from_secs(60);

fn has_record(life: &Life, world: &World) -> bool {
    let lately = |at: Option<_>| at.is_some_and(|at| world.now.duration_since(at) <= DECIDED_WITHIN);
    let status = life.pod.status.as_ref();
    let is_nominated = status.is_some_and(|s| {
        s.nominated_node_name
            .as_ref()
            .is_some_and(|node| !node.is_empty())
    });
    !life.removed() && is_nominated || lately(life.bound_at) || lately(life.removed_at)
}

pub(crate) fn check(seen: &Observation<'_>, world: &World) -> Result<(), Finding> {
    let Observation::PodWritten { before, after, .. } = seen else {
        return Ok(());
    };
    let is_preempted = |pod: &Pod| disrupted_by(pod) == Some("PreemptionByScheduler");
    if !is_of(after, TENANT) || !is_preempted(after) || before.is_some_and(is_preempted) {
        return Ok(());
    }
    // If all pods in the way are on one node, preemption on that node is enough, whose order is kube-scheduler's.
    let node = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|s| s.node_name.clone())
            .unwrap_or_default()
    };
    let zone = zone_of_node(world, &node(after));
    let tenants = world
        .pods
        .values()
        .filter(|life| !life.removed() && is_of(&life.pod, TENANT));
    let nodes = tenants
        .map(|life| node(&life.pod))
        .filter(|node| zone_of_node(world, node) == zone);
    let nodes: std::collections::BTreeSet<String> = nodes.collect();
    if nodes.len() < 2 || !is_calm(world) {
        return Ok(());
    }
    let mut preemptors = world.pods.values().filter(|life| is_of(&life.pod, LANDLORD));
    match preemptors.any(|life| has_record(life, world)) {
        true => Ok(()),
        false => Err(Finding(format!(
            "{} is preempted across nodes, and no preemptor is nominated",
            after.metadata.name.as_deref().unwrap_or_default()
        ))),
    }
}
