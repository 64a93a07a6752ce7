//! The configuration of a node's proxy, and the properties of its node.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use knarr_apimachinery::ids::NodeName;

use super::Family;

/// The same for all nodes of a cluster, but for the table's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the tables, one per family: `knarr-proxy`, with a suffix where several share a network namespace.
    pub table: String,
    /// Sources in here are pods (`--cluster-cidr`). Empty: unknown, so that cluster IPs are never masqueraded and
    /// pods have no short circuit to Services of `externalTrafficPolicy: Local`, as in kube-proxy.
    pub cluster_cidrs: Vec<IpNet>,
    /// Connections to addresses in here that no Service has are dropped.
    pub service_cidrs: Vec<IpNet>,
    /// Cluster IPs that the node answers itself (the cluster DNS). Never programmed, rejected or dropped.
    pub dns_addresses: Vec<IpAddr>,
    /// Node ports are served on the node's addresses in these ranges; none of a family: on all of that family.
    pub node_port_addresses: Vec<IpNet>,
    /// Whether node ports are served on 127.0.0.0/8, too. Needs [`sysctls`](super::sysctls); packets from outside to or
    /// from such addresses are then dropped (CVE-2020-8558).
    pub localhost_node_ports: bool,
    /// Masquerade all connections to cluster IPs (`--masquerade-all`).
    pub masquerade_all: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            table: "knarr-proxy".to_owned(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            dns_addresses: Vec::new(),
            node_port_addresses: Vec::new(),
            localhost_node_ports: true,
            masquerade_all: false,
        }
    }
}

impl Config {
    /// Ranges of one family.
    pub(super) fn of_family(ranges: &[IpNet], family: Family) -> impl Iterator<Item = IpNet> + '_ {
        ranges
            .iter()
            .copied()
            .filter(move |range| Family::of(range.addr()) == family)
    }
}

/// The node this runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: NodeName,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// The node's primary addresses, one per family: `loadBalancerSourceRanges` that contain one let the node in.
    pub addresses: Vec<IpAddr>,
}
