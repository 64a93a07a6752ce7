//! Connection tracking entries, deleted by their source and destination (ctnetlink).
//!
//! A UDP flow keeps its endpoint for as long as packets arrive. When that endpoint is removed, the flow's entry must be
//! deleted, so that the next packet gets another endpoint.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::errno::Errno;

use crate::error::{Error, Operation};
use crate::protocol::{FILTER_PROTOCOL, Family, attribute, flag, message};
use crate::socket::{About, Socket};
use crate::wire::{Attributes, Malformed, Writer, be16, be32};

/// Entries that are collected before they are deleted; a dump that has more is made again.
const MAX_COLLECTED: usize = 64 << 10;
/// Deletions of one message to the kernel.
const DELETIONS_AT_ONCE: usize = 512;
/// How often entries are collected in one call: more rounds are needed only if new entries are created all the time.
const MAX_ROUNDS: usize = 64;

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// An entry of a protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// IANA's number.
    pub protocol: u8,
    pub zone: u16,
    /// As the client sends.
    pub original: Tuple,
    /// As the answer comes back: its source is the endpoint.
    pub reply: Tuple,
    id: Option<u32>,
}

/// A connection to connection tracking of one network namespace: that of the thread that opened it.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    pub fn open() -> Result<Self, Error> {
        Ok(Conntrack {
            socket: Socket::open()?,
        })
    }

    /// Deletes the entries of a family (IPv4 or IPv6) and protocol that `is_stale` names, and returns their number. It is
    /// called for every entry of that protocol; entries without ports are skipped.
    pub fn delete(
        &mut self,
        family: Family,
        protocol: u8,
        mut is_stale: impl FnMut(&Flow) -> bool,
    ) -> Result<usize, Error> {
        let mut deleted = 0;
        for _ in 0..MAX_ROUNDS {
            let (stale, has_more) = self.collect(family, protocol, &mut is_stale)?;
            for flows in stale.chunks(DELETIONS_AT_ONCE) {
                deleted += self.delete_flows(family, flows)?;
            }
            if !has_more {
                break;
            }
        }
        Ok(deleted)
    }

    fn collect(
        &mut self,
        family: Family,
        protocol: u8,
        is_stale: &mut impl FnMut(&Flow) -> bool,
    ) -> Result<(Vec<Flow>, bool), Error> {
        let about = About::new(Operation::DumpFlows, format!("of {family}"));
        self.socket.request(
            &about,
            flag::DUMP,
            |writer, flags, sequence| {
                let message = writer.message(message::GET_FLOW, flags, sequence, family.number(), 0);
                // Kernels before 5.8 do not know the filter and dump everything.
                let tuple = writer.nested(attribute::FLOW_ORIGINAL);
                let of = writer.nested(attribute::TUPLE_PROTOCOL);
                writer.bytes(attribute::PROTOCOL_NUMBER, &[protocol]);
                writer.end_nested(of);
                writer.end_nested(tuple);
                let filter = writer.nested(attribute::FLOW_FILTER);
                writer.bytes(attribute::FILTER_ORIGINAL, &FILTER_PROTOCOL.to_ne_bytes());
                writer.bytes(attribute::FILTER_REPLY, &0u32.to_ne_bytes());
                writer.end_nested(filter);
                writer.end_message(message);
            },
            || (Vec::new(), false),
            |(stale, has_more), message| {
                if message.kind != message::FLOW {
                    return Ok(());
                }
                let flow = Flow::parse(message.nf()?.1)?;
                if let Some(flow) = flow.filter(|flow| flow.protocol == protocol && is_stale(flow)) {
                    if stale.len() < MAX_COLLECTED {
                        stale.push(flow);
                    } else {
                        *has_more = true;
                    }
                }
                Ok(())
            },
        )
    }

    fn delete_flows(&mut self, family: Family, flows: &[Flow]) -> Result<usize, Error> {
        let about = About::new(Operation::DeleteFlows, format!("of {family}"));
        let count = u32::try_from(flows.len()).unwrap_or(u32::MAX);
        let first = self.socket.sequence(count);
        let mut writer = Writer::default();
        for (flow, sequence) in flows.iter().zip(first..) {
            flow.write_deletion(&mut writer, family, sequence);
        }
        let mut deleted = 0;
        for answer in self.socket.exchange(&writer.buffer, &about)? {
            match answer.result {
                Ok(()) => deleted += 1,
                // The entry has expired meanwhile.
                Err(Errno::ENOENT) => (),
                Err(source) => {
                    return Err(Error::Request {
                        operation: about.operation,
                        target: about.target,
                        source,
                    });
                }
            }
        }
        Ok(deleted)
    }
}

impl Flow {
    /// `None` without ports.
    fn parse(attributes: Attributes<'_>) -> Result<Option<Self>, Malformed> {
        let tuple = |kind: u16| match attributes.nested(kind)? {
            Some(tuple) => Tuple::parse(tuple),
            None => Ok(None),
        };
        let (Some((protocol, original)), Some((_, reply))) =
            (tuple(attribute::FLOW_ORIGINAL)?, tuple(attribute::FLOW_REPLY)?)
        else {
            return Ok(None);
        };
        let zone = attributes.find(attribute::FLOW_ZONE)?.map(be16).transpose()?;
        Ok(Some(Flow {
            protocol,
            zone: zone.unwrap_or(0),
            original,
            reply,
            id: attributes.find(attribute::FLOW_ID)?.map(be32).transpose()?,
        }))
    }

    fn write_deletion(&self, writer: &mut Writer, family: Family, sequence: u32) {
        let flags = flag::REQUEST | flag::ACK;
        let message = writer.message(message::DELETE_FLOW, flags, sequence, family.number(), 0);
        let tuple = writer.nested(attribute::FLOW_ORIGINAL);
        let addresses = writer.nested(attribute::TUPLE_ADDRESSES);
        let (source, destination) = (self.original.source, self.original.destination);
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                writer.bytes(attribute::ADDRESS_SOURCE_V4, &source.octets());
                writer.bytes(attribute::ADDRESS_DESTINATION_V4, &destination.octets());
            }
            (source, destination) => {
                let v6 = |address: IpAddr| match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                writer.bytes(attribute::ADDRESS_SOURCE_V6, &v6(source).octets());
                writer.bytes(attribute::ADDRESS_DESTINATION_V6, &v6(destination).octets());
            }
        }
        writer.end_nested(addresses);
        let protocol = writer.nested(attribute::TUPLE_PROTOCOL);
        writer.bytes(attribute::PROTOCOL_NUMBER, &[self.protocol]);
        writer.bytes(attribute::PROTOCOL_SOURCE_PORT, &source.port().to_be_bytes());
        writer.bytes(
            attribute::PROTOCOL_DESTINATION_PORT,
            &destination.port().to_be_bytes(),
        );
        writer.end_nested(protocol);
        writer.end_nested(tuple);
        if self.zone != 0 {
            writer.bytes(attribute::FLOW_ZONE, &self.zone.to_be_bytes());
        }
        // With its id no later flow between the same ports is deleted instead.
        if let Some(id) = self.id {
            writer.u32(attribute::FLOW_ID, id);
        }
        writer.end_message(message);
    }
}

impl Tuple {
    /// With its protocol; `None` without ports.
    fn parse(tuple: Attributes<'_>) -> Result<Option<(u8, Self)>, Malformed> {
        let addresses = tuple.nested(attribute::TUPLE_ADDRESSES)?.unwrap_or_default();
        let address = |v4: u16, v6: u16| -> Result<Option<IpAddr>, Malformed> {
            if let Some(value) = addresses.find(v4)? {
                let octets: [u8; 4] = value.try_into().map_err(|_| Malformed("an IPv4 address"))?;
                return Ok(Some(Ipv4Addr::from(octets).into()));
            }
            let Some(value) = addresses.find(v6)? else {
                return Ok(None);
            };
            let octets: [u8; 16] = value.try_into().map_err(|_| Malformed("an IPv6 address"))?;
            Ok(Some(Ipv6Addr::from(octets).into()))
        };
        let source = address(attribute::ADDRESS_SOURCE_V4, attribute::ADDRESS_SOURCE_V6)?;
        let destination = address(
            attribute::ADDRESS_DESTINATION_V4,
            attribute::ADDRESS_DESTINATION_V6,
        )?;
        let protocol = tuple.nested(attribute::TUPLE_PROTOCOL)?.unwrap_or_default();
        let port = |kind: u16| protocol.find(kind)?.map(be16).transpose();
        let number = protocol.find(attribute::PROTOCOL_NUMBER)?;
        let (Some(source), Some(destination), Some([number])) = (source, destination, number) else {
            return Ok(None);
        };
        let (Some(source_port), Some(destination_port)) = (
            port(attribute::PROTOCOL_SOURCE_PORT)?,
            port(attribute::PROTOCOL_DESTINATION_PORT)?,
        ) else {
            return Ok(None);
        };
        let tuple = Tuple {
            source: SocketAddr::new(source, source_port),
            destination: SocketAddr::new(destination, destination_port),
        };
        Ok(Some((*number, tuple)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::Messages;

    #[test]
    fn a_deletion_names_the_flow_that_was_read() {
        for (from, to) in [("10.0.0.1:5", "10.96.0.1:53"), ("[fd00::1]:5", "[fd00::2]:53")] {
            let original = Tuple {
                source: from.parse().unwrap(),
                destination: to.parse().unwrap(),
            };
            let flow = Flow {
                protocol: 17,
                zone: 3,
                original,
                reply: original,
                id: Some(9),
            };
            let mut writer = Writer::default();
            flow.write_deletion(&mut writer, Family::Ip, 1);
            let message = Messages(&writer.buffer).next().unwrap().unwrap();
            let (_, attributes) = message.nf().unwrap();
            let tuple = attributes.nested(attribute::FLOW_ORIGINAL).unwrap().unwrap();
            assert_eq!(Tuple::parse(tuple).unwrap(), Some((17, original)));
            assert_eq!(attributes.find(attribute::FLOW_ZONE).unwrap(), Some(&[0, 3][..]));
        }
    }

    proptest! {
        #[test]
        fn random_entries_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Flow::parse(Attributes(&bytes));
            let _ = Tuple::parse(Attributes(&bytes));
        }
    }
}
