//! From the TUN device to other nodes.

use std::io::{ErrorKind, Read};

use boringtun::noise::{Tunn, TunnResult};

use super::batch::Batch;
use super::{BURST, MAX_HANDSHAKE, MAX_PACKET, MESSAGE_OVERHEAD, Peers, Shared};

/// Until it is time to end.
pub fn carry(shared: &Shared) {
    let mut packet = vec![0; MAX_PACKET];
    let mut batch = Batch::new(MAX_PACKET + MESSAGE_OVERHEAD);
    while shared.readable(&shared.tun) {
        let peers = shared.peers();
        for _ in 0..BURST {
            match (&shared.tun).read(&mut packet) {
                Ok(len) => send(shared, &peers, &packet[..len], &mut batch),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return shared.fail(&error),
            }
        }
        batch.flush(&shared.socket);
    }
}

fn send(shared: &Shared, peers: &Peers, packet: &[u8], batch: &mut Batch) {
    let destination = Tunn::dst_address(packet);
    let Some(peer) = destination.and_then(|ip| peers.of_destination(ip)) else {
        return;
    };
    let len = (packet.len() + MESSAGE_OVERHEAD).max(MAX_HANDSHAKE);
    let room = batch.room(&shared.socket, peer.endpoint, len);
    let encrypted = peer.session.tunn.lock().encapsulate(packet, room);
    let len = match encrypted {
        TunnResult::WriteToNetwork(message) => message.len(),
        // It waits for the session.
        _ => 0,
    };
    batch.add(&shared.socket, len);
}
