//! What `knarr net service` reports, as its JSON has it.

use std::net::IpAddr;

use ipnet::IpNet;
use knarr_network::proxy::frontend::Frontend;
use serde::Serialize;

use super::names::DnsRecord;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReport {
    pub service: String,
    #[serde(rename = "type")]
    pub type_: &'static str,
    pub node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    pub internal_traffic_policy: &'static str,
    pub external_traffic_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check_node_port: Option<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source_ranges: Vec<IpNet>,
    /// Why no proxy serves it; then there are no ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_proxied: Option<String>,
    pub ports: Vec<PortReport>,
    pub names: Vec<DnsRecord>,
    pub warnings: Vec<String>,
    /// Only when run as root on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelReport>,
    /// Pods of the node, or the client of --client, reach an endpoint of every port.
    pub reachable: bool,
}

/// One port in one IP family.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortReport {
    pub name: String,
    pub port: u16,
    pub protocol: &'static str,
    pub family: &'static str,
    pub topology: &'static str,
    pub frontends: Vec<FrontendReport>,
    pub endpoints: Vec<EndpointReport>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FrontendReport {
    pub kind: &'static str,
    /// Absent for node ports: all addresses of the node.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub connections: Vec<Connections>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<String>,
    #[serde(skip)]
    pub frontend: Frontend,
}

/// The outcome of the connections of some clients.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    pub from: Vec<String>,
    pub outcome: &'static str,
    /// Each as likely as the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// Those of `from` that endpoints see with an address of the node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masqueraded: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    pub address: IpAddr,
    pub port: u16,
    pub pod: Option<String>,
    pub node: Option<String>,
    pub zone: Option<String>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zone_hints: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub node_hints: Vec<String>,
    pub usage: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelReport {
    pub in_step: bool,
    pub message: String,
}
