//! Under which addresses other machines and pods find this node.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::config::Config;

/// Documentation addresses (RFC 5737, RFC 3849): routed like any other that is far away. Nothing is sent to them.
const FAR_AWAY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// The node's addresses, the primary first: those of `--node-ip`, else that of the kubelet's port, else the source
/// address of the default route, one of each family that pods have; a loopback address where the machine has no other.
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
        let far_away = FAR_AWAY.iter().find(|ip| ip.is_ipv6() == is_v6);
        ips.extend(far_away.and_then(|ip| source_towards(*ip)));
    }
    if ips.is_empty() {
        ips.push(Ipv4Addr::LOCALHOST.into());
    }
    ips
}

/// An address of this machine that is no loopback address: the node's, else that of the default route.
pub fn reachable(config: &Config) -> Option<IpAddr> {
    let of_node = node_ips(config).into_iter();
    let of_routes = FAR_AWAY.iter().filter_map(|ip| source_towards(*ip));
    of_node.chain(of_routes).find(|ip| !ip.is_loopback())
}

/// The address from which this machine would send there.
fn source_towards(destination: IpAddr) -> Option<IpAddr> {
    let any: SocketAddr = match destination {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    const DISCARD: u16 = 9;
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect((destination, DISCARD)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    (!source.is_unspecified()).then_some(source)
}
