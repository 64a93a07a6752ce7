//! Which Service has which port of which address.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use knarr_api::k8s_openapi;
use knarr_api::{ObjectKey, Shared};

use super::Pending;

/// A port of a protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub number: i32,
    pub protocol: String,
}

impl Port {
    pub fn tcp(number: i32) -> Self {
        Port {
            number,
            protocol: "TCP".into(),
        }
    }

    fn new(number: i32, protocol: Option<&String>) -> Self {
        Port {
            number,
            protocol: protocol.cloned().unwrap_or_else(|| "TCP".into()),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.protocol)
    }
}

/// See the module.
pub struct Holders<'a> {
    reserved: &'a BTreeSet<Port>,
    /// Of every address of every node.
    node_ports: BTreeMap<Port, ObjectKey>,
    taken: BTreeMap<(IpAddr, Port), ObjectKey>,
}

impl<'a> Holders<'a> {
    pub fn new(reserved: &'a BTreeSet<Port>, services: &[Shared<Service>]) -> Self {
        let mut node_ports = BTreeMap::new();
        for service in services {
            let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
            for port in ports {
                if let Some(number) = port.node_port.filter(|n| *n != 0) {
                    let port = Port::new(number, port.protocol.as_ref());
                    node_ports.insert(port, ObjectKey::of(service.object()));
                }
            }
        }
        Holders {
            reserved,
            node_ports,
            taken: BTreeMap::new(),
        }
    }

    /// Allocates all ports of the Service on all these addresses, or none.
    pub fn take(
        &mut self,
        service: &ObjectKey,
        spec: &ServiceSpec,
        addresses: Vec<IpAddr>,
    ) -> Result<Vec<IpAddr>, Pending> {
        let ports = spec.ports.iter().flatten();
        let ports: Vec<Port> = ports.map(|p| Port::new(p.port, p.protocol.as_ref())).collect();
        let conflict = |message: String| Pending {
            reason: "PortConflict",
            message,
        };
        for port in &ports {
            if self.reserved.contains(port) {
                return Err(Pending {
                    reason: "PortReserved",
                    message: format!("port {port} is used by the nodes themselves"),
                });
            }
            if let Some(other) = self.node_ports.get(port).filter(|other| *other != service) {
                return Err(conflict(format!("port {port} is a node port of Service {other}")));
            }
            for address in &addresses {
                if let Some(other) = self.taken.get(&(*address, port.clone())) {
                    return Err(conflict(format!("Service {other} has port {port} of {address}")));
                }
            }
        }
        for address in &addresses {
            let taken = ports
                .iter()
                .map(|port| ((*address, port.clone()), service.clone()));
            self.taken.extend(taken);
        }
        Ok(addresses)
    }
}
