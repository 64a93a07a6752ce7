//! CSINode: the storage drivers of one node.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::jiff::Timestamp;

use super::checks::{dns_subdomain, json, not_negative_if_set, qualified_name};
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for CSINode {
    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let mut names = BTreeSet::new();
        for (i, driver) in self.spec.drivers.iter().enumerate() {
            let path = Path::new("spec").child("drivers").index(i);
            if driver.name.is_empty() {
                errors.required(&path.child("name"), "");
            } else {
                dns_subdomain(&mut errors, &path.child("name"), &driver.name.to_lowercase());
            }
            if driver.node_id.is_empty() {
                errors.required(&path.child("nodeID"), "");
            }
            let count = driver.allocatable.as_ref().and_then(|a| a.count);
            not_negative_if_set(&mut errors, &path.child("allocatable").child("count"), count);
            if !names.insert(&driver.name) {
                errors.duplicate(&path.child("name"), &driver.name);
            }
            let mut keys = BTreeSet::new();
            for key in driver.topology_keys.iter().flatten() {
                if !keys.insert(key) {
                    errors.duplicate(&path.child("topologyKeys"), key);
                }
                qualified_name(&mut errors, &path.child("topologyKeys"), key);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = self.validate();
        // A driver may come and go, and its limit may change; its identity and topology may not.
        for (i, driver) in self.spec.drivers.iter().enumerate() {
            let before = old.spec.drivers.iter().find(|d| d.name == driver.name);
            if let Some(before) = before
                && (driver.node_id != before.node_id || driver.topology_keys != before.topology_keys)
            {
                let path = Path::new("spec").child("drivers").index(i);
                errors.invalid(&path, json(driver), "field is immutable");
            }
        }
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::integer("Drivers"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            self.spec.drivers.len().into(),
            table::created(&self.metadata, now),
        ]
    }
}
