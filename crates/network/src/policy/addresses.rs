//! Sets of addresses as ranges: ipBlocks with their exceptions.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::nft::Key;

/// Ranges of addresses of both families: sorted, disjoint and not adjacent, so that equal sets are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranges {
    v4: Vec<(u128, u128)>,
    v6: Vec<(u128, u128)>,
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// Sorts and merges what overlaps or touches.
fn normalize(ranges: &mut Vec<(u128, u128)>) {
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges.drain(..) {
        match merged.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    *ranges = merged;
}

impl Ranges {
    /// `cidr` without `except`; `None` if one of them cannot be parsed. Exceptions of the other family take nothing away.
    pub fn of_block<'a>(cidr: &str, except: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let block: IpNet = cidr.parse().ok()?;
        let mut exceptions = Ranges::default();
        for net in except {
            exceptions.insert(net.parse().ok()?);
        }
        exceptions.normalize();
        let mut left = Vec::new();
        let mut first = number(block.network());
        let end = number(block.broadcast());
        let mut is_used_up = false;
        for (from, to) in exceptions.of_family(block.addr().is_ipv4()) {
            if *to < first || *from > end {
                continue;
            }
            if *from > first {
                left.push((first, from - 1));
            }
            match to.checked_add(1) {
                Some(next) if *to < end => first = next,
                _ => {
                    is_used_up = true;
                    break;
                }
            }
        }
        if !is_used_up {
            left.push((first, end));
        }
        let mut ranges = Ranges::default();
        match block {
            IpNet::V4(_) => ranges.v4 = left,
            IpNet::V6(_) => ranges.v6 = left,
        }
        Some(ranges)
    }

    fn insert(&mut self, net: IpNet) {
        let range = (number(net.network()), number(net.broadcast()));
        match net {
            IpNet::V4(_) => self.v4.push(range),
            IpNet::V6(_) => self.v6.push(range),
        }
    }

    fn normalize(&mut self) {
        normalize(&mut self.v4);
        normalize(&mut self.v6);
    }

    /// All addresses of several sets.
    pub fn union<'a>(of: impl IntoIterator<Item = &'a Ranges>) -> Self {
        let mut union = Ranges::default();
        for ranges in of {
            union.v4.extend(&ranges.v4);
            union.v6.extend(&ranges.v6);
        }
        union.normalize();
        union
    }

    fn of_family(&self, is_ipv4: bool) -> &[(u128, u128)] {
        if is_ipv4 { &self.v4 } else { &self.v6 }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let desired = number(address);
        let ranges = self.of_family(address.is_ipv4());
        let behind = ranges.partition_point(|(first, _)| *first <= desired);
        let before = behind.checked_sub(1).and_then(|index| ranges.get(index));
        before.is_some_and(|(_, last)| desired <= *last)
    }

    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Ranges of both families.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// As elements of an interval set.
    pub fn keys(&self, is_ipv4: bool) -> impl Iterator<Item = Key> {
        let bytes = move |number: u128| -> Box<[u8]> {
            match u32::try_from(number).ok().filter(|_| is_ipv4) {
                Some(v4) => v4.to_be_bytes().into(),
                None => number.to_be_bytes().into(),
            }
        };
        self.of_family(is_ipv4).iter().map(move |(first, last)| Key {
            start: bytes(*first),
            end: (first != last).then(|| bytes(*last)),
        })
    }
}

/// An address as in keys of sets.
pub(super) fn bytes(address: IpAddr) -> Box<[u8]> {
    match address {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(cidr: &str, except: &[&str]) -> Ranges {
        Ranges::of_block(cidr, except.iter().copied()).unwrap()
    }

    #[test]
    fn n6_exceptions_are_taken_out_of_a_block_at_its_ends_and_in_the_middle() {
        let has = |ranges: &Ranges, address: &str| ranges.contains(address.parse().unwrap());
        let ranges = block(
            "10.0.0.0/24",
            &["10.0.0.0/28", "10.0.0.64/26", "10.0.0.255/32", "10.0.0.64/30"],
        );
        for (address, expected) in [
            ("9.255.255.255", false),
            ("10.0.0.0", false),
            ("10.0.0.15", false),
            ("10.0.0.16", true),
            ("10.0.0.63", true),
            ("10.0.0.64", false),
            ("10.0.0.127", false),
            ("10.0.0.128", true),
            ("10.0.0.254", true),
            ("10.0.0.255", false),
            ("10.0.1.0", false),
            ("::a00:10", false),
        ] {
            assert_eq!(has(&ranges, address), expected, "{address}");
        }
        let all = block("::/0", &["ffff::/16", "::/128"]);
        assert!(!has(&all, "::") && has(&all, "::1") && has(&all, "fffe:ffff::") && !has(&all, "ffff::1"));
        assert!(block("10.0.0.0/8", &["0.0.0.0/0"]).is_empty());
        assert!(has(&block("0.0.0.0/0", &[]), "255.255.255.255"));
        assert!(Ranges::of_block("10.0.0.0/8", ["nonsense"]).is_none());
        assert_eq!(
            block("10.0.0.0/24", &["10.0.0.128/25"]),
            block("10.0.0.0/25", &[])
        );
    }

    #[test]
    fn n6_blocks_that_overlap_or_touch_are_one_range() {
        let blocks = [
            block("10.0.0.0/25", &[]),
            block("10.0.0.128/25", &[]),
            block("10.0.0.7/32", &[]),
        ];
        let union = Ranges::union(&blocks);
        assert_eq!(union, block("10.0.0.0/24", &[]));
        let both = Ranges::union([&union, &block("fd00::/64", &["fd00::8/125"])]);
        assert_eq!(both.len(), 3, "one of IPv4 and two of IPv6");
        let keys: Vec<Key> = union.keys(true).collect();
        assert_eq!(
            keys,
            [Key {
                start: [10, 0, 0, 0].into(),
                end: Some([10, 0, 0, 255].into())
            }]
        );
    }
}
