//! A DaemonSet's new template on node after node: by ending old pods while few enough are missing (`maxUnavailable`), or by
//! starting new ones beside them (`maxSurge`).

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSetSpec;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::Shared;
use knarr_api::k8s_openapi;

use super::Look;
use crate::deployment::scaling::scaled;
use crate::pod;

/// Pods to end and nodes that get one more.
#[derive(Default)]
pub struct Step<'p> {
    pub end: Vec<&'p Shared<Pod>>,
    pub start: Vec<String>,
}

pub fn is_rolling(spec: &DaemonSetSpec) -> bool {
    let strategy = spec.update_strategy.as_ref().and_then(|s| s.type_.as_deref());
    strategy != Some("OnDelete")
}

/// How many more than one a node may have for an update, of so many nodes.
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

/// The pods of one node that are not asked to end: the one of the new template and the one of an old one. `None` if there are
/// more of a kind: these are cleaned up first.
fn of_node<'p>(look: &Look<'_>, pods: &[&'p Shared<Pod>]) -> Option<[Option<&'p Shared<Pod>>; 2]> {
    let mut found = [None, None];
    for pod in pods.iter().filter(|p| !pod::is_deleting(p)) {
        let of = if look.is_updated(pod) { 0 } else { 1 };
        let place = found.get_mut(of)?;
        if place.is_some() {
            return None;
        }
        *place = Some(*pod);
    }
    Some(found)
}

pub fn step<'p>(look: &Look<'_>, by_node: &BTreeMap<String, Vec<&'p Shared<Pod>>>) -> Step<'p> {
    let wanted: Vec<&str> = look
        .nodes
        .iter()
        .filter(|(_, p)| p.should_run)
        .map(|(n, _)| *n)
        .collect();
    let nodes = crate::replicaset::count(wanted.len());
    let surge = max_surge(look.spec, nodes);
    let mut by_node = by_node.clone();
    for node in wanted {
        by_node.entry(node.to_string()).or_default();
    }
    if surge > 0 {
        surging(look, &by_node, surge, nodes)
    } else {
        let unavailable = max_unavailable(look.spec, nodes);
        ending(
            look,
            &by_node,
            if unavailable == 0 && nodes > 0 {
                1
            } else {
                unavailable
            },
        )
    }
}

fn ending<'p>(look: &Look<'_>, by_node: &BTreeMap<String, Vec<&'p Shared<Pod>>>, allowed: i32) -> Step<'p> {
    let mut unavailable = 0;
    let mut end = Vec::new();
    let mut candidates = Vec::new();
    for pods in by_node.values() {
        match of_node(look, pods) {
            Some([Some(new), None]) => unavailable += i32::from(!look.is_available(new)),
            // It serves nobody: it can be replaced at any time.
            Some([None, Some(old)]) if !look.is_available(old) => {
                end.push(old);
                unavailable += 1;
            }
            Some([None, Some(old)]) => candidates.push(old),
            _ => unavailable += 1,
        }
    }
    let room = usize::try_from(allowed - unavailable).unwrap_or(0);
    end.extend(candidates.into_iter().take(room));
    Step {
        end,
        start: Vec::new(),
    }
}

fn surging<'p>(
    look: &Look<'_>,
    by_node: &BTreeMap<String, Vec<&'p Shared<Pod>>>,
    max_surge: i32,
    wanted: i32,
) -> Step<'p> {
    let mut step = Step::default();
    let (mut surge, mut available) = (0, 0);
    let mut not_wanted = Vec::new();
    let mut candidates = Vec::new();
    for (node, pods) in by_node {
        let Some([new, old]) = of_node(look, pods) else {
            surge += 1;
            continue;
        };
        available += i32::from(old.or(new).is_some_and(|p| look.is_available(p)));
        let Some(old) = old else { continue };
        let should_run = look.nodes.get(node.as_str()).is_some_and(|p| p.should_run);
        match new {
            Some(new) if look.is_available(new) => step.end.push(old),
            Some(_) => surge += 1,
            None => match (look.is_available(old), should_run) {
                (false, false) => step.end.push(old),
                (false, true) => step.start.push(node.clone()),
                // Its work goes elsewhere: it ends once enough others are available.
                (true, false) => not_wanted.push(old),
                (true, true) => candidates.push(node.clone()),
            },
        }
    }
    let surplus = usize::try_from(available - wanted).unwrap_or(0);
    step.end.extend(not_wanted.into_iter().take(surplus));
    let room = usize::try_from(max_surge - surge).unwrap_or(0);
    step.start.extend(candidates.into_iter().take(room));
    step
}
