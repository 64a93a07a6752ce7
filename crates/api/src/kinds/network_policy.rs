//! NetworkPolicy: who may talk to the pods it selects, and to whom they may.

use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;

use super::checks::{
    cidr, count_generation, drop_empty, json, label_selector, port_number, port_number_or_name,
};
use super::service_ips::Cidr;
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for NetworkPolicy {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.pod_selector.get_or_insert_default();
        drop_empty(&mut spec.policy_types);
        if spec.policy_types.is_none() {
            let mut types = vec!["Ingress".to_string()];
            if spec.egress.as_ref().is_some_and(|e| !e.is_empty()) {
                types.push("Egress".into());
            }
            spec.policy_types = Some(types);
        }
        let ingress = spec.ingress.iter_mut().flatten();
        let egress = spec.egress.iter_mut().flatten();
        let ports = ingress
            .flat_map(|r| r.ports.iter_mut().flatten())
            .chain(egress.flat_map(|r| r.ports.iter_mut().flatten()));
        for port in ports {
            port.protocol.get_or_insert_with(|| "TCP".into());
        }
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.spec != old.spec;
        count_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let spec = self.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        if let Some(selector) = &spec.pod_selector {
            label_selector(&mut errors, &path.child("podSelector"), selector);
        }
        let ingress = spec.ingress.iter().flatten();
        let egress = spec.egress.iter().flatten();
        let rules = ingress
            .enumerate()
            .map(|(i, r)| (path.child("ingress").index(i), &r.ports, "from", &r.from))
            .chain(
                egress
                    .enumerate()
                    .map(|(i, r)| (path.child("egress").index(i), &r.ports, "to", &r.to)),
            );
        for (path, ports, field, peers) in rules {
            for (i, port) in ports.iter().flatten().enumerate() {
                check_port(port, &path.child("ports").index(i), &mut errors);
            }
            for (i, peer) in peers.iter().flatten().enumerate() {
                check_peer(peer, &path.child(field).index(i), &mut errors);
            }
        }
        const TYPES: &[&str] = &["Ingress", "Egress"];
        let types = spec.policy_types.as_deref().unwrap_or(&[]);
        let path = path.child("policyTypes");
        if types.len() > TYPES.len() {
            errors.invalid(&path, json(types), "may not specify more than two policyTypes");
            return errors;
        }
        for (i, of) in types.iter().enumerate() {
            if !TYPES.contains(&of.as_str()) {
                errors.not_supported_in_order(&path.index(i), of, TYPES);
            }
        }
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("Pod-Selector"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let selector = self.spec.as_ref().and_then(|s| s.pod_selector.as_ref());
        vec![
            table::name(&self.metadata),
            table::label_selector(selector).into(),
            table::created(&self.metadata, now),
        ]
    }
}

fn check_port(port: &NetworkPolicyPort, path: &Path, errors: &mut Errors) {
    const PROTOCOLS: &[&str] = &["TCP", "UDP", "SCTP"];
    if let Some(protocol) = &port.protocol
        && !PROTOCOLS.contains(&protocol.as_str())
    {
        errors.not_supported_in_order(&path.child("protocol"), protocol, PROTOCOLS);
    }
    let at = path.child("endPort");
    if let Some(first) = &port.port {
        port_number_or_name(errors, &path.child("port"), first);
    }
    match (&port.port, port.end_port) {
        (_, None) => {}
        (Some(IntOrString::Int(first)), Some(last)) => {
            if last < *first {
                errors.invalid(&at, *first, "must be greater than or equal to `port`");
            }
            port_number(errors, &at, last);
        }
        (Some(IntOrString::String(_)), Some(last)) => {
            errors.invalid(&at, last, "may not be specified when `port` is non-numeric");
        }
        (None, Some(last)) => errors.invalid(&at, last, "may not be specified when `port` is not specified"),
    }
}

fn check_peer(peer: &NetworkPolicyPeer, path: &Path, errors: &mut Errors) {
    for (field, selector) in [
        ("podSelector", &peer.pod_selector),
        ("namespaceSelector", &peer.namespace_selector),
    ] {
        if let Some(selector) = selector {
            label_selector(errors, &path.child(field), selector);
        }
    }
    let selects = peer.pod_selector.is_some() || peer.namespace_selector.is_some();
    match &peer.ip_block {
        None if !selects => errors.required(path, "must specify a peer"),
        None => {}
        Some(block) => {
            check_block(block, &path.child("ipBlock"), errors);
            if selects {
                errors.forbidden(path, "may not specify both ipBlock and another peer");
            }
        }
    }
}

fn check_block(block: &IPBlock, path: &Path, errors: &mut Errors) {
    if block.cidr.is_empty() {
        return errors.required(&path.child("cidr"), "");
    }
    cidr(errors, &path.child("cidr"), &block.cidr, &[]);
    let Some(range) = Cidr::parse(&block.cidr) else {
        return;
    };
    for (i, except) in block.except.iter().flatten().enumerate() {
        let path = path.child("except").index(i);
        cidr(errors, &path, except, &[]);
        if Cidr::parse(except).is_some_and(|e| !range.strictly_contains(&e)) {
            errors.invalid(&path, except, "must be a strict subset of `cidr`");
        }
    }
}
