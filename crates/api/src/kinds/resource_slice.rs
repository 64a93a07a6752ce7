//! ResourceSlice: devices that a driver offers, on a node or beside it.

use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::jiff::Timestamp;

use super::checks::{count_generation, dns_subdomain, immutable, text};
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for ResourceSlice {
    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.spec != old.spec;
        count_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("spec");
        let at = path.child("driver");
        if self.spec.driver.is_empty() {
            errors.required(&at, "");
        } else {
            dns_subdomain(&mut errors, &at, &self.spec.driver);
        }
        if self.spec.pool.name.is_empty() {
            errors.required(&path.child("pool").child("name"), "");
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = self.validate();
        let path = Path::new("spec");
        immutable(
            &mut errors,
            &path.child("driver"),
            &self.spec.driver,
            &old.spec.driver,
        );
        immutable(
            &mut errors,
            &path.child("nodeName"),
            &self.spec.node_name,
            &old.spec.node_name,
        );
        immutable(
            &mut errors,
            &path.child("pool").child("name"),
            &self.spec.pool.name,
            &old.spec.pool.name,
        );
        errors
    }

    const SELECTABLE_FIELDS: &'static [&'static str] = &["spec.driver", "spec.nodeName"];

    fn field(&self, path: &str) -> String {
        match path {
            "spec.driver" => self.spec.driver.clone(),
            "spec.nodeName" => text(&self.spec.node_name).to_string(),
            _ => String::new(),
        }
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Node"),
            Column::string("Driver"),
            Column::string("Pool"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            text(&self.spec.node_name).into(),
            self.spec.driver.as_str().into(),
            self.spec.pool.name.as_str().into(),
            table::created(&self.metadata, now),
        ]
    }
}
