//! Endpoints: the deprecated form of a service's endpoints, all in one object. A `PUT` may create it.

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, Endpoints};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{self, PROTOCOLS, dns_label, drop_empty, endpoint_ip, ip, qualified_name, text};
use super::warnings::ip_warning;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

/// Maximum number of addresses that `kubectl get` shows.
const SHOWN: usize = 3;

impl Strategy for Endpoints {
    fn set_defaults(&mut self) {
        drop_empty(&mut self.subsets);
        for subset in self.subsets.iter_mut().flatten() {
            for port in subset.ports.iter_mut().flatten() {
                if text(&port.protocol).is_empty() {
                    port.protocol = Some("TCP".into());
                }
            }
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        for (i, subset) in self.subsets.iter().flatten().enumerate() {
            let path = Path::new("subsets").index(i);
            let ready = subset.addresses.as_deref().unwrap_or(&[]);
            let not_ready = subset.not_ready_addresses.as_deref().unwrap_or(&[]);
            if ready.is_empty() && not_ready.is_empty() {
                errors.required(&path, "must specify `addresses` or `notReadyAddresses`");
            }
            for (field, addresses) in [("addresses", ready), ("notReadyAddresses", not_ready)] {
                for (i, address) in addresses.iter().enumerate() {
                    check_address(address, &path.child(field).index(i), &mut errors);
                }
            }
            let ports = subset.ports.as_deref().unwrap_or(&[]);
            for (i, port) in ports.iter().enumerate() {
                check_port(port, ports.len() > 1, &path.child("ports").index(i), &mut errors);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        // Unchanged subsets are not validated again (ratcheting).
        if self.subsets == old.subsets {
            ErrorList::new()
        } else {
            self.validate()
        }
    }

    const CREATE_ON_UPDATE: bool = true;

    fn warnings(&self) -> Vec<String> {
        let labels = self.metadata.labels.as_ref();
        let manager = labels.and_then(|l| l.get("endpoints.kubernetes.io/managed-by"));
        if manager.is_some_and(|m| m == "endpoint-controller") {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        for (i, subset) in self.subsets.iter().flatten().enumerate() {
            let path = Path::new("subsets").index(i);
            for (field, addresses) in [
                ("addresses", &subset.addresses),
                ("notReadyAddresses", &subset.not_ready_addresses),
            ] {
                for (j, address) in addresses.iter().flatten().enumerate() {
                    warnings.extend(ip_warning(&path.child(field).index(j).child("ip"), &address.ip));
                }
            }
        }
        warnings
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("Endpoints"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            shown(self).into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}

fn check_address(address: &EndpointAddress, path: &Path, errors: &mut ErrorList) {
    ip(errors, &path.child("ip"), &address.ip, &[]);
    if !text(&address.hostname).is_empty() {
        dns_label(errors, &path.child("hostname"), text(&address.hostname));
    }
    if let Some(node) = &address.node_name {
        let messages = names::dns1123_subdomain(node);
        errors.all_invalid(&path.child("nodeName"), node.as_str(), messages);
    }
    endpoint_ip(errors, &path.child("ip"), &address.ip);
}

fn check_port(port: &EndpointPort, needs_name: bool, path: &Path, errors: &mut ErrorList) {
    match text(&port.name) {
        "" if needs_name => errors.required(&path.child("name"), ""),
        "" => {}
        name => dns_label(errors, &path.child("name"), name),
    }
    checks::port_number(errors, &path.child("port"), port.port);
    let protocol = text(&port.protocol);
    if !PROTOCOLS.contains(&protocol) {
        errors.not_supported_in_order(&path.child("protocol"), protocol, PROTOCOLS);
    }
    if let Some(protocol) = &port.app_protocol {
        qualified_name(errors, &path.child("appProtocol"), protocol);
    }
}

fn shown(endpoints: &Endpoints) -> String {
    let subsets = endpoints.subsets.as_deref().unwrap_or(&[]);
    if subsets.is_empty() {
        return "<none>".into();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = subset.addresses.as_deref().unwrap_or(&[]);
        match subset.ports.as_deref() {
            // A headless service may have no ports.
            None | Some([]) => all.extend(addresses.iter().map(|a| a.ip.clone())),
            Some(ports) => {
                for port in ports {
                    all.extend(addresses.iter().map(|a| match a.ip.contains(':') {
                        true => format!("[{}]:{}", a.ip, port.port),
                        false => format!("{}:{}", a.ip, port.port),
                    }));
                }
            }
        }
    }
    table::cut_short(&all, SHOWN)
}
