//! Node: taints, addresses and CIDRs that are set once. Its status may be given at creation.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeDaemonEndpoints, Taint};
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::node::is_cordoned;
use knarr_apimachinery::cidr::Cidr;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path, Shown};
use knarr_apimachinery::names;
use knarr_apimachinery::quantity::canonicalize;

use super::checks::{Json, cidr, drop_empty, json, qualified_name, text};
use super::pod::validate_resource_quantity;
use super::warnings::cidr_warning;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE_LABEL: &str = "kubernetes.io/role";

impl Strategy for Node {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        // `podCIDR` is the first entry of `podCIDRs`; each is filled in from the other.
        match (text(&spec.pod_cidr), spec.pod_cidrs.as_deref()) {
            ("", Some([first, ..])) => spec.pod_cidr = Some(first.clone()),
            (one, ranges) if !one.is_empty() && ranges.and_then(<[_]>::first).is_none_or(|r| r != one) => {
                spec.pod_cidrs = Some(vec![one.to_string()]);
            }
            _ => {}
        }
        drop_empty(&mut spec.taints);
        if spec.unschedulable == Some(false) {
            spec.unschedulable = None;
        }
        let status = self.status.get_or_insert_default();
        for quantities in [&mut status.capacity, &mut status.allocatable] {
            quantities
                .iter_mut()
                .flatten()
                .for_each(|(_, quantity)| canonicalize(quantity));
        }
        if status.allocatable.is_none() {
            status.allocatable.clone_from(&status.capacity);
        }
        let endpoints = status
            .daemon_endpoints
            .get_or_insert_with(NodeDaemonEndpoints::default);
        endpoints.kubelet_endpoint.get_or_insert_default();
        status.node_info.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        if let Some(spec) = &mut self.spec {
            spec.config_source = None;
        }
        if let Some(status) = &mut self.status {
            status.config = None;
        }
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        // Dynamic kubelet configuration was removed; a node that has the field keeps it.
        match part {
            Part::Status => {
                self.spec = old.spec.clone();
                if old.status.as_ref().is_none_or(|s| s.config.is_none())
                    && let Some(status) = &mut self.status
                {
                    status.config = None;
                }
            }
            Part::Main | Part::Other(_) => {
                self.status = old.status.clone();
                if old.spec.as_ref().is_none_or(|s| s.config_source.is_none())
                    && let Some(spec) = &mut self.spec
                {
                    spec.config_source = None;
                }
            }
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        self.taints(&mut errors);
        self.resources(&mut errors);
        let path = Path::new("spec").child("podCIDRs");
        let cidrs = self
            .spec
            .as_ref()
            .and_then(|s| s.pod_cidrs.as_deref())
            .unwrap_or(&[]);
        for (i, value) in cidrs.iter().enumerate() {
            cidr(&mut errors, &path.index(i), value, &[]);
        }
        if cidrs.len() > 1 {
            let families: BTreeSet<Option<bool>> = cidrs
                .iter()
                .map(|c| Cidr::parse(c).map(|c| c.is_ipv6()))
                .collect();
            if cidrs.len() > 2 || families.len() != 2 {
                errors.invalid(
                    &path,
                    json(cidrs),
                    "may specify no more than one CIDR for each IP family",
                );
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        let mut errors = match part {
            Part::Status => ErrorList::new(),
            // `ValidateNode` and `ValidateNodeUpdate` have rules in common; violations of those are reported twice, as in v1.36.
            Part::Main | Part::Other(_) => self.validate(),
        };
        self.resources(&mut errors);
        let mut seen: Vec<&NodeAddress> = Vec::new();
        let addresses = self.status.iter().flat_map(|s| s.addresses.iter().flatten());
        for (i, address) in addresses.enumerate() {
            if seen.contains(&address) {
                let shown = format!(
                    r#"{{"Type":{},"Address":{}}}"#,
                    json(&address.type_).0,
                    json(&address.address).0
                );
                errors.duplicate(&Path::new("status").child("addresses").index(i), Json(shown));
            }
            seen.push(address);
        }
        let (spec, old) = (
            self.spec.clone().unwrap_or_default(),
            old.spec.clone().unwrap_or_default(),
        );
        let path = Path::new("spec");
        let old_cidrs = old.pod_cidrs.unwrap_or_default();
        if !old_cidrs.is_empty() && old_cidrs != spec.pod_cidrs.unwrap_or_default() {
            errors.forbidden(
                &path.child("podCIDRs"),
                "node updates may not change podCIDR except from \"\" to valid",
            );
        }
        if !text(&old.provider_id).is_empty() && text(&old.provider_id) != text(&spec.provider_id) {
            errors.forbidden(
                &path.child("providerID"),
                "node updates may not change providerID except from \"\" to valid",
            );
        }
        self.taints(&mut errors);
        if text(&spec.external_id) != text(&old.external_id) {
            errors.forbidden(&path.child("externalID"), "may not be updated");
        }
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let Some(spec) = &self.spec else {
            return warnings;
        };
        if spec.config_source.is_some() {
            warnings.push("spec.configSource: the feature is removed".into());
        }
        if !text(&spec.external_id).is_empty() {
            warnings.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".into());
        }
        let path = Path::new("spec").child("podCIDRs");
        let ranges = spec.pod_cidrs.iter().flatten().enumerate();
        warnings.extend(ranges.filter_map(|(i, range)| cidr_warning(&path.index(i), range)));
        warnings
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Status"),
            Column::string("Roles"),
            table::AGE,
            Column::string("Version"),
            Column::string("Internal-IP").wide(),
            Column::string("External-IP").wide(),
            Column::string("OS-Image").wide(),
            Column::string("Kernel-Version").wide(),
            Column::string("Container-Runtime").wide(),
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let status = self.status.clone().unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .flatten()
            .rev()
            .find(|c| c.type_ == "Ready");
        let mut shown = match ready {
            None => "Unknown",
            Some(c) if c.status == "True" => "Ready",
            Some(_) => "NotReady",
        }
        .to_string();
        if is_cordoned(self) {
            shown += ",SchedulingDisabled";
        }
        let mut kernel = table::or(Some(&info.kernel_version), "<unknown>").to_string();
        if !info.architecture.is_empty() {
            kernel += &format!(" ({})", info.architecture);
        }
        let address = |of: &str| {
            let mut addresses = status.addresses.iter().flatten();
            addresses
                .find(|a| a.type_ == of)
                .map_or("<none>", |a| a.address.as_str())
        };
        vec![
            table::name(&self.metadata),
            shown.into(),
            table::or(Some(&self.roles()), "<none>").into(),
            table::created(&self.metadata, now),
            info.kubelet_version.as_str().into(),
            address("InternalIP").into(),
            address("ExternalIP").into(),
            table::or(Some(&info.os_image), "<unknown>").into(),
            kernel.into(),
            table::or(Some(&info.container_runtime_version), "<unknown>").into(),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }
}

/// Parts of the validation and the columns of a Node.
trait NodeExt {
    fn roles(&self) -> String;
    fn taints(&self, errors: &mut ErrorList);
    fn resources(&self, errors: &mut ErrorList);
}

/// `validateNodeDeclaredFeatures` (KEP-5328): names of feature gates, sorted.
fn declared_features(features: &[String], errors: &mut ErrorList) {
    let path = Path::new("status").child("declaredFeatures");
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_uppercase())
            && name
                .split('/')
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()))
    };
    for (i, name) in features.iter().enumerate() {
        if name.len() > names::DNS1123_SUBDOMAIN_MAX {
            let max = names::DNS1123_SUBDOMAIN_MAX;
            let detail = format!("invalid feature name {name:?}: must be no more than {max} characters");
            errors.invalid(&path.index(i), name, detail);
        } else if !is_name(name) {
            let detail = format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments \
                 separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric \
                 characters and slashes"
            );
            errors.invalid(&path.index(i), name, detail);
        }
        match features.get(i + 1) {
            Some(next) if next == name => errors.duplicate(&path.index(i + 1), next),
            Some(next) if next < name => {
                errors.invalid(&path.index(i + 1), next, "list must be sorted alphabetically");
            }
            _ => {}
        }
    }
}

impl NodeExt for Node {
    /// From the labels `node-role.kubernetes.io/<role>` and `kubernetes.io/role=<role>`, sorted.
    fn roles(&self) -> String {
        let labels = self.metadata.labels.iter().flatten();
        let roles: BTreeSet<&str> = labels
            .filter_map(|(key, value)| match key.strip_prefix(ROLE_PREFIX) {
                Some(role) => Some(role),
                None if key == ROLE_LABEL => Some(value.as_str()),
                None => None,
            })
            .filter(|role| !role.is_empty())
            .collect();
        Vec::from_iter(roles).join(",")
    }

    fn taints(&self, errors: &mut ErrorList) {
        let path = Path::new("metadata").child("taints");
        let mut seen = BTreeSet::new();
        let taints = self.spec.iter().flat_map(|s| s.taints.iter().flatten());
        for (i, taint) in taints.enumerate() {
            let path = path.index(i);
            qualified_name(errors, &path.child("key"), &taint.key);
            let value = text(&taint.value);
            let messages = names::label_value(value);
            if !messages.is_empty() {
                errors.invalid(&path.child("value"), value, messages.join(";"));
            }
            facts::check(errors, &path, taint, &["effect"]);
            if !seen.insert((&taint.key, &taint.effect)) {
                errors.push(FieldError {
                    cause: Cause::Duplicate,
                    field: path.to_string(),
                    value: Some(shown(taint).shown()),
                    detail: "taints must be unique by key and effect pair".into(),
                });
            }
        }
    }

    fn resources(&self, errors: &mut ErrorList) {
        let Some(status) = &self.status else { return };
        declared_features(status.declared_features.as_deref().unwrap_or_default(), errors);
        for (field, quantities) in [
            ("capacity", &status.capacity),
            ("allocatable", &status.allocatable),
        ] {
            for (resource, quantity) in quantities.iter().flatten() {
                let path = Path::new("status").child(field).child(resource);
                errors.extend(validate_resource_quantity(resource, quantity, &path));
            }
        }
    }
}

fn shown(taint: &Taint) -> Json {
    Json(format!(
        r#"{{"Key":{},"Value":{},"Effect":{},"TimeAdded":{}}}"#,
        json(&taint.key).0,
        json(text(&taint.value)).0,
        json(&taint.effect).0,
        json(&taint.time_added).0
    ))
}
