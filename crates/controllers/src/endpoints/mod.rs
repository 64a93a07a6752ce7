//! The endpoints of a Service: what Endpoints and EndpointSlices have in common.
//!
//! A pod is an endpoint while it has an address and is not finished. From its deletionTimestamp on it is not ready (SPEC T7);
//! slices still have it as `terminating`, with `serving` set to its readiness (KEP-1672).

pub mod legacy;
pub mod mirroring;
pub mod slices;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::registry;
use knarr_api::{ObjectKey, Shared};

use crate::controller::{ObjectChange, View};
use crate::pod;

/// The label of Endpoints and EndpointSlices of headless Services.
pub const HEADLESS: &str = "service.kubernetes.io/headless";

/// A port of a Service on one pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub name: String,
    pub protocol: String,
    pub number: i32,
    pub app_protocol: Option<String>,
}

/// The selector of a Service that has one and is not of type ExternalName.
pub fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return None;
    }
    // An empty selector is no selector: the user manages the endpoints of such a Service.
    spec.selector.as_ref().filter(|s| !s.is_empty())
}

pub fn selects(selector: &BTreeMap<String, String>, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    selector
        .iter()
        .all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value))
}

pub fn is_headless(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|s| s.cluster_ip.as_deref())
        .is_none_or(|ip| ip.is_empty() || ip == "None")
}

pub fn publishes_not_ready(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|s| s.publish_not_ready_addresses).unwrap_or(false)
}

/// Whether a pod has an address and is not finished.
pub fn is_addressable(pod: &Pod) -> bool {
    !is_terminal(pod) && !addresses(pod).is_empty()
}

/// All addresses of a pod, the primary first.
pub fn addresses(pod: &Pod) -> Vec<&str> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let all: Vec<&str> = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
    if all.is_empty() {
        return status
            .pod_ip
            .as_deref()
            .filter(|ip| !ip.is_empty())
            .into_iter()
            .collect();
    }
    all
}

pub fn target(pod: &Shared<Pod>) -> ObjectReference {
    let object = pod.object();
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: Some(object.namespace().into()),
        name: Some(object.name().into()),
        uid: Some(object.uid().into()),
        ..ObjectReference::default()
    }
}

/// The pod's hostname in the Service's subdomain, if it has one.
pub fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let hostname = spec.hostname.clone().filter(|h| !h.is_empty())?;
    (spec.subdomain == service.metadata.name).then_some(hostname)
}

/// The Service's ports on this pod; a named target port that the pod does not have is left out.
pub fn ports(service: &Service, pod: &Pod) -> Vec<Port> {
    let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
    let find = |port: &ServicePort| {
        Some(Port {
            number: target_port(port, pod)?,
            name: port.name.clone().unwrap_or_default(),
            protocol: protocol(port.protocol.as_ref()),
            app_protocol: port.app_protocol.clone(),
        })
    };
    ports.filter_map(find).collect()
}

fn protocol(protocol: Option<&String>) -> String {
    protocol.cloned().unwrap_or_else(|| "TCP".into())
}

fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecars = spec.init_containers.iter().flatten();
            let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let mut all = spec
                .containers
                .iter()
                .chain(sidecars)
                .flat_map(|c| c.ports.iter().flatten());
            let expected = protocol(port.protocol.as_ref());
            all.find(|p| p.name.as_ref() == Some(name) && protocol(p.protocol.as_ref()) == expected)
                .map(|p| p.container_port)
        }
    }
}

/// The Services to enqueue for a pod's change: those that select it or did, if its endpoint has changed.
pub fn services_of(view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
    let old: Option<&Pod> = changed.old.and_then(|o| o.get());
    let new: Option<&Pod> = changed.new.and_then(|n| n.get());
    if let (Some(old), Some(new)) = (old, new)
        && endpoint_fields(old) == endpoint_fields(new)
    {
        return Vec::new();
    }
    let Some(namespace) = changed.object().map(|o| o.namespace()) else {
        return Vec::new();
    };
    let services = view.list_as::<Service>(namespace).into_iter();
    let concerned = services.filter(|service| {
        selector(service).is_some_and(|s| old.into_iter().chain(new).any(|pod| selects(s, pod)))
    });
    concerned.map(|s| ObjectKey::of(s.object())).collect()
}

/// The fields of a pod that its endpoints depend on.
fn endpoint_fields(pod: &Pod) -> impl PartialEq + '_ {
    let spec = pod.spec.as_ref();
    (
        (pod.metadata.uid.as_ref(), pod.metadata.labels.as_ref()),
        (pod::is_ready(pod), pod::is_deleting(pod), is_terminal(pod)),
        (addresses(pod), pod::node_name(pod)),
        spec.map(|s| (&s.hostname, &s.subdomain)),
    )
}

/// The Services that have a pod on this node.
pub fn services_on(view: &dyn View, node: &str) -> Vec<ObjectKey> {
    let mut keys: Vec<ObjectKey> = Vec::new();
    for object in view.pods_on(node) {
        let changed = ObjectChange {
            kind: &registry::POD,
            old: None,
            new: Some(&object),
        };
        keys.extend(services_of(view, changed));
    }
    keys.sort();
    keys.dedup();
    keys
}

#[cfg(test)]
mod tests;
