//! CIDRs as Kubernetes accepts them: an address, and a prefix length without a sign or leading zeros (Go's
//! `netip.ParsePrefix`). ipnet computes with them; its own parser accepts leading zeros, and is not used.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// An address with its prefix length: `10.96.0.0/16`. It may have host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(IpNet);

/// An address as a number.
pub fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(a.to_bits()),
        IpAddr::V6(a) => a.to_bits(),
    }
}

impl Cidr {
    /// `None` if the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<Self> {
        IpNet::new(address, prefix_len).ok().map(Cidr)
    }

    /// `None` if the text is not an address and a prefix length without leading zeros.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        if length.starts_with('+') || (length.len() > 1 && length.starts_with('0')) {
            return None;
        }
        Cidr::new(address.parse().ok()?, length.parse().ok()?)
    }

    /// The address, with its host bits.
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    pub fn prefix_len(&self) -> u8 {
        self.0.prefix_len()
    }

    pub fn is_ipv6(&self) -> bool {
        self.address().is_ipv6()
    }

    pub fn family(&self) -> &'static str {
        if self.is_ipv6() { "IPv6" } else { "IPv4" }
    }

    pub fn is_ipv4_mapped(&self) -> bool {
        matches!(self.address(), IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
    }

    /// Whether the address has bits beyond the prefix.
    pub fn has_host_bits(&self) -> bool {
        self.masked() != *self
    }

    /// The range without host bits.
    pub fn masked(&self) -> Cidr {
        Cidr(self.0.trunc())
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Whether some address is in both ranges.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains(other.address()) || other.contains(self.address())
    }

    /// Whether `other` is a proper subrange of this range.
    pub fn strictly_contains(&self, other: &Cidr) -> bool {
        self.contains(other.address()) && self.prefix_len() < other.prefix_len()
    }

    pub fn host_mask(&self) -> u128 {
        bits(self.0.hostmask())
    }

    /// The address of the same family with these bits.
    pub fn address_at(&self, bits: u128) -> IpAddr {
        if self.is_ipv6() {
            IpAddr::V6(Ipv6Addr::from(bits))
        } else {
            // The upper bits are zero: `bits` came from an IPv4 address.
            IpAddr::V4(Ipv4Addr::from(bits as u32))
        }
    }

    /// The first bits of the range.
    pub fn base(&self) -> u128 {
        bits(self.0.network())
    }

    /// The range of this prefix length that begins `index` such ranges into this one; `None` beyond the end.
    pub fn subrange(&self, prefix_len: u8, index: u128) -> Option<Cidr> {
        if prefix_len < self.prefix_len() {
            return None;
        }
        let inner = Cidr::new(self.0.network(), prefix_len)?;
        let offset = index.checked_mul(inner.host_mask().checked_add(1)?)?;
        if offset > self.host_mask() {
            return None;
        }
        Cidr::new(self.address_at(self.base() | offset), prefix_len)
    }

    /// The indexes of the [`subrange`](Cidr::subrange)s of this prefix length that overlap `other`; `None` if none does.
    pub fn subranges_overlapping(&self, prefix_len: u8, other: &Cidr) -> Option<RangeInclusive<u128>> {
        let max_prefix_len = self.0.max_prefix_len();
        if !self.overlaps(other) || prefix_len < self.prefix_len() || prefix_len > max_prefix_len {
            return None;
        }
        let shift = u32::from(max_prefix_len - prefix_len);
        let base = self.base();
        let index = |bits: u128| (bits - base).checked_shr(shift).unwrap_or(0);
        let first = other.base().max(base);
        let last = (other.base() | other.host_mask()).min(base | self.host_mask());
        Some(index(first)..=index(last))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_their_addresses() {
        let range = |text: &str| Cidr::parse(text).expect("a CIDR");
        let r = range("10.96.0.0/16");
        assert!(!r.has_host_bits() && range("10.96.0.1/16").has_host_bits());
        assert_eq!(range("10.96.0.1/16").masked().to_string(), "10.96.0.0/16");
        assert!(range("10.96.0.1/16").contains("10.96.255.255".parse().expect("an address")));
        assert!(!r.contains("::a60:1".parse().expect("an address")));
        for bad in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0.0/08",
            "010.0.0.0/8",
            "x/8",
            "::/129",
            "10.0.0.0/+8",
            "10.0.0.0/",
        ] {
            assert_eq!(Cidr::parse(bad), None, "{bad}");
        }
        assert_eq!(range("fd00::/108").family(), "IPv6");
    }

    #[test]
    fn a_range_has_subranges_up_to_its_end() {
        let range = |text: &str| Cidr::parse(text).expect("a CIDR");
        let of =
            |text: &str, prefix_len, index| range(text).subrange(prefix_len, index).map(|c| c.to_string());
        assert_eq!(of("10.1.0.7/16", 24, 255).as_deref(), Some("10.1.255.0/24"));
        assert_eq!(of("10.1.0.0/16", 24, 256), None);
        assert_eq!(of("10.1.0.0/16", 8, 0), None);
        assert_eq!(of("10.1.0.0/16", 33, 0), None);
        assert_eq!(of("fd00::/112", 128, 3).as_deref(), Some("fd00::3/128"));
        let overlapping = range("10.1.0.0/16").subranges_overlapping(24, &range("10.1.3.0/22"));
        assert_eq!(overlapping, Some(0..=3));
    }
}
