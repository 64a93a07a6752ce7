//! StorageClass: how volumes are made. What is made by it stays the same for its lifetime.

use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::jiff::Timestamp;

use super::checks::{drop_empty, each, immutable, json, text};
use crate::field::{Errors, Path};
use crate::names;
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

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

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("provisioner");
        if self.provisioner.is_empty() {
            errors.required(&path, "");
        } else {
            let lower = self.provisioner.to_lowercase();
            each(
                &mut errors,
                &path,
                self.provisioner.as_str(),
                names::qualified_name(&lower),
            );
        }
        parameters(self.parameters.as_ref(), &mut errors);
        const POLICIES: &[&str] = &["Delete", "Retain"];
        let policy = text(&self.reclaim_policy);
        if !policy.is_empty() && !POLICIES.contains(&policy) {
            errors.not_supported_in_order(&Path::new("reclaimPolicy"), policy, POLICIES);
        }
        const MODES: &[&str] = &["Immediate", "WaitForFirstConsumer"];
        match &self.volume_binding_mode {
            None => errors.required(&Path::new("volumeBindingMode"), ""),
            Some(mode) if !MODES.contains(&mode.as_str()) => {
                errors.not_supported_in_order(&Path::new("volumeBindingMode"), mode, MODES);
            }
            Some(_) => {}
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = Errors::new();
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
}

/// What a driver is told: not too much.
pub(super) fn parameters(
    parameters: Option<&std::collections::BTreeMap<String, String>>,
    errors: &mut Errors,
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
