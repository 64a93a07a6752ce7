//! Encryption of pods' traffic between nodes with WireGuard: the keys that nodes publish (SPEC N7).
//!
//! A node publishes its public key as an annotation of its own Lease in `knarr-network`, which only its network agent may
//! write: so a key belongs to a node as surely as that agent's certificate does. Nothing else of it leaves the node.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;

/// Annotations of a network agent's Lease: the node's public key, in base64, and the UDP port it receives on.
pub const KEY: &str = "knarr.io/wireguard-public-key";
pub const PORT: &str = "knarr.io/wireguard-port";

/// WireGuard's usual port, that of the default data directory.
pub const DEFAULT_PORT: u16 = 51820;
/// The ports after it are those of other instances on the host.
const INSTANCE_PORTS: u16 = 8192;

/// What WireGuard adds to a packet: its header and tag (32 bytes), the UDP header and the outer IP header.
const OVERHEAD_V4: u32 = 60;
const OVERHEAD_V6: u32 = 80;

/// A Curve25519 public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 bytes in base64")]
pub struct InvalidKey;

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let bytes = STANDARD.decode(text).map_err(|_| InvalidKey)?;
        bytes.try_into().map(PublicKey).map_err(|_| InvalidKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The key and port that a node publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub key: PublicKey,
    pub port: u16,
}

impl Published {
    /// `None` for a node that publishes no valid key: nothing is sent to it then.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let port = match annotations.get(PORT) {
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
            None => DEFAULT_PORT,
        };
        let key = annotations.get(KEY)?.parse().ok()?;
        Some(Published { key, port })
    }

    /// Sets or removes the annotations; returns whether any changed.
    pub fn write(published: Option<&Self>, annotations: &mut BTreeMap<String, String>) -> bool {
        let before = [KEY, PORT].map(|name| annotations.get(name).cloned());
        let after = match published {
            Some(own) => [Some(own.key.to_string()), Some(own.port.to_string())],
            None => [None, None],
        };
        let is_new = before != after;
        for (name, value) in [KEY, PORT].into_iter().zip(after) {
            match value {
                Some(value) => annotations.insert(name.into(), value),
                None => annotations.remove(name),
            };
        }
        is_new
    }
}

/// Another node, as WireGuard knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub endpoint: SocketAddr,
    /// The allowed IPs in both directions: its ranges of pod addresses, none of which another node has.
    pub allowed: Vec<IpNet>,
}

/// The port of an instance: the default one without a name, else one that follows from its hexadecimal digits.
pub fn port(instance: &str) -> u16 {
    match u16::from_str_radix(instance, 16) {
        Ok(number) => DEFAULT_PORT + 1 + number % INSTANCE_PORTS,
        Err(_) => DEFAULT_PORT,
    }
}

/// The largest packet that is encrypted, over a link that takes `mtu`.
pub fn mtu(mtu: u32, underlay: IpAddr) -> u32 {
    mtu.saturating_sub(if underlay.is_ipv6() {
        OVERHEAD_V6
    } else {
        OVERHEAD_V4
    })
}
