//! StorageClass: how volumes are provisioned. Its provisioner and parameters are immutable.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::TopologySelectorTerm;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{drop_empty, immutable, json, qualified_name, text};
use super::warnings::deprecated_label;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

const DEFAULT_ANNOTATIONS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const MAX_PARAMETERS: usize = 512;
const MAX_PARAMETER_BYTES: usize = 256 * 1024;

impl Strategy for StorageClass {
    fn set_defaults(&mut self) {
        self.reclaim_policy.get_or_insert_with(|| "Delete".into());
        self.volume_binding_mode.get_or_insert_with(|| "Immediate".into());
        drop_empty(&mut self.parameters);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        provisioner(&self.provisioner, &Path::new("provisioner"), &mut errors);
        parameters(self.parameters.as_ref(), &mut errors);
        const POLICIES: &[&str] = &["Delete", "Retain"];
        let policy = text(&self.reclaim_policy);
        if !policy.is_empty() && !POLICIES.contains(&policy) {
            errors.not_supported_in_order(&Path::new("reclaimPolicy"), policy, POLICIES);
        }
        facts::check(&mut errors, &Path::default(), self, &["volumeBindingMode"]);
        let topologies = self.allowed_topologies.as_deref().unwrap_or_default();
        allowed_topologies(topologies, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        if self.parameters != old.parameters {
            errors.invalid(
                &Path::new("parameters"),
                json(&self.parameters),
                "field is immutable",
            );
        }
        let path = Path::new("provisioner");
        immutable(&mut errors, &path, &self.provisioner, &old.provisioner);
        let path = Path::new("reclaimPolicy");
        immutable(&mut errors, &path, &self.reclaim_policy, &old.reclaim_policy);
        let path = Path::new("volumeBindingMode");
        immutable(
            &mut errors,
            &path,
            &self.volume_binding_mode,
            &old.volume_binding_mode,
        );
        errors
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (i, term) in self.allowed_topologies.iter().flatten().enumerate() {
            let path = Path::new("allowedTopologies")
                .index(i)
                .child("matchLabelExpressions");
            for (j, expression) in term.match_label_expressions.iter().flatten().enumerate() {
                let deprecation = deprecated_label(&expression.key);
                warnings.extend(
                    deprecation.map(|deprecation| format!("{}: {deprecation}", path.index(j).child("key"))),
                );
            }
        }
        warnings
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Provisioner"),
            Column::string("ReclaimPolicy"),
            Column::string("VolumeBindingMode"),
            Column::string("AllowVolumeExpansion"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let mut name = text(&self.metadata.name).to_string();
        let annotations = self.metadata.annotations.iter().flatten();
        if annotations
            .into_iter()
            .any(|(k, v)| DEFAULT_ANNOTATIONS.contains(&k.as_str()) && v == "true")
        {
            name += " (default)";
        }
        vec![
            name.into(),
            self.provisioner.as_str().into(),
            self.reclaim_policy.as_deref().unwrap_or("Delete").into(),
            self.volume_binding_mode.as_deref().unwrap_or("Immediate").into(),
            self.allow_volume_expansion.unwrap_or(false).into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}

/// Checks a provisioner's name: a qualified name in upper or lower case, which the error shows in lower case.
pub(super) fn provisioner(name: &str, path: &Path, errors: &mut ErrorList) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    qualified_name(errors, path, &name.to_lowercase());
}

/// Checks `allowedTopologies`: terms are distinct, and so are the values of each.
fn allowed_topologies(terms: &[TopologySelectorTerm], errors: &mut ErrorList) {
    // Kubernetes also compares with as many empty terms as there are terms.
    let mut seen: Vec<BTreeMap<&str, BTreeSet<&String>>> = vec![BTreeMap::new(); terms.len()];
    for (i, term) in terms.iter().enumerate() {
        let path = Path::new("allowedTopologies")
            .index(i)
            .child("matchLabelExpressions");
        let mut found = BTreeMap::new();
        for (i, requirement) in term.match_label_expressions.iter().flatten().enumerate() {
            let path = path.index(i);
            let at = path.child("values");
            if requirement.values.is_empty() {
                errors.required(&at, "");
            }
            let mut values = BTreeSet::new();
            for (i, value) in requirement.values.iter().enumerate() {
                if !values.insert(value) {
                    errors.duplicate(&at.index(i), value);
                }
            }
            qualified_name(errors, &path.child("key"), &requirement.key);
            if found.insert(requirement.key.as_str(), values).is_some() {
                errors.duplicate(&path.child("key"), &requirement.key);
            }
        }
        let times = seen.iter().filter(|t| **t == found).count();
        (0..times).for_each(|_| errors.duplicate(&path, ""));
        seen.push(found);
    }
}

/// Checks the number and the total size of the parameters.
pub(super) fn parameters(
    parameters: Option<&std::collections::BTreeMap<String, String>>,
    errors: &mut ErrorList,
) {
    let path = Path::new("parameters");
    let Some(parameters) = parameters else { return };
    if parameters.len() > MAX_PARAMETERS {
        errors.too_many(&path, parameters.len(), MAX_PARAMETERS);
        return;
    }
    let bytes: usize = parameters.iter().map(|(k, v)| k.len() + v.len()).sum();
    if parameters.keys().any(String::is_empty) {
        errors.invalid(&path, "", "field can not be empty.");
    }
    if bytes > MAX_PARAMETER_BYTES {
        errors.too_long(&path, MAX_PARAMETER_BYTES);
    }
}
