//! The desired slices of an Endpoints object: overlapping subsets become groups that do not overlap.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort as SubsetPort, EndpointSubset};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use knarr_api::k8s_openapi;

use super::MAX_ADDRESSES;
use crate::endpoints::Port;

/// The ports and address type of one slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Group {
    pub address_type: &'static str,
    ports: BTreeSet<Port>,
}

impl Group {
    pub fn ports(&self) -> Vec<EndpointPort> {
        let ports = self.ports.iter().map(|p| EndpointPort {
            name: Some(p.name.clone()),
            port: Some(p.number),
            protocol: Some(p.protocol.clone()),
            app_protocol: p.app_protocol.clone(),
        });
        ports.collect()
    }
}

/// The group of an existing slice.
pub fn group_of(slice: &EndpointSlice) -> Group {
    let ports = slice.ports.iter().flatten().map(|p| Port {
        name: p.name.clone().unwrap_or_default(),
        protocol: p.protocol.clone().unwrap_or_else(|| "TCP".into()),
        number: p.port.unwrap_or_default(),
        app_protocol: p.app_protocol.clone(),
    });
    Group {
        address_type: match slice.address_type.as_str() {
            "IPv4" => "IPv4",
            "IPv6" => "IPv6",
            _ => "",
        },
        ports: ports.collect(),
    }
}

/// See the module.
#[derive(Default)]
pub struct Desired {
    pub groups: BTreeMap<Group, Vec<Endpoint>>,
    /// The number of addresses that are not IP addresses.
    pub invalid: usize,
    /// The number of addresses beyond [`MAX_ADDRESSES`] of their subset.
    pub skipped: usize,
}

/// An address is the same while it belongs to the same target.
type AddressKey = (String, Option<String>);

/// Addresses, each with whether it is ready, and the ports that they all have.
type Subset<'a> = (BTreeSet<Port>, Vec<(&'a EndpointAddress, bool)>);

pub fn desired(subsets: &[EndpointSubset]) -> Desired {
    let mut desired = Desired::default();
    for (ports, addresses) in repacked(subsets) {
        let mut added = 0;
        // Ready addresses first: they are the last to be left out.
        let (ready, not_ready): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|(_, ready)| *ready);
        for (address, ready) in ready.into_iter().chain(not_ready) {
            if added == MAX_ADDRESSES {
                desired.skipped += 1;
                continue;
            }
            let Some(ip) = parse_address(&address.ip) else {
                desired.invalid += 1;
                continue;
            };
            added += 1;
            let group = Group {
                address_type: if ip.is_ipv4() { "IPv4" } else { "IPv6" },
                ports: ports.clone(),
            };
            let endpoints = desired.groups.entry(group).or_default();
            endpoints.push(Endpoint {
                addresses: vec![ip.to_string()],
                conditions: Some(EndpointConditions {
                    ready: Some(ready),
                    ..EndpointConditions::default()
                }),
                hostname: address.hostname.clone().filter(|h| !h.is_empty()),
                node_name: address.node_name.clone(),
                target_ref: address.target_ref.clone(),
                ..Endpoint::default()
            });
        }
    }
    desired
}

/// Subsets without overlap: ports with the same addresses are in one subset, each address once. An address that is not ready
/// in one subset is not ready.
fn repacked(subsets: &[EndpointSubset]) -> Vec<Subset<'_>> {
    let mut known: BTreeMap<AddressKey, &EndpointAddress> = BTreeMap::new();
    // `None` is the port of addresses without any.
    let mut by_port: BTreeMap<Option<Port>, BTreeMap<AddressKey, bool>> = BTreeMap::new();
    for subset in subsets {
        let mut ports: Vec<Option<Port>> = subset.ports.iter().flatten().map(port).map(Some).collect();
        if ports.is_empty() {
            ports.push(None);
        }
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let not_ready = subset.not_ready_addresses.iter().flatten().map(|a| (a, false));
        for (address, ready) in ready.chain(not_ready) {
            let uid = address.target_ref.as_ref().and_then(|t| t.uid.clone());
            let key: AddressKey = (address.ip.clone(), uid);
            known.entry(key.clone()).or_insert(address);
            for port in &ports {
                let addresses = by_port.entry(port.clone()).or_default();
                addresses
                    .entry(key.clone())
                    .and_modify(|r| *r &= ready)
                    .or_insert(ready);
            }
        }
    }
    let mut by_addresses: BTreeMap<BTreeMap<AddressKey, bool>, BTreeSet<Port>> = BTreeMap::new();
    for (port, addresses) in by_port {
        by_addresses.entry(addresses).or_default().extend(port);
    }
    let mut repacked: Vec<_> = by_addresses
        .into_iter()
        .map(|(addresses, ports)| {
            let addresses = addresses.into_iter();
            let addresses = addresses.filter_map(|(key, ready)| Some((*known.get(&key)?, ready)));
            (ports, addresses.collect())
        })
        .collect();
    repacked.sort_by(|(a, _): &Subset<'_>, (b, _)| a.cmp(b));
    repacked
}

fn port(port: &SubsetPort) -> Port {
    Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
        number: port.port,
        app_protocol: port.app_protocol.clone(),
    }
}

/// An address of an Endpoints object, which may have leading zeros from former versions; an IPv4-mapped IPv6 address is IPv4.
fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        let decimal = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        *octet = part.parse().ok().filter(|_| decimal)?;
    }
    parts.next().is_none().then(|| IpAddr::from(octets))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Endpoints as EndpointsObject;

    use super::*;

    #[test]
    fn addresses_are_put_into_their_canonical_form() {
        for (text, address) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0.01", Some("10.0.0.1")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("2001:DB8:0::1", Some("2001:db8::1")),
            ("10.0.0", None),
            ("10.0.0.1.2", None),
            ("10.0.0.+1", None),
            ("10.0.0.256", None),
            ("", None),
            ("web", None),
        ] {
            assert_eq!(parse_address(text), address.map(|a| a.parse().unwrap()), "{text}");
        }
    }

    fn subsets(json: serde_json::Value) -> Vec<String> {
        let object: EndpointsObject =
            serde_json::from_value(serde_json::json!({"metadata": {}, "subsets": json})).unwrap();
        let desired = desired(object.subsets.as_deref().unwrap_or_default());
        let groups = desired.groups.into_iter().map(|(group, endpoints)| {
            let ports: Vec<String> = group.ports.iter().map(|p| p.number.to_string()).collect();
            let shown: Vec<String> = endpoints
                .iter()
                .map(|e| {
                    let ready = e.conditions.as_ref().and_then(|c| c.ready) == Some(true);
                    format!("{}{}", e.addresses[0], if ready { "" } else { "!" })
                })
                .collect();
            format!("{} {}: {}", group.address_type, ports.join(","), shown.join(" "))
        });
        groups.collect()
    }

    #[test]
    fn subsets_that_overlap_become_groups_that_do_not() {
        let a = serde_json::json!({"ip": "10.0.0.1"});
        let b = serde_json::json!({"ip": "10.0.0.2"});
        let v6 = serde_json::json!({"ip": "2001:db8::1"});
        // Ports with the same addresses are in one subset.
        let found = subsets(serde_json::json!([
            {"addresses": [a, b], "ports": [{"port": 80, "name": "http"}]},
            {"addresses": [b, a], "ports": [{"port": 90, "name": "metrics"}]},
        ]));
        assert_eq!(found, ["IPv4 80,90: 10.0.0.1 10.0.0.2"]);
        // Not ready in one is not ready.
        let found = subsets(serde_json::json!([
            {"addresses": [a], "notReadyAddresses": [b], "ports": [{"port": 80}]},
            {"addresses": [b], "ports": [{"port": 80}]},
        ]));
        assert_eq!(found, ["IPv4 80: 10.0.0.1 10.0.0.2!"]);
        // Address families are separate, and so are other ports and no ports.
        let found = subsets(serde_json::json!([
            {"addresses": [a, v6], "ports": [{"port": 80}]},
            {"addresses": [b], "ports": [{"port": 90}]},
            {"addresses": [a]},
        ]));
        assert_eq!(
            found,
            [
                "IPv4 : 10.0.0.1",
                "IPv4 80: 10.0.0.1",
                "IPv4 90: 10.0.0.2",
                "IPv6 80: 2001:db8::1"
            ]
        );
        assert_eq!(subsets(serde_json::json!([{"ports": [{"port": 80}]}])), [""; 0]);
    }
}
