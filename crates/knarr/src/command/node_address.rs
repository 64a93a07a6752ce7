//! The addresses at which other nodes and pods reach this node.

use std::net::{IpAddr, Ipv4Addr};

use knarr_apiserver::default_route;

use crate::config::Config;

/// The node's addresses, the primary first: those of `--node-ip`, else that of the kubelet's port, else the source
/// address of the default route, one of each IP family that pods have; a loopback address where the host has no other.
pub fn node_ips(config: &Config) -> Vec<IpAddr> {
    if !config.network.node_ips.is_empty() {
        return config.network.node_ips.clone();
    }
    let mut ips: Vec<IpAddr> = Vec::new();
    if let Some(listen) = config.kubelet_listen
        && !listen.ip().is_unspecified()
    {
        ips.push(listen.ip());
    }
    let nets = config.network.cluster_cidrs.nets();
    for net in nets {
        let is_v6 = net.network().is_ipv6();
        if ips.iter().any(|ip| ip.is_ipv6() == is_v6) {
            continue;
        }
        ips.extend(default_route::source(is_v6));
    }
    if ips.is_empty() {
        ips.push(Ipv4Addr::LOCALHOST.into());
    }
    ips
}

/// An address of this host that is not a loopback address: the node's, else that of the default route.
pub fn reachable(config: &Config) -> Option<IpAddr> {
    let of_node = node_ips(config).into_iter();
    let of_routes = [false, true].into_iter().filter_map(default_route::source);
    of_node.chain(of_routes).find(|ip| !ip.is_loopback())
}
