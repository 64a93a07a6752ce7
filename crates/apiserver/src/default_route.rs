//! This host's own address on its default route. No packet is sent: a UDP socket only chooses its route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Documentation addresses (RFC 5737, RFC 3849), which take the default route.
const FAR_AWAY_V4: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const FAR_AWAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const DISCARD: u16 = 9;

/// The source address of this host for one IP family; `None` if it has no default route of that family.
pub fn source(is_ipv6: bool) -> Option<IpAddr> {
    let (any, destination): (IpAddr, IpAddr) = match is_ipv6 {
        false => (Ipv4Addr::UNSPECIFIED.into(), FAR_AWAY_V4.into()),
        true => (Ipv6Addr::UNSPECIFIED.into(), FAR_AWAY_V6.into()),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((destination, DISCARD)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    (!source.is_unspecified()).then_some(source)
}
