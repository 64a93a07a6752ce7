//! The requests and limits of a whole pod (as `k8s.io/component-helpers/resource` computes them), and its QoS class.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;

use knarr_apimachinery::names;
use knarr_apimachinery::quantity::Quantity;

/// A resource list with parsed quantities.
pub type Amounts = BTreeMap<String, Quantity>;

/// The two lists of ResourceRequirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequirementKind {
    Requests,
    Limits,
}

impl RequirementKind {
    pub fn of(self, resources: Option<&ResourceRequirements>) -> Option<&BTreeMap<String, Wire>> {
        let resources = resources?;
        match self {
            RequirementKind::Requests => resources.requests.as_ref(),
            RequirementKind::Limits => resources.limits.as_ref(),
        }
    }
}

/// The parsed quantities of a resource list. Those that do not parse are left out; a decoded object has none.
pub fn amounts(list: Option<&BTreeMap<String, Wire>>) -> Amounts {
    list.into_iter()
        .flatten()
        .filter_map(|(name, wire)| Some((name.clone(), Quantity::of(wire).ok()?)))
        .collect()
}

fn add_resource_list(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_default() += *amount;
    }
}

fn max_resource_list(max: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match max.get_mut(name) {
            Some(held) if *held >= *amount => {}
            _ => {
                max.insert(name.clone(), *amount);
            }
        }
    }
}

/// Whether an init container is a sidecar, which keeps running together with the other containers (SPEC L10).
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The maximum that the containers need at one time (`AggregateContainerRequests`): all containers that run together, or one
/// init container and the sidecars started before it, whichever is more. Without pod-level resources and overhead.
pub fn aggregate_containers(spec: &PodSpec, kind: RequirementKind) -> Amounts {
    aggregate_containers_by(spec, |container| amounts(kind.of(container.resources.as_ref())))
}

fn aggregate_containers_by(spec: &PodSpec, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        add_resource_list(&mut running, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let mut while_running = sidecars.clone();
        add_resource_list(&mut while_running, &own);
        if is_sidecar(container) {
            add_resource_list(&mut running, &own);
            sidecars.clone_from(&while_running);
        }
        max_resource_list(&mut starting, &while_running);
    }
    max_resource_list(&mut running, &starting);
    running
}

/// The pod's requests or limits as [`pod_resources`], but of each container the maximum of spec and status while a resize
/// is in progress (`PodRequests` with `UseStatusResources`).
pub fn pod_resources_with_status(pod: &Pod, kind: RequirementKind) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let infeasible = resize_is_infeasible(pod);
    let containers = aggregate_containers_by(spec, |container| {
        let requested = amounts(kind.of(container.resources.as_ref()));
        let runs_on = is_sidecar(container) || spec.containers.iter().any(|c| c.name == container.name);
        let Some(status) = status_of(pod, &container.name).filter(|_| runs_on) else {
            return requested;
        };
        let Some(actuated) = &status.resources else {
            return requested;
        };
        let mut largest = if infeasible { Amounts::new() } else { requested };
        max_resource_list(&mut largest, &amounts(kind.of(Some(actuated))));
        if kind == RequirementKind::Requests {
            max_resource_list(&mut largest, &amounts(status.allocated_resources.as_ref()));
        }
        largest
    });
    with_pod_level_and_overhead(spec, kind, containers)
}

/// The pod's requests or limits (`PodRequests`, `PodLimits`): the aggregate of its containers, replaced by pod-level resources
/// where those are set, plus the overhead of its RuntimeClass.
pub fn pod_resources(spec: &PodSpec, kind: RequirementKind) -> Amounts {
    with_pod_level_and_overhead(spec, kind, aggregate_containers(spec, kind))
}

fn with_pod_level_and_overhead(spec: &PodSpec, kind: RequirementKind, containers: Amounts) -> Amounts {
    let mut sum = containers;
    let own = amounts(kind.of(spec.resources.as_ref()));
    sum.extend(
        own.into_iter()
            .filter(|(name, _)| is_supported_pod_level_resource(name)),
    );
    for (name, overhead) in amounts(spec.overhead.as_ref()) {
        match kind {
            RequirementKind::Requests => *sum.entry(name).or_default() += overhead,
            // The overhead is only added to limits that are set.
            RequirementKind::Limits => {
                if let Some(limit) = sum.get_mut(&name).filter(|l| !l.is_zero()) {
                    *limit += overhead;
                }
            }
        }
    }
    sum
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten();
    let mut all = all.chain(status.init_container_statuses.iter().flatten());
    all.find(|s| s.name == container)
}

/// Whether the kubelet reported the resize as infeasible, so that the pod does not get the resources of its spec.
fn resize_is_infeasible(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .find(|c| c.type_ == "PodResizePending")
        .is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
}

/// Whether the pod has pod-level resources (KEP-2837), so that its containers need none.
pub fn has_pod_level_resources(spec: &PodSpec) -> bool {
    let own = spec.resources.as_ref();
    [RequirementKind::Requests, RequirementKind::Limits]
        .iter()
        .filter_map(|kind| kind.of(own))
        .flatten()
        .any(|(name, _)| is_supported_pod_level_resource(name))
}

/// `status.qosClass`: Guaranteed, Burstable or BestEffort.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    const COUNTED: [&str; 2] = ["cpu", "memory"];
    let counted = |list: Option<&BTreeMap<String, Wire>>| -> Amounts {
        amounts(list)
            .into_iter()
            .filter(|(name, amount)| COUNTED.contains(&name.as_str()) && *amount > Quantity::default())
            .collect()
    };
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    let requirements: Vec<Option<&ResourceRequirements>> = match &spec.resources {
        Some(of_pod) => vec![Some(of_pod)],
        None => containers.map(|c| c.resources.as_ref()).collect(),
    };
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut all_limited = true;
    for resources in requirements {
        add_resource_list(&mut requests, &counted(RequirementKind::Requests.of(resources)));
        let limited = counted(RequirementKind::Limits.of(resources));
        // Pod-level resources without limits: only the sums are compared.
        let must_be_limited = spec.resources.is_none()
            || RequirementKind::Limits
                .of(resources)
                .is_some_and(|l| !l.is_empty());
        all_limited &= !must_be_limited || COUNTED.iter().all(|name| limited.contains_key(*name));
        add_resource_list(&mut limits, &limited);
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    let matches = requests
        .iter()
        .all(|(name, amount)| limits.get(name) == Some(amount));
    if all_limited && matches && requests.len() == limits.len() {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Whether a resource is huge pages of some size.
pub fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether a resource is a native one: without a domain, or in a domain of Kubernetes.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is an extended resource, whose name with the prefix `requests.` is valid in a quota.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Prefix of the implicit extended resource of a DeviceClass, followed by the class' name (KEP-5004).
pub const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Whether a DeviceClass can provide an extended resource of this name.
pub fn is_dra_extended(name: &str) -> bool {
    is_extended(name) || name.starts_with(DEVICE_CLASS_PREFIX)
}

/// Whether the limit of a resource may exceed its request.
pub fn is_overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// Whether a resource is supported in pod-level resources.
pub fn is_supported_pod_level_resource(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_hugepages(name)
}
