//! NodeResourcesFit: the requests of a pod must be free on the node; the scoring strategy decides which nodes are
//! better (LeastAllocated: the emptier ones).

use std::borrow::Cow;

use knarr_api::kinds::pod::resources::{DEVICE_CLASS_PREFIX, is_native};

use super::{MAX_NODE_SCORE, UnschedulableStatus};
use crate::dynamic_resources::claims::Change;
use crate::node_info::NodeInfo;
use crate::pod_info::{PodClass, PodInfo};
use crate::profile::{FitArgs, Profile, ShapePoint, Strategy};

pub const NAME: &str = "NodeResourcesFit";

/// The factor from the scores of shape points (0 to 10) to node scores.
const SHAPE_SCALE: i64 = MAX_NODE_SCORE / 10;

fn is_ignored(args: &FitArgs, name: &str) -> bool {
    let group = name.split('/').next().unwrap_or(name);
    !is_native(name)
        && (args.ignored_resources.contains(name) || args.ignored_resource_groups.contains(group))
}

pub fn filter(profile: &Profile, pod: &PodClass, node: &NodeInfo) -> Result<(), UnschedulableStatus> {
    let (has, used, asks) = (&node.allocatable, &node.requested, &pod.requests.resources);
    let mut reasons: Vec<Cow<'static, str>> = Vec::new();
    // More than the allocatable amount does not become free by removing pods.
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
        // DynamicResources handles what a DeviceClass provides here.
        if !is_ignored(&profile.fit, name) && !node.allocates_devices_for(name) {
            check(*amount, has.get(name), used.get(name), name);
        }
    }
    if reasons.is_empty() {
        return Ok(());
    }
    Err(UnschedulableStatus {
        plugin: NAME,
        reasons,
        resolvable: !too_large,
    })
}

/// Whether a DeviceClass now provides a resource that the pod requests.
pub fn class_change_helps(pod: &PodInfo, change: &Change) -> bool {
    let Change::Class {
        before,
        after: Some(after),
    } = change
    else {
        return false;
    };
    let asks = |name: &str| pod.requests().resources.get(name) > 0;
    let named = &after.spec.extended_resource_name;
    let is_new = before.is_none() && asks(&format!("{DEVICE_CLASS_PREFIX}{}", after.object().name()));
    let was = before
        .as_ref()
        .and_then(|b| b.spec.extended_resource_name.as_ref());
    is_new || (named.as_ref() != was && named.as_deref().is_some_and(asks))
}

/// The allocatable amount of a resource, and how much of it is requested with the pod; `None`: the resource does not
/// count.
fn used_with(pod: &PodClass, node: &NodeInfo, name: &str) -> Option<(i64, i64)> {
    let used = match name {
        "cpu" => {
            let filled_in = node.non_zero_requested.milli_cpu;
            filled_in.saturating_add(pod.requests.incoming.milli_cpu)
        }
        "memory" => {
            let filled_in = node.non_zero_requested.memory_bytes;
            filled_in.saturating_add(pod.requests.incoming.memory_bytes)
        }
        _ => {
            let asks = pod.requests.resources.get(name);
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

/// The score at a utilization, interpolated between the points of the shape.
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

/// Percent, truncated; 0 for a node that is overcommitted.
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
