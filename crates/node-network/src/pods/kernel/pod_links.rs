//! Links of pods: the veth pair, its addresses, neighbours and routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use knarr_cni::kernel::links::{Link, find, up};
use knarr_cni::kernel::namespace::Namespace;
use knarr_cni::kernel::netlink::{Error, Netlink, Request};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

/// The interface group of the host's sides of all pods' links, by which rules know them.
pub const GROUP: u32 = 0x6b6e;
/// Who made the routes to pods: a number that no routing daemon uses.
const ROUTE_PROTOCOL: RouteProtocol = RouteProtocol::Other(107);
pub const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
pub const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// A hardware address.
pub type Mac = [u8; 6];

/// The host's side of all pods' links: each link has two ends only, so one address does for all.
pub const HOST_MAC: Mac = *b"\x02knarr";

/// The hardware address of a pod, made from its first address; unique on its link, which is enough.
pub fn pod_mac(addresses: &[IpAddr]) -> Mac {
    let [a, b, c, d] = match addresses.first() {
        Some(IpAddr::V4(v4)) => v4.octets(),
        Some(IpAddr::V6(v6)) => {
            let [.., a, b, c, d] = v6.octets();
            [a, b, c, d]
        }
        None => [0; 4],
    };
    [0x0a, 0x58, a, b, c, d]
}

pub fn mac_text(mac: &Mac) -> String {
    let digits: Vec<String> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(":")
}

/// A pair to be made.
#[derive(Debug)]
pub struct Veth<'a> {
    pub host_interface: &'a str,
    pub pod_interface: &'a str,
    pub alias: String,
    pub mtu: u32,
    pub pod_mac: Mac,
}

/// Makes the pair, its pod's side within the pod's namespace at once. Both sides are down.
pub fn create(netlink: &mut Netlink, veth: &Veth<'_>, pod: &Namespace) -> Result<(), Error> {
    let mut peer = LinkMessage::default();
    peer.attributes = vec![
        LinkAttribute::IfName(veth.pod_interface.into()),
        LinkAttribute::Mtu(veth.mtu),
        LinkAttribute::Address(veth.pod_mac.to_vec()),
        LinkAttribute::NetNsFd(pod.file().as_raw_fd()),
    ];
    let mut host = LinkMessage::default();
    host.attributes = vec![
        LinkAttribute::IfName(veth.host_interface.into()),
        LinkAttribute::Mtu(veth.mtu),
        LinkAttribute::Address(HOST_MAC.to_vec()),
        LinkAttribute::Group(GROUP),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ];
    // The kernel takes an alias of links that exist only.
    let mut alias = LinkMessage::default();
    alias.attributes = vec![
        LinkAttribute::IfName(veth.host_interface.into()),
        LinkAttribute::IfAlias(veth.alias.clone()),
    ];
    netlink.execute(vec![Request {
        operation: "create the pod's link",
        message: RouteNetlinkMessage::NewLink(host),
        flags: NLM_F_CREATE | NLM_F_EXCL,
    }])?;
    netlink.one(
        "set the alias of the pod's link",
        RouteNetlinkMessage::SetLink(alias),
        0,
    )
}

/// A device on which what a pod sends is shaped.
pub fn create_ifb(netlink: &mut Netlink, name: &str, alias: &str, mtu: u32) -> Result<Link, Error> {
    let mut ifb = LinkMessage::default();
    ifb.attributes = vec![
        LinkAttribute::IfName(name.into()),
        LinkAttribute::Mtu(mtu),
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Ifb)]),
    ];
    netlink.one(
        "create an ifb device",
        RouteNetlinkMessage::NewLink(ifb),
        NLM_F_CREATE | NLM_F_EXCL,
    )?;
    let mut up = LinkMessage::default();
    up.header.flags = LinkFlags::Up;
    up.header.change_mask = LinkFlags::Up;
    up.attributes = vec![
        LinkAttribute::IfName(name.into()),
        LinkAttribute::IfAlias(alias.into()),
    ];
    netlink.one("set up an ifb device", RouteNetlinkMessage::SetLink(up), 0)?;
    let found = find(netlink, name)?;
    found.ok_or_else(|| not_found("find an ifb device"))
}

fn not_found(operation: &'static str) -> Error {
    Error::Rejected {
        operation,
        source: std::io::Error::from_raw_os_error(libc::ENODEV),
    }
}

fn family(address: IpAddr) -> (AddressFamily, u8) {
    match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    }
}

fn address(index: u32, address: IpAddr) -> Request {
    let mut message = AddressMessage::default();
    (message.header.family, message.header.prefix_len) = family(address);
    message.header.index = index;
    message.attributes = match address {
        IpAddr::V4(_) => vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
        ],
        IpAddr::V6(_) => {
            message.header.flags = AddressHeaderFlags::Nodad;
            vec![
                AddressAttribute::Address(address),
                AddressAttribute::Flags(AddressFlags::Nodad),
            ]
        }
    };
    Request {
        operation: "add the pod's address",
        message: RouteNetlinkMessage::NewAddress(message),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
    }
}

fn neighbour(index: u32, address: IpAddr, mac: Mac) -> Request {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address).0;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(match address {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        }),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    Request {
        operation: "add the neighbour",
        message: RouteNetlinkMessage::NewNeighbour(message),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
    }
}

/// A route to one address, or to all with `destination` as `None`.
fn route(index: u32, destination: Option<IpAddr>, gateway: Option<IpAddr>) -> RouteMessage {
    let mut message = RouteMessage::default();
    let of = destination.or(gateway);
    let (family, length) = of.map(family).unwrap_or_default();
    message.header.address_family = family;
    message.header.destination_prefix_length = destination.map_or(0, |_| length);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = ROUTE_PROTOCOL;
    message.header.kind = RouteType::Unicast;
    // IPv6 has no scopes of routes.
    message.header.scope = match (gateway, of) {
        (None, Some(IpAddr::V4(_))) => RouteScope::Link,
        _ => RouteScope::Universe,
    };
    if let Some(destination) = destination {
        let destination = RouteAddress::from(destination);
        message.attributes.push(RouteAttribute::Destination(destination));
    }
    if let Some(gateway) = gateway {
        message
            .attributes
            .push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
    }
    message.attributes.push(RouteAttribute::Oif(index));
    message
}

fn replace(message: RouteMessage) -> Request {
    Request {
        operation: "add the route",
        message: RouteNetlinkMessage::NewRoute(message),
        flags: NLM_F_CREATE | NLM_F_REPLACE,
    }
}

/// The pod's side, from within its namespace: up, addresses, gateways.
pub fn configure_pod_side(netlink: &mut Netlink, index: u32, addresses: &[IpAddr]) -> Result<(), Error> {
    let mut requests = vec![up(index)];
    for pod in addresses {
        let gateway = gateway(*pod);
        requests.push(address(index, *pod));
        requests.push(neighbour(index, gateway, HOST_MAC));
        if gateway.is_ipv4() {
            requests.push(replace(route(index, Some(gateway), None)));
        }
        requests.push(replace(route(index, None, Some(gateway))));
    }
    netlink.execute(requests)
}

/// The gateway of an address's family.
pub fn gateway(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => GATEWAY_V4.into(),
        IpAddr::V6(_) => GATEWAY_V6.into(),
    }
}

/// The neighbours and routes of the host to a pod. `sources` are the node's addresses, from which the node speaks to its
/// pods; without one the kernel picks.
pub fn add_host_routes(
    netlink: &mut Netlink,
    index: u32,
    addresses: &[IpAddr],
    mac: Mac,
    sources: &[IpAddr],
) -> Result<(), Error> {
    let neighbours = addresses.iter().map(|pod| neighbour(index, *pod, mac));
    netlink.execute(neighbours.collect())?;
    for pod in addresses {
        let plain = route(index, Some(*pod), None);
        let mut preferred = plain.clone();
        let source = sources.iter().find(|source| source.is_ipv4() == pod.is_ipv4());
        if let Some(source) = source {
            let source = RouteAddress::from(*source);
            preferred.attributes.push(RouteAttribute::PrefSource(source));
        }
        match netlink.execute(vec![replace(preferred)]) {
            // The node does not have that address (yet).
            Err(error) if source.is_some() && error.errno() == Some(libc::EINVAL) => {
                netlink.execute(vec![replace(plain)])?;
            }
            result => result?,
        }
    }
    Ok(())
}

/// The addresses of pods that routes of ours lead to, with the index of the link.
pub fn pod_routes(netlink: &mut Netlink) -> Result<Vec<(IpAddr, u32)>, Error> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut message = RouteMessage::default();
        message.header.address_family = family;
        for message in netlink.dump("list routes", RouteNetlinkMessage::GetRoute(message))? {
            if let RouteNetlinkMessage::NewRoute(route) = message {
                found.extend(pod_route(&route));
            }
        }
    }
    Ok(found)
}

fn pod_route(route: &RouteMessage) -> Option<(IpAddr, u32)> {
    let is_ours = route.header.protocol == ROUTE_PROTOCOL;
    let mut address = None;
    let mut index = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(v4)) => address = Some(IpAddr::V4(*v4)),
            RouteAttribute::Destination(RouteAddress::Inet6(v6)) => address = Some(IpAddr::V6(*v6)),
            RouteAttribute::Oif(oif) => index = Some(*oif),
            _ => (),
        }
    }
    let (address, index) = (address?, index?);
    let is_whole = route.header.destination_prefix_length == family(address).1;
    (is_ours && is_whole).then_some((address, index))
}
