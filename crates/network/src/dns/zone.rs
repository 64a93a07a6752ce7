//! The cluster's zone: the records of names below the cluster domain, and of the reverse names of Services' addresses.
//!
//! As CoreDNS' kubernetes plugin with `pods insecure` answers, but for two things: `_tcp.name.namespace.svc` exists where a port
//! below it does (RFC 8020), and reverse names of endpoints are known for headless Services only, as the specification
//! has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::message::{Data, Record, Soa};
use super::name::Name;
use super::record_type as types;
use super::reverse::{self, Reverse};
use crate::catalog::{Catalog, Endpoint, Protocol, Service, ServiceKey, ServiceType};

/// The text of `dns-version`.
const VERSION: &str = "1.1.0";
/// The longest chain of external names.
const CNAMES_MAX: usize = 8;
/// SRV records beyond these have their target's address left out; clients query it.
const ADDITIONAL_MAX: usize = 64;

/// The settings of the zone, which do not change while the server runs.
#[derive(Clone, Debug)]
pub struct Zone {
    pub domain: Name,
    /// Of all records and of negative answers; 5 in CoreDNS.
    pub ttl_seconds: u32,
    /// The addresses of the zone's name server.
    pub addresses: Vec<IpAddr>,
    name_server: Name,
    mailbox: Name,
}

impl Zone {
    /// `None` if the domain is too long for names below it.
    pub fn new(domain: Name, ttl_seconds: u32, addresses: Vec<IpAddr>) -> Option<Self> {
        Some(Zone {
            name_server: Name::of_labels([&b"ns"[..], b"dns"], &domain)?,
            mailbox: Name::of_labels([&b"hostmaster"[..]], &domain)?,
            domain,
            ttl_seconds,
            addresses,
        })
    }

    pub fn soa(&self, serial: u32) -> Soa {
        Soa {
            primary: self.name_server.clone(),
            mailbox: self.mailbox.clone(),
            serial,
            refresh_seconds: 7200,
            retry_seconds: 1800,
            expire_seconds: 86_400,
            minimum_seconds: self.ttl_seconds,
        }
    }

    /// The start of authority as a record: what negative answers carry.
    pub fn authority(&self, serial: u32) -> Record {
        Record {
            owner: Some(self.domain.clone()),
            ttl_seconds: self.ttl_seconds,
            data: Data::Soa(self.soa(serial)),
        }
    }
}

/// The data that a question is answered from.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub zone: &'a Zone,
    pub catalog: &'a Catalog,
    pub reverse: &'a Reverse,
    /// Whether there is a namespace of this name.
    pub has_namespace: &'a dyn Fn(&str) -> bool,
    /// Whether the catalog is caught up: before that no name is reported as missing.
    pub is_synced: bool,
    pub serial: u32,
}

/// The outcome of resolving a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The records are the answer.
    Records,
    /// The name exists without records of this type.
    NoData,
    /// The name does not exist.
    NoName,
    /// The names to forward, in this order; the first one that exists has the answer.
    Elsewhere(Vec<Name>),
    /// The catalog is not caught up.
    NotReady,
    /// A chain of CNAMEs that is too long.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub records: Vec<Record>,
    pub additional: Vec<Record>,
    pub end: Outcome,
}

impl Answer {
    pub(super) fn with_outcome(end: Outcome) -> Self {
        Answer {
            records: Vec::new(),
            additional: Vec::new(),
            end,
        }
    }

    fn of(records: Vec<Record>) -> Self {
        let end = if records.is_empty() {
            Outcome::NoData
        } else {
            Outcome::Records
        };
        Answer {
            records,
            additional: Vec::new(),
            end,
        }
    }
}

/// The object of a name below the domain.
enum Found<'a> {
    NoName,
    /// The name exists, with nothing of its own.
    Empty,
    Apex,
    Version,
    NameServer,
    Addresses(Vec<IpAddr>),
    /// All its endpoints; only those of one name, where it is given.
    Endpoints(&'a ServiceKey, Option<&'a str>),
    Service(&'a Service),
    /// One named port of it.
    Port(&'a ServiceKey, &'a Service, &'a str, Protocol),
    External(&'a str),
}

/// Answers for a name. Names that are neither in the zone nor an address of a Service end elsewhere.
pub fn resolve(view: &View<'_>, name: &Name, record_type: u16) -> Answer {
    let Some(labels) = name.below(&view.zone.domain) else {
        return resolve_reverse(view, name, record_type)
            .unwrap_or_else(|| Answer::with_outcome(Outcome::Elsewhere(vec![name.clone()])));
    };
    let mut answer = Answer::with_outcome(Outcome::NoName);
    let mut owner = None;
    let mut labels = labels;
    let mut current;
    for _ in 0..CNAMES_MAX {
        let found = match texts(labels.as_slice()) {
            Some(texts) => find(view, &texts),
            None => Found::NoName,
        };
        if !view.is_synced && !matches!(found, Found::Apex | Found::Version | Found::NameServer) {
            return Answer::with_outcome(Outcome::NotReady);
        }
        let Found::External(target) = found else {
            let own = owner.clone().unwrap_or_else(|| name.clone());
            let last = records(view, found, &own, owner.clone(), record_type);
            answer.records.extend(last.records);
            answer.additional = last.additional;
            answer.end = last.end;
            return answer;
        };
        let Some(target) = external_name(target) else {
            answer.end = Outcome::NoData;
            return answer;
        };
        answer.records.push(Record {
            owner: owner.take(),
            ttl_seconds: view.zone.ttl_seconds,
            data: Data::Cname(target.clone()),
        });
        if matches!(record_type, types::CNAME | types::ANY) {
            answer.end = Outcome::Records;
            return answer;
        }
        current = target;
        match current.below(&view.zone.domain) {
            Some(below) => labels = below,
            None => {
                answer.end = Outcome::Elsewhere(vec![current]);
                return answer;
            }
        }
        owner = Some(current.clone());
    }
    answer.end = Outcome::Failed;
    answer
}

/// An external name that is an address is no name, as the API documents.
fn external_name(text: &str) -> Option<Name> {
    if text.parse::<IpAddr>().is_ok() {
        return None;
    }
    Name::parse(text).ok().filter(|name| !name.is_root())
}

/// Labels as text; names in Kubernetes are ASCII.
fn texts<'a>(labels: &[&'a [u8]]) -> Option<Vec<&'a str>> {
    let ascii = labels.iter().map(|label| match label.is_ascii() {
        true => std::str::from_utf8(label).ok(),
        false => None,
    });
    ascii.collect()
}

fn find<'a>(view: &View<'a>, labels: &[&'a str]) -> Found<'a> {
    match labels {
        [] => Found::Apex,
        ["dns-version"] => Found::Version,
        ["ns", "dns"] => Found::NameServer,
        ["dns" | "svc" | "pod"] => Found::Empty,
        [.., namespace, "svc" | "pod"] if !(view.has_namespace)(namespace) => Found::NoName,
        [_, "svc" | "pod"] => Found::Empty,
        [address, _, "pod"] => match pod_address(address) {
            Some(address) => Found::Addresses(vec![address]),
            None => Found::NoName,
        },
        [rest @ .., name, namespace, "svc"] => match view.catalog.service_named(namespace, name) {
            Some((key, service)) => find_in_service(view, rest, key, service),
            None => Found::NoName,
        },
        _ => Found::NoName,
    }
}

fn find_in_service<'a>(
    view: &View<'a>,
    rest: &[&'a str],
    key: &'a ServiceKey,
    service: &'a Service,
) -> Found<'a> {
    if let ServiceType::ExternalName(target) = &service.service_type {
        return match rest {
            [] => Found::External(target),
            _ => Found::NoName,
        };
    }
    let protocol = |label: &str| match label {
        "_tcp" => Some(Protocol::Tcp),
        "_udp" => Some(Protocol::Udp),
        "_sctp" => Some(Protocol::Sctp),
        _ => None,
    };
    match rest {
        [] if !service.headless => Found::Service(service),
        [] if endpoints(view.catalog, key).next().is_some() => Found::Endpoints(key, None),
        [label] => match protocol(label) {
            Some(desired) if has_port(view.catalog, key, service, None, desired) => Found::Empty,
            Some(_) => Found::NoName,
            None => match endpoints(view.catalog, key).any(|(_, e)| is_named(e, label)) {
                true => Found::Endpoints(key, Some(label)),
                false => Found::NoName,
            },
        },
        [port, label] => match (port.strip_prefix('_'), protocol(label)) {
            (Some(port), Some(desired))
                if !port.is_empty() && has_port(view.catalog, key, service, Some(port), desired) =>
            {
                Found::Port(key, service, port, desired)
            }
            _ => Found::NoName,
        },
        _ => Found::NoName,
    }
}

/// The endpoints that DNS answers with, each with its slice's ports.
fn endpoints<'a>(
    catalog: &'a Catalog,
    key: &'a ServiceKey,
) -> impl Iterator<Item = (&'a [crate::catalog::SlicePort], &'a Endpoint)> {
    catalog.slices(key).flat_map(|slice| {
        let ready = slice.endpoints.iter().filter(|e| e.ready);
        ready.map(|endpoint| (&slice.ports[..], endpoint))
    })
}

/// Whether a named port exists: in the Service, or in the slices of a headless one with ready endpoints.
fn has_port(
    catalog: &Catalog,
    key: &ServiceKey,
    service: &Service,
    name: Option<&str>,
    protocol: Protocol,
) -> bool {
    let matches =
        |port: &str, of: Protocol| of == protocol && !port.is_empty() && name.is_none_or(|n| n == port);
    if service.headless {
        return endpoints(catalog, key).any(|(ports, _)| ports.iter().any(|p| matches(&p.name, p.protocol)));
    }
    service.ports.iter().any(|p| matches(&p.name, p.protocol))
}

/// The label of an endpoint's own name: its hostname, or its address with dashes.
pub(super) fn endpoint_label(endpoint: &Endpoint) -> String {
    match (endpoint.hostname(), endpoint.address) {
        (Some(hostname), _) if !hostname.is_empty() => hostname.to_string(),
        (_, IpAddr::V4(address)) => address.to_string().replace('.', "-"),
        (_, IpAddr::V6(address)) => address.to_string().replace(':', "-"),
    }
}

fn is_named(endpoint: &Endpoint, label: &str) -> bool {
    match endpoint.hostname() {
        Some(hostname) if !hostname.is_empty() => hostname.eq_ignore_ascii_case(label),
        _ => pod_address(label) == Some(endpoint.address),
    }
}

/// The address that a pod's name spells: `10-1-2-3`, or an IPv6 address with dashes for colons.
fn pod_address(label: &str) -> Option<IpAddr> {
    let dashes = label.bytes().filter(|b| *b == b'-').count();
    if dashes == 3 && !label.contains("--") {
        return label.replace('-', ".").parse::<Ipv4Addr>().ok().map(IpAddr::V4);
    }
    if label.contains(':') {
        return None;
    }
    label.replace('-', ":").parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// The records of this type of the object that was found. `name` is its name, `owner` the records' owner name.
fn records(view: &View<'_>, found: Found<'_>, name: &Name, owner: Option<Name>, record_type: u16) -> Answer {
    let record = |data: Data| Record {
        owner: owner.clone(),
        ttl_seconds: view.zone.ttl_seconds,
        data,
    };
    if record_type == types::ANY && !matches!(found, Found::NoName) {
        return Answer::of(vec![record(Data::MinimalAny)]);
    }
    let addresses = |all: &mut dyn Iterator<Item = IpAddr>| {
        let of_type = all.filter(|address| match record_type {
            types::A => address.is_ipv4(),
            types::AAAA => address.is_ipv6(),
            _ => false,
        });
        Answer::of(of_type.map(|address| record(Data::Address(address))).collect())
    };
    match found {
        Found::NoName => Answer::with_outcome(Outcome::NoName),
        Found::Empty | Found::External(_) => Answer::with_outcome(Outcome::NoData),
        Found::Version if record_type == types::TXT => Answer::of(vec![record(Data::Txt(VERSION))]),
        Found::Version => Answer::with_outcome(Outcome::NoData),
        Found::Apex if record_type == types::SOA => {
            Answer::of(vec![record(Data::Soa(view.zone.soa(view.serial)))])
        }
        Found::Apex if record_type == types::NS => {
            let server = &view.zone.name_server;
            let glue = view.zone.addresses.iter().map(|address| Record {
                owner: Some(server.clone()),
                ttl_seconds: view.zone.ttl_seconds,
                data: Data::Address(*address),
            });
            Answer {
                additional: glue.collect(),
                ..Answer::of(vec![record(Data::Ns(server.clone()))])
            }
        }
        Found::Apex => Answer::with_outcome(Outcome::NoData),
        Found::NameServer => addresses(&mut view.zone.addresses.iter().copied()),
        Found::Addresses(all) => addresses(&mut all.into_iter()),
        Found::Service(service) if record_type != types::SRV => {
            addresses(&mut service.cluster_ips.iter().copied())
        }
        Found::Service(service) => {
            let ports = service.ports.iter().map(|p| p.port);
            service_locations(view, name, service, &record, ports)
        }
        Found::Port(_, service, port, protocol) if record_type == types::SRV && !service.headless => {
            let matching = service
                .ports
                .iter()
                .filter(|p| *p.name == *port && p.protocol == protocol);
            let target = parent(name, 2);
            service_locations(view, &target, service, &record, matching.map(|p| p.port))
        }
        Found::Port(key, _, port, protocol) if record_type == types::SRV => {
            let desired = |p: &crate::catalog::SlicePort| *p.name == *port && p.protocol == protocol;
            endpoint_locations(
                view,
                &parent(name, 2),
                &record,
                endpoints(view.catalog, key),
                desired,
            )
        }
        Found::Port(..) => Answer::with_outcome(Outcome::NoData),
        Found::Endpoints(key, label) => {
            let all = endpoints(view.catalog, key).filter(|(_, e)| label.is_none_or(|l| is_named(e, l)));
            if record_type == types::SRV {
                let base = parent(name, usize::from(label.is_some()));
                return endpoint_locations(view, &base, &record, all, |_| true);
            }
            let mut unique: Vec<IpAddr> = all.map(|(_, e)| e.address).collect();
            unique.sort_unstable();
            unique.dedup();
            addresses(&mut unique.into_iter())
        }
    }
}

/// The name without its first labels.
fn parent(name: &Name, labels: usize) -> Name {
    Name::of_labels(name.labels().skip(labels), &Name::root()).unwrap_or_default()
}

/// The weight of SRV records of one priority, as in CoreDNS: all equal, a hundred together.
fn weight(records: usize) -> u16 {
    u16::try_from(100 / records.max(1)).unwrap_or(0).max(1)
}

fn service_locations(
    view: &View<'_>,
    target: &Name,
    service: &Service,
    record: &dyn Fn(Data) -> Record,
    ports: impl Iterator<Item = u16>,
) -> Answer {
    let ports: Vec<u16> = ports.collect();
    let weight = weight(ports.len());
    let located = ports.iter().map(|port| {
        record(Data::Srv {
            priority: 0,
            weight,
            port: *port,
            target: target.clone(),
        })
    });
    let glue = service.cluster_ips.iter().map(|address| Record {
        owner: Some(target.clone()),
        ttl_seconds: view.zone.ttl_seconds,
        data: Data::Address(*address),
    });
    Answer {
        additional: glue.collect(),
        ..Answer::of(located.collect())
    }
}

/// A record for each endpoint and port; endpoints of both families that share a hostname share the record.
fn endpoint_locations<'a>(
    view: &View<'_>,
    service: &Name,
    record: &dyn Fn(Data) -> Record,
    endpoints: impl Iterator<Item = (&'a [crate::catalog::SlicePort], &'a Endpoint)>,
    desired: impl Fn(&crate::catalog::SlicePort) -> bool,
) -> Answer {
    let mut located: Vec<(Name, u16)> = Vec::new();
    let mut glue = Vec::new();
    for (ports, endpoint) in endpoints {
        let label = endpoint_label(endpoint);
        let Some(target) = Name::of_labels([label.as_bytes()], service) else {
            continue;
        };
        let before = located.len();
        let numbers = ports.iter().filter(|p| desired(p)).filter_map(|p| p.port);
        located.extend(numbers.map(|port| (target.clone(), port)));
        if located.len() > before && glue.len() < ADDITIONAL_MAX {
            glue.push(Record {
                owner: Some(target),
                ttl_seconds: view.zone.ttl_seconds,
                data: Data::Address(endpoint.address),
            });
        }
    }
    located.sort_unstable();
    located.dedup();
    let weight = weight(located.len());
    let records = located.into_iter().map(|(target, port)| {
        record(Data::Srv {
            priority: 0,
            weight,
            port,
            target,
        })
    });
    Answer {
        additional: glue,
        ..Answer::of(records.collect())
    }
}

/// Resolves the reverse name of a cluster IP or of an endpoint of a headless Service; `None` for other names.
fn resolve_reverse(view: &View<'_>, name: &Name, record_type: u16) -> Option<Answer> {
    let address = reverse::address_of(name)?;
    if !view.is_synced {
        return Some(Answer::with_outcome(Outcome::NotReady));
    }
    let service_name = |key: &ServiceKey| {
        let labels = [key.name.as_bytes(), key.namespace.as_bytes(), b"svc"];
        Name::of_labels(labels, &view.zone.domain)
    };
    let mut targets = Vec::new();
    if let Some(key) = view.catalog.by_cluster_ip(address) {
        targets.extend(service_name(key));
    } else {
        for key in view.reverse.services(address) {
            let with_address = endpoints(view.catalog, key).filter(|(_, e)| e.address == address);
            for (_, endpoint) in with_address {
                let label = endpoint_label(endpoint);
                let service = service_name(key);
                targets.extend(service.and_then(|s| Name::of_labels([label.as_bytes()], &s)));
            }
        }
    }
    if targets.is_empty() {
        return None;
    }
    targets.sort_unstable();
    targets.dedup();
    let record = |data| Record {
        owner: None,
        ttl_seconds: view.zone.ttl_seconds,
        data,
    };
    Some(match record_type {
        types::PTR => Answer::of(targets.into_iter().map(|t| record(Data::Ptr(t))).collect()),
        types::ANY => Answer::of(vec![record(Data::MinimalAny)]),
        _ => Answer::with_outcome(Outcome::NoData),
    })
}
