//! Routes, the tunnel's device, and its neighbours, in the kernel of the network namespace of the thread that opened this.

use std::collections::BTreeMap;
use std::net::IpAddr;

use futures::TryStreamExt;
use ipnet::IpNet;
use knarr_network::routes::{Hop, PORT, Subnet, Tunnel, VNI};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType};
use rtnetlink::{Handle, LinkGetRequest, LinkUnspec, LinkVxlan, RouteMessageBuilder};
use std::net::{Ipv4Addr, Ipv6Addr};

/// By which our routes are known, also after a restart. Of those that no program of iproute2's table has.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(176);

pub type Result<T> = std::result::Result<T, rtnetlink::Error>;

/// A route of ours, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledRoute {
    pub via: Option<IpAddr>,
    pub link: Option<u32>,
    pub is_unreachable: bool,
    message: RouteMessage,
}

impl InstalledRoute {
    /// Whether it leads where it should. `tunnel` is the device of the tunnel, VXLAN's or WireGuard's.
    pub fn is(&self, hop: Hop, tunnel: Option<u32>) -> bool {
        let leads = |via, link| !self.is_unreachable && self.via == via && self.link == link;
        match hop {
            Hop::Direct { via, link } => leads(Some(via), Some(link)),
            Hop::Tunnel { gateway } => leads(Some(gateway), tunnel),
            Hop::Encrypted => leads(None, tunnel),
            Hop::Unreachable => self.is_unreachable,
        }
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// The device of the tunnel.
#[derive(Clone, Debug)]
pub struct Device {
    pub name: String,
    pub mac: [u8; 6],
    pub mtu: u32,
    /// Of the underlay.
    pub local: IpAddr,
    /// Its own ends, one of each family.
    pub gateways: Vec<IpAddr>,
}

/// A connection to the kernel's routing.
#[derive(Clone, Debug)]
pub struct Kernel(pub Handle);

impl Kernel {
    /// The routes of our protocol to destinations within these ranges, by destination.
    pub async fn routes(&self, within: &[IpNet]) -> Result<BTreeMap<IpNet, InstalledRoute>> {
        let mut all = BTreeMap::new();
        for dump in [
            RouteMessageBuilder::<Ipv4Addr>::new().build(),
            RouteMessageBuilder::<Ipv6Addr>::new().build(),
        ] {
            let mut routes = self.0.route().get(dump).execute();
            while let Some(message) = routes.try_next().await? {
                if message.header.protocol != PROTOCOL {
                    continue;
                }
                let mut destination = None;
                let (mut via, mut link) = (None, None);
                for attribute in &message.attributes {
                    match attribute {
                        RouteAttribute::Destination(address) => destination = ip(address),
                        RouteAttribute::Gateway(address) => via = ip(address),
                        RouteAttribute::Oif(index) => link = Some(*index),
                        _ => {}
                    }
                }
                let prefix = message.header.destination_prefix_length;
                let net = destination.and_then(|d| IpNet::new(d, prefix).ok());
                if let Some(net) = net.filter(|net| within.iter().any(|range| range.contains(net))) {
                    let have = InstalledRoute {
                        via,
                        link,
                        is_unreachable: message.header.kind == RouteType::Unreachable,
                        message,
                    };
                    all.insert(net, have);
                }
            }
        }
        Ok(all)
    }

    /// Creates the route, or changes it where there is another of ours. `source` is the host's source address.
    pub async fn set_route(
        &self,
        destination: IpNet,
        hop: Hop,
        tunnel: Option<u32>,
        source: Option<IpAddr>,
    ) -> Result<()> {
        let (via, link) = match hop {
            Hop::Direct { via, link } => (Some(via), Some(link)),
            Hop::Tunnel { gateway } => (Some(gateway), tunnel),
            Hop::Encrypted => (None, tunnel),
            Hop::Unreachable => return self.set_unreachable(destination).await,
        };
        let invalid = |_| rtnetlink::Error::InvalidNla(format!("route to {destination}"));
        let mut route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(invalid)?
            .protocol(PROTOCOL);
        if let Some(via) = via {
            route = route.gateway(via).map_err(invalid)?;
        }
        if let Some(source) = source {
            route = route.pref_source(source).map_err(invalid)?;
        }
        if let Some(link) = link {
            route = route.output_interface(link);
        }
        if matches!(hop, Hop::Tunnel { .. }) {
            route = route.onlink();
        }
        self.0.route().add(route.build()).replace().execute().await
    }

    /// Packets to a pod of ours that is not there are answered at once, not sent to the default route.
    pub async fn set_unreachable(&self, destination: IpNet) -> Result<()> {
        let route = RouteMessageBuilder::<IpAddr>::new()
            .destination_prefix(destination.addr(), destination.prefix_len())
            .map_err(|_| rtnetlink::Error::InvalidNla(format!("route to {destination}")))?
            .protocol(PROTOCOL)
            .kind(RouteType::Unreachable);
        self.0.route().add(route.build()).replace().execute().await
    }

    pub async fn remove_route(&self, have: InstalledRoute) -> Result<()> {
        missing_is_ok(self.0.route().del(have.message).execute().await)
    }

    /// The networks of this host's links, but those of `except`.
    pub async fn subnets(&self, except: Option<u32>) -> Result<Vec<Subnet>> {
        let mut subnets = Vec::new();
        let mut addresses = self.0.address().get().execute();
        while let Some(message) = addresses.try_next().await? {
            let link = message.header.index;
            // A point-to-point address has its peer's in `Address`; its own is `Local`.
            let address = message.attributes.iter().find_map(|a| match a {
                AddressAttribute::Address(ip) => Some(*ip),
                _ => None,
            });
            let Some(address) = address.filter(|a| !a.is_loopback()) else {
                continue;
            };
            let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
            let net = IpNet::new(address, message.header.prefix_len);
            if let Ok(net) = net
                && Some(link) != except
                && !is_link_local
                && net.prefix_len() < net.max_prefix_len()
            {
                subnets.push(Subnet { link, net });
            }
        }
        Ok(subnets)
    }

    /// Index and MTU of a link; `None` if there is none of this name.
    pub async fn link(&self, name: &str) -> Result<Option<(u32, u32, Vec<u8>)>> {
        let found = first(self.0.link().get().match_name(name.to_string())).await?;
        Ok(found.map(|link| {
            let (mut mtu, mut mac) = (0, Vec::new());
            for attribute in &link.attributes {
                match attribute {
                    LinkAttribute::Mtu(bytes) => mtu = *bytes,
                    LinkAttribute::Address(address) => mac.clone_from(address),
                    _ => {}
                }
            }
            (link.header.index, mtu, mac)
        }))
    }

    /// The kind of the link of this name; `None` if there is none, `Other` for one without a kind.
    pub async fn kind(&self, name: &str) -> Result<Option<InfoKind>> {
        let found = first(self.0.link().get().match_name(name.to_string())).await?;
        Ok(found.map(|link| {
            let info = link.attributes.into_iter().find_map(|attribute| match attribute {
                LinkAttribute::LinkInfo(info) => Some(info),
                _ => None,
            });
            let kind = info.into_iter().flatten().find_map(|info| match info {
                LinkInfo::Kind(kind) => Some(kind),
                _ => None,
            });
            kind.unwrap_or(InfoKind::Other(String::new()))
        }))
    }

    /// The MTU of a link, by its index.
    pub async fn mtu(&self, index: u32) -> Result<Option<u32>> {
        let found = first(self.0.link().get().match_index(index)).await?;
        Ok(found.and_then(|link| {
            link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            })
        }))
    }

    /// The tunnel's device, made where it is missing or another's; its index.
    pub async fn set_device(&self, device: &Device) -> Result<u32> {
        let index = match self.link(&device.name).await? {
            Some((index, mtu, mac)) if mac == device.mac => {
                if mtu != device.mtu {
                    let change = LinkUnspec::new_with_index(index).mtu(device.mtu).build();
                    self.0.link().set(change).execute().await?;
                }
                index
            }
            other => {
                if let Some((index, ..)) = other {
                    missing_is_ok(self.0.link().del(index).execute().await)?;
                }
                let link = LinkVxlan::new(&device.name, VNI)
                    .port(PORT)
                    .learning(false)
                    .address(device.mac.to_vec())
                    .mtu(device.mtu);
                let link = match device.local {
                    IpAddr::V4(local) => link.local(local),
                    IpAddr::V6(local) => link.local6(local),
                };
                self.0.link().add(link.build()).execute().await?;
                let made = self.link(&device.name).await?;
                made.map_or_else(
                    || Err(rtnetlink::Error::InvalidNla(format!("no link {}", device.name))),
                    |(index, ..)| Ok(index),
                )?
            }
        };
        self.set_up(index, &device.gateways).await?;
        Ok(index)
    }

    /// Gives a link that is there this MTU and these addresses, and sets it up; its index.
    pub async fn set_link(&self, name: &str, mtu: u32, addresses: &[IpAddr]) -> Result<u32> {
        let Some((index, current, _)) = self.link(name).await? else {
            return Err(rtnetlink::Error::InvalidNla(format!("no link {name}")));
        };
        if current != mtu {
            let change = LinkUnspec::new_with_index(index).mtu(mtu).build();
            self.0.link().set(change).execute().await?;
        }
        self.set_up(index, addresses).await?;
        Ok(index)
    }

    async fn set_up(&self, index: u32, addresses: &[IpAddr]) -> Result<()> {
        for address in addresses {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            let mut add = self.0.address().add(index, *address, prefix);
            if address.is_ipv6() {
                // A route cannot name it as its source before duplicate address detection ends, after a second or two;
                // the address is of this node's own range, so there is nothing to detect.
                add.message_mut().header.flags = AddressHeaderFlags::Nodad;
            }
            there(add.execute().await)?;
        }
        let up = LinkUnspec::new_with_index(index).up().build();
        self.0.link().set(up).execute().await
    }

    pub async fn remove_device(&self, name: &str) -> Result<()> {
        match self.link(name).await? {
            Some((index, ..)) => missing_is_ok(self.0.link().del(index).execute().await),
            None => Ok(()),
        }
    }

    /// The permanent neighbours on the tunnel, by address, with their MAC addresses; and which hosts are behind these.
    pub async fn tunnels(
        &self,
        device: u32,
    ) -> Result<(BTreeMap<IpAddr, Vec<u8>>, BTreeMap<Vec<u8>, IpAddr>)> {
        let (mut neighbours, mut machines) = (BTreeMap::new(), BTreeMap::new());
        for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Bridge] {
            let dump = self.0.neighbours().get().set_address_family(family);
            let mut entries = dump.execute();
            while let Some(entry) = entries.try_next().await? {
                if entry.header.ifindex != device {
                    continue;
                }
                let (destination, mac) = addresses_of(&entry);
                let (Some(destination), Some(mac)) = (destination, mac) else {
                    continue;
                };
                if entry.header.family == AddressFamily::Bridge {
                    machines.insert(mac, destination);
                } else {
                    neighbours.insert(destination, mac);
                }
            }
        }
        Ok((neighbours, machines))
    }

    pub async fn set_tunnel(&self, device: u32, gateway: IpAddr, tunnel: Tunnel) -> Result<()> {
        self.0
            .neighbours()
            .add_bridge(device, &tunnel.mac)
            .flags(netlink_packet_route::neighbour::NeighbourFlags::Own)
            .destination(tunnel.remote)
            .replace()
            .execute()
            .await?;
        self.0
            .neighbours()
            .add(device, gateway)
            .link_layer_address(&tunnel.mac)
            .replace()
            .execute()
            .await
    }

    pub async fn remove_neighbour(&self, device: u32, gateway: IpAddr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = device;
        let (family, destination) = match gateway {
            IpAddr::V4(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(v4)),
            IpAddr::V6(v6) => (AddressFamily::Inet6, NeighbourAddress::Inet6(v6)),
        };
        message.header.family = family;
        message
            .attributes
            .push(NeighbourAttribute::Destination(destination));
        missing_is_ok(self.0.neighbours().del(message).execute().await)
    }

    pub async fn remove_machine(&self, device: u32, mac: &[u8]) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.ifindex = device;
        message.header.family = AddressFamily::Bridge;
        message.header.flags = netlink_packet_route::neighbour::NeighbourFlags::Own;
        message
            .attributes
            .push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
        missing_is_ok(self.0.neighbours().del(message).execute().await)
    }
}

fn addresses_of(entry: &NeighbourMessage) -> (Option<IpAddr>, Option<Vec<u8>>) {
    let (mut destination, mut mac) = (None, None);
    for attribute in &entry.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                destination = Some(IpAddr::V4(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                destination = Some(IpAddr::V6(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = Some(bytes.clone()),
            _ => {}
        }
    }
    (destination, mac)
}

pub(crate) fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Some(-message.raw_code()),
        _ => None,
    }
}

/// The requested link; `None` if there is none.
async fn first(request: LinkGetRequest) -> Result<Option<LinkMessage>> {
    let mut links = request.execute();
    match links.try_next().await {
        Err(error) if is_no_device(&error) => Ok(None),
        found => found,
    }
}

fn is_no_device(error: &rtnetlink::Error) -> bool {
    errno(error) == Some(libc::ENODEV)
}

/// A missing object is a success.
fn missing_is_ok(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if matches!(errno(&error), Some(libc::ESRCH | libc::ENOENT | libc::ENODEV)) => Ok(()),
        other => other,
    }
}

/// What is there already was to come.
fn there(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if errno(&error) == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}
