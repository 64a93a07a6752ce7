//! NodeResourcesFit: what a pod asks for must be free; which nodes are the better ones is a matter of the strategy
//! (LeastAllocated: the emptier ones).

use std::borrow::Cow;

use knarr_api::kinds::pod::resources::{DEVICE_CLASS_PREFIX, is_native};

use super::{MAX_NODE_SCORE, Refusal};
use crate::dynamic_resources::claims::Change;
use crate::node_info::NodeInfo;
use crate::pod_info::{PodClass, PodInfo};
use crate::profile::{FitArgs, Profile, ShapePoint, Strategy};

pub const NAME: &str = "NodeResourcesFit";

/// What scores of the configuration are multiplied with: those go to 10.
const SHAPE_SCALE: i64 = MAX_NODE_SCORE / 10;

fn is_ignored(args: &FitArgs, name: &str) -> bool {
    let group = name.split('/').next().unwrap_or(name);
    !is_native(name)
        && (args.ignored_resources.contains(name) || args.ignored_resource_groups.contains(group))
}

pub fn filter(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), Refusal> {
    let (has, used, asks) = (&node.allocatable, &node.requested, &pod.requests.room);
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    // What the whole node does not have is not had by removing pods either.
    let mut too_large = false;
    let pods = i64::try_from(node.pods().len()).unwrap_or(i64::MAX);
    if pods.saturating_add(1) > has.pods {
        reasons.push("Too many pods".into());
    }
    let mut check = |asks: i64, has: i64, used: i64, name: &str| {
        if asks > 0 && asks > has.saturating_sub(used) {
            reasons.push(format!("Insufficient {name}").into());
            too_large |= asks > has;
        }
    };
    check(asks.milli_cpu, has.milli_cpu, used.milli_cpu, "cpu");
    check(asks.memory_bytes, has.memory_bytes, used.memory_bytes, "memory");
    check(
        asks.ephemeral_storage_bytes,
        has.ephemeral_storage_bytes,
        used.ephemeral_storage_bytes,
        "ephemeral-storage",
    );
    for (name, amount) in &asks.scalars {
        // DynamicResources sees to what a DeviceClass stands for here.
        if !is_ignored(&profile.fit, name) && !node.allocates_devices_for(name) {
            check(*amount, has.get(name), used.get(name), name);
        }
    }
    if reasons.is_empty() {
        return Ok(());
    }
    Err(Refusal {
        plugin: NAME,
        reasons,
        pods_in_the_way: !too_large,
    })
}

/// Whether a DeviceClass now stands for a resource that the pod asks for.
pub fn class_change_helps(pod: &PodInfo, change: &Change) -> bool {
    let Change::Class {
        before,
        after: Some(after),
    } = change
    else {
        return false;
    };
    let asks = |name: &str| pod.requests().room.get(name) > 0;
    let named = &after.spec.extended_resource_name;
    let is_new = before.is_none() && asks(&format!("{DEVICE_CLASS_PREFIX}{}", after.object().name()));
    let was = before
        .as_ref()
        .and_then(|b| b.spec.extended_resource_name.as_ref());
    is_new || (named.as_ref() != was && named.as_deref().is_some_and(asks))
}

/// What the node has of a resource, and what of it is used with the pod; `None`: it has no bearing on the score.
fn used_with(pod: &PodClass, node: &NodeInfo, name: &str) -> Option<(i64, i64)> {
    let used = match name {
        "cpu" => {
            let filled_in = node.requested_filled_in.milli_cpu;
            filled_in.saturating_add(pod.requests.placing.milli_cpu)
        }
        "memory" => {
            let filled_in = node.requested_filled_in.memory_bytes;
            filled_in.saturating_add(pod.requests.placing.memory_bytes)
        }
        _ => {
            let asks = pod.requests.room.get(name);
            if asks == 0 && name != "ephemeral-storage" {
                return None;
            }
            node.requested.get(name).saturating_add(asks)
        }
    };
    Some((node.allocatable.get(name), used)).filter(|(has, _)| *has != 0)
}

pub fn score(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> i64 {
    let args = &profile.fit;
    let (mut sum, mut weights) = (0_i64, 0_i64);
    for resource in &args.resources {
        let Some((has, used)) = used_with(pod, node, &resource.name) else {
            continue;
        };
        let score = match &args.strategy {
            Strategy::LeastAllocated => share(has.saturating_sub(used), has),
            Strategy::MostAllocated => share(used.min(has), has),
            Strategy::RequestedToCapacityRatio(shape) => {
                let utilization = if used > has { 100 } else { share(used, has) };
                let score = on_the_line(shape, utilization);
                if score <= 0 {
                    continue;
                }
                score
            }
        };
        sum += score * resource.weight;
        weights += resource.weight;
    }
    match &args.strategy {
        _ if weights == 0 => 0,
        Strategy::RequestedToCapacityRatio(_) => (sum as f64 / weights as f64).round() as i64,
        _ => sum / weights,
    }
}

/// The score at a utilization, on straight lines between the points.
fn on_the_line(shape: &[ShapePoint], utilization: i64) -> i64 {
    let mut before: Option<&ShapePoint> = None;
    for point in shape {
        let score = point.score * SHAPE_SCALE;
        if utilization <= point.utilization {
            return match before {
                None => score,
                Some(before) => {
                    let from = before.score * SHAPE_SCALE;
                    let width = point.utilization - before.utilization;
                    from + (score - from) * (utilization - before.utilization) / width.max(1)
                }
            };
        }
        before = Some(point);
    }
    before.map_or(0, |last| last.score * SHAPE_SCALE)
}

/// Percent, cut off; nothing of a node that is overfull.
fn share(part: i64, of: i64) -> i64 {
    if part < 0 || of == 0 {
        return 0;
    }
    match part.checked_mul(MAX_NODE_SCORE) {
        Some(product) => product / of,
        // Bytes times 100 may not fit 64 bits on very large nodes.
        None => i64::try_from(i128::from(part) * i128::from(MAX_NODE_SCORE) / i128::from(of)).unwrap_or(0),
    }
}
