//! Names and values of attachments: sandbox ids, pods, host ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Bytes of a sandbox id; containerd's have 64.
const MAX_ID_BYTES: usize = 128;
/// Hexadecimal digits of the sandbox id in interface names: with `knarr` they make 15, which is what the kernel allows.
const NAME_DIGITS: usize = 10;

/// The id of a sandbox, as the runtime gave it: letters, digits, `_`, `.` and `-`, so that it can be a file's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a container id is 1 to {MAX_ID_BYTES} letters, digits, '_', '.' and '-', and begins with a letter or digit"
)]
pub struct InvalidId;

impl SandboxId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The host's side of its veth pair.
    pub fn host_interface(&self) -> String {
        format!("knarr{}", self.digits(NAME_DIGITS))
    }

    /// The device that its egress bandwidth is shaped on.
    pub fn ifb(&self) -> String {
        format!("knarri{}", self.digits(NAME_DIGITS - 1))
    }

    fn digits(&self, count: usize) -> String {
        let first = self.0.get(..count).filter(|digits| is_hex(digits));
        match first {
            Some(digits) => digits.to_ascii_lowercase(),
            // No runtime that we know names sandboxes otherwise; FNV-1a is enough to distinguish a few hundred.
            None => {
                let hash = self.0.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
                });
                format!("{hash:016x}").chars().take(count).collect()
            }
        }
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl TryFrom<String> for SandboxId {
    type Error = InvalidId;

    fn try_from(id: String) -> Result<Self, InvalidId> {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
        let begins = id.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        match begins && id.len() <= MAX_ID_BYTES && id.bytes().all(is_inner) {
            true => Ok(SandboxId(id.into())),
            false => Err(InvalidId),
        }
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> String {
        id.0.to_string()
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The pod of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PodName {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Absent from runtimes before containerd 1.6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Arc<str>>,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// IANA's number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
    }
}

/// A port of the node that leads to a port of the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostPort {
    pub protocol: Protocol,
    /// The node's address; `None` for all of both families, an unspecified one for all of its family.
    pub host_ip: Option<IpAddr>,
    pub host_port: u16,
    pub container_port: u16,
}

impl HostPort {
    /// The addresses of the node on which it is, a family each, if the pod's address is of that family.
    pub fn host_address(&self, pod: IpAddr) -> Option<HostAddress> {
        match (self.host_ip, pod) {
            (None, _) => Some(HostAddress::Any),
            (Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), IpAddr::V4(_))
            | (Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), IpAddr::V6(_)) => Some(HostAddress::Any),
            (Some(host), pod) if host.is_ipv4() == pod.is_ipv4() => Some(HostAddress::Of(host)),
            _ => None,
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ip) = self.host_ip {
            write!(f, "{ip} ")?;
        }
        write!(f, "{}/{}", self.host_port, self.protocol)
    }
}

/// Which of the node's addresses of one family a host port is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostAddress {
    Any,
    Of(IpAddr),
}

/// Limits of a pod's bandwidth, as the reference plugin `bandwidth` takes them: bits a second and bits. The aliases are
/// containerd's, as of the port mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Bandwidth {
    /// What the pod receives; 0 is no limit.
    #[serde(alias = "IngressRate")]
    pub ingress_rate: u64,
    #[serde(alias = "IngressBurst")]
    pub ingress_burst: u64,
    /// What the pod sends; 0 is no limit.
    #[serde(alias = "EgressRate")]
    pub egress_rate: u64,
    #[serde(alias = "EgressBurst")]
    pub egress_burst: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_are_no_file_names_are_rejected() {
        for id in ["", "../x", "a/b", ".x", "-x", "a b", "a\0"] {
            assert!(SandboxId::try_from(id.to_string()).is_err(), "{id:?}");
        }
        assert!(SandboxId::try_from("a".repeat(129)).is_err());
        assert!(SandboxId::try_from("a".repeat(128)).is_ok());
    }

    #[test]
    fn interface_names_are_short_and_of_the_id() {
        let id = SandboxId::try_from("0123456789ABCDEF".to_string()).unwrap();
        assert_eq!(id.host_interface(), "knarr0123456789");
        assert_eq!(id.ifb(), "knarri012345678");
        let id = SandboxId::try_from("not-hexadecimal".to_string()).unwrap();
        assert_eq!(id.host_interface().len(), 15);
        assert_ne!(
            id.host_interface(),
            SandboxId::try_from("not-hexadecimam".to_string())
                .unwrap()
                .host_interface()
        );
    }

    #[test]
    fn n8_an_unspecified_host_ip_is_all_of_its_family() {
        let port = |ip: Option<&str>| HostPort {
            protocol: Protocol::Tcp,
            host_ip: ip.map(|ip| ip.parse().unwrap()),
            host_port: 80,
            container_port: 8080,
        };
        let (v4, v6) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert_eq!(port(None).host_address(v4), Some(HostAddress::Any));
        assert_eq!(port(None).host_address(v6), Some(HostAddress::Any));
        assert_eq!(port(Some("0.0.0.0")).host_address(v4), Some(HostAddress::Any));
        assert_eq!(port(Some("0.0.0.0")).host_address(v6), None);
        assert_eq!(port(Some("::")).host_address(v6), Some(HostAddress::Any));
        let one = "127.0.0.1".parse().unwrap();
        assert_eq!(
            port(Some("127.0.0.1")).host_address(v4),
            Some(HostAddress::Of(one))
        );
        assert_eq!(port(Some("127.0.0.1")).host_address(v6), None);
    }
}
