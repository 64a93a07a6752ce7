//! Tables of facts about v1.36's proxy, on what is decided here, and properties that hold for every history.

mod endpoints;
mod flows;
mod histories;
mod policies;

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use serde_json::{Value, json};

use super::packet::{self, Outcome, Packet, Tables};
use super::*;
use crate::catalog::{Catalog, Protocol, ServiceKey};

pub const POD: &str = "10.0.0.2";
pub const NODE: &str = "192.168.0.2";
pub const OUTSIDE: &str = "203.0.113.2";

/// A node with a catalog, as kube-proxy's tests have it.
pub struct Node {
    pub proxy: Proxy,
    pub catalog: Catalog,
    pub addresses: Vec<IpAddr>,
}

pub fn config() -> Config {
    Config {
        cluster_cidrs: vec!["10.0.0.0/8".parse().unwrap(), "fd00:10::/64".parse().unwrap()],
        service_cidrs: vec!["172.30.0.0/16".parse().unwrap(), "fd00:96::/112".parse().unwrap()],
        ..Config::default()
    }
}

pub fn facts() -> NodeFacts {
    NodeFacts {
        name: "here".into(),
        zone: Some("a".into()),
        addresses: vec![NODE.parse().unwrap(), "2001:db8::1".parse().unwrap()],
    }
}

impl Node {
    pub fn new(config: Config) -> Self {
        let texts = [NODE, "192.168.1.2", "2001:db8::1"];
        Node {
            proxy: Proxy::new(config, facts()),
            catalog: Catalog::default(),
            addresses: texts.map(|ip| ip.parse().unwrap()).to_vec(),
        }
    }

    /// A Service of namespace `ns`.
    pub fn service(&mut self, name: &str, spec: Value, balancers: &[&str]) -> Change {
        let ingress: Vec<Value> = balancers.iter().map(|ip| json!({"ip": ip})).collect();
        let service: core::Service = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": spec, "status": {"loadBalancer": {"ingress": ingress}},
        }))
        .unwrap();
        self.catalog.apply_service(&service);
        self.sync(name)
    }

    /// The one slice of a Service in IPv4.
    pub fn slice(&mut self, service: &str, ports: Value, endpoints: Value) -> Change {
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": format!("{service}-1"),
                         "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        }))
        .unwrap();
        self.catalog.apply_slice(&slice);
        self.sync(service)
    }

    pub fn sync(&mut self, name: &str) -> Change {
        self.proxy.apply(&self.catalog, &ServiceKey::new("ns", name))
    }

    pub fn route(&self, packet: &Packet) -> Outcome {
        let elements = packet::table(&self.proxy, Family::of(packet.destination));
        let tables = Tables {
            config: self.proxy.config(),
            local_addresses: &self.addresses,
            elements: &elements,
        };
        tables.route(packet)
    }

    /// A TCP connection's end: the endpoints, with ` m` if the client is masqueraded, or the verdict.
    pub fn tcp(&self, source: &str, destination: &str) -> String {
        self.flow(Protocol::Tcp, source, destination)
    }

    pub fn flow(&self, protocol: Protocol, source: &str, destination: &str) -> String {
        let to: std::net::SocketAddr = destination.parse().unwrap();
        let packet = Packet {
            source: source.parse().unwrap(),
            destination: to.ip(),
            protocol,
            port: to.port(),
            learned: None,
        };
        text(&self.route(&packet))
    }
}

pub fn text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Unchanged => "unchanged".into(),
        Outcome::Dropped => "DROP".into(),
        Outcome::Rejected => "REJECT".into(),
        Outcome::Lost => "lost".into(),
        Outcome::Sent(hops) => {
            let one = |hop: &packet::Hop| {
                let masquerade = if hop.masquerade { " m" } else { "" };
                format!("{}:{}{masquerade}", hop.address, hop.port)
            };
            hops.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}
