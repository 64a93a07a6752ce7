//! The API's documentation applied to a connection, rule by rule over the API's objects. It shares no code with the tested
//! implementation.
//!
//! <https://kubernetes.io/docs/concepts/services-networking/network-policies/> and the field docs of
//! networking.k8s.io/v1 NetworkPolicy.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use knarr_api::k8s_openapi;

use super::world::{Connection, TestPod, World};

type Labels = BTreeMap<String, String>;

fn selects(selector: &LabelSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.iter().flatten();
    equal
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
        && expressions.into_iter().all(|e| {
            let value = labels.get(&e.key);
            let is_listed = value.is_some_and(|v| e.values.iter().flatten().any(|of| of == v));
            match e.operator.as_str() {
                "In" => is_listed,
                "NotIn" => !is_listed,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                other => panic!("{other}"),
            }
        })
}

fn types(policy: &NetworkPolicy) -> Vec<String> {
    let spec = policy.spec.as_ref().unwrap();
    match &spec.policy_types {
        Some(types) if !types.is_empty() => types.clone(),
        _ if spec.egress.as_ref().is_some_and(|rules| !rules.is_empty()) => {
            vec!["Ingress".into(), "Egress".into()]
        }
        _ => vec!["Ingress".into()],
    }
}

fn peer_matches(
    world: &World,
    namespace: &str,
    peer: &NetworkPolicyPeer,
    pod: Option<&TestPod>,
    address: IpAddr,
) -> bool {
    if let Some(block) = &peer.ip_block {
        let contains = |cidr: &str| cidr.parse::<IpNet>().unwrap().contains(&address);
        return contains(&block.cidr) && !block.except.iter().flatten().any(|except| contains(except));
    }
    let Some(pod) = pod.filter(|pod| !pod.host_network) else {
        return false;
    };
    let is_in_namespace = match &peer.namespace_selector {
        Some(selector) => world
            .namespaces
            .get(&pod.namespace)
            .is_some_and(|labels| selects(selector, labels)),
        None => pod.namespace == namespace,
    };
    is_in_namespace && peer.pod_selector.as_ref().is_none_or(|s| selects(s, &pod.labels))
}

fn port_matches(port: &NetworkPolicyPort, destination: Option<&TestPod>, connection: &Connection) -> bool {
    if port.protocol.as_deref().unwrap_or("TCP") != connection.protocol.name() {
        return false;
    }
    let expected = i32::from(connection.port);
    match &port.port {
        None => true,
        Some(IntOrString::Int(first)) => (*first..=port.end_port.unwrap_or(*first)).contains(&expected),
        Some(IntOrString::String(name)) => destination.is_some_and(|pod| {
            let mut ports = pod.ports.iter();
            ports.any(|(of, protocol, number)| {
                of == name && *protocol == connection.protocol && *number == connection.port
            })
        }),
    }
}

fn side_allows(
    world: &World,
    own: &TestPod,
    is_ingress: bool,
    peer: Option<&TestPod>,
    peer_address: IpAddr,
    destination: Option<&TestPod>,
    connection: &Connection,
) -> bool {
    if own.host_network {
        return true;
    }
    let mut is_isolated = false;
    for policy in world.policies.values() {
        let spec = policy.spec.as_ref().unwrap();
        let expected = if is_ingress { "Ingress" } else { "Egress" };
        let selector = spec.pod_selector.clone().unwrap_or_default();
        if policy.metadata.namespace.as_deref() != Some(&own.namespace)
            || !selects(&selector, &own.labels)
            || !types(policy).iter().any(|of| of == expected)
        {
            continue;
        }
        is_isolated = true;
        let rules: Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)> = match is_ingress {
            true => {
                let rules = spec.ingress.iter().flatten().cloned();
                rules
                    .map(|r| (r.from.unwrap_or_default(), r.ports.unwrap_or_default()))
                    .collect()
            }
            false => {
                let rules = spec.egress.iter().flatten().cloned();
                rules
                    .map(|r| (r.to.unwrap_or_default(), r.ports.unwrap_or_default()))
                    .collect()
            }
        };
        for (peers, ports) in rules {
            let peer_is_right = peers.is_empty()
                || peers
                    .iter()
                    .any(|p| peer_matches(world, &own.namespace, p, peer, peer_address));
            let port_is_right =
                ports.is_empty() || ports.iter().any(|p| port_matches(p, destination, connection));
            if peer_is_right && port_is_right {
                return true;
            }
        }
    }
    !is_isolated
}

pub fn allows(world: &World, connection: &Connection) -> bool {
    let from = world.pod_at(connection.from);
    let to = world.pod_at(connection.to);
    if connection.from == connection.to {
        return true;
    }
    let egress = from.is_none_or(|own| side_allows(world, own, false, to, connection.to, to, connection));
    let ingress = to.is_none_or(|own| side_allows(world, own, true, from, connection.from, to, connection));
    egress && ingress
}
