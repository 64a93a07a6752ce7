//! How many connections a port has at once.
//!
//! Each connection takes a file descriptor, and the same process needs descriptors for its store, for containerd and
//! for its own connections. So a port has a limit in total, a lower one for connections whose client has not
//! authenticated yet, and among these a lower one for each peer address. A connection beyond a limit is closed as soon
//! as it is accepted. Other clients, and those that have authenticated, are still served.
//!
//! kube-apiserver and kubelet have no such limits (SPEC A6).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The limits of one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// All connections.
    pub total: usize,
    /// Those whose client has not authenticated.
    pub unauthenticated: usize,
    /// Those of one peer address whose client has not authenticated.
    pub per_peer: usize,
}

impl Limits {
    /// More connections are of no use: a server of this size needs some 20 KiB for each.
    pub const TOTAL_MAX: usize = 65_536;

    /// Limits for a port that may use so many file descriptors: unauthenticated clients get half of them, one
    /// unauthenticated peer address a quarter.
    pub fn of_descriptors(descriptors: usize) -> Self {
        let total = descriptors.min(Self::TOTAL_MAX);
        Limits {
            total,
            unauthenticated: total / 2,
            per_peer: total / 4,
        }
    }
}

impl Default for Limits {
    /// For a process that may open 20 000 files and serves one port.
    fn default() -> Self {
        Limits::of_descriptors(10_000)
    }
}

/// Which limit a connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    #[error("{0} connections are open, which is the port's limit")]
    Total(usize),
    #[error("{0} connections are open whose clients have not authenticated, which is the port's limit")]
    Unauthenticated(usize),
    #[error(
        "{0} connections of this address are open whose clients have not authenticated, which is the limit"
    )]
    PerPeer(usize),
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    unauthenticated: usize,
    /// By peer; there are no more entries than unauthenticated connections.
    peers: HashMap<IpAddr, usize>,
}

impl Counts {
    fn authenticate(&mut self, peer: IpAddr) {
        self.unauthenticated -= 1;
        if let Some(count) = self.peers.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.peers.remove(&peer);
            }
        }
    }
}

/// The connections of the ports that share their limits.
#[derive(Debug)]
pub struct Connections {
    limits: Limits,
    counts: Mutex<Counts>,
}

impl Connections {
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Connections {
            limits,
            counts: Mutex::default(),
        })
    }

    /// Counts a connection of this address while the permit exists.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Permit, Exceeded> {
        let (peer, limits) = (peer(address), self.limits);
        let mut counts = self.counts.lock();
        if counts.total >= limits.total {
            return Err(Exceeded::Total(limits.total));
        }
        if counts.unauthenticated >= limits.unauthenticated {
            return Err(Exceeded::Unauthenticated(limits.unauthenticated));
        }
        if counts.peers.get(&peer).is_some_and(|n| *n >= limits.per_peer) {
            return Err(Exceeded::PerPeer(limits.per_peer));
        }
        counts.total += 1;
        counts.unauthenticated += 1;
        *counts.peers.entry(peer).or_default() += 1;
        drop(counts);
        Ok(Permit {
            connections: self.clone(),
            peer,
            authenticated: AtomicBool::new(false),
        })
    }
}

/// The address that is counted as one peer: an IPv4 address, or an IPv6 network of 64 bits, which is what one host gets.
fn peer(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// The permit of one connection.
#[derive(Debug)]
pub struct Permit {
    connections: Arc<Connections>,
    peer: IpAddr,
    authenticated: AtomicBool,
}

impl Permit {
    /// The client has authenticated: from now on the connection counts in total only.
    pub fn authenticate(&self) {
        if !self.authenticated.load(Ordering::Relaxed) && !self.authenticated.swap(true, Ordering::Relaxed) {
            self.connections.counts.lock().authenticate(self.peer);
        }
    }

    pub fn is_authenticated(&self) -> bool {
        self.authenticated.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.connections.counts.lock();
        counts.total -= 1;
        if !*self.authenticated.get_mut() {
            counts.authenticate(self.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a6_connections_are_limited_in_total_and_before_authentication_per_peer() {
        let connections = Connections::new(Limits {
            total: 4,
            unauthenticated: 3,
            per_peer: 2,
        });
        let open = |text| connections.admit(address(text));
        let (a, b) = (open("10.0.0.1").unwrap(), open("::ffff:10.0.0.1").unwrap());
        assert_eq!(open("10.0.0.1").err(), Some(Exceeded::PerPeer(2)));
        let c = open("10.0.0.2").unwrap();
        assert_eq!(open("10.0.0.3").err(), Some(Exceeded::Unauthenticated(3)));
        a.authenticate();
        a.authenticate();
        b.authenticate();
        let d = open("10.0.0.1").unwrap();
        assert_eq!(open("10.0.0.3").err(), Some(Exceeded::Total(4)));
        drop((a, b, c, d));
        let counts = connections.counts.lock();
        assert_eq!(
            (counts.total, counts.unauthenticated, counts.peers.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn a6_a_host_is_one_peer_whichever_of_its_ipv6_addresses_it_uses() {
        assert_eq!(
            peer(address("2001:db8:1:2:3::4")),
            peer(address("2001:db8:1:2:ffff::"))
        );
        assert_ne!(peer(address("2001:db8:1:2::")), peer(address("2001:db8:1:3::")));
    }
}
