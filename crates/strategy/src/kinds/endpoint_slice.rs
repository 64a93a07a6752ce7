//! EndpointSlice: up to 1000 endpoints of a service, all of one address type.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, EndpointPort, EndpointSlice};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{
    self, PROTOCOLS, canonical_ip, dns_label, endpoint_ip, immutable, ip, qualified_name, text,
    update_generation,
};
use super::warnings::ip_warning;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

const MAX_ENDPOINTS: usize = 1000;
const MAX_ADDRESSES: usize = 100;
const MAX_PORTS: usize = 20000;
const MAX_TOPOLOGY_LABELS: usize = 16;
const MAX_HINTS: usize = 8;
/// Maximum number of ports and addresses that `kubectl get` shows.
const SHOWN: usize = 3;

impl Strategy for EndpointSlice {
    fn set_defaults(&mut self) {
        // An empty list is written as null.
        self.endpoints.take_if(|endpoints| endpoints.is_empty());
        self.ports.take_if(|ports| ports.is_empty());
        for port in self.ports.iter_mut().flatten() {
            port.name.get_or_insert_default();
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.conditions.get_or_insert_default();
        }
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
        drop_topology(self);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        if self.endpoints != old.endpoints {
            drop_topology(self);
        }
        let changed = self.endpoints != old.endpoints
            || self.ports != old.ports
            || self.address_type != old.address_type
            || self.metadata.labels != old.metadata.labels;
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        facts::check(&mut errors, &Path::default(), self, &["addressType"]);
        let endpoints = self.endpoints.as_deref().unwrap_or(&[]);
        let path = Path::new("endpoints");
        if endpoints.len() > MAX_ENDPOINTS {
            errors.too_many(&path, endpoints.len(), MAX_ENDPOINTS);
        } else {
            for (i, endpoint) in endpoints.iter().enumerate() {
                check_endpoint(endpoint, &self.address_type, &path.index(i), &mut errors);
            }
        }
        check_ports(self.ports.as_deref().unwrap_or(&[]), &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        // Unchanged endpoints are not validated again (ratcheting).
        let mut errors = match self.endpoints == old.endpoints {
            true => Self {
                endpoints: None,
                ..self.clone()
            }
            .validate(),
            false => self.validate(),
        };
        immutable(
            &mut errors,
            &Path::new("addressType"),
            &self.address_type,
            &old.address_type,
        );
        errors
    }

    const CREATE_ON_UPDATE: bool = false;

    fn warnings(&self) -> Vec<String> {
        let of_type = (self.address_type == "FQDN")
            .then(|| "spec.addressType: FQDN endpoints are deprecated".to_string());
        of_type.into_iter().chain(address_warnings(self)).collect()
    }

    fn warnings_on_update(&self, _old: &Self) -> Vec<String> {
        address_warnings(self)
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("AddressType"),
            Column::string("Ports"),
            Column::string("Endpoints"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let ports: Vec<String> = self
            .ports
            .iter()
            .flatten()
            .map(|p| match (p.port, &p.name) {
                (Some(number), _) => number.to_string(),
                (None, Some(name)) => name.clone(),
                (None, None) => "*".into(),
            })
            .collect();
        let endpoints = self.endpoints.iter().flatten();
        let addresses: Vec<String> = endpoints.flat_map(|e| e.addresses.iter().cloned()).collect();
        vec![
            table::name(&self.metadata),
            self.address_type.as_str().into(),
            table::or(Some(&table::cut_short(&ports, SHOWN)), "<unset>").into(),
            table::or(Some(&table::cut_short(&addresses, SHOWN)), "<unset>").into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }
}

/// `deprecatedTopology` is a field of v1beta1: v1 shows stored values and accepts no new ones.
fn drop_topology(slice: &mut EndpointSlice) {
    for endpoint in slice.endpoints.iter_mut().flatten() {
        endpoint.deprecated_topology = None;
    }
}

/// Warnings about addresses, except in slices that are managed by Kubernetes' controllers.
fn address_warnings(slice: &EndpointSlice) -> Vec<String> {
    let labels = slice.metadata.labels.as_ref();
    let manager = labels.and_then(|l| l.get("endpointslice.kubernetes.io/managed-by"));
    if matches!(
        manager.map(String::as_str),
        Some("endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io")
    ) {
        return Vec::new();
    }
    let path = Path::new("endpoints");
    let endpoints = slice.endpoints.iter().flatten().enumerate();
    let addresses = endpoints.flat_map(|(i, endpoint)| {
        let at = path.index(i).child("addresses");
        let all = endpoint.addresses.iter().enumerate();
        all.filter_map(move |(j, address)| ip_warning(&at.index(j), address))
    });
    addresses.collect()
}

fn check_endpoint(endpoint: &Endpoint, of: &str, path: &Path, errors: &mut ErrorList) {
    let at = path.child("addresses");
    if endpoint.addresses.is_empty() {
        errors.required(&at, "must contain at least 1 address");
    } else if endpoint.addresses.len() > MAX_ADDRESSES {
        errors.too_many(&at, endpoint.addresses.len(), MAX_ADDRESSES);
    }
    for (i, address) in endpoint.addresses.iter().enumerate() {
        let indexed = at.index(i);
        match of {
            // An IPv6 address must be in canonical form.
            "IPv6" if !canonical_ip(address).is_empty() => {
                errors.all_invalid(&indexed, address.as_str(), canonical_ip(address));
            }
            "IPv4" | "IPv6" if ip(errors, &indexed, address, &[]) => {
                if address.contains(':') != (of == "IPv6") {
                    errors.invalid(&at, address, format!("must be an {of} address"));
                }
                endpoint_ip(errors, &indexed, address);
            }
            "FQDN" => fully_qualified(errors, &indexed, address),
            _ => {}
        }
    }
    if let Some(node) = &endpoint.node_name {
        let messages = names::dns1123_subdomain(node);
        errors.all_invalid(&path.child("nodeName"), node.as_str(), messages);
    }
    if let Some(topology) = &endpoint.deprecated_topology {
        let path = path.child("deprecatedTopology");
        if topology.len() > MAX_TOPOLOGY_LABELS {
            errors.too_many(&path, topology.len(), MAX_TOPOLOGY_LABELS);
        }
        checks::labels(errors, &path, topology);
    }
    if let Some(hostname) = &endpoint.hostname {
        dns_label(errors, &path.child("hostname"), hostname);
    }
    if let Some(hints) = &endpoint.hints {
        check_hints(hints, &path.child("hints"), errors);
    }
}

fn fully_qualified(errors: &mut ErrorList, path: &Path, name: &str) {
    let bare = name.strip_suffix('.').unwrap_or(name);
    if bare.is_empty() {
        errors.required(path, "");
        return;
    }
    let messages = names::dns1123_subdomain(bare);
    let several = bare.contains('.');
    let valid = messages.is_empty();
    errors.all_invalid(path, name, messages);
    if valid && !several {
        errors.invalid(
            path,
            name,
            "should be a domain with at least two segments separated by dots",
        );
    }
}

fn check_hints(hints: &EndpointHints, path: &Path, errors: &mut ErrorList) {
    let zones: Vec<&str> = hints
        .for_zones
        .iter()
        .flatten()
        .map(|z| z.name.as_str())
        .collect();
    let nodes: Vec<&str> = hints
        .for_nodes
        .iter()
        .flatten()
        .map(|n| n.name.as_str())
        .collect();
    for (field, hinted) in [("forZones", zones), ("forNodes", nodes)] {
        let path = path.child(field);
        if hinted.len() > MAX_HINTS {
            errors.too_many(&path, hinted.len(), MAX_HINTS);
            return;
        }
        for (i, name) in hinted.iter().enumerate() {
            let path = path.index(i).child("name");
            if hinted[..i].contains(name) {
                errors.duplicate(&path, *name);
            }
            let messages = match field {
                "forZones" => names::label_value(name),
                _ => names::dns1123_subdomain(name),
            };
            errors.all_invalid(&path, *name, messages);
        }
    }
}

fn check_ports(ports: &[EndpointPort], errors: &mut ErrorList) {
    let path = Path::new("ports");
    if ports.len() > MAX_PORTS {
        return errors.too_many(&path, ports.len(), MAX_PORTS);
    }
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = text(&port.name);
        if !name.is_empty() {
            dns_label(errors, &path.child("name"), name);
        }
        if ports[..i].iter().any(|p| text(&p.name) == name) {
            errors.duplicate(&path.child("name"), name);
        }
        match &port.protocol {
            None => errors.required(&path.child("protocol"), ""),
            Some(p) if !PROTOCOLS.contains(&p.as_str()) => {
                errors.not_supported_in_order(&path.child("protocol"), p, PROTOCOLS);
            }
            Some(_) => {}
        }
        if let Some(protocol) = &port.app_protocol {
            qualified_name(errors, &path.child("appProtocol"), protocol);
        }
    }
}
