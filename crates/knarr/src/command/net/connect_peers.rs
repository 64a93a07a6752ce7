//! The source of a connection and the addresses that clients of its destination connect to, from the arguments and the objects.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_network::catalog::{Protocol, Service, ServiceKey, ServiceType};
use knarr_network::policy::PodKey;

use super::arguments::{Destination, Port, Source, Target};
use super::objects::{
    NetworkObjects, addresses_of, is_host_network, name_of, node_of, phase, pod_addresses, pod_name,
};
use super::service::with_port;
use crate::command::Failure;

/// The source of the connection, resolved.
pub(super) struct Client<'a> {
    pub description: String,
    /// The pod whose policies apply: one that is not in the host network.
    pub pod: Option<(&'a core::Pod, PodKey)>,
    pub node: Option<&'a core::Node>,
    pub addresses: Vec<IpAddr>,
    pub protocol: Protocol,
}

pub(super) fn client<'a>(
    objects: &'a NetworkObjects,
    source: &Source,
    protocol: Protocol,
    notes: &mut Vec<String>,
) -> Result<Client<'a>, Failure> {
    let template = Client {
        description: String::new(),
        pod: None,
        node: None,
        addresses: Vec::new(),
        protocol,
    };
    let pod = match source {
        Source::Address(address) => match objects.pod_at(*address) {
            Some(pod) => pod,
            None => {
                let node = objects.node_at(*address);
                let description = match node {
                    Some(node) => format!("{address} (node {})", name_of(node)),
                    None => format!("{address} (outside)"),
                };
                return Ok(Client {
                    description,
                    node,
                    addresses: vec![*address],
                    ..template
                });
            }
        },
        Source::Node(name) => {
            let node = objects.node(name);
            return Ok(Client {
                description: format!("node {name}"),
                addresses: node.map(addresses_of).unwrap_or_default(),
                node,
                ..template
            });
        }
        Source::Pod(key) => objects
            .find::<core::Pod>(&key.namespace, &key.name)
            .ok_or_else(|| Failure::new(format!("there is no pod {key}")))?,
    };
    let node = node_of(pod).and_then(|name| objects.node(name));
    let name = pod_name(pod);
    let on = node_of(pod).map_or_else(String::new, |node| format!(" on node {node}"));
    if is_terminal(pod) {
        notes.push(format!(
            "pod {name} has terminated (phase {}): it opens no connections",
            phase(pod)
        ));
    }
    if is_host_network(pod) {
        notes.push(format!(
            "pod {name} is in the host network: it connects as its node, and no policy selects it"
        ));
        return Ok(Client {
            description: format!("pod {name}{on}, in the host network"),
            addresses: node.map(addresses_of).unwrap_or_default(),
            node,
            ..template
        });
    }
    let addresses = match is_terminal(pod) {
        true => Vec::new(),
        false => pod_addresses(pod),
    };
    if addresses.is_empty() && !is_terminal(pod) {
        notes.push(format!("pod {name} has no address yet (phase {})", phase(pod)));
    }
    let metadata = &pod.metadata;
    let key = PodKey::new(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    );
    Ok(Client {
        description: format!("pod {name}{on}"),
        pod: Some((pod, key)),
        node,
        addresses,
        protocol,
    })
}

/// The addresses that clients connect to.
pub(super) struct Targets {
    pub description: String,
    pub addresses: Vec<(IpAddr, u16)>,
}

pub(super) fn targets(
    objects: &NetworkObjects,
    destination: &Destination,
    notes: &mut Vec<String>,
) -> Result<Targets, Failure> {
    let protocol = destination.protocol;
    match &destination.target {
        Target::Address(address) => {
            let Port::Number(port) = destination.port else {
                return Err(Failure::new(format!(
                    "an address has no named ports: expected {address} with a port number"
                )));
            };
            Ok(Targets {
                description: format!("{}/{}", with_port(*address, port), protocol.name()),
                addresses: vec![(*address, port)],
            })
        }
        Target::Pod(key) => {
            let pod = objects
                .find::<core::Pod>(&key.namespace, &key.name)
                .ok_or_else(|| Failure::new(format!("there is no pod {key}")))?;
            let port = match &destination.port {
                Port::Number(port) => *port,
                Port::Name(name) => named_port(pod, name, protocol)?,
                Port::Only => {
                    return Err(Failure::new(format!(
                        "expected a port of pod {key}, such as pod/{}:80",
                        key.name
                    )));
                }
            };
            let addresses = match is_terminal(pod) {
                true => Vec::new(),
                false => pod_addresses(pod),
            };
            if addresses.is_empty() {
                notes.push(format!("pod {key} has no address (phase {})", phase(pod)));
            }
            Ok(Targets {
                description: format!("pod {key}, port {port}/{}", protocol.name()),
                addresses: addresses.into_iter().map(|address| (address, port)).collect(),
            })
        }
        Target::Service(key) => {
            let service = objects
                .catalog
                .service(key)
                .ok_or_else(|| Failure::new(format!("there is no Service {key}")))?;
            of_service(objects, key, service, destination, notes)
        }
    }
}

fn named_port(pod: &core::Pod, name: &str, protocol: Protocol) -> Result<u16, Failure> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| {
        port.name.as_deref() == Some(name) && Protocol::parse(port.protocol.as_deref()) == Some(protocol)
    });
    let number = found.and_then(|port| u16::try_from(port.container_port).ok());
    let protocol = protocol.name();
    number.ok_or_else(|| Failure::new(format!("pod {} has no {protocol} port {name:?}", pod_name(pod))))
}

fn of_service(
    objects: &NetworkObjects,
    key: &ServiceKey,
    service: &Service,
    destination: &Destination,
    notes: &mut Vec<String>,
) -> Result<Targets, Failure> {
    let protocol = destination.protocol;
    if let ServiceType::ExternalName(name) = &service.service_type {
        return Err(Failure::new(format!(
            "Service {key} is of type ExternalName: expected an address of {name} instead"
        )));
    }
    let of_protocol = || service.ports.iter().filter(|port| port.protocol == protocol);
    let found = match &destination.port {
        Port::Number(number) => of_protocol().find(|port| port.port == *number),
        Port::Name(name) => of_protocol().find(|port| *port.name == **name),
        Port::Only => of_protocol().next().filter(|_| of_protocol().count() == 1),
    };
    let Some(found) = found else {
        let number = match destination.port {
            // The proxy rejects connections to such a port.
            Port::Number(number) if !service.headless => number,
            _ => {
                let has: Vec<String> = service
                    .ports
                    .iter()
                    .map(|port| format!("{} {}/{}", port.name, port.port, port.protocol.name()))
                    .collect();
                return Err(Failure::new(format!(
                    "expected one of the ports of Service {key}: {}",
                    has.join(", ").trim()
                )));
            }
        };
        notes.push(format!("Service {key} has no port {number}/{}", protocol.name()));
        let addresses = service.cluster_ips.iter().map(|ip| (*ip, number));
        return Ok(Targets {
            description: format!("Service {key}, port {number}/{}", protocol.name()),
            addresses: addresses.collect(),
        });
    };
    let description = format!("Service {key}, port {}/{}", found.port, protocol.name());
    if !service.headless {
        let addresses = service.cluster_ips.iter().map(|ip| (*ip, found.port));
        return Ok(Targets {
            description,
            addresses: addresses.collect(),
        });
    }
    // DNS resolves to the endpoints, so the port is the endpoints' own.
    let mut addresses = Vec::new();
    for slice in objects.catalog.slices(key) {
        let own = slice
            .ports
            .iter()
            .find(|p| p.name == found.name && p.protocol == protocol);
        let number = own.and_then(|port| port.port).unwrap_or(found.port);
        if number != found.port {
            notes.push(format!(
                "Service {key} is headless: clients connect to port {number} of its endpoints, not to port {}",
                found.port
            ));
        }
        let offered = slice
            .endpoints
            .iter()
            .filter(|e| e.ready || service.publish_not_ready);
        addresses.extend(offered.map(|endpoint| (endpoint.address, number)));
    }
    notes.dedup();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        notes.push(format!(
            "Service {key} has no ready endpoint: its DNS name has no address"
        ));
    }
    Ok(Targets {
        description,
        addresses,
    })
}
