//! RuntimeClass: the handler of the container runtime that runs a pod.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::quantity;

use super::checks::{Json, dns_label, immutable, labels};
use super::pod::validation::resource_requirements;
use super::pod::{internal, validate_tolerations};
use super::warnings::deprecated_label;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for RuntimeClass {
    fn set_defaults(&mut self) {
        let overhead = self.overhead.iter_mut();
        for (_, amount) in overhead.flat_map(|o| o.pod_fixed.iter_mut().flatten()) {
            quantity::canonicalize(amount);
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("handler");
        if self.handler.is_empty() {
            errors.required(&path, "");
        } else {
            dns_label(&mut errors, &path, &self.handler);
        }
        if let Some(overhead) = &self.overhead {
            // The overhead is validated as the limits of a container, with their field path.
            let limits = ResourceRequirements {
                limits: overhead.pod_fixed.clone(),
                ..ResourceRequirements::default()
            };
            let path = Path::new("overhead");
            resource_requirements::container(&limits, &BTreeSet::new(), &path, &mut errors);
        }
        if let Some(scheduling) = &self.scheduling {
            let path = Path::new("scheduling");
            if let Some(selector) = &scheduling.node_selector {
                labels(&mut errors, &path.child("nodeSelector"), selector);
            }
            let tolerations = scheduling.tolerations.as_deref().unwrap_or(&[]);
            let at = path.child("tolerations");
            errors.extend(validate_tolerations(tolerations, &at));
            for (i, toleration) in tolerations.iter().enumerate() {
                let same = |other: &&Toleration| {
                    let timeless = |t: &Toleration| Toleration {
                        toleration_seconds: None,
                        ..t.clone()
                    };
                    timeless(other) == timeless(toleration)
                };
                if tolerations[..i].iter().any(|t| same(&t)) {
                    let shown = Json(internal::json("Toleration", toleration));
                    errors.duplicate(&at.index(i), shown);
                }
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        immutable(&mut errors, &Path::new("handler"), &self.handler, &old.handler);
        errors
    }

    const CREATE_ON_UPDATE: bool = true;

    const STANDARD_FINALIZERS: bool = false;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn warnings(&self) -> Vec<String> {
        let selector = self
            .scheduling
            .iter()
            .flat_map(|s| s.node_selector.iter().flatten());
        let deprecated = selector.filter_map(|(key, _)| deprecated_label(key));
        deprecated
            .map(|warning| format!("scheduling.nodeSelector: {warning}"))
            .collect()
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("Handler"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            self.handler.as_str().into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
