//! Rolling update of a DaemonSet: deletes old pods while few enough are unavailable (`maxUnavailable`), or creates new
//! ones in addition to them (`maxSurge`).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSetSpec;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::NodeName;

use super::SyncDaemonSet;
use crate::deployment::rollout_bounds::scaled;
use crate::pod;

/// Pods to delete, and nodes that get a further pod.
#[derive(Default)]
pub struct RolloutStep<'p> {
    pub pods_to_delete: Vec<&'p Shared<Pod>>,
    pub nodes_needing_pods: Vec<NodeName>,
}

pub fn is_rolling(spec: &DaemonSetSpec) -> bool {
    let strategy = spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
    strategy != Some("OnDelete")
}

/// How many nodes may have a second pod during an update, of so many nodes.
pub fn max_surge(spec: &DaemonSetSpec, nodes: i32) -> i32 {
    let rolling = spec
        .update_strategy
        .as_ref()
        .and_then(|s| s.rolling_update.as_ref());
    let surge = rolling
        .and_then(|r| r.max_surge.as_ref())
        .filter(|_| is_rolling(spec));
    surge.map_or(0, |s| scaled(s, nodes, true))
}

fn max_unavailable(spec: &DaemonSetSpec, nodes: i32) -> i32 {
    let rolling = spec
        .update_strategy
        .as_ref()
        .and_then(|s| s.rolling_update.as_ref());
    let unavailable = rolling.and_then(|r| r.max_unavailable.as_ref());
    unavailable.map_or(0, |u| scaled(u, nodes, true))
}

/// The pods of one node that are not terminating: the one of the new template and the one of an old template. `None` if there is
/// more than one of either: these are cleaned up first.
fn new_and_old_pod<'p>(
    sync: &SyncDaemonSet<'_>,
    pods: &[&'p Shared<Pod>],
) -> Option<[Option<&'p Shared<Pod>>; 2]> {
    let mut found = [None, None];
    for pod in pods.iter().filter(|p| !pod::is_deleting(p)) {
        let of = if sync.is_updated(pod) { 0 } else { 1 };
        let slot = found.get_mut(of)?;
        if slot.is_some() {
            return None;
        }
        *slot = Some(*pod);
    }
    Some(found)
}

pub fn rolling_update<'p>(
    sync: &SyncDaemonSet<'_>,
    by_node: &BTreeMap<NodeName, Vec<&'p Shared<Pod>>>,
) -> RolloutStep<'p> {
    let desired: Vec<NodeName> = sync
        .nodes
        .iter()
        .filter(|(_, p)| p.should_run)
        .map(|(n, _)| n.clone())
        .collect();
    let nodes = crate::replicaset::count(desired.len());
    let surge = max_surge(sync.spec, nodes);
    let mut by_node = by_node.clone();
    for node in desired {
        by_node.entry(node).or_default();
    }
    if surge > 0 {
        update_with_max_surge(sync, &by_node, surge, nodes)
    } else {
        let unavailable = max_unavailable(sync.spec, nodes);
        update_with_max_unavailable(
            sync,
            &by_node,
            if unavailable == 0 && nodes > 0 {
                1
            } else {
                unavailable
            },
        )
    }
}

fn update_with_max_unavailable<'p>(
    sync: &SyncDaemonSet<'_>,
    by_node: &BTreeMap<NodeName, Vec<&'p Shared<Pod>>>,
    allowed: i32,
) -> RolloutStep<'p> {
    let mut unavailable = 0;
    let mut pods_to_delete = Vec::new();
    let mut candidates = Vec::new();
    for pods in by_node.values() {
        match new_and_old_pod(sync, pods) {
            Some([Some(new), None]) => unavailable += i32::from(!sync.is_available(new)),
            // It is not available: it can be replaced at any time.
            Some([None, Some(old)]) if !sync.is_available(old) => {
                pods_to_delete.push(old);
                unavailable += 1;
            }
            Some([None, Some(old)]) => candidates.push(old),
            _ => unavailable += 1,
        }
    }
    let room = usize::try_from(allowed - unavailable).unwrap_or(0);
    pods_to_delete.extend(candidates.into_iter().take(room));
    RolloutStep {
        pods_to_delete,
        nodes_needing_pods: Vec::new(),
    }
}

fn update_with_max_surge<'p>(
    sync: &SyncDaemonSet<'_>,
    by_node: &BTreeMap<NodeName, Vec<&'p Shared<Pod>>>,
    max_surge: i32,
    desired: i32,
) -> RolloutStep<'p> {
    let mut step = RolloutStep::default();
    let (mut surge, mut available) = (0, 0);
    let mut misplaced = Vec::new();
    let mut candidates = Vec::new();
    for (node, pods) in by_node {
        let Some([new, old]) = new_and_old_pod(sync, pods) else {
            surge += 1;
            continue;
        };
        available += i32::from(old.or(new).is_some_and(|p| sync.is_available(p)));
        let Some(old) = old else { continue };
        let should_run = sync.nodes.get(node).is_some_and(|p| p.should_run);
        match new {
            Some(new) if sync.is_available(new) => step.pods_to_delete.push(old),
            Some(_) => surge += 1,
            None => match (sync.is_available(old), should_run) {
                (false, false) => step.pods_to_delete.push(old),
                (false, true) => step.nodes_needing_pods.push(node.clone()),
                // The node should not run it: it is deleted once enough others are available.
                (true, false) => misplaced.push(old),
                (true, true) => candidates.push(node.clone()),
            },
        }
    }
    let surplus = usize::try_from(available - desired).unwrap_or(0);
    step.pods_to_delete.extend(misplaced.into_iter().take(surplus));
    let room = usize::try_from(max_surge - surge).unwrap_or(0);
    step.nodes_needing_pods.extend(candidates.into_iter().take(room));
    step
}
