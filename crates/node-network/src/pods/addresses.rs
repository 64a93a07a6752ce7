//! Which sandbox has which address, and which address is next. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use knarr_cni::sandbox::SandboxId;

/// All addresses of one family are in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no free address in {cidrs}: all {used} are in use")]
pub struct Exhausted {
    /// The CIDRs that were searched.
    pub cidrs: String,
    pub used: usize,
}

/// The addresses in use, and where the search for the next one begins.
///
/// Addresses of a CIDR are given out in turn, so that one that was released rests as long as the CIDR allows: what others
/// still know of its last user (connections, DNS answers) does not reach the next one.
#[derive(Debug, Default)]
pub struct Addresses {
    used: BTreeMap<IpAddr, SandboxId>,
    last: BTreeMap<IpNet, IpAddr>,
}

impl Addresses {
    /// `last`: the address of each CIDR that was given out last, from an earlier run.
    pub fn new(last: BTreeMap<IpNet, IpAddr>) -> Self {
        Addresses {
            used: BTreeMap::new(),
            last,
        }
    }

    pub fn last(&self) -> &BTreeMap<IpNet, IpAddr> {
        &self.last
    }

    /// One address of each family that has a CIDR, IPv4 first; or nothing at all.
    pub fn allocate(&mut self, cidrs: &[IpNet], owner: &SandboxId) -> Result<Vec<IpAddr>, Exhausted> {
        let mut found = Vec::with_capacity(2);
        for is_v4 in [true, false] {
            let of_family: Vec<IpNet> = cidrs
                .iter()
                .filter(|cidr| cidr.addr().is_ipv4() == is_v4)
                .map(IpNet::trunc)
                .collect();
            if of_family.is_empty() {
                continue;
            }
            let next = of_family
                .iter()
                .find_map(|cidr| self.next(*cidr).map(|address| (*cidr, address)));
            let names: Vec<String> = of_family.iter().map(ToString::to_string).collect();
            found.push(next.ok_or_else(|| {
                Exhausted {
                    cidrs: names.join(", "),
                    used: self
                        .used
                        .keys()
                        .filter(|address| of_family.iter().any(|cidr| cidr.contains(*address)))
                        .count(),
                }
            })?);
        }
        for (cidr, address) in &found {
            self.used.insert(*address, owner.clone());
            self.last.insert(*cidr, *address);
        }
        Ok(found.into_iter().map(|(_, address)| address).collect())
    }

    /// Takes an address that is in use already; an error names the sandbox that has it.
    pub fn reserve(&mut self, address: IpAddr, owner: &SandboxId) -> Result<(), SandboxId> {
        match self.used.get(&address) {
            Some(other) if other != owner => Err(other.clone()),
            _ => {
                self.used.insert(address, owner.clone());
                Ok(())
            }
        }
    }

    pub fn release(&mut self, owner: &SandboxId) {
        self.used.retain(|_, of| of != owner);
    }

    /// The first free address behind the last one, once around.
    fn next(&self, cidr: IpNet) -> Option<IpAddr> {
        let (first, end) = usable(cidr);
        let last = self.last.get(&cidr).map_or(end, |address| number(*address));
        let start = match last.checked_add(1) {
            Some(next) if (first..=end).contains(&next) => next,
            _ => first,
        };
        let free = |from: u128, to: u128| {
            let mut candidate = from;
            while candidate <= to {
                let address = address(candidate, cidr.addr().is_ipv4());
                if !self.used.contains_key(&address) {
                    return Some(address);
                }
                candidate = candidate.checked_add(1)?;
            }
            None
        };
        free(start, end).or_else(|| free(first, start.checked_sub(1)?))
    }
}

/// The first and the last address that pods get: not the network's own, not the one after it, which is left to the node,
/// and not the broadcast address. Of a CIDR of two addresses or one all are used.
fn usable(cidr: IpNet) -> (u128, u128) {
    let (first, last) = (number(cidr.network()), number(cidr.broadcast()));
    match (cidr.max_prefix_len() - cidr.prefix_len(), cidr) {
        (0 | 1, _) => (first, last),
        (_, IpNet::V4(_)) => (first + 2, last - 1),
        (_, IpNet::V6(_)) => (first + 2, last),
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn address(number: u128, is_v4: bool) -> IpAddr {
    match (is_v4, u32::try_from(number)) {
        (true, Ok(v4)) => Ipv4Addr::from(v4).into(),
        _ => Ipv6Addr::from(number).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn id(n: usize) -> SandboxId {
        SandboxId::try_from(format!("s{n}")).unwrap()
    }

    fn cidrs(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|cidr| cidr.parse().unwrap()).collect()
    }

    fn one(addresses: &mut Addresses, cidr: &str, n: usize) -> String {
        let all = addresses.allocate(&cidrs(&[cidr]), &id(n)).unwrap();
        all[0].to_string()
    }

    #[test]
    fn n1_an_address_rests_until_all_others_were_used() {
        let mut addresses = Addresses::default();
        assert_eq!(one(&mut addresses, "10.1.0.0/29", 0), "10.1.0.2");
        addresses.release(&id(0));
        for (n, expected) in (1..).zip(["10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2"]) {
            assert_eq!(one(&mut addresses, "10.1.0.0/29", n), expected);
        }
        let full = addresses.allocate(&cidrs(&["10.1.0.0/29"]), &id(9)).unwrap_err();
        assert_eq!(
            full.to_string(),
            "no free address in 10.1.0.0/29: all 5 are in use"
        );
        addresses.release(&id(4));
        assert_eq!(one(&mut addresses, "10.1.0.0/29", 9), "10.1.0.6");
    }

    #[test]
    fn n1_one_address_of_each_family_or_nothing() {
        let mut addresses = Addresses::default();
        let both = cidrs(&["fd00:1::/64", "10.1.0.0/30"]);
        let got = addresses.allocate(&both, &id(1)).unwrap();
        assert_eq!(
            got.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.1.0.2", "fd00:1::2"]
        );
        assert!(addresses.allocate(&both, &id(2)).is_err());
        addresses.release(&id(1));
        let got = addresses.allocate(&both, &id(3)).unwrap();
        assert_eq!(
            got[1].to_string(),
            "fd00:1::3",
            "the failed attempt used nothing up"
        );
    }

    #[test]
    fn n1_a_second_cidr_is_used_when_the_first_is_full() {
        let mut addresses = Addresses::default();
        let two = cidrs(&["10.1.0.0/32", "10.2.0.0/31"]);
        let mut got = BTreeSet::new();
        for n in 0..3 {
            got.extend(addresses.allocate(&two, &id(n)).unwrap());
        }
        assert_eq!(got.len(), 3);
        let full = addresses.allocate(&two, &id(4)).unwrap_err();
        assert_eq!(full.used, 3);
    }

    #[test]
    fn the_last_range_of_all_does_not_overflow() {
        let mut addresses = Addresses::default();
        let end = cidrs(&["ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe/127"]);
        for n in 0..2 {
            addresses.allocate(&end, &id(n)).unwrap();
        }
        assert!(addresses.allocate(&end, &id(3)).is_err());
    }

    proptest! {
        #[test]
        fn n1_no_address_is_given_out_twice(steps in proptest::collection::vec((any::<bool>(), 0usize..40), 0..300)) {
            let mut addresses = Addresses::default();
            let mut owners: BTreeMap<usize, Vec<IpAddr>> = BTreeMap::new();
            let ranges = cidrs(&["10.1.0.0/28", "10.9.0.0/30", "fd00::/123"]);
            for (is_new, n) in steps {
                if is_new && !owners.contains_key(&n) {
                    if let Ok(got) = addresses.allocate(&ranges, &id(n)) {
                        for address in &got {
                            prop_assert!(owners.values().flatten().all(|used| used != address));
                            prop_assert!(ranges.iter().any(|cidr| cidr.contains(address)));
                        }
                        owners.insert(n, got);
                    } else {
                        prop_assert_eq!(owners.len(), 14);
                    }
                } else if !is_new {
                    owners.remove(&n);
                    addresses.release(&id(n));
                }
            }
        }
    }
}
