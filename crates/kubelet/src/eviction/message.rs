//! The messages of evictions, as in v1.36.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::{Notation, Quantity};

use super::{Observations, Threshold};
use crate::stats::{ContainerStats, PodStats};

pub fn empty_dir(volume: &str, limit: Quantity) -> String {
    format!("Usage of EmptyDir volume \"{volume}\" exceeds the limit \"{limit}\". ")
}

pub fn pod_storage(limit: Quantity) -> String {
    format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
}

pub fn container_storage(name: &str, limit: Quantity) -> String {
    format!("Container {name} exceeded its local ephemeral storage limit \"{limit}\". ")
}

/// The status message, and the event's annotations: which containers used too much, how much, and of which resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    pub message: String,
    pub annotations: BTreeMap<String, String>,
}

/// `met` are the thresholds that are met; the first is the one to reclaim for.
pub fn node_pressure(
    pod: &Pod,
    stats: Option<&PodStats>,
    met: &[Threshold],
    seen: &Observations,
) -> Eviction {
    let Some(first) = met.first() else {
        return Eviction::default();
    };
    let resource = first.signal.resource();
    let mut eviction = Eviction {
        message: format!("The node was low on resource: {resource}. "),
        annotations: BTreeMap::new(),
    };
    let known = met
        .iter()
        .filter(|t| t.signal.resource() == resource)
        .find_map(|t| Some((t, seen.get(&t.signal)?)));
    if let Some((threshold, seen)) = known {
        let available = Quantity::from_value(seen.available, threshold.signal.notation());
        let quantity = threshold.quantity(seen);
        eviction.message += &format!("Threshold quantity: {quantity}, available: {available}. ");
    }
    let Some(stats) = stats else { return eviction };
    let binary = |n: u64| Quantity::from_value(i64::try_from(n).unwrap_or(i64::MAX), Notation::BinarySi);
    let pod_request = pod
        .spec
        .as_ref()
        .and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get(resource))
        .and_then(|q| Quantity::of(q).ok());
    if let (Some(request), Some(memory), "memory") = (pod_request, &stats.memory, resource) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let usage = binary(memory.working_set_bytes.unwrap_or(0));
        eviction.message += &format!(
            "Pod {name} was using {usage}, request is {request}, has larger consumption of {resource}. "
        );
        eviction.annotations.insert("offending_pod".into(), name);
        eviction
            .annotations
            .insert("offending_pod_usage".into(), usage.to_string());
    }
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for container in &stats.containers {
        let Some(usage) = usage(container, resource).map(binary) else {
            continue;
        };
        let Some(spec) = spec(pod, &container.name) else {
            continue;
        };
        let request = spec
            .resources
            .as_ref()
            .and_then(|r| r.requests.as_ref()?.get(resource));
        let request = request.and_then(|q| Quantity::of(q).ok()).unwrap_or_default();
        if usage > request {
            let name = &container.name;
            eviction.message += &format!(
                "Container {name} was using {usage}, request is {request}, has larger consumption of {resource}. "
            );
            names.push(name.clone());
            usages.push(usage.to_string());
        }
    }
    for (key, value) in [
        ("offending_containers", names.join(",")),
        ("offending_containers_usage", usages.join(",")),
        ("starved_resource", resource.to_string()),
    ] {
        eviction.annotations.insert(key.into(), value);
    }
    eviction
}

/// The container's spec; ephemeral containers have no requests and are left out.
fn spec<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    let containers = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten());
    containers.into_iter().find(|c| c.name == name)
}

fn usage(container: &ContainerStats, resource: &str) -> Option<u64> {
    match resource {
        "memory" => container.memory.as_ref()?.working_set_bytes,
        "ephemeral-storage" => {
            let layer = container.rootfs.as_ref()?.used_bytes?;
            Some(layer.saturating_add(container.logs.as_ref()?.used_bytes?))
        }
        _ => None,
    }
}
