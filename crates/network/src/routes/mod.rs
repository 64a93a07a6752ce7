//! How the pods of other nodes are reached: by a plain route where the node is on a network of ours, through VXLAN
//! otherwise (SPEC N7).
//!
//! Each range of pod addresses has one route. With VXLAN its next hop is the node's [`gateway`] on the tunnel, the first
//! address of its first range of that family, which no pod has; a permanent neighbour entry has its MAC address and a
//! forwarding entry the host of that: three messages for a node that joins or leaves. MAC addresses are derived from nodes'
//! names, so that they need not be exchanged.
//!
//! With [`encryption`] all routes lead to WireGuard's device instead, or are unreachable: nothing is sent unencrypted to a
//! node that has published no key.

pub mod encryption;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use encryption::{Peer, PublicKey, Published};
use ipnet::IpNet;

/// The VXLAN network identifier; the port is IANA's.
pub const VNI: u32 = 4097;
pub const PORT: u16 = 4789;
/// What VXLAN adds to a packet: Ethernet, VXLAN and UDP headers (30 bytes) and the outer IP header.
const OVERHEAD_V4: u32 = 50;
const OVERHEAD_V6: u32 = 70;

/// A node of the cluster, from its Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Of type InternalIP, the primary first.
    pub addresses: Vec<IpAddr>,
    pub pod_cidrs: Vec<IpNet>,
}

/// A network that a link of this host is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    pub link: u32,
    /// With this host's address in it.
    pub net: IpNet,
}

/// The next hop of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// The node itself, on this link.
    Direct { via: IpAddr, link: u32 },
    /// The node's end of the tunnel.
    Tunnel { gateway: IpAddr },
    /// WireGuard's device.
    Encrypted,
    /// Unreachable: senders get an error.
    Unreachable,
}

/// The node behind an address of the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    pub mac: [u8; 6],
    pub remote: IpAddr,
}

/// A range of a node that is not routed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub node: String,
    pub cidr: IpNet,
    pub message: String,
}

/// The desired state of this node's kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    pub routes: BTreeMap<IpNet, Hop>,
    /// By the gateways of [`Hop::Tunnel`].
    pub tunnels: BTreeMap<IpAddr, Tunnel>,
    /// This node's ranges, those of [`Routes::conflicts`] left out.
    pub own: Vec<IpNet>,
    /// Those of [`Hop::Encrypted`].
    pub peers: BTreeMap<PublicKey, Peer>,
    pub conflicts: Vec<Conflict>,
}

/// The address of a node's end of the tunnel, by its range of that family.
pub fn gateway(cidr: &IpNet) -> IpAddr {
    cidr.network()
}

/// A locally administered MAC address, derived from the node's name.
pub fn mac(node: &str) -> [u8; 6] {
    // FNV-1a: the same in every version and on every node.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in node.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    [0x0a, a, b, c, d, e]
}

/// The largest packet through the tunnel, over a link that takes `mtu`.
pub fn tunnel_mtu(mtu: u32, underlay: IpAddr) -> u32 {
    let overhead = if underlay.is_ipv6() {
        OVERHEAD_V6
    } else {
        OVERHEAD_V4
    };
    mtu.saturating_sub(overhead)
}

/// Whether two ranges have addresses in common.
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// The routes to the pods of all nodes but `own`. `nodes` includes this node, too.
///
/// Of ranges that overlap the first node's, in the order of names, is routed: a second one would take its pods'
/// packets. A range that contains a node's address, or overlaps one of this host's networks, is not routed either. This
/// node's own ranges are used unless they contain a node's address or are a part of one of this host's networks, which would
/// become unreachable.
///
/// `keys` is what nodes have published, if traffic is encrypted. A key that two nodes publish belongs to the first one, and
/// this node's own key to no other.
pub fn routes(
    own: &str,
    nodes: &BTreeMap<String, Node>,
    subnets: &[Subnet],
    keys: Option<&BTreeMap<String, Published>>,
) -> Routes {
    let mut all = Routes::default();
    let of_own = nodes.get(own).cloned().unwrap_or_default();
    let Some(underlay) = of_own.addresses.first() else {
        return all;
    };
    let mut taken: Vec<(&str, IpNet)> = of_own.pod_cidrs.iter().map(|cidr| (own, *cidr)).collect();
    let addresses: Vec<(&str, IpAddr)> = nodes
        .iter()
        .flat_map(|(name, node)| {
            node.addresses
                .iter()
                .map(move |address| (name.as_str(), *address))
        })
        .collect();
    for cidr in &of_own.pod_cidrs {
        let network = subnets.iter().find(|s| {
            let net = s.net.trunc();
            net.contains(cidr) && net != *cidr
        });
        let message = match (addresses.iter().find(|(_, a)| cidr.contains(a)), network) {
            (Some((other, address)), _) => format!("it contains the address {address} of node {other}"),
            (None, Some(subnet)) => format!("it is a part of {}, a network of this host", subnet.net.trunc()),
            (None, None) => {
                all.own.push(*cidr);
                continue;
            }
        };
        all.conflicts.push(Conflict {
            node: own.to_string(),
            cidr: *cidr,
            message,
        });
    }
    // A node that has not reported an address yet is no conflict: it will report one.
    let others = nodes
        .iter()
        .filter(|(name, node)| *name != own && !node.addresses.is_empty());
    for (name, node) in others {
        let is_of_underlay = |address: &&IpAddr| address.is_ipv6() == underlay.is_ipv6();
        let remote = node.addresses.iter().find(is_of_underlay);
        let encryption = keys.map(|keys| {
            let published = keys.get(name).ok_or("the node has published no key")?;
            let is_others = |(other, theirs): (&String, &Published)| {
                theirs.key == published.key && (other == own || (other < name && nodes.contains_key(other)))
            };
            match keys.iter().any(is_others) {
                true => Err("the node has published the key of another"),
                false => Ok(published),
            }
        });
        for cidr in &node.pod_cidrs {
            let conflict = |message: String| Conflict {
                node: name.clone(),
                cidr: *cidr,
                message,
            };
            if let Some((other, theirs)) = taken.iter().find(|(_, theirs)| overlap(cidr, theirs)) {
                all.conflicts
                    .push(conflict(format!("it overlaps {theirs} of node {other}")));
                continue;
            }
            if let Some((other, address)) = addresses.iter().find(|(_, a)| cidr.contains(a)) {
                all.conflicts.push(conflict(format!(
                    "it contains the address {address} of node {other}"
                )));
                continue;
            }
            if let Some(subnet) = subnets.iter().find(|s| overlap(cidr, &s.net.trunc())) {
                all.conflicts.push(conflict(format!(
                    "it overlaps {}, a network of this host",
                    subnet.net.trunc()
                )));
                continue;
            }
            taken.push((name, *cidr));
            match (encryption, remote) {
                (Some(Ok(published)), Some(remote)) => {
                    let peer = all.peers.entry(published.key).or_insert_with(|| Peer {
                        endpoint: SocketAddr::new(*remote, published.port),
                        allowed: Vec::new(),
                    });
                    peer.allowed.push(*cidr);
                    all.routes.insert(*cidr, Hop::Encrypted);
                    continue;
                }
                (Some(Err(reason)), _) => {
                    all.conflicts.push(conflict(reason.into()));
                    all.routes.insert(*cidr, Hop::Unreachable);
                    continue;
                }
                // Without encryption, or without an address.
                (None, _) | (Some(Ok(_)), None) => {}
            }
            let of_family = |a: &&IpAddr| a.is_ipv6() == cidr.network().is_ipv6();
            let in_clear = node.addresses.iter().filter(|_| encryption.is_none());
            let direct = in_clear.filter(of_family).find_map(|via| {
                let subnet = subnets.iter().find(|s| s.net.contains(via))?;
                Some(Hop::Direct {
                    via: *via,
                    link: subnet.link,
                })
            });
            let hop = match (direct, remote) {
                (Some(direct), _) => direct,
                (None, Some(remote)) => {
                    let gateway = gateway(cidr);
                    let tunnel = Tunnel {
                        mac: mac(name),
                        remote: *remote,
                    };
                    all.tunnels.insert(gateway, tunnel);
                    Hop::Tunnel { gateway }
                }
                (None, None) => {
                    let family = if underlay.is_ipv6() { "IPv6" } else { "IPv4" };
                    all.conflicts
                        .push(conflict(format!("the node has no {family} address")));
                    if encryption.is_none() {
                        continue;
                    }
                    Hop::Unreachable
                }
            };
            all.routes.insert(*cidr, hop);
        }
    }
    all
}
