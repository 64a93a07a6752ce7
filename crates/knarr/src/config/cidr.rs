//! CIDRs of flags and the configuration file: one, or one of each IP family (dual-stack).

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::value::ValueError;

/// At most one CIDR of each IP family, the primary first, such as `10.96.0.0/16` or `10.96.0.0/16,fd00:96::/108`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cidrs(Vec<IpNet>);

impl Cidrs {
    pub fn nets(&self) -> &[IpNet] {
        &self.0
    }

    /// The first pair of CIDRs, one of each, that have addresses in common.
    pub fn overlap(&self, other: &Cidrs) -> Option<(IpNet, IpNet)> {
        let pairs = self.0.iter().flat_map(|a| other.0.iter().map(move |b| (*a, *b)));
        pairs
            .into_iter()
            .find(|(a, b)| a.contains(&b.network()) || b.contains(&a.network()))
    }
}

/// One CIDR without host bits.
fn network(text: &str) -> Result<IpNet, ValueError> {
    let (base, prefix) = text
        .split_once('/')
        .ok_or_else(|| ValueError::expected("a CIDR such as 10.96.0.0/16 or fd00:96::/108"))?;
    let base: IpAddr = base.parse().map_err(|_| ValueError::Address(base.into()))?;
    let (shortest, longest) = if base.is_ipv4() { (8, 30) } else { (8, 126) };
    let prefix = prefix.parse().ok();
    let net = prefix
        .filter(|prefix: &u8| (shortest..=longest).contains(prefix))
        .and_then(|prefix| IpNet::new(base, prefix).ok())
        .ok_or_else(|| ValueError::expected(format!("a prefix length from {shortest} to {longest}")))?;

    if net.trunc() != net {
        let example = net.trunc();
        return Err(ValueError::expected(format!(
            "a CIDR without host bits, such as {example}"
        )));
    }
    Ok(net)
}

impl FromStr for Cidrs {
    type Err = ValueError;
    fn from_str(s: &str) -> Result<Self, ValueError> {
        let nets = s
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(network)
            .collect::<Result<Vec<_>, _>>()?;
        let is_v6 = |net: &IpNet| net.network().is_ipv6();
        match nets.as_slice() {
            [] | [_] => Ok(Cidrs(nets)),
            [a, b] if is_v6(a) != is_v6(b) => Ok(Cidrs(nets)),
            _ => Err(ValueError::expected("one CIDR, or one of each IP family")),
        }
    }
}

impl Display for Cidrs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, net) in self.0.iter().enumerate() {
            write!(f, "{}{net}", if i == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n1_cidrs_are_one_or_one_of_each_family() {
        for (text, expected) in [
            ("10.96.0.0/16", Ok("10.96.0.0/16")),
            ("10.96.0.0/16, fd00::/108", Ok("10.96.0.0/16,fd00::/108")),
            ("fd00::/108,10.96.0.0/16", Ok("fd00::/108,10.96.0.0/16")),
            ("", Ok("")),
            ("10.96.0.0", Err("expected a CIDR")),
            ("10.96/16", Err("is not an IP address")),
            (
                "10.96.0.1/16",
                Err("expected a CIDR without host bits, such as 10.96.0.0/16"),
            ),
            ("10.96.0.0/31", Err("from 8 to 30")),
            ("10.1.0.0/16,10.2.0.0/16", Err("one of each IP family")),
        ] {
            match (text.parse::<Cidrs>(), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.to_string(), expected),
                (Err(found), Err(part)) => assert!(found.to_string().contains(part), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
        let cidrs = |text: &str| text.parse::<Cidrs>().unwrap();
        assert!(
            cidrs("10.0.0.0/8")
                .overlap(&cidrs("fd00::/64,10.96.0.0/16"))
                .is_some()
        );
        assert!(cidrs("10.1.0.0/16").overlap(&cidrs("10.2.0.0/16")).is_none());
    }
}
