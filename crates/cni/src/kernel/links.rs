//! Links and addresses as the kernel has them.

use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};

use super::netlink::{Error, Netlink, Request};

/// A link as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// Of a pod's link: identifies its sandbox.
    pub alias: String,
    pub is_up: bool,
}

impl Link {
    fn of(message: &LinkMessage) -> Self {
        let mut link = Link {
            index: message.header.index,
            name: String::new(),
            alias: String::new(),
            is_up: message.header.flags.contains(LinkFlags::Up),
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::IfAlias(alias) => link.alias.clone_from(alias),
                _ => (),
            }
        }
        link
    }
}

/// All links of the namespace.
pub fn list(netlink: &mut Netlink) -> Result<Vec<Link>, Error> {
    let all = netlink.dump("list links", RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let links = all.iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(Link::of(link)),
        _ => None,
    });
    Ok(links.collect())
}

pub fn find(netlink: &mut Netlink, name: &str) -> Result<Option<Link>, Error> {
    let mut message = LinkMessage::default();
    message.attributes = vec![LinkAttribute::IfName(name.into())];
    match netlink.get("find the link", RouteNetlinkMessage::GetLink(message)) {
        Ok(Some(RouteNetlinkMessage::NewLink(link))) => Ok(Some(Link::of(&link))),
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a link and with it its peer and all routes through it. A link that does not exist is no error.
pub fn delete(netlink: &mut Netlink, index: u32) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    match netlink.one("delete the link", RouteNetlinkMessage::DelLink(message), 0) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// The request to set up the link.
pub fn up(index: u32) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    Request {
        operation: "set up the link",
        message: RouteNetlinkMessage::SetLink(message),
        flags: 0,
    }
}

pub fn set_up(netlink: &mut Netlink, index: u32) -> Result<(), Error> {
    netlink.execute(vec![up(index)])
}

/// Sets the link down, which removes all routes through it in both families: from the kernel's answer on no packet passes either
/// way, and no route through it can be added. A link that does not exist is no error.
pub fn set_down(netlink: &mut Netlink, index: u32) -> Result<(), Error> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.change_mask = LinkFlags::Up;
    match netlink.one("set down the link", RouteNetlinkMessage::SetLink(message), 0) {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// All addresses of the namespace, each with its interface's index.
pub fn addresses(netlink: &mut Netlink) -> Result<Vec<(u32, IpAddr)>, Error> {
    let all = netlink.dump(
        "list addresses",
        RouteNetlinkMessage::GetAddress(AddressMessage::default()),
    )?;
    let addresses = all.iter().filter_map(|message| {
        let RouteNetlinkMessage::NewAddress(message) = message else {
            return None;
        };
        // Of a point-to-point address `Address` is the other side's.
        let own = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(address) => Some(*address),
            _ => None,
        });
        let other = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        });
        Some((message.header.index, own.or(other)?))
    });
    Ok(addresses.collect())
}
