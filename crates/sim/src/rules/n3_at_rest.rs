//! N3, N4: at rest every node's service proxy sends new connections to the endpoints of the Services and
//! EndpointSlices in the API, computed here independently, and has nothing else in its table.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use knarr_network::catalog::Protocol;
use knarr_network::nft::{Data, Table};
use knarr_network::proxy::packet::{Outcome, Packet, Tables};
use knarr_network::proxy::{Config, layout};

use crate::finding::Finding;
use crate::world::World;

/// The address of a pod, so that no connection is masqueraded.
const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 255, 254));

/// The ready ones, or else those that still serve while they terminate (KEP-1669), except for addresses that pods which are
/// not ready yet have now.
fn endpoints(slices: &[&EndpointSlice], service: &Service) -> BTreeSet<(IpAddr, u16)> {
    let (mut ready, mut fallback, mut unready) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let meta = &service.metadata;
    for slice in slices {
        let labels = slice.metadata.labels.as_ref();
        let of = labels.and_then(|labels| labels.get("kubernetes.io/service-name"));
        if of != meta.name.as_ref() || slice.metadata.namespace != meta.namespace {
            continue;
        }
        let ports = slice.ports.iter().flatten().filter_map(|port| port.port);
        let ports: Vec<u16> = ports.filter_map(|port| u16::try_from(port).ok()).collect();
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            let addresses = endpoint.addresses.iter().filter_map(|a| a.parse().ok());
            let all = addresses.flat_map(|address| ports.iter().map(move |port| (address, *port)));
            let terminates = conditions.terminating == Some(true);
            if conditions.ready != Some(false) && !terminates {
                ready.extend(all);
            } else if !terminates {
                unready.extend(all);
            } else if conditions.serving.or(conditions.ready) != Some(false) {
                fallback.extend(all);
            }
        }
    }
    match ready.is_empty() {
        true => fallback.difference(&unready).copied().collect(),
        false => ready,
    }
}

/// An IPv4 address and a port, as in the kernel.
fn backend(data: &Data) -> Option<(IpAddr, u16)> {
    let Data::Value(value) = data else { return None };
    let (address, rest) = value.split_first_chunk::<4>()?;
    let (port, _) = rest.split_first_chunk::<2>()?;
    Some((IpAddr::from(*address), u16::from_be_bytes(*port)))
}

fn cluster_ip(service: &Service) -> Option<IpAddr> {
    service.spec.as_ref()?.cluster_ip.as_ref()?.parse().ok()
}

/// At rest: whether every kernel matches the objects in the API.
pub(crate) fn at_rest(world: &World) -> Result<(), Finding> {
    let services: Vec<&Service> = world.services.values().collect();
    let slices: Vec<&EndpointSlice> = world.slices.values().collect();
    let mut tables = world.proxy_tables.iter();
    tables.try_for_each(|(node, table)| differs(node, table, &services, std::slice::from_ref(&slices)))
}

/// Whether one node's kernel matches these objects: each Service matches one of these sets of slices.
pub(crate) fn differs(
    node: &str,
    table: &Table,
    services: &[&Service],
    candidates: &[Vec<&EndpointSlice>],
) -> Result<(), Finding> {
    let config = Config::default();
    let tables = Tables {
        config: &config,
        local_addresses: &[],
        elements: table,
    };
    let mut expected_of_all = BTreeSet::new();
    for service in services {
        let Some(destination) = cluster_ip(service) else {
            continue;
        };
        let name = service.metadata.name.as_deref().unwrap_or_default();
        for port in service.spec.iter().flat_map(|s| s.ports.iter().flatten()) {
            let packet = Packet {
                source: CLIENT,
                destination,
                protocol: Protocol::Tcp,
                port: u16::try_from(port.port).unwrap_or_default(),
                learned: None,
            };
            let found = tables.route(&packet);
            let is_right = |expected: &BTreeSet<(IpAddr, u16)>| match &found {
                Outcome::Sent(hops) => {
                    hops.iter().map(|h| (h.address, h.port)).collect::<BTreeSet<_>>() == *expected
                }
                Outcome::Rejected => expected.is_empty(),
                _ => false,
            };
            let mut expected = candidates.iter().map(|slices| endpoints(slices, service));
            match expected.find(is_right) {
                Some(expected) => expected_of_all.extend(expected),
                None => {
                    let expected = candidates.first().map(|slices| endpoints(slices, service));
                    return Err(Finding(format!(
                        "{name}: the API's slices say {:?}, the kernel of {node} {found:?}",
                        expected.unwrap_or_default()
                    )));
                }
            }
        }
    }
    let programmed = table.get(layout::ENDPOINTS).into_iter().flatten();
    let mut backends = programmed.filter_map(|(_, data)| backend(data.as_ref()?));
    match backends.find(|backend| !expected_of_all.contains(backend)) {
        Some(left) => Err(Finding(format!(
            "the kernel of {node} has {left:?}, which is no endpoint of any Service"
        ))),
        None => Ok(()),
    }
}
