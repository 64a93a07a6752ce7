//! IPv4 networks, as flags and the configuration file name them.

use std::fmt::Display;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// An IPv4 network, such as `10.96.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub base: Ipv4Addr,
    pub prefix: u8,
}

impl Cidr {
    fn bits(self) -> (u32, u32) {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0);
        (u32::from(self.base) & mask, mask)
    }

    pub fn overlaps(self, other: Cidr) -> bool {
        let ((a, mask_a), (b, mask_b)) = (self.bits(), other.bits());
        let mask = mask_a & mask_b;
        a & mask == b & mask
    }
}

impl FromStr for Cidr {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        let (base, prefix) = s
            .split_once('/')
            .ok_or("expected an IPv4 network such as 10.96.0.0/16")?;
        let base = base
            .parse()
            .map_err(|_| format!("{base:?} is not an IPv4 address"))?;
        let prefix = prefix
            .parse()
            .ok()
            .filter(|p| (8..=30).contains(p))
            .ok_or("expected a prefix length from 8 to 30")?;
        let cidr = Cidr { base, prefix };
        if cidr.bits().0 != u32::from(base) {
            return Err(format!(
                "host bits are set; the network is {}/{prefix}",
                Ipv4Addr::from(cidr.bits().0)
            ));
        }
        Ok(cidr)
    }
}

impl Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}
