//! Datagrams on their way to one node, which the kernel takes in one call (UDP generic segmentation offload).

use std::io::{self, IoSlice};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};

/// What the kernel takes at once: 64 segments, in one IP packet with its headers.
const MAX_SEGMENTS: usize = 64;
const MAX_BYTES: usize = 65_000;

/// Datagrams of one size, of which only the last is shorter.
pub struct Batch {
    bytes: Vec<u8>,
    used: usize,
    segment: usize,
    segments: usize,
    to: Option<SocketAddr>,
    /// The kernel and the link segment for us.
    has_offload: bool,
}

impl Batch {
    /// Of datagrams of at most so many bytes.
    pub fn new(largest: usize) -> Self {
        Batch {
            bytes: vec![0; MAX_BYTES + largest],
            used: 0,
            segment: 0,
            segments: 0,
            to: None,
            has_offload: true,
        }
    }

    /// Where the next datagram to this node is to be written; at least `len` bytes, or as many as the largest has.
    pub fn room(&mut self, socket: &UdpSocket, to: SocketAddr, len: usize) -> &mut [u8] {
        let is_full = self.used + len > MAX_BYTES || self.segments == MAX_SEGMENTS;
        if is_full || self.to.is_some_and(|before| before != to) {
            self.flush(socket);
        }
        self.to = Some(to);
        &mut self.bytes[self.used..]
    }

    /// So many bytes were written there.
    pub fn add(&mut self, socket: &UdpSocket, len: usize) {
        if len == 0 {
            return;
        }
        let at = self.used;
        if self.segments > 0 && len > self.segment {
            let to = self.to;
            self.flush(socket);
            self.to = to;
            self.bytes.copy_within(at..at + len, 0);
        }
        if self.segments == 0 {
            self.segment = len;
        }
        self.segments += 1;
        self.used += len;
        if len < self.segment {
            self.flush(socket);
        }
    }

    /// Sends what there is. A datagram that cannot be sent is lost, as on any network.
    pub fn flush(&mut self, socket: &UdpSocket) {
        if let (Some(to), true) = (self.to, self.used > 0)
            && let Err(error) = self.send(socket, to)
        {
            tracing::trace!(%error, %to, "encrypted packets are lost");
        }
        (self.used, self.segments, self.to) = (0, 0, None);
    }

    fn send(&mut self, socket: &UdpSocket, to: SocketAddr) -> io::Result<()> {
        let bytes = &self.bytes[..self.used];
        if self.segments == 1 {
            return socket.send_to(bytes, to).map(|_| ());
        }
        if self.has_offload {
            let segment = u16::try_from(self.segment).map_err(io::Error::other)?;
            let control = [ControlMessage::UdpGsoSegments(&segment)];
            let address = SockaddrStorage::from(to);
            let sent = sendmsg(
                socket.as_raw_fd(),
                &[IoSlice::new(bytes)],
                &control,
                MsgFlags::empty(),
                Some(&address),
            );
            match sent {
                // A link without checksum offload, or an old kernel.
                Err(Errno::EIO | Errno::EINVAL | Errno::ENOPROTOOPT) => self.has_offload = false,
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
        bytes
            .chunks(self.segment)
            .try_for_each(|datagram| socket.send_to(datagram, to).map(|_| ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n7_datagrams_arrive_whole_and_in_their_order_whatever_their_sizes() {
        let (to, from) = (
            UdpSocket::bind("127.0.0.1:0").unwrap(),
            UdpSocket::bind("127.0.0.1:0").unwrap(),
        );
        let address = to.local_addr().unwrap();
        for has_offload in [true, false] {
            let mut batch = Batch::new(1500);
            batch.has_offload = has_offload;
            let sizes = [100, 100, 60, 1400, 1400, 1400, 1500, 32, 33, 0, 33];
            for (i, size) in sizes.into_iter().enumerate() {
                let room = batch.room(&from, address, 1500);
                assert!(room.len() >= 1500);
                room[..size].fill(u8::try_from(i).unwrap());
                batch.add(&from, size);
            }
            batch.flush(&from);
            let mut bytes = [0; 2000];
            for (i, size) in sizes.into_iter().enumerate().filter(|(_, size)| *size > 0) {
                let received = to.recv(&mut bytes).unwrap();
                assert_eq!(received, size, "datagram {i}");
                assert!(bytes[..size].iter().all(|byte| usize::from(*byte) == i));
            }
        }
    }
}
