//! The kernel's WireGuard, by generic netlink (`linux/wireguard.h`). It keeps running while knarr restarts: what it has
//! already is not changed, sessions included.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;

use ipnet::IpNet;
use knarr_network::routes::encryption::{Peer, PublicKey};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlMessage};
use netlink_packet_wireguard::{
    WireguardAddressFamily, WireguardAllowedIp, WireguardAllowedIpAttr, WireguardAttribute, WireguardCmd,
    WireguardMessage, WireguardPeer, WireguardPeerAttribute, WireguardPeerFlags,
};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_GENERIC;

use super::private_key::PrivateKey;

/// In one message, whose attributes are 64 KiB at the most: a peer with two ranges has about 200 bytes.
const PEERS_IN_MESSAGE: usize = 64;

/// Brings the device, which exists, to this key, port, and peers.
pub fn set(device: &str, key: &PrivateKey, port: u16, desired: &BTreeMap<PublicKey, Peer>) -> io::Result<()> {
    let mut socket = Generic::open()?;
    let family = socket.family(WireguardMessage::family_name())?;
    let there = socket.peers(family, device)?;
    for message in changes(device, key, port, &there, desired) {
        socket.set(family, message)?;
    }
    Ok(())
}

/// A peer of the device, as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct InstalledPeer {
    endpoint: Option<SocketAddr>,
    allowed: BTreeSet<IpNet>,
}

impl InstalledPeer {
    fn is(&self, desired: &Peer) -> bool {
        self.endpoint == Some(desired.endpoint)
            && self.allowed == desired.allowed.iter().copied().collect::<BTreeSet<_>>()
    }

    /// Adds one part of a dump; there may be more than one for a peer with many ranges.
    fn add(&mut self, attribute: &WireguardPeerAttribute) {
        match attribute {
            WireguardPeerAttribute::Endpoint(endpoint) => self.endpoint = Some(*endpoint),
            WireguardPeerAttribute::AllowedIps(allowed) => {
                self.allowed
                    .extend(allowed.iter().filter_map(|allowed| net(&allowed.0)));
            }
            _ => {}
        }
    }
}

fn net(attributes: &[WireguardAllowedIpAttr]) -> Option<IpNet> {
    let (mut address, mut prefix) = (None, None);
    for attribute in attributes {
        match attribute {
            WireguardAllowedIpAttr::IpAddr(ip) => address = Some(*ip),
            WireguardAllowedIpAttr::Cidr(bits) => prefix = Some(*bits),
            _ => {}
        }
    }
    IpNet::new(address?, prefix?).ok()
}

/// The messages for the change. An unchanged peer keeps its session: the same key or port changes nothing, and peers
/// are only named if they change.
fn changes(
    device: &str,
    key: &PrivateKey,
    port: u16,
    there: &BTreeMap<PublicKey, InstalledPeer>,
    desired: &BTreeMap<PublicKey, Peer>,
) -> Vec<WireguardMessage> {
    let message = |mut attributes: Vec<WireguardAttribute>| {
        attributes.insert(0, WireguardAttribute::IfName(device.into()));
        WireguardMessage {
            cmd: WireguardCmd::SetDevice,
            attributes,
        }
    };
    let mut all = vec![message(vec![
        WireguardAttribute::PrivateKey(key.bytes()),
        WireguardAttribute::ListenPort(port),
    ])];
    // Removals first: a range belongs to the peer that it was assigned to last.
    let removed = there
        .keys()
        .filter(|key| !desired.contains_key(key))
        .map(removed_peer);
    let changed = desired
        .iter()
        .filter(|(key, peer)| !there.get(key).is_some_and(|have| have.is(peer)))
        .map(|(key, peer)| desired_peer(key, peer));
    let peers: Vec<WireguardPeer> = removed.chain(changed).collect();
    for peers in peers.chunks(PEERS_IN_MESSAGE) {
        all.push(message(vec![WireguardAttribute::Peers(peers.to_vec())]));
    }
    all
}

fn removed_peer(key: &PublicKey) -> WireguardPeer {
    WireguardPeer(vec![
        WireguardPeerAttribute::PublicKey(key.0),
        WireguardPeerAttribute::Flags(WireguardPeerFlags::RemoveMe),
    ])
}

fn desired_peer(key: &PublicKey, peer: &Peer) -> WireguardPeer {
    let allowed = peer.allowed.iter().map(|net| {
        WireguardAllowedIp(vec![
            WireguardAllowedIpAttr::Family(match net.network().is_ipv4() {
                true => WireguardAddressFamily::Ipv4,
                false => WireguardAddressFamily::Ipv6,
            }),
            WireguardAllowedIpAttr::IpAddr(net.network()),
            WireguardAllowedIpAttr::Cidr(net.prefix_len()),
        ])
    });
    WireguardPeer(vec![
        WireguardPeerAttribute::PublicKey(key.0),
        WireguardPeerAttribute::Flags(WireguardPeerFlags::ReplaceAllowedIps),
        WireguardPeerAttribute::Endpoint(peer.endpoint),
        WireguardPeerAttribute::AllowedIps(allowed.collect()),
    ])
}

/// The peers that one part of a dump names.
fn collect(attributes: &[WireguardAttribute], peers: &mut BTreeMap<PublicKey, InstalledPeer>) {
    let named = attributes.iter().filter_map(|attribute| match attribute {
        WireguardAttribute::Peers(peers) => Some(peers),
        _ => None,
    });
    for peer in named.flatten() {
        let key = peer.0.iter().find_map(|attribute| match attribute {
            WireguardPeerAttribute::PublicKey(key) => Some(PublicKey(*key)),
            _ => None,
        });
        if let Some(key) = key {
            let have = peers.entry(key).or_default();
            peer.0.iter().for_each(|attribute| have.add(attribute));
        }
    }
}

/// A blocking socket of generic netlink.
struct Generic {
    socket: Socket,
    sequence: u32,
}

impl Generic {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        Ok(Generic { socket, sequence: 0 })
    }

    /// The number of a family; an error where the kernel does not have it.
    fn family(&mut self, name: &str) -> io::Result<u16> {
        let question = GenlMessage::from_payload(GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(name.into())],
        });
        let mut id = None;
        self.ask(question, NLM_F_ACK, |answer: GenlCtrl| {
            id = id.or(answer.nlas.iter().find_map(|attribute| match attribute {
                GenlCtrlAttrs::FamilyId(id) => Some(*id),
                _ => None,
            }));
        })?;
        id.ok_or_else(|| io::Error::other(format!("the kernel has no number for {name}")))
    }

    /// A device's peers.
    fn peers(&mut self, family: u16, device: &str) -> io::Result<BTreeMap<PublicKey, InstalledPeer>> {
        let mut question = GenlMessage::from_payload(WireguardMessage {
            cmd: WireguardCmd::GetDevice,
            attributes: vec![WireguardAttribute::IfName(device.into())],
        });
        question.set_resolved_family_id(family);
        let mut there = BTreeMap::new();
        self.ask(question, NLM_F_DUMP, |part: WireguardMessage| {
            collect(&part.attributes, &mut there);
        })?;
        Ok(there)
    }

    fn set(&mut self, family: u16, message: WireguardMessage) -> io::Result<()> {
        let mut request = GenlMessage::from_payload(message);
        request.set_resolved_family_id(family);
        self.ask(request, NLM_F_ACK, |_: WireguardMessage| {})
    }

    /// Sends one request and reads all of the kernel's answers.
    fn ask<F>(&mut self, request: GenlMessage<F>, flags: u16, mut answered: impl FnMut(F)) -> io::Result<()>
    where
        F: std::fmt::Debug,
        GenlMessage<F>: NetlinkSerializable + NetlinkDeserializable,
    {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() {
                let answer = NetlinkMessage::<GenlMessage<F>>::deserialize(rest).map_err(io::Error::other)?;
                let len = usize::try_from(answer.header.length).map_err(io::Error::other)?;
                match answer.payload {
                    NetlinkPayload::Error(error) => {
                        return match error.code {
                            None => Ok(()),
                            Some(_) => Err(error.to_io()),
                        };
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::InnerMessage(message) => answered(message.into_parts().1),
                    _ => {}
                }
                // Messages begin at multiples of four bytes.
                rest = rest.get(len.next_multiple_of(4).max(4)..).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn nested(kind: u16, parts: &[Vec<u8>]) -> Vec<u8> {
        const NESTED: u16 = 1 << 15;
        attribute(kind | NESTED, &parts.concat())
    }

    /// The numbers are those of `enum wgdevice_attribute`, `wgpeer_attribute` and `wgallowedip_attribute`.
    #[test]
    fn n7_the_kernel_gets_our_key_and_port_and_each_nodes_ranges_and_removes_deleted_nodes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let key = PrivateKey::read_or_make(&path, jiff::Timestamp::UNIX_EPOCH).unwrap();
        let peer = Peer {
            endpoint: "10.0.0.2:51820".parse().unwrap(),
            allowed: vec!["10.244.1.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
        };
        let there = BTreeMap::from([5, 6].map(|seed| (PublicKey([seed; 32]), InstalledPeer::default())));
        let desired = BTreeMap::from([(PublicKey([6; 32]), peer)]);
        let messages = changes("knarr-wg", &key, 51820, &there, &desired);
        let bytes: Vec<Vec<u8>> = messages
            .iter()
            .map(|message| {
                assert_eq!(u8::from(message.cmd), 1, "WG_CMD_SET_DEVICE");
                let mut bytes = vec![0; message.buffer_len()];
                message.emit(&mut bytes);
                bytes
            })
            .collect();
        let name = attribute(2, b"knarr-wg\0");
        let device = [
            name.clone(),
            attribute(3, &key.bytes()),
            attribute(6, &51820_u16.to_ne_bytes()),
        ];
        assert_eq!(bytes[0], device.concat());
        let removed = nested(0, &[attribute(1, &[5; 32]), attribute(3, &1_u32.to_ne_bytes())]);
        let allowed = |family: u16, address: &[u8], prefix: u8| {
            nested(
                0,
                &[
                    attribute(1, &family.to_ne_bytes()),
                    attribute(2, address),
                    attribute(3, &[prefix]),
                ],
            )
        };
        let v6: std::net::Ipv6Addr = "fd01::".parse().unwrap();
        let endpoint = [
            &2_u16.to_ne_bytes()[..],
            &51820_u16.to_be_bytes(),
            &[10, 0, 0, 2],
            &[0; 8],
        ]
        .concat();
        let set = nested(
            0,
            &[
                attribute(1, &[6; 32]),
                attribute(3, &2_u32.to_ne_bytes()),
                attribute(4, &endpoint),
                nested(
                    9,
                    &[allowed(2, &[10, 244, 1, 0], 24), allowed(10, &v6.octets(), 64)],
                ),
            ],
        );
        assert_eq!(bytes[1], [name, nested(8, &[removed, set])].concat());
        assert_eq!(bytes.len(), 2);

        // What was configured reads back unchanged, and is then not configured again.
        let mut there = BTreeMap::new();
        collect(&messages[1].attributes, &mut there);
        there.remove(&PublicKey([5; 32]));
        assert_eq!(changes("knarr-wg", &key, 51820, &there, &desired).len(), 1);
        let moved = BTreeMap::from([(
            PublicKey([6; 32]),
            Peer {
                endpoint: "10.0.0.3:51820".parse().unwrap(),
                ..desired[&PublicKey([6; 32])].clone()
            },
        )]);
        assert_eq!(changes("knarr-wg", &key, 51820, &there, &moved).len(), 2);
    }

    #[test]
    fn n7_many_peers_go_in_messages_that_the_kernel_takes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let key = PrivateKey::read_or_make(&path, jiff::Timestamp::UNIX_EPOCH).unwrap();
        let desired: BTreeMap<PublicKey, Peer> = (0_u16..1000)
            .map(|i| {
                let mut bytes = [0; 32];
                bytes[..2].copy_from_slice(&i.to_be_bytes());
                let peer = Peer {
                    endpoint: "[fd00::2]:51820".parse().unwrap(),
                    allowed: vec!["10.244.1.0/24".parse().unwrap(), "fd01::/64".parse().unwrap()],
                };
                (PublicKey(bytes), peer)
            })
            .collect();
        let messages = changes("knarr-wg", &key, 51820, &BTreeMap::new(), &desired);
        assert!(
            messages
                .iter()
                .all(|message| message.buffer_len() < usize::from(u16::MAX))
        );
        assert_eq!(messages.len(), 1 + 1000_usize.div_ceil(PEERS_IN_MESSAGE));
    }

    #[test]
    fn n7_a_kernel_without_wireguard_is_reported() {
        let mut socket = Generic::open().unwrap();
        assert!(
            socket.family("nlctrl").unwrap() > 0,
            "what every kernel has is found"
        );
        assert!(socket.family("knarr-no-such").is_err());
    }
}
