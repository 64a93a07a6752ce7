//! What a pod asks for as a whole: sums over its containers, and its quality of service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;

use crate::names;
use crate::quantity::Quantity;

/// A resource list with exact values.
pub type Amounts = BTreeMap<String, Quantity>;

/// Which half of the requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Requests,
    Limits,
}

impl Side {
    pub fn of(self, resources: Option<&ResourceRequirements>) -> Option<&BTreeMap<String, Wire>> {
        let resources = resources?;
        match self {
            Side::Requests => resources.requests.as_ref(),
            Side::Limits => resources.limits.as_ref(),
        }
    }
}

/// Exact values of a resource list. What does not parse is left out; decoded objects have none of it.
pub fn amounts(list: Option<&BTreeMap<String, Wire>>) -> Amounts {
    list.into_iter()
        .flatten()
        .filter_map(|(name, wire)| Some((name.clone(), Quantity::of(wire).ok()?)))
        .collect()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *sum.entry(name.clone()).or_default() += *amount;
    }
}

fn at_least(max: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        match max.get_mut(name) {
            Some(held) if *held >= *amount => {}
            _ => {
                max.insert(name.clone(), *amount);
            }
        }
    }
}

/// Whether an init container is a sidecar: it keeps running beside the others (SPEC L10).
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The most that the containers need at one time: all that run together, or one init container with the sidecars
/// started before it, whichever is more. Pod-level resources and overhead are not in it.
pub fn aggregate(spec: &PodSpec, side: Side) -> Amounts {
    aggregate_by(spec, |container| amounts(side.of(container.resources.as_ref())))
}

fn aggregate_by(spec: &PodSpec, of: impl Fn(&Container) -> Amounts) -> Amounts {
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        let mut while_it_runs = sidecars.clone();
        add(&mut while_it_runs, &own);
        if is_sidecar(container) {
            add(&mut running, &own);
            sidecars.clone_from(&while_it_runs);
        }
        at_least(&mut starting, &while_it_runs);
    }
    at_least(&mut running, &starting);
    running
}

/// What a pod is charged for: its containers' needs (while a resize is under way the most of what was asked for and
/// what was given), its own in their place, and its runtime's overhead on top.
pub fn charged(pod: &Pod, side: Side) -> Amounts {
    let Some(spec) = &pod.spec else {
        return Amounts::new();
    };
    let infeasible = resize_is_infeasible(pod);
    let containers = aggregate_by(spec, |container| {
        let asked = amounts(side.of(container.resources.as_ref()));
        let runs_on = is_sidecar(container) || spec.containers.iter().any(|c| c.name == container.name);
        let Some(given) = status_of(pod, &container.name).filter(|_| runs_on) else {
            return asked;
        };
        let Some(actuated) = &given.resources else {
            return asked;
        };
        let mut most = if infeasible { Amounts::new() } else { asked };
        at_least(&mut most, &amounts(side.of(Some(actuated))));
        if side == Side::Requests {
            at_least(&mut most, &amounts(given.allocated_resources.as_ref()));
        }
        most
    });
    whole(spec, side, containers)
}

/// What a pod asks for as a whole: its containers' needs, its own in their place, and its runtime's overhead on top.
pub fn asked(spec: &PodSpec, side: Side) -> Amounts {
    whole(spec, side, aggregate(spec, side))
}

fn whole(spec: &PodSpec, side: Side, containers: Amounts) -> Amounts {
    let mut sum = containers;
    let own = amounts(side.of(spec.resources.as_ref()));
    sum.extend(own.into_iter().filter(|(name, _)| is_pod_level(name)));
    for (name, overhead) in amounts(spec.overhead.as_ref()) {
        match side {
            Side::Requests => *sum.entry(name).or_default() += overhead,
            // Only what is limited is limited by more.
            Side::Limits => {
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

/// Whether the kubelet has refused for good to resize the pod, so that its spec is not what it will get.
fn resize_is_infeasible(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .find(|c| c.type_ == "PodResizePending")
        .is_some_and(|c| c.reason.as_deref() == Some("Infeasible"))
}

/// Whether the pod as a whole asks for something, so that its containers need not.
pub fn has_pod_level(spec: &PodSpec) -> bool {
    let own = spec.resources.as_ref();
    [Side::Requests, Side::Limits]
        .iter()
        .filter_map(|side| side.of(own))
        .flatten()
        .any(|(name, _)| is_pod_level(name))
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
    let asking: Vec<Option<&ResourceRequirements>> = match &spec.resources {
        Some(of_pod) => vec![Some(of_pod)],
        None => containers.map(|c| c.resources.as_ref()).collect(),
    };
    let (mut requests, mut limits) = (Amounts::new(), Amounts::new());
    let mut all_limited = true;
    for resources in asking {
        add(&mut requests, &counted(Side::Requests.of(resources)));
        let limited = counted(Side::Limits.of(resources));
        // A pod that only has requests of its own is judged by their sums alone.
        let judged = spec.resources.is_none() || Side::Limits.of(resources).is_some_and(|l| !l.is_empty());
        all_limited &= !judged || COUNTED.iter().all(|name| limited.contains_key(*name));
        add(&mut limits, &limited);
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

/// Whether a resource is a size of huge pages.
pub fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether a resource is Kubernetes' own.
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource is one that a cluster brought, as it can be named in a quota.
pub fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && names::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Before the name of a DeviceClass: the resource that it always stands for (KEP-5004).
pub const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// Whether a DeviceClass can stand for a resource of this name.
pub fn is_dra_extended(name: &str) -> bool {
    is_extended(name) || name.starts_with(DEVICE_CLASS_PREFIX)
}

/// Whether limits of a resource may exceed its requests.
pub fn is_overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// Whether a resource may stand in a pod's own resources.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_hugepages(name)
}
