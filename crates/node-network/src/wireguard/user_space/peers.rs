//! The other nodes: their sessions, found by a packet's receiver index.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use boringtun::noise::Tunn;
use ipnet::IpNet;
use knarr_network::routes::encryption::{self, PublicKey};
use parking_lot::Mutex;
use tokio::time::Instant;

/// At most one handshake in this time is begun because of packets that cannot be read.
const RESTART_PACE: Duration = Duration::from_secs(1);
/// Of a session's index, the rest is the peer's.
const SESSION_BITS: u32 = 8;

/// A node with which there is, or may be, a session.
pub struct Session {
    pub tunn: Mutex<Tunn>,
    restarted: Mutex<Option<Instant>>,
    index: u32,
}

impl Session {
    pub fn new(tunn: Tunn, index: u32) -> Self {
        Session {
            tunn: Mutex::new(tunn),
            restarted: Mutex::default(),
            index,
        }
    }

    /// Whether it is time for a new handshake with a node that uses a session we do not have.
    pub fn may_restart(&self) -> bool {
        let now = Instant::now();
        let mut restarted = self.restarted.lock();
        let may = restarted.is_none_or(|last| now.duration_since(last) >= RESTART_PACE);
        if may {
            *restarted = Some(now);
        }
        may
    }
}

pub struct Peer {
    pub endpoint: SocketAddr,
    allowed: Vec<IpNet>,
    pub session: Arc<Session>,
}

impl Peer {
    /// Whether it may send with this source address.
    pub fn allows(&self, source: IpAddr) -> bool {
        self.allowed.iter().any(|net| net.contains(&source))
    }
}

/// All of them, at one moment.
#[derive(Default)]
pub struct Peers {
    by_key: BTreeMap<PublicKey, Arc<Peer>>,
    by_index: HashMap<u32, Arc<Peer>>,
    by_endpoint: HashMap<SocketAddr, Arc<Peer>>,
    /// Ranges that do not overlap, in their order.
    by_range: Vec<(IpNet, Arc<Peer>)>,
}

impl Peers {
    /// The peers in `desired`, with the sessions of those that stay; `new` creates a new node's session.
    pub fn with(
        &self,
        desired: &BTreeMap<PublicKey, encryption::Peer>,
        mut new: impl FnMut(&PublicKey) -> Arc<Session>,
    ) -> Self {
        let mut all = Peers::default();
        for (key, peer) in desired {
            let kept = self.by_key.get(key).map(|peer| peer.session.clone());
            let peer = Arc::new(Peer {
                endpoint: peer.endpoint,
                allowed: peer.allowed.clone(),
                session: kept.unwrap_or_else(|| new(key)),
            });
            all.by_index.insert(peer.session.index, peer.clone());
            all.by_endpoint.insert(peer.endpoint, peer.clone());
            all.by_range
                .extend(peer.allowed.iter().map(|net| (*net, peer.clone())));
            all.by_key.insert(*key, peer);
        }
        all.by_range.sort_by_key(|(net, _)| *net);
        all
    }

    pub fn iter(&self) -> impl Iterator<Item = (&PublicKey, &Arc<Peer>)> {
        self.by_key.iter()
    }

    pub fn of_key(&self, key: &PublicKey) -> Option<&Arc<Peer>> {
        self.by_key.get(key)
    }

    /// By the receiver's index of a message.
    pub fn of_index(&self, index: u32) -> Option<&Arc<Peer>> {
        self.by_index.get(&(index >> SESSION_BITS))
    }

    pub fn of_endpoint(&self, endpoint: &SocketAddr) -> Option<&Arc<Peer>> {
        self.by_endpoint.get(endpoint)
    }

    /// The node of this destination address.
    pub fn of_destination(&self, destination: IpAddr) -> Option<&Arc<Peer>> {
        let after = self
            .by_range
            .partition_point(|(net, _)| net.network() <= destination);
        let (net, peer) = self.by_range.get(after.checked_sub(1)?)?;
        net.contains(&destination).then_some(peer)
    }
}

#[cfg(test)]
mod tests {
    use boringtun::x25519::{PublicKey as Point, StaticSecret};

    use super::*;

    #[test]
    fn n7_a_packet_is_sent_to_the_node_of_its_destination_and_sessions_stay_with_their_key() {
        let desired = |ranges: &[(u8, &[&str])]| -> BTreeMap<PublicKey, encryption::Peer> {
            let peer = |(seed, allowed): &(u8, &[&str])| {
                let peer = encryption::Peer {
                    endpoint: SocketAddr::from(([10, 0, 0, *seed], 51820)),
                    allowed: allowed.iter().map(|net| net.parse().unwrap()).collect(),
                };
                (PublicKey([*seed; 32]), peer)
            };
            ranges.iter().map(peer).collect()
        };
        let mut next = 0;
        let mut new = |key: &PublicKey| {
            next += 1;
            let own = StaticSecret::from([9; 32]);
            let tunn = Tunn::new(own, Point::from(key.0), None, None, next, None);
            Arc::new(Session::new(tunn, next))
        };
        let first = Peers::default().with(
            &desired(&[
                (1, &["10.1.1.0/24", "fd01::/64"]),
                (2, &["10.1.2.0/25", "10.1.0.0/24"]),
            ]),
            &mut new,
        );
        let to = |peers: &Peers, ip: &str| {
            let peer = peers.of_destination(ip.parse().unwrap());
            peer.map(|peer| match peer.endpoint.ip() {
                IpAddr::V4(v4) => v4.octets()[3],
                IpAddr::V6(_) => 0,
            })
        };
        for (ip, seed) in [
            ("10.1.1.0", Some(1)),
            ("10.1.1.255", Some(1)),
            ("10.1.2.127", Some(2)),
            ("10.1.2.128", None),
            ("10.1.0.7", Some(2)),
            ("10.0.255.255", None),
            ("fd01::7", Some(1)),
            ("fd01:0:0:1::", None),
            ("::1", None),
        ] {
            assert_eq!(to(&first, ip), seed, "{ip}");
        }
        let second = first.with(&desired(&[(2, &["10.1.3.0/24"]), (3, &[])]), &mut new);
        let session = |peers: &Peers, seed| peers.of_key(&PublicKey([seed; 32])).unwrap().session.clone();
        assert!(Arc::ptr_eq(&session(&first, 2), &session(&second, 2)));
        assert_eq!(to(&second, "10.1.1.0"), None);
        assert!(second.of_index(1 << SESSION_BITS).is_none());
        assert!(second.of_index((2 << SESSION_BITS) | 5).is_some());
        let peer = second.of_index(2 << SESSION_BITS).unwrap();
        assert!(peer.allows("10.1.3.9".parse().unwrap()) && !peer.allows("10.1.0.9".parse().unwrap()));
    }
}
