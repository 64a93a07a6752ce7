//! Host ports in the kernel: the elements of the table's maps, and UDP flows that a change makes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use knarr_cni::kernel::links;
use knarr_cni::kernel::netlink::{self, Netlink};
use knarr_cni::sandbox::{HostAddress, HostPort, Protocol, SandboxId};
use knarr_nftables::{Batch, Conntrack, Data, Element, Family, Flow, Nftables, Set, script};

use super::records::Record;
use super::table::{self, Settings};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("host port {port} is used by sandbox {by}")]
    InUse { port: HostPort, by: SandboxId },
    #[error("cannot program host ports")]
    Nftables(#[from] knarr_nftables::Error),
    #[error("cannot list the node's addresses")]
    Addresses(#[source] netlink::Error),
    #[error("the table {0} lacks the set {1}")]
    NoSet(String, &'static str),
}

/// Where a host port is: what two pods cannot share.
type Place = (Protocol, u16, HostAddress, bool);

/// Elements of one set: keys, and in maps the data.
type Elements = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The places of an attachment's host ports, with the addresses and ports that they lead to.
fn places(record: &Record) -> impl Iterator<Item = (Place, &HostPort, IpAddr)> {
    record.host_ports.iter().flat_map(|port| {
        record.addresses.iter().filter_map(move |pod| {
            let address = port.host_address(*pod)?;
            Some((
                (port.protocol, port.host_port, address, pod.is_ipv4()),
                port,
                *pod,
            ))
        })
    })
}

/// Whether the attachment's host ports are free of all others'.
pub fn check<'a>(record: &Record, others: impl Iterator<Item = &'a Record>) -> Result<(), Error> {
    if record.host_ports.is_empty() {
        return Ok(());
    }
    let desired: BTreeMap<Place, &HostPort> = places(record).map(|(place, port, _)| (place, port)).collect();
    for other in others.filter(|other| other.sandbox != record.sandbox) {
        for (place, _, _) in places(other) {
            if let Some(port) = desired.get(&place) {
                return Err(Error::InUse {
                    port: (*port).clone(),
                    by: other.sandbox.clone(),
                });
            }
        }
    }
    Ok(())
}

/// The elements of all sets for these attachments.
fn elements<'a>(records: impl Iterator<Item = &'a Record>) -> BTreeMap<&'static str, Elements> {
    let mut desired: BTreeMap<&'static str, Elements> = table::ANY
        .iter()
        .chain(&table::ONE)
        .chain(&table::HAIRPIN)
        .map(|set| (*set, Elements::new()))
        .collect();
    for record in records {
        for ((protocol, host_port, address, is_v4), port, pod) in places(record) {
            let family = usize::from(!is_v4);
            let mut key = Vec::new();
            let set = match address {
                HostAddress::Any => table::ANY[family],
                HostAddress::Of(host) => {
                    key.extend_from_slice(&octets(host));
                    table::ONE[family]
                }
            };
            key.extend_from_slice(&[protocol.number(), 0, 0, 0]);
            key.extend_from_slice(&padded(host_port));
            let mut data = octets(pod);
            data.extend_from_slice(&padded(port.container_port));
            desired.entry(set).or_default().insert(key, Some(data));
            let pair = [octets(pod), octets(pod)].concat();
            desired
                .entry(table::HAIRPIN[family])
                .or_default()
                .insert(pair, None);
        }
    }
    desired
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn padded(port: u16) -> [u8; 4] {
    let [high, low] = port.to_be_bytes();
    [high, low, 0, 0]
}

/// Makes the table, or brings it to these settings.
pub fn install(table: &str, settings: &Settings) -> Result<(), Error> {
    Ok(script::run(&table::script(table, settings))?)
}

/// Whether the table exists; other programs may have flushed all rules of the host.
pub fn is_installed(table: &str) -> Result<bool, Error> {
    let tables = Nftables::open()?.tables()?;
    Ok(tables
        .iter()
        .any(|(family, name)| *family == Family::Inet && name == table))
}

/// Sets the maps to what these attachments need: the kernel's elements are read, and the difference is committed in one
/// transaction. A node has few host ports; a full comparison is cheap and repairs any deviation.
pub fn apply<'a>(table: &str, records: impl Iterator<Item = &'a Record>) -> Result<(), Error> {
    let mut nftables = Nftables::open()?;
    let sets = nftables.sets(Family::Inet, table)?;
    let mut batch = Batch::new();
    for (name, desired) in elements(records) {
        let set: &Arc<Set> = sets
            .iter()
            .find(|set| *set.name == *name)
            .ok_or_else(|| Error::NoSet(table.into(), name))?;
        let present: Elements = nftables
            .elements(set)?
            .iter()
            .map(|element| (element.key.to_vec(), value(element.data)))
            .collect();
        for key in present
            .iter()
            .filter(|(key, data)| desired.get(*key) != Some(*data))
            .map(|(key, _)| key)
        {
            batch.delete(set, Element::key(key))?;
        }
        for (key, data) in desired
            .iter()
            .filter(|(key, data)| present.get(*key) != Some(*data))
        {
            let element = Element::key(key);
            batch.create(
                set,
                match data {
                    Some(data) => element.with(Data::Value(data)),
                    None => element,
                },
            )?;
        }
    }
    Ok(nftables.commit(&batch)?)
}

fn value(data: Option<Data<'_>>) -> Option<Vec<u8>> {
    match data {
        Some(Data::Value(value)) => Some(value.to_vec()),
        _ => None,
    }
}

/// Deletes the UDP flows whose destination has changed because these host ports were added or removed: a flow keeps its
/// destination while its packets arrive.
pub fn delete_stale_flows(record: &Record, is_deleted: bool) -> Result<(), Error> {
    let udp: Vec<(Place, u16, IpAddr)> = places(record)
        .filter(|((protocol, ..), _, _)| *protocol == Protocol::Udp)
        .map(|(place, port, pod)| (place, port.container_port, pod))
        .collect();
    if udp.is_empty() {
        return Ok(());
    }
    let local = local_addresses().map_err(Error::Addresses)?;
    let mut conntrack = Conntrack::open()?;
    for (family, is_v4) in [(Family::Ip, true), (Family::Ip6, false)] {
        let of_family: Vec<_> = udp.iter().filter(|((.., v4), _, _)| *v4 == is_v4).collect();
        if of_family.is_empty() {
            continue;
        }
        conntrack.delete(family, Protocol::Udp.number(), |flow| {
            of_family
                .iter()
                .any(|((_, host_port, address, _), container_port, pod)| {
                    let endpoint = flow.reply.source;
                    let leads_to_pod = (endpoint.ip(), endpoint.port()) == (*pod, *container_port);
                    is_to(flow, *host_port, *address, &local) && leads_to_pod == is_deleted
                })
        })?;
    }
    Ok(())
}

/// Whether the flow was sent to this host port.
fn is_to(flow: &Flow, host_port: u16, address: HostAddress, local: &BTreeSet<IpAddr>) -> bool {
    let to = flow.original.destination;
    let is_address = match address {
        HostAddress::Any => local.contains(&to.ip()) || to.ip().is_loopback(),
        HostAddress::Of(host) => to.ip() == host,
    };
    to.port() == host_port && is_address
}

fn local_addresses() -> Result<BTreeSet<IpAddr>, netlink::Error> {
    let mut netlink = Netlink::open()?;
    let mut all = BTreeSet::new();
    for (_, address) in links::addresses(&mut netlink)? {
        all.insert(address);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use knarr_cni::sandbox::Bandwidth;

    use super::*;

    fn record(id: &str, ports: &[(Protocol, Option<&str>, u16)]) -> Record {
        Record {
            boot: String::new(),
            sandbox: SandboxId::try_from(id.to_string()).unwrap(),
            pod: None,
            interface: "eth0".into(),
            host_interface: "knarr0".into(),
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            host_ports: ports
                .iter()
                .map(|(protocol, ip, port)| HostPort {
                    protocol: *protocol,
                    host_ip: ip.map(|ip| ip.parse().unwrap()),
                    host_port: *port,
                    container_port: 8080,
                })
                .collect(),
            bandwidth: Bandwidth::default(),
            is_ready: true,
            is_removing: false,
        }
    }

    #[test]
    fn n8_one_port_may_be_several_pods_with_other_protocols_and_addresses() {
        use Protocol::{Sctp, Tcp, Udp};
        let others = [
            record("a", &[(Tcp, None, 80)]),
            record("b", &[(Udp, Some("192.0.2.1"), 80)]),
            record("c", &[(Tcp, Some("0.0.0.0"), 81)]),
        ];
        let conflict = |ports: &[(Protocol, Option<&str>, u16)]| {
            check(&record("x", ports), others.iter())
                .err()
                .map(|error| error.to_string())
        };
        for free in [
            (Udp, None, 80),
            (Sctp, None, 80),
            (Tcp, Some("192.0.2.1"), 80),
            (Udp, Some("192.0.2.2"), 80),
            (Tcp, Some("::"), 81),
        ] {
            assert_eq!(conflict(&[free]), None, "{free:?}");
        }
        assert_eq!(
            conflict(&[(Tcp, None, 80)]).unwrap(),
            "host port 80/TCP is used by sandbox a"
        );
        assert_eq!(
            conflict(&[(Udp, Some("192.0.2.1"), 80)]).unwrap(),
            "host port 192.0.2.1 80/UDP is used by sandbox b"
        );
        assert!(conflict(&[(Tcp, None, 81)]).is_some());
        assert!(check(&others[0], others.iter()).is_ok(), "its own is no conflict");
    }

    #[test]
    fn n8_a_host_port_is_an_element_for_each_family_and_one_for_hairpin() {
        let records = [record("a", &[(Protocol::Tcp, None, 80)])];
        let desired = elements(records.iter());
        assert_eq!(
            desired["any4"],
            BTreeMap::from([(
                vec![6, 0, 0, 0, 0, 80, 0, 0],
                Some(vec![10, 0, 0, 2, 0x1f, 0x90, 0, 0])
            )])
        );
        assert_eq!(desired["any6"].len(), 1);
        assert!(desired["one4"].is_empty());
        assert_eq!(
            desired["hairpin4"],
            BTreeMap::from([(vec![10, 0, 0, 2, 10, 0, 0, 2], None)])
        );
    }
}
