//! Queueing hints (SPEC P3): for each plugin, whether an event may make a pod schedulable that the plugin rejected. A
//! heartbeat requeues no pod. The pods of a plugin without a hint are requeued by each such change of a node, and by no change of
//! another object.

use crate::node_info::NodeInfo;
use crate::plugins::{
    dynamic_resources, inter_pod_affinity, node_affinity, node_name, node_ports, node_resources_fit,
    node_unschedulable, node_volume_limits, pod_topology_spread, taint_toleration, volume_binding,
    volume_restrictions, volume_zone,
};
use crate::pod_info::{PodClass, PodInfo, selects};
use crate::profile::Profile;
use crate::volumes::{Change, volume_limit, waits_for_consumer};

/// The plugins for which adding or deleting a pod may matter.
pub const POD_EVENT_PLUGINS: &[&str] = &[
    node_resources_fit::NAME,
    node_ports::NAME,
    pod_topology_spread::NAME,
    inter_pod_affinity::NAME,
    volume_restrictions::NAME,
    node_volume_limits::NAME,
];

/// The plugins for which a change of volumes and claims may matter.
pub const STORAGE_EVENT_PLUGINS: &[&str] = &[
    volume_restrictions::NAME,
    node_volume_limits::NAME,
    volume_binding::NAME,
    volume_zone::NAME,
];

/// The plugins for which a change of claims and devices may matter; for NodeResourcesFit only that of DeviceClasses
/// with extended resources.
pub const DEVICE_EVENT_PLUGINS: &[&str] = &[dynamic_resources::NAME, node_resources_fit::NAME];

/// A node was added, updated or deleted. Both versions are without their pods.
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
        dynamic_resources::NAME => after.is_some_and(|after| {
            before.is_none_or(|b| b.labels() != after.labels() || b.allocatable != after.allocatable)
        }),
        volume_restrictions::NAME => before.is_none() && after.is_some(),
        node_volume_limits::NAME => false,
        volume_binding::NAME | volume_zone::NAME => {
            after.is_some_and(|after| before.is_none_or(|b| b.labels() != after.labels()))
        }
        _ => after.is_some(),
    }
}

/// A pod was assigned to a node (`came`), or was deleted or has terminated there.
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
                // The default constraints use the selectors of owners, which are not known here.
                && (constraints.is_empty()
                    || constraints
                        .iter()
                        .any(|c| c.hard && selects(&c.selector, other.labels())))
        }
        inter_pod_affinity::NAME => inter_pod_affinity::pod_change_helps(class, other, came),
        volume_restrictions::NAME => !came && volume_restrictions::pod_leaving_helps(class, other),
        node_volume_limits::NAME => !came && node_volume_limits::pod_leaving_helps(other),
        _ => false,
    }
}

/// The declared domains of these topology keys have changed (SPEC B3).
pub fn topology_domains_changed(plugin: &str, pod: &PodInfo, keys: &[String]) -> bool {
    let Ok(constraints) = &pod.class.spread else {
        return true;
    };
    plugin == pod_topology_spread::NAME
        // The default constraints are not known here.
        && (constraints.is_empty()
            || constraints.iter().any(|c| c.hard && keys.contains(&c.topology_key)))
}

/// A storage object was added, updated or deleted.
pub fn storage_changed(plugin: &str, pod: &PodInfo, change: &Change) -> bool {
    match plugin {
        volume_restrictions::NAME => matches!(change, Change::Claim { before: None, after: Some(claim) }
            if is_named_claim(pod, claim.object().namespace(), claim.object().name())),
        node_volume_limits::NAME => match change {
            Change::Node { before, after } => {
                node_volume_limits::csi_node_helps(before.as_deref(), after.as_deref())
            }
            Change::Claim {
                before: None,
                after: Some(claim),
            } => is_claim(pod, claim.object().namespace(), claim.object().name()),
            Change::Attachment {
                before: Some(gone),
                after: None,
            } => pod.class.volumes.as_ref().is_some_and(|v| {
                v.named().next().is_some() || v.inline.iter().any(|a| a.driver == gone.spec.attacher)
            }),
            _ => false,
        },
        volume_binding::NAME => match change {
            Change::Claim {
                after: Some(claim), ..
            } => is_claim(pod, claim.object().namespace(), claim.object().name()),
            Change::Volume { after, .. } => after.is_some(),
            Change::Class {
                before,
                after: Some(after),
            } => before
                .as_ref()
                .is_none_or(|b| b.allowed_topologies != after.allowed_topologies),
            Change::Node {
                before,
                after: Some(_),
            } => before.is_none(),
            Change::Driver {
                before: Some(before),
                after: Some(after),
            } => {
                let gave_up =
                    before.spec.storage_capacity == Some(true) && after.spec.storage_capacity != Some(true);
                gave_up && uses_driver(pod, after.object().name())
            }
            Change::Capacity {
                before,
                after: Some(after),
            } => {
                let was = before.as_ref().and_then(|b| volume_limit(b));
                before.is_none() || volume_limit(after).is_some_and(|is| was.is_none_or(|was| is > was))
            }
            _ => false,
        },
        volume_zone::NAME => match change {
            Change::Claim {
                after: Some(claim), ..
            } => is_named_claim(pod, claim.object().namespace(), claim.object().name()),
            Change::Volume { before, after } => {
                volume_zone::volume_helps(before.as_deref(), after.as_deref())
            }
            Change::Class {
                before: None,
                after: Some(class),
            } => waits_for_consumer(class),
            _ => false,
        },
        _ => false,
    }
}

/// Whether one of the pod's volumes uses the claim.
fn is_claim(pod: &PodInfo, namespace: &str, name: &str) -> bool {
    let volumes = pod.class.volumes.as_ref();
    pod.class.namespace() == namespace && volumes.is_some_and(|v| v.uses(name))
}

/// The same, and the pod spec names the claim.
fn is_named_claim(pod: &PodInfo, namespace: &str, name: &str) -> bool {
    let volumes = pod.class.volumes.as_ref();
    pod.class.namespace() == namespace && volumes.is_some_and(|v| v.named().any(|n| n == name))
}

/// Whether the pod has an inline CSI volume of the driver.
fn uses_driver(pod: &PodInfo, driver: &str) -> bool {
    let spec = pod.pod.spec.as_ref();
    let mut volumes = spec.and_then(|s| s.volumes.as_ref()).into_iter().flatten();
    volumes.any(|v| v.csi.as_ref().is_some_and(|c| c.driver == driver))
}
