//! A Service's DNS records (SPEC N5), as the nodes' DNS servers answer.

use k8s_openapi::api::core::v1::Namespace;
use knarr_api::k8s_openapi;
use knarr_network::catalog::ServiceKey;
use knarr_network::dns::message::Data;
use knarr_network::dns::name::Name;
use knarr_network::dns::record_type;
use knarr_network::dns::reverse::Reverse;
use knarr_network::dns::zone::{Outcome, View, Zone, resolve};
use serde::Serialize;

use super::objects::NetworkObjects;

/// CoreDNS' default TTL for records of the cluster; it is not to_text.
const TTL_SECONDS: u32 = 5;

/// A name with its records of one type; without values it has no records of the type, or does not exist.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsRecord {
    pub name: String,
    #[serde(rename = "type")]
    pub type_: &'static str,
    pub values: Vec<String>,
}

/// The Service's own name, and those of its named ports.
pub fn of_service(objects: &NetworkObjects, key: &ServiceKey) -> Vec<DnsRecord> {
    let settings = &objects.settings;
    let zone = Name::parse(&settings.cluster_domain)
        .ok()
        .and_then(|domain| Zone::new(domain, TTL_SECONDS, settings.dns_addresses.clone()));
    let (Some(zone), Some(service)) = (zone, objects.catalog.service(key)) else {
        return Vec::new();
    };
    let reverse = Reverse::default();
    let view = View {
        zone: &zone,
        catalog: &objects.catalog,
        reverse: &reverse,
        // A dump without namespaces still has this one.
        has_namespace: &|name| *name == *key.namespace || objects.find::<Namespace>("", name).is_some(),
        is_synced: true,
        serial: 0,
    };
    let own = format!("{}.{}.svc.{}", key.name, key.namespace, settings.cluster_domain);
    let mut records = Vec::new();
    for (type_, number) in [("A", record_type::A), ("AAAA", record_type::AAAA)] {
        records.extend(query(&view, &own, type_, number));
    }
    // A CNAME is the answer to both queries.
    let is_alias = |record: &DnsRecord| record.type_ == "CNAME";
    if let Some(first) = records.iter().position(is_alias) {
        records = vec![records.swap_remove(first)];
    }
    let is_empty = |record: &&DnsRecord| record.values.is_empty();
    if records.iter().filter(is_empty).count() < records.len() {
        records.retain(|record| !record.values.is_empty());
    } else {
        records.truncate(1);
    }
    for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
        let protocol = port.protocol.name().to_lowercase();
        let name = format!("_{}._{protocol}.{own}", port.name);
        let found = query(&view, &name, "SRV", record_type::SRV);
        records.extend(found.into_iter().filter(|record| !record.values.is_empty()));
    }
    records
}

fn query(view: &View<'_>, name: &str, type_: &'static str, number: u16) -> Option<DnsRecord> {
    let answer = resolve(view, &Name::parse(name).ok()?, number);
    if let Outcome::Elsewhere(names) = &answer.end {
        return Some(DnsRecord {
            name: name.into(),
            type_: "CNAME",
            values: names.iter().map(without_dot).collect(),
        });
    }
    let value = |data: &Data| match data {
        Data::Address(address) => Some(address.to_string()),
        Data::Srv { port, target, .. } => Some(format!("{}:{port}", without_dot(target))),
        _ => None,
    };
    let values = answer.records.iter().filter_map(|record| value(&record.data));
    Some(DnsRecord {
        name: name.into(),
        type_,
        values: values.collect(),
    })
}

/// Without the trailing dot.
fn without_dot(name: &Name) -> String {
    name.to_string().trim_end_matches('.').to_string()
}
