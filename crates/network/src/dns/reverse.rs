//! The headless Services that have an endpoint with an address, and the addresses in reverse names.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::name::Name;
use crate::catalog::{Catalog, ServiceKey};

/// An index of a [`Catalog`]. Endpoints of Services with cluster IPs have no reverse names, so it is small.
#[derive(Default)]
pub struct Reverse {
    by_address: BTreeMap<IpAddr, Vec<ServiceKey>>,
    addresses: BTreeMap<ServiceKey, Box<[IpAddr]>>,
}

impl Reverse {
    /// Updates a Service from the catalog.
    pub fn update(&mut self, catalog: &Catalog, key: &ServiceKey) {
        if let Some(before) = self.addresses.remove(key) {
            for address in &before {
                if let Some(keys) = self.by_address.get_mut(address) {
                    keys.retain(|k| k != key);
                    if keys.is_empty() {
                        self.by_address.remove(address);
                    }
                }
            }
        }
        if !catalog.service(key).is_some_and(|service| service.headless) {
            return;
        }
        let endpoints = catalog.slices(key).flat_map(|slice| slice.endpoints.iter());
        let mut addresses: Vec<IpAddr> = endpoints.map(|e| e.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return;
        }
        for address in &addresses {
            self.by_address.entry(*address).or_default().push(key.clone());
        }
        self.addresses.insert(key.clone(), addresses.into());
    }

    /// May include Services whose endpoint is not ready or does not exist any more.
    pub(super) fn services(&self, address: IpAddr) -> &[ServiceKey] {
        self.by_address.get(&address).map_or(&[], |keys| &keys[..])
    }
}

/// The address that a whole reverse name spells (`4.3.2.1.in-addr.arpa`, nibbles below `ip6.arpa`).
pub(super) fn address_of(name: &Name) -> Option<IpAddr> {
    let labels: Vec<&[u8]> = name.labels().collect();
    match labels.as_slice() {
        [octets @ .., b"in-addr", b"arpa"] if octets.len() == 4 => {
            let mut address = [0; 4];
            for (to, label) in address.iter_mut().rev().zip(octets) {
                let text = std::str::from_utf8(label).ok()?;
                let number: u8 = text.parse().ok()?;
                // One spelling for one address.
                (number.to_string() == text).then_some(())?;
                *to = number;
            }
            Some(IpAddr::V4(Ipv4Addr::from(address)))
        }
        [nibbles @ .., b"ip6", b"arpa"] if nibbles.len() == 32 => {
            let mut address: u128 = 0;
            for label in nibbles.iter().rev() {
                let [digit] = label else { return None };
                address = address << 4 | u128::from(char::from(*digit).to_digit(16)?);
            }
            Some(IpAddr::V6(Ipv6Addr::from(address)))
        }
        _ => None,
    }
}
