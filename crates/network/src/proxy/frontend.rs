//! Frontends, which clients connect to, and their encoding in keys and data.

use std::net::IpAddr;

use super::Family;
use super::slots::Backend;
use crate::catalog::Protocol;
use crate::nft::{Data, Key, Verdict};

/// Address, protocol and port; a node port has no address. The order puts the frontends of one family together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    pub family: Family,
    /// `None` is a node port: all the node's addresses.
    pub address: Option<IpAddr>,
    pub protocol: Protocol,
    pub port: u16,
}

/// Why a Service has a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    ClusterIp,
    NodePort,
    ExternalIp,
    LoadBalancer,
}

impl FrontendKind {
    /// If several Services claim the same frontend, the lowest one has it: no Service gets the cluster IP of another one by
    /// naming it as an external IP (CVE-2020-8554).
    pub fn precedence(self) -> u8 {
        match self {
            FrontendKind::ClusterIp => 0,
            _ => 1,
        }
    }
}

/// Collects the fields of a concatenation.
#[derive(Clone, Debug, Default)]
pub struct Fields(Vec<u8>);

impl Fields {
    pub fn address(mut self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => self.0.extend(v4.octets()),
            IpAddr::V6(v6) => self.0.extend(v6.octets()),
        }
        self
    }

    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.0.extend([protocol.number(), 0, 0, 0]);
        self
    }

    pub fn port(mut self, port: u16) -> Self {
        self.0.extend(port.to_be_bytes());
        self.0.extend([0, 0]);
        self
    }

    /// A slot or an id, which the kernel has in the host's byte order.
    pub fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_ne_bytes());
        self
    }

    pub fn backend(self, backend: Backend) -> Self {
        self.address(backend.address).port(backend.port)
    }

    pub fn key(self) -> Key {
        Key::exact(self.0)
    }

    pub fn data(self) -> Data {
        Data::Value(self.0.into())
    }

    pub fn bytes(self) -> Box<[u8]> {
        self.0.into()
    }
}

impl Frontend {
    pub fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        if let Some(address) = self.address {
            fields = fields.address(address);
        }
        fields.protocol(self.protocol).port(self.port)
    }

    pub fn key(&self) -> Key {
        self.fields().key()
    }
}

pub fn goto(chain: impl Into<Box<str>>) -> Data {
    Data::Verdict(Verdict::Goto(chain.into()))
}

pub fn jump(chain: impl Into<Box<str>>) -> Data {
    Data::Verdict(Verdict::Jump(chain.into()))
}

/// Reads the fields of keys and data back; `None` where they are too short.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn address(&mut self, family: Family) -> Option<IpAddr> {
        Some(match family {
            Family::V4 => IpAddr::from(self.take::<4>()?),
            Family::V6 => IpAddr::from(self.take::<16>()?),
        })
    }

    pub fn port(&mut self) -> Option<u16> {
        let [high, low, _, _] = self.take::<4>()?;
        Some(u16::from_be_bytes([high, low]))
    }

    pub fn number(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take::<4>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n2_fields_are_read_as_they_were_written() {
        for (family, address) in [(Family::V4, "192.0.2.1"), (Family::V6, "2001:db8::1")] {
            let address: IpAddr = address.parse().unwrap();
            let bytes = Fields::default()
                .address(address)
                .port(8080)
                .number(70_000)
                .bytes();
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.address(family), Some(address));
            assert_eq!(reader.port(), Some(8080));
            assert_eq!(reader.number(), Some(70_000));
            assert_eq!(reader.number(), None, "there is no other field");
        }
    }
}
