//! From other nodes to the TUN device.

use std::io::{IoSliceMut, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::{Packet, TunnResult};
use boringtun::x25519::PublicKey as Point;
use knarr_network::routes::encryption::PublicKey;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

use super::{BURST, MAX_HANDSHAKE, MAX_PACKET, Peer, Peers, Shared};

/// Until it is time to end.
pub fn carry(shared: &Shared) {
    let mut received = vec![0; MAX_PACKET];
    let mut packet = vec![0; MAX_PACKET];
    let mut control = nix::cmsg_space!(i32);
    while shared.readable(&shared.socket) {
        let peers = shared.peers();
        for _ in 0..BURST {
            let (len, size, from) = match receive(shared, &mut received, &mut control) {
                Ok(datagrams) => datagrams,
                Err(Errno::EINTR) => continue,
                // Such as a port that was unreachable.
                Err(_) => break,
            };
            for datagram in received[..len].chunks(size.max(1)) {
                take(shared, &peers, datagram, from, &mut packet);
            }
        }
    }
}

/// How many bytes there are, of datagrams of which size, from where.
fn receive(
    shared: &Shared,
    received: &mut [u8],
    control: &mut [u8],
) -> Result<(usize, usize, Option<SocketAddr>), Errno> {
    let mut buffers = [IoSliceMut::new(received)];
    let message = recvmsg::<SockaddrStorage>(
        shared.socket.as_raw_fd(),
        &mut buffers,
        Some(control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let size = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::UdpGroSegments(size) => usize::try_from(size).ok(),
        _ => None,
    });
    let from = message.address.and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4((*v4).into()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6((*v6).into())))
    });
    Ok((message.bytes, size.unwrap_or(message.bytes), from))
}

fn take(shared: &Shared, peers: &Peers, datagram: &[u8], from: Option<SocketAddr>, packet: &mut [u8]) {
    let mut cookie = [0; MAX_HANDSHAKE];
    let ip = from.map(|from| from.ip());
    let peer = match shared.limiter.verify_packet(ip, datagram, &mut cookie) {
        Ok(Packet::HandshakeInit(init)) => {
            let own = Point::from(shared.key.public().0);
            let Ok(half) = parse_handshake_anon(&shared.key.secret(), &own, &init) else {
                return;
            };
            peers.of_key(&PublicKey(half.peer_static_public))
        }
        Ok(Packet::HandshakeResponse(response)) => peers.of_index(response.receiver_idx),
        Ok(Packet::PacketCookieReply(reply)) => peers.of_index(reply.receiver_idx),
        Ok(Packet::PacketData(data)) => {
            let peer = peers.of_index(data.receiver_idx);
            if peer.is_none() {
                restart(shared, peers, from);
            }
            peer
        }
        Err(TunnResult::WriteToNetwork(cookie)) => {
            if let Some(from) = from {
                // It is lost, and will be retransmitted.
                let _ = shared.socket.send_to(cookie, from);
            }
            return;
        }
        Err(_) => return,
    };
    if let Some(peer) = peer {
        open(shared, peers, peer, datagram, ip, from, packet);
    }
}

fn open(
    shared: &Shared,
    peers: &Peers,
    peer: &Arc<Peer>,
    datagram: &[u8],
    ip: Option<IpAddr>,
    from: Option<SocketAddr>,
    packet: &mut [u8],
) {
    let mut tunn = peer.session.tunn.lock();
    match tunn.decapsulate(ip, datagram, packet) {
        TunnResult::WriteToTunnelV4(packet, source) => write(shared, peer, packet, source.into()),
        TunnResult::WriteToTunnelV6(packet, source) => write(shared, peer, packet, source.into()),
        TunnResult::WriteToNetwork(message) => {
            shared.send(peer, message);
            // What waited for the session.
            while let TunnResult::WriteToNetwork(message) = tunn.decapsulate(None, &[], packet) {
                shared.send(peer, message);
            }
        }
        TunnResult::Err(WireGuardError::NoCurrentSession | WireGuardError::WrongIndex) => {
            drop(tunn);
            restart(shared, peers, from);
        }
        TunnResult::Err(error) => tracing::trace!(?error, from = %peer.endpoint, "a packet is rejected"),
        TunnResult::Done => {}
    }
}

fn write(shared: &Shared, peer: &Peer, packet: &[u8], source: IpAddr) {
    if !peer.allows(source) {
        tracing::debug!(%source, from = %peer.endpoint, "a node sends from addresses that are not its own");
        return;
    }
    // The kernel takes a packet or drops it.
    if let Err(error) = (&shared.tun).write(packet)
        && error.raw_os_error() == Some(libc::EBADFD)
    {
        shared.fail(&error);
    }
}

/// A node uses a session of an earlier process of ours: it gets a new one at once, not when it has waited in vain.
fn restart(shared: &Shared, peers: &Peers, from: Option<SocketAddr>) {
    let peer = from.and_then(|from| peers.of_endpoint(&from));
    if let Some(peer) = peer.filter(|peer| peer.session.may_restart()) {
        shared.begin(peer);
    }
}
