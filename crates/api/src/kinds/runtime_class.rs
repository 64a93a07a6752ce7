//! RuntimeClass: which handler of the container runtime runs a pod.

use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::jiff::Timestamp;

use super::checks::{dns_label, immutable, labels, not_negative_quantity};
use super::pod::validate_tolerations;
use crate::field::{Errors, Path};
use crate::quantity;
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for RuntimeClass {
    fn set_defaults(&mut self) {
        let overhead = self.overhead.iter_mut();
        for (_, amount) in overhead.flat_map(|o| o.pod_fixed.iter_mut().flatten()) {
            quantity::canonicalize(amount);
        }
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("handler");
        if self.handler.is_empty() {
            errors.required(&path, "");
        } else {
            dns_label(&mut errors, &path, &self.handler);
        }
        let overhead = self.overhead.iter();
        for (name, amount) in overhead.flat_map(|o| o.pod_fixed.iter().flatten()) {
            let path = Path::new("overhead").child("limits").key(name);
            not_negative_quantity(&mut errors, &path, amount);
        }
        if let Some(scheduling) = &self.scheduling {
            let path = Path::new("scheduling");
            if let Some(selector) = &scheduling.node_selector {
                labels(&mut errors, &path.child("nodeSelector"), selector);
            }
            let tolerations = scheduling.tolerations.as_deref().unwrap_or(&[]);
            errors.extend(validate_tolerations(tolerations, &path.child("tolerations")));
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = Errors::new();
        immutable(&mut errors, &Path::new("handler"), &self.handler, &old.handler);
        errors
    }

    const CREATE_ON_UPDATE: bool = true;
    const UNCONDITIONAL_UPDATE: bool = false;

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
}
