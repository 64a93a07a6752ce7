//! Warnings about a Service that does not work as its spec suggests (SPEC N2, N4).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::{condition, is_ready, is_terminal};
use knarr_api::well_known::SERVICE_NAME;
use knarr_apimachinery::labels::Selector;
use knarr_network::catalog::ServiceKey;
use knarr_network::proxy::Family;

use super::objects::{NetworkObjects, name_of, phase, pod_addresses};
use super::service_report::{PortReport, ServiceReport};
use crate::command::columns::some;

/// How many pods, ports or nodes a warning names.
const NAMED: usize = 4;

/// All warnings, causes before their consequences.
pub fn of_service(
    objects: &NetworkObjects,
    node: &core::Node,
    key: &ServiceKey,
    report: &ServiceReport,
) -> Vec<String> {
    let mut found = Vec::new();
    let service = objects.find::<core::Service>(&key.namespace, &key.name);
    let Some(spec) = service.and_then(|service| service.spec.as_ref()) else {
        return found;
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return found;
    }
    let slices: Vec<&EndpointSlice> = objects
        .all::<EndpointSlice>()
        .filter(|slice| is_of(slice, key))
        .collect();
    match spec.selector.as_ref().filter(|selector| !selector.is_empty()) {
        Some(selector) => {
            let selector = Selector::from_map(selector);
            of_pods(objects, key, &selector, spec, &mut found);
        }
        None => of_slices(&slices, key, spec, &mut found),
    }
    of_families(&slices, spec, &mut found);
    for port in &report.ports {
        of_port(objects, node, spec, port, &mut found);
    }
    let status = service.and_then(|service| service.status.as_ref());
    let ingress = status.and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref());
    if spec.type_.as_deref() == Some("LoadBalancer") && ingress.is_none_or(Vec::is_empty) {
        let of_class = match &spec.load_balancer_class {
            Some(class) => format!(" of loadBalancerClass {class}"),
            None => String::new(),
        };
        found.push(format!(
            "no load balancer{of_class} has set status.loadBalancer.ingress yet"
        ));
    }
    let mut seen = BTreeSet::new();
    found.retain(|warning| seen.insert(warning.clone()));
    found
}

fn is_of(slice: &EndpointSlice, key: &ServiceKey) -> bool {
    let labels = slice.metadata.labels.as_ref();
    let service = labels.and_then(|labels| labels.get(SERVICE_NAME));
    slice.metadata.namespace.as_deref() == Some(&*key.namespace)
        && service.is_some_and(|name| **name == *key.name)
}

fn name(pod: &core::Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Why the pods that the Service selects are not endpoints, or not ready ones.
fn of_pods(
    objects: &NetworkObjects,
    key: &ServiceKey,
    selector: &Selector,
    spec: &core::ServiceSpec,
    found: &mut Vec<String>,
) {
    let selected = || {
        let pods = objects.all::<core::Pod>();
        pods.filter(|pod| !is_terminal(pod) && selector.matches(pod.metadata.labels.as_ref()))
    };
    let is_here = |pod: &&core::Pod| pod.metadata.namespace.as_deref() == Some(&*key.namespace);
    let pods: Vec<&core::Pod> = selected().filter(is_here).collect();
    if pods.is_empty() {
        let elsewhere: BTreeSet<String> = selected().filter_map(|p| p.metadata.namespace.clone()).collect();
        let elsewhere: Vec<String> = elsewhere.into_iter().collect();
        let mut warning = format!(
            "no pod in namespace {} matches the Service's selector {selector}",
            key.namespace
        );
        if !elsewhere.is_empty() {
            warning += &format!("; pods in other namespaces do: {}", some(&elsewhere, NAMED));
        }
        found.push(warning);
        return;
    }
    let publishes = spec.publish_not_ready_addresses.unwrap_or(false);
    if !publishes && !pods.iter().any(|pod| is_ready(pod)) {
        let states: Vec<String> = pods
            .iter()
            .map(|pod| format!("{} ({})", name(pod), state(pod)))
            .collect();
        let count = match pods.len() {
            1 => "the only selected pod is not ready".to_string(),
            count => format!("none of the {count} selected pods is ready"),
        };
        found.push(format!("{count}: {}", some(&states, NAMED)));
    }
    for port in spec.ports.iter().flatten() {
        let Some(IntOrString::String(target)) = &port.target_port else {
            continue;
        };
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let without_port: Vec<&&core::Pod> = pods
            .iter()
            .filter(|pod| !ports_of(pod).any(|(name, of, _)| name == target && of == protocol))
            .collect();
        let Some(first) = without_port.first() else {
            continue;
        };
        let has: Vec<String> = ports_of(first)
            .map(|(name, protocol, number)| format!("{name:?} {number}/{protocol}"))
            .collect();
        let has = match has.as_slice() {
            [] => "no named ports".to_string(),
            has => some(has, NAMED),
        };
        let names: Vec<String> = without_port.iter().map(|pod| name(pod).to_string()).collect();
        found.push(format!(
            "the targetPort {target:?} of port {} is not a {protocol} port of {}; {} has {has}",
            port.port,
            some(&names, NAMED),
            name(first),
        ));
    }
}

/// Named ports of a pod's containers and sidecars: name, protocol, number.
fn ports_of(pod: &core::Pod) -> impl Iterator<Item = (&str, &str, i32)> {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| {
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        spec.containers.iter().chain(sidecars)
    });
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        Some((port.name.as_deref()?, protocol, port.container_port))
    })
}

/// Why a pod is not ready.
fn state(pod: &core::Pod) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return "terminating".into();
    }
    let scheduled = condition(pod, "PodScheduled").filter(|c| c.status == "False");
    let ready = condition(pod, "Ready").filter(|c| c.status != "True");
    let why = scheduled.or(ready);
    let message = why.and_then(|c| c.message.as_deref().or(c.reason.as_deref()));
    let message = message.filter(|message| !message.is_empty());
    let address = match pod_addresses(pod).is_empty() {
        true => ", without an address",
        false => "",
    };
    match message {
        Some(message) => format!("{}{address}: {message}", phase(pod)),
        None => format!("{}{address}", phase(pod)),
    }
}

/// A Service without selector: its EndpointSlices are written by another client than the EndpointSlice controller.
fn of_slices(slices: &[&EndpointSlice], key: &ServiceKey, spec: &core::ServiceSpec, found: &mut Vec<String>) {
    if slices.is_empty() {
        found.push(format!(
            "it has no selector, and no EndpointSlice has the label {SERVICE_NAME}={}",
            key.name
        ));
        return;
    }
    for port in spec.ports.iter().flatten() {
        let port_name = port.name.as_deref().unwrap_or_default();
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let all = || slices.iter().flat_map(|slice| slice.ports.iter().flatten());
        let is_same = |p: &k8s_openapi::api::discovery::v1::EndpointPort| {
            p.name.as_deref().unwrap_or_default() == port_name
                && p.protocol.as_deref().unwrap_or("TCP") == protocol
        };
        if all().any(is_same) {
            continue;
        }
        let names: BTreeSet<String> = all()
            .map(|p| {
                let protocol = p.protocol.as_deref().unwrap_or("TCP");
                format!("{:?}/{protocol}", p.name.as_deref().unwrap_or_default())
            })
            .collect();
        let names: Vec<String> = names.into_iter().collect();
        let names = match names.as_slice() {
            [] => "none".to_string(),
            names => some(names, NAMED),
        };
        found.push(format!(
            "none of its EndpointSlices has a {protocol} port with the name {port_name:?} of port {}; their ports are: {names}",
            port.port
        ));
    }
}

/// Endpoints of one IP family only, where the Service has addresses of another.
fn of_families(slices: &[&EndpointSlice], spec: &core::ServiceSpec, found: &mut Vec<String>) {
    let ips = spec.cluster_ips.iter().flatten();
    let families: BTreeSet<&str> = ips
        .filter_map(|ip| ip.parse().ok())
        .map(|ip| Family::of(ip).api_name())
        .collect();
    let with_endpoints = slices
        .iter()
        .filter(|slice| slice.endpoints.as_ref().is_some_and(|e| !e.is_empty()));
    let of_slices: BTreeSet<&str> = with_endpoints.map(|slice| &*slice.address_type).collect();
    for family in &families {
        if !of_slices.is_empty() && !of_slices.contains(family) {
            let has: Vec<&str> = of_slices.iter().copied().collect();
            found.push(format!(
                "its endpoints have {} addresses only: no endpoint is reached by its {family} address",
                has.join(" and ")
            ));
        }
    }
    for family in of_slices.iter().filter(|_| !families.is_empty()) {
        if !families.contains(family) {
            found.push(format!(
                "it has endpoints with {family} addresses, but no {family} address of its own"
            ));
        }
    }
}

/// Warnings about one port on this node.
fn of_port(
    objects: &NetworkObjects,
    node: &core::Node,
    spec: &core::ServiceSpec,
    port: &PortReport,
    found: &mut Vec<String>,
) {
    for frontend in &port.frontends {
        if let Some(other) = &frontend.taken_by {
            let address = frontend
                .address
                .map_or_else(|| "node port".into(), |ip| ip.to_string());
            found.push(format!(
                "{address} {}/{} belongs to Service {other}: connections are sent to that Service",
                frontend.port, port.protocol
            ));
        }
    }
    let usable = |here: bool| {
        let endpoints = port.endpoints.iter();
        endpoints.filter(move |endpoint| {
            let is_here = endpoint.node.as_deref() == Some(name_of(node));
            is_here == here && (endpoint.ready || (endpoint.serving && endpoint.terminating))
        })
    };
    let others: BTreeSet<String> = usable(false).filter_map(|e| e.node.clone()).collect();
    let others: Vec<String> = others.into_iter().collect();
    let external = port.frontends.iter().find(|f| f.kind != "ClusterIP");
    let policies = [
        (
            "internalTrafficPolicy",
            &spec.internal_traffic_policy,
            true,
            "pods and processes of",
        ),
        (
            "externalTrafficPolicy",
            &spec.external_traffic_policy,
            external.is_some(),
            "clients outside that connect to",
        ),
    ];
    for (field, policy, concerns, clients) in policies {
        if concerns
            && policy.as_deref() == Some("Local")
            && usable(true).next().is_none()
            && !others.is_empty()
        {
            found.push(format!(
                "{field} is Local and no endpoint of port {} is on {}: connections of {clients} this node are \
                 dropped; there are endpoints on {}",
                port.port,
                name_of(node),
                some(&others, NAMED)
            ));
        }
    }
    let used = || {
        port.endpoints
            .iter()
            .filter(|e| matches!(e.usage, "Used" | "Fallback"))
    };
    if used().next().is_some() && used().all(|e| e.usage == "Fallback") {
        found.push(format!(
            "no endpoint of port {} is ready: connections are sent to its terminating endpoints ({})",
            port.port,
            used().count()
        ));
    }
    let lost: BTreeSet<String> = used()
        .filter_map(|endpoint| endpoint.node.clone())
        .filter(|name| {
            objects
                .node(name)
                .is_none_or(|node| !knarr_api::kinds::node::is_ready(node))
        })
        .collect();
    let lost: Vec<String> = lost.into_iter().collect();
    if !lost.is_empty() {
        found.push(format!(
            "used endpoints of port {} are on nodes that are not Ready: {}",
            port.port,
            some(&lost, NAMED)
        ));
    }
}
