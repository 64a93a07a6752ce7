//! NetworkPolicy: the ingress and egress traffic that is allowed for the pods that it selects.

use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::cidr::Cidr;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{
    cidr, drop_empty, json, label_selector, port_number, port_number_or_name, update_generation,
};
use super::warnings::cidr_warning;
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

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
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        validate(self, &[])
    }

    /// CIDRs that the old object has may stay, even if they are not valid today.
    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut existing = Vec::new();
        for (_, block) in blocks(old) {
            existing.push(block.cidr.clone());
            existing.extend(block.except.iter().flatten().cloned());
        }
        validate(self, &existing)
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (path, block) in blocks(self) {
            warnings.extend(cidr_warning(&path.child("cidr"), &block.cidr));
            for (i, except) in block.except.iter().flatten().enumerate() {
                warnings.extend(cidr_warning(&path.child("except").index(i), except));
            }
        }
        warnings
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

fn validate(policy: &NetworkPolicy, existing: &[String]) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = policy.spec.clone().unwrap_or_default();
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
            check_peer(peer, &path.child(field).index(i), existing, &mut errors);
        }
    }
    let types = spec.policy_types.as_deref().unwrap_or(&[]);
    if types.len() > 2 {
        let path = path.child("policyTypes");
        errors.invalid(&path, json(types), "may not specify more than two policyTypes");
        return errors;
    }
    facts::check(&mut errors, &path, &spec, &["policyTypes"]);
    errors
}

fn check_port(port: &NetworkPolicyPort, path: &Path, errors: &mut ErrorList) {
    facts::check(errors, path, port, &["protocol"]);
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

fn check_peer(peer: &NetworkPolicyPeer, path: &Path, existing: &[String], errors: &mut ErrorList) {
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
            check_block(block, &path.child("ipBlock"), existing, errors);
            if selects {
                errors.forbidden(path, "may not specify both ipBlock and another peer");
            }
        }
    }
}

fn check_block(block: &IPBlock, path: &Path, existing: &[String], errors: &mut ErrorList) {
    if block.cidr.is_empty() {
        return errors.required(&path.child("cidr"), "");
    }
    cidr(errors, &path.child("cidr"), &block.cidr, existing);
    let Some(range) = Cidr::parse(&block.cidr) else {
        return;
    };
    for (i, except) in block.except.iter().flatten().enumerate() {
        let path = path.child("except").index(i);
        cidr(errors, &path, except, existing);
        if Cidr::parse(except).is_some_and(|e| !range.strictly_contains(&e)) {
            errors.invalid(&path, except, "must be a strict subset of `cidr`");
        }
    }
}

/// The IP blocks of all rules, with their paths.
fn blocks(policy: &NetworkPolicy) -> Vec<(Path, &IPBlock)> {
    let Some(spec) = &policy.spec else {
        return Vec::new();
    };
    let path = Path::new("spec");
    let ingress = spec.ingress.iter().flatten().enumerate();
    let ingress = ingress.map(|(i, rule)| (path.child("ingress").index(i).child("from"), &rule.from));
    let egress = spec.egress.iter().flatten().enumerate();
    let egress = egress.map(|(i, rule)| (path.child("egress").index(i).child("to"), &rule.to));
    let mut blocks = Vec::new();
    for (path, peers) in ingress.chain(egress) {
        for (i, peer) in peers.iter().flatten().enumerate() {
            if let Some(block) = &peer.ip_block {
                blocks.push((path.index(i).child("ipBlock"), block));
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(cidr: &str) -> NetworkPolicy {
        serde_json::from_value(
            json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": cidr}}]}]}}),
        )
        .unwrap()
    }

    #[test]
    fn ranges_of_the_old_object_may_stay_and_new_ones_must_be_valid() {
        let (old, new) = (policy("10.0.0.1/8"), policy("10.0.0.2/8"));
        assert!(old.validate_update(&old, Part::Main).is_empty());
        let errors = new.validate_update(&old, Part::Main).to_string();
        assert!(
            errors.contains("spec.ingress[0].from[0].ipBlock.cidr"),
            "{errors}"
        );
    }

    #[test]
    fn non_canonical_ranges_cause_warnings() {
        let warned = |cidr: &str| policy(cidr).warnings();
        let at = "spec.ingress[0].from[0].ipBlock.cidr";
        assert_eq!(warned("10.0.0.0/8"), [""; 0]);
        assert_eq!(
            warned("fd00:0:0::/48"),
            [format!(
                "{at}: IPv6 CIDR value \"fd00:0:0::/48\" should be in RFC 5952 canonical format (\"fd00::/48\")"
            )]
        );
        assert_eq!(
            warned("10.0.0.1/8"),
            [format!(
                "{at}: CIDR value \"10.0.0.1/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.0.0.1/32\"?)"
            )]
        );
    }
}
