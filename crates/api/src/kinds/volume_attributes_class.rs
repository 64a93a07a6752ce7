//! VolumeAttributesClass: what of a volume may be tuned while it is in use. Both its fields stay.

use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::jiff::Timestamp;

use super::checks::{dns_subdomain, immutable};
use super::storage_class;
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for VolumeAttributesClass {
    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("driverName");
        if self.driver_name.is_empty() {
            errors.required(&path, "");
        } else {
            dns_subdomain(&mut errors, &path, &self.driver_name.to_lowercase());
        }
        if self.parameters.as_ref().is_none_or(|p| p.is_empty()) {
            errors.required(
                &Path::new("parameters"),
                "must contain at least one key/value pair",
            );
        }
        storage_class::parameters(self.parameters.as_ref(), &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("driverName");
        immutable(&mut errors, &path, &self.driver_name, &old.driver_name);
        let path = Path::new("parameters");
        immutable(&mut errors, &path, &self.parameters, &old.parameters);
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("DriverName"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            self.driver_name.as_str().into(),
            table::created(&self.metadata, now),
        ]
    }
}
