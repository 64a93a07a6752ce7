//! Ports of rules: ranges of numbers by protocol.

use crate::catalog::Protocol;

/// Ports of one protocol, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    pub protocol: Protocol,
    pub first: u16,
    pub last: u16,
}

/// Which protocols and ports a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PortSet {
    /// Everything, protocols without ports included.
    All,
    /// Sorted, disjoint and not adjacent.
    Ranges(Vec<PortRange>),
}

impl Default for PortSet {
    fn default() -> Self {
        PortSet::Ranges(Vec::new())
    }
}

impl PortSet {
    pub fn of(mut ranges: Vec<PortRange>) -> Self {
        normalize(&mut ranges);
        PortSet::Ranges(ranges)
    }

    pub fn is_empty(&self) -> bool {
        matches!(self, PortSet::Ranges(ranges) if ranges.is_empty())
    }

    /// `protocol` is IANA's number.
    pub fn contains(&self, protocol: u8, port: Option<u16>) -> bool {
        match self {
            PortSet::All => true,
            PortSet::Ranges(ranges) => ranges.iter().any(|range| {
                range.protocol.number() == protocol
                    && port.is_some_and(|port| (range.first..=range.last).contains(&port))
            }),
        }
    }

    /// How many ranges it takes to write it.
    pub fn len(&self) -> usize {
        match self {
            PortSet::All => 0,
            PortSet::Ranges(ranges) => ranges.len(),
        }
    }
}

fn normalize(ranges: &mut Vec<PortRange>) {
    ranges.sort_unstable();
    let mut merged: Vec<PortRange> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match merged.last_mut() {
            Some(before)
                if before.protocol == range.protocol && range.first <= before.last.saturating_add(1) =>
            {
                before.last = before.last.max(range.last);
            }
            _ => merged.push(range),
        }
    }
    *ranges = merged;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n6_ranges_of_one_protocol_merge_and_those_of_others_do_not() {
        let range = |protocol, first, last| PortRange {
            protocol,
            first,
            last,
        };
        let set = PortSet::of(vec![
            range(Protocol::Udp, 81, 81),
            range(Protocol::Tcp, 80, 90),
            range(Protocol::Tcp, 91, 91),
            range(Protocol::Tcp, 85, 100),
            range(Protocol::Tcp, 65535, 65535),
            range(Protocol::Tcp, 65000, 65535),
        ]);
        let expected = vec![
            range(Protocol::Tcp, 80, 100),
            range(Protocol::Tcp, 65000, 65535),
            range(Protocol::Udp, 81, 81),
        ];
        assert_eq!(set, PortSet::Ranges(expected));
        assert!(set.contains(6, Some(100)) && !set.contains(17, Some(80)) && !set.contains(1, None));
    }
}
