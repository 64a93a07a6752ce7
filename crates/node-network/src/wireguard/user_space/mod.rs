//! WireGuard in this process, for kernels without it: the protocol is boringtun's, packets come and go through a TUN device.
//!
//! Two threads forward packets, one each way; a task keeps the sessions' timers. Memory is bounded: a buffer of 64 KiB
//! each way, and what boringtun queues for a node while there is no session with it (256 packets). An answer is sent to
//! the address that the node has in the API, never to where a packet came from.

mod batch;
mod incoming;
mod outgoing;
mod peers;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519::PublicKey as Point;
use knarr_network::routes::encryption::{self, PublicKey};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{setsockopt, sockopt};
use parking_lot::{Mutex, RwLock};
use tokio::task::AbortHandle;

use super::private_key::PrivateKey;
use super::tun;
use peers::{Peer, Peers, Session};

/// How often sessions' timers are checked, as boringtun requires.
const TICK: Duration = Duration::from_millis(250);
/// Handshakes a second that are answered without proof that the sender has its address.
const HANDSHAKES_PER_SECOND: u64 = 200;
/// The largest IP packet.
const MAX_PACKET: usize = 65_535;
/// What a message adds to a packet.
const MESSAGE_OVERHEAD: usize = 32;
/// Packets of one direction before the thread checks whether it has to stop.
const BURST: usize = 256;
/// Of the socket's buffers; the kernel may allow less.
const SOCKET_BYTES: usize = 4 << 20;
/// The largest message that is no packet, a handshake's.
const MAX_HANDSHAKE: usize = 256;

/// What both threads have.
struct Shared {
    tun: File,
    socket: UdpSocket,
    peers: RwLock<Arc<Peers>>,
    key: PrivateKey,
    limiter: Arc<RateLimiter>,
    end: EventFd,
    /// The device was removed, or cannot be read.
    failed: AtomicBool,
}

impl Shared {
    fn peers(&self) -> Arc<Peers> {
        self.peers.read().clone()
    }

    fn send(&self, peer: &Peer, message: &[u8]) {
        if let Err(error) = self.socket.send_to(message, peer.endpoint) {
            tracing::trace!(%error, to = %peer.endpoint, "an encrypted packet is lost");
        }
    }

    /// Begins a session, unless a handshake is under way.
    fn begin(&self, peer: &Peer) {
        let mut message = [0; MAX_HANDSHAKE];
        let begun = peer
            .session
            .tunn
            .lock()
            .format_handshake_initiation(&mut message, false);
        if let TunnResult::WriteToNetwork(message) = begun {
            self.send(peer, message);
        }
    }

    fn tick(&self) {
        self.limiter.reset_count();
        let mut message = [0; MAX_HANDSHAKE];
        for (_, peer) in self.peers().iter() {
            if let TunnResult::WriteToNetwork(message) = peer.session.tunn.lock().update_timers(&mut message)
            {
                self.send(peer, message);
            }
        }
    }

    /// Waits until there is something to read; `false` when it is time to end.
    fn readable(&self, from: &impl AsFd) -> bool {
        loop {
            let mut both = [
                PollFd::new(from.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.end.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut both, PollTimeout::NONE) {
                Err(nix::errno::Errno::EINTR) => continue,
                Err(error) => {
                    self.fail(&error.into());
                    return false;
                }
                Ok(_) => {}
            }
            if both[1].any().unwrap_or(true) {
                return false;
            }
            return true;
        }
    }

    fn fail(&self, error: &io::Error) {
        // Once, not for each packet.
        if !self.failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the WireGuard device cannot be used");
        }
    }
}

/// A running device. Dropping it ends the sessions; the device stays, and packets into it are dropped.
pub struct Tunnel {
    shared: Arc<Shared>,
    port: u16,
    next: AtomicU32,
    /// No node has been set yet.
    is_new: Mutex<bool>,
    threads: Vec<JoinHandle<()>>,
    timers: AbortHandle,
}

impl Tunnel {
    /// Attaches to the device, made where it is missing, and receives on `port` of the family of `underlay`. To be called in
    /// a tokio runtime, on a thread in the network namespace of the device.
    pub fn start(device: &str, key: PrivateKey, underlay: IpAddr, port: u16) -> io::Result<Self> {
        let any: IpAddr = match underlay {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, port)).map_err(|error| {
            let message = format!("cannot receive on UDP port {port}: {error}");
            io::Error::new(error.kind(), message)
        })?;
        // More is better, none is needed.
        let _ = setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BYTES);
        let _ = setsockopt(&socket, sockopt::SndBuf, &SOCKET_BYTES);
        // Without it each call brings one datagram.
        let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
        let limiter = RateLimiter::new(&Point::from(key.public().0), HANDSHAKES_PER_SECOND);
        let shared = Arc::new(Shared {
            tun: tun::open(device)?,
            socket,
            peers: RwLock::default(),
            key,
            limiter: Arc::new(limiter),
            end: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            failed: AtomicBool::new(false),
        });
        let ticking = shared.clone();
        let timers = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TICK);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                ticking.tick();
            }
        });
        let mut tunnel = Tunnel {
            shared: shared.clone(),
            port,
            // Nodes that have sessions of an earlier process do not meet the same numbers again.
            next: AtomicU32::new(rand::random()),
            is_new: Mutex::new(true),
            threads: Vec::new(),
            timers: timers.abort_handle(),
        };
        for (name, carry) in [
            ("wireguard-out", outgoing::carry as fn(&Shared)),
            ("wireguard-in", incoming::carry),
        ] {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(name.into());
            tunnel.threads.push(thread.spawn(move || carry(&shared))?);
        }
        Ok(tunnel)
    }

    pub fn public(&self) -> PublicKey {
        self.shared.key.public()
    }

    /// Whether it carries packets of this port and family.
    pub fn serves(&self, underlay: IpAddr, port: u16) -> bool {
        let is_v6 = self.shared.socket.local_addr().is_ok_and(|own| own.is_ipv6());
        !self.shared.failed.load(Ordering::Relaxed) && self.port == port && is_v6 == underlay.is_ipv6()
    }

    /// From now on there are these nodes and no others.
    pub fn set_peers(&self, desired: &BTreeMap<PublicKey, encryption::Peer>) {
        let before = self.shared.peers();
        let after = Arc::new(before.with(desired, |key| self.session(key)));
        *self.shared.peers.write() = after.clone();
        if std::mem::take(&mut *self.is_new.lock()) {
            // A session begins with its first packet.
            return;
        }
        // A node that comes later may have a new key: what it sends waits for us.
        for (key, peer) in after.iter() {
            if before.of_key(key).is_none() {
                self.shared.begin(peer);
            }
        }
    }

    fn session(&self, key: &PublicKey) -> Arc<Session> {
        // boringtun has 24 bits for it.
        let index = self.next.fetch_add(1, Ordering::Relaxed) & 0x00ff_ffff;
        let tunn = Tunn::new(
            self.shared.key.secret(),
            Point::from(key.0),
            None,
            None,
            index,
            Some(self.shared.limiter.clone()),
        );
        Arc::new(Session::new(tunn, index))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.timers.abort();
        // It cannot fail: the counter is far from full.
        let _ = self.shared.end.write(1);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
