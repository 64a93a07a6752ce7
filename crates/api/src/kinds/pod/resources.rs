//! What a pod asks for as a whole: sums over its containers, and its quality of service.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Wire;

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
    fn of(self, resources: Option<&ResourceRequirements>) -> Option<&BTreeMap<String, Wire>> {
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
    let mut running = Amounts::new();
    for container in &spec.containers {
        add(&mut running, &amounts(side.of(container.resources.as_ref())));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = amounts(side.of(container.resources.as_ref()));
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

/// Whether limits of a resource may exceed its requests.
pub fn is_overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// Whether a resource may stand in a pod's own resources.
pub fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_hugepages(name)
}
