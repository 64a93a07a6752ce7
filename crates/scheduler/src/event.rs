//! Why a pod was added to a queue: the label `event` of kube-scheduler's metrics. An event of an object is named by its
//! kind and what happened to it (upstream: ClusterEvent.Label).

use std::collections::BTreeMap;

use crate::dynamic_resources::claims;
use crate::node_info::NodeInfo;
use crate::plugins::{
    dynamic_resources, inter_pod_affinity, node_affinity, node_resources_fit, node_unschedulable,
    pod_topology_spread, taint_toleration, volume_binding, volume_zone,
};
use crate::pod_info::PodInfo;
use crate::volumes;

pub const ATTEMPT_FAILURE: &str = "ScheduleAttemptFailure";
pub const BACKOFF_COMPLETE: &str = "BackoffComplete";
pub const POP_FROM_BACKOFF_Q: &str = "PopFromBackoffQ";
pub const FORCE_ACTIVATE: &str = "ForceActivate";
pub const UNSCHEDULABLE_TIMEOUT: &str = "UnschedulableTimeout";

pub const POD_ADD: &str = "UnschedulablePodAdd";
pub const POD_UPDATE: &str = "UnschedulablePodUpdate";
pub const POD_GATES_ELIMINATED: &str = "UnschedulablePodUpdatePodSchedulingGatesEliminated";
pub const ASSIGNED_POD_ADD: &str = "AssignedPodAdd";
pub const ASSIGNED_POD_UPDATE_LABEL: &str = "AssignedPodUpdatePodLabel";
pub const ASSIGNED_POD_DELETE: &str = "AssignedPodDelete";

pub const TOPOLOGY_DOMAINS_UPDATE: &str = "placement.knarr.io/TopologyDomainsUpdate";
/// A PodDisruptionBudget allows more evictions (SPEC B6); kube-scheduler has no such event.
pub const BUDGET_UPDATE: &str = "PodDisruptionBudgetUpdate";

const NODE_UPDATE_ALLOCATABLE: &str = "NodeUpdateNodeAllocatable";
const NODE_UPDATE_LABEL: &str = "NodeUpdateNodeLabel";
const NODE_UPDATE_TAINT: &str = "NodeUpdateNodeTaint";

macro_rules! of_kind {
    ($kind:literal, $before:expr, $after:expr) => {
        match ($before, $after) {
            (None, _) => concat!($kind, "Add"),
            (Some(_), None) => concat!($kind, "Delete"),
            (Some(_), Some(_)) => concat!($kind, "Update"),
        }
    };
}

/// An update of a pod without a node, but for its gates: the first of its properties that has changed
/// (PodSchedulingPropertiesChange).
pub fn of_pod_update(before: &PodInfo, after: &PodInfo) -> &'static str {
    let tolerations = |pod: &PodInfo| {
        let spec = pod.pod.spec.as_ref();
        spec.and_then(|s| s.tolerations.as_ref()).map_or(0, Vec::len)
    };
    let (was, is) = (before.pod.status.as_ref(), after.pod.status.as_ref());
    let claims_made = was.and_then(|s| s.resource_claim_statuses.as_ref())
        != is.and_then(|s| s.resource_claim_statuses.as_ref())
        || was.and_then(|s| s.extended_resource_claim_status.as_ref())
            != is.and_then(|s| s.extended_resource_claim_status.as_ref());
    if before.pod.metadata.labels != after.pod.metadata.labels {
        "UnschedulablePodUpdatePodLabel"
    } else if after
        .requests()
        .resources
        .less_of_any(&before.requests().resources)
    {
        "UnschedulablePodUpdatePodScaleDown"
    } else if tolerations(before) != tolerations(after) {
        "UnschedulablePodUpdatePodToleration"
    } else if claims_made {
        "UnschedulablePodUpdatePodGeneratedResourceClaim"
    } else {
        POD_UPDATE
    }
}

/// A node was added, updated or deleted: of the properties that have changed (NodeSchedulingPropertiesChange), the first
/// for which the plugin has registered.
pub fn of_node(plugin: &str, before: Option<&NodeInfo>, after: Option<&NodeInfo>) -> &'static str {
    let (Some(was), Some(is)) = (before, after) else {
        return of_kind!("Node", before, after);
    };
    let properties = [
        (
            NODE_UPDATE_TAINT,
            was.is_unschedulable() && !is.is_unschedulable(),
        ),
        (NODE_UPDATE_ALLOCATABLE, was.allocatable != is.allocatable),
        (NODE_UPDATE_LABEL, was.labels() != is.labels()),
        (NODE_UPDATE_TAINT, was.taints() != is.taints()),
        ("NodeUpdateNodeCondition", conditions(was) != conditions(is)),
        ("NodeUpdateNodeAnnotation", annotations(was) != annotations(is)),
    ];
    let mut changed = properties.iter().filter(|(_, changed)| *changed);
    let registered = changed.clone().find(|(event, _)| registers(plugin, event));
    let first = registered.or_else(|| changed.next());
    first.map_or("NodeUpdate", |(event, _)| *event)
}

/// Whether the plugin has registered for this update of nodes (EventsToRegister).
fn registers(plugin: &str, event: &str) -> bool {
    match plugin {
        node_unschedulable::NAME | taint_toleration::NAME => event == NODE_UPDATE_TAINT,
        node_affinity::NAME | inter_pod_affinity::NAME | volume_binding::NAME | volume_zone::NAME => {
            event == NODE_UPDATE_LABEL
        }
        node_resources_fit::NAME => event == NODE_UPDATE_ALLOCATABLE,
        pod_topology_spread::NAME => matches!(event, NODE_UPDATE_LABEL | NODE_UPDATE_TAINT),
        dynamic_resources::NAME => matches!(event, NODE_UPDATE_LABEL | NODE_UPDATE_ALLOCATABLE),
        _ => false,
    }
}

fn conditions(node: &NodeInfo) -> BTreeMap<&str, &str> {
    let status = node.node.as_ref().and_then(|n| n.status.as_ref());
    let conditions = status.into_iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .map(|c| (c.type_.as_str(), c.status.as_str()))
        .collect()
}

fn annotations(node: &NodeInfo) -> Option<&BTreeMap<String, String>> {
    node.node.as_ref()?.metadata.annotations.as_ref()
}

pub fn of_storage(change: &volumes::Change) -> &'static str {
    use volumes::Change;
    match change {
        Change::Claim { before, after } => of_kind!("PersistentVolumeClaim", before, after),
        Change::Volume { before, after } => of_kind!("PersistentVolume", before, after),
        Change::Class { before, after } => of_kind!("storage.k8s.io/StorageClass", before, after),
        Change::Node { before, after } => of_kind!("storage.k8s.io/CSINode", before, after),
        Change::Driver { before, after } => of_kind!("storage.k8s.io/CSIDriver", before, after),
        Change::Capacity { before, after } => of_kind!("storage.k8s.io/CSIStorageCapacity", before, after),
        Change::Attachment { before, after } => of_kind!("storage.k8s.io/VolumeAttachment", before, after),
    }
}

pub fn of_devices(change: &claims::Change) -> &'static str {
    use claims::Change;
    match change {
        Change::Claim { before, after } => of_kind!("resource.k8s.io/ResourceClaim", before, after),
        Change::Slice { before, after } => of_kind!("resource.k8s.io/ResourceSlice", before, after),
        Change::Class { before, after } => of_kind!("resource.k8s.io/DeviceClass", before, after),
    }
}
