//! Which events bring back which pods (SPEC P3): each plugin says whether what happened could change its mind about a
//! pod that it was against. A heartbeat wakes nobody.

use crate::node_info::NodeInfo;
use crate::plugins::{
    inter_pod_affinity, node_affinity, node_name, node_ports, node_resources_fit, node_unschedulable,
    pod_topology_spread, taint_toleration,
};
use crate::pod_info::{PodClass, PodInfo, selects};
use crate::profile::Profile;

/// The plugins that look at pods, for whom the coming or going of one may matter.
pub const LOOK_AT_PODS: &[&str] = &[
    node_resources_fit::NAME,
    node_ports::NAME,
    pod_topology_spread::NAME,
    inter_pod_affinity::NAME,
];

/// A node has come, changed or gone. Both are without their pods.
pub fn node_changed(
    profile: &Profile,
    plugin: &str,
    pod: &PodInfo,
    before: Option<&NodeInfo>,
    after: Option<&NodeInfo>,
) -> bool {
    let class = &*pod.class;
    let newly = |takes: &dyn Fn(&NodeInfo) -> bool| after.is_some_and(takes) && !before.is_some_and(takes);
    match plugin {
        node_unschedulable::NAME => newly(&|n| node_unschedulable::filter(profile, class, n).is_ok()),
        taint_toleration::NAME => newly(&|n| taint_toleration::filter(profile, class, n).is_ok()),
        node_affinity::NAME => newly(&|n| node_affinity::filter(profile, class, n).is_ok()),
        node_name::NAME => newly(&|n| node_name::filter(pod.node_name(), n).is_ok()),
        node_ports::NAME => before.is_none() && after.is_some(),
        node_resources_fit::NAME => after.is_some_and(|after| {
            let grew = before.is_none_or(|b| b.allocatable != after.allocatable);
            grew && node_resources_fit::filter(profile, class, after).is_ok()
        }),
        pod_topology_spread::NAME => pod_topology_spread::node_change_helps(class, before, after),
        inter_pod_affinity::NAME => inter_pod_affinity::node_change_helps(class, before, after),
        _ => after.is_some(),
    }
}

/// A pod has come to a node (`came`) or left one, or has ended there.
pub fn pod_changed(plugin: &str, pod: &PodInfo, other: &PodClass, came: bool) -> bool {
    let class = &*pod.class;
    match plugin {
        node_resources_fit::NAME => !came,
        node_ports::NAME => {
            let frees = |p| other.host_ports.iter().any(|o| o.conflicts(p));
            !came && class.host_ports.iter().any(frees)
        }
        pod_topology_spread::NAME => {
            let Ok(constraints) = &class.spread else {
                return true;
            };
            class.namespace() == other.namespace()
                // The default constraints select what belongs together, which is not known here.
                && (constraints.is_empty()
                    || constraints
                        .iter()
                        .any(|c| c.hard && selects(&c.selector, other.labels())))
        }
        inter_pod_affinity::NAME => inter_pod_affinity::pod_change_helps(class, other, came),
        _ => false,
    }
}
