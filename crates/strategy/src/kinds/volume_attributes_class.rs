//! VolumeAttributesClass: the mutable attributes of a volume. Its driver name and parameters are immutable.

use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::storage_class;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for VolumeAttributesClass {
    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("driverName");
        storage_class::provisioner(&self.driver_name, &path, &mut errors);
        storage_class::parameters(self.parameters.as_ref(), &mut errors);
        if self.parameters.as_ref().is_none_or(|p| p.is_empty()) {
            errors.required(
                &Path::new("parameters"),
                "must contain at least one key/value pair",
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        if self.driver_name != old.driver_name {
            errors.forbidden(&Path::new("driverName"), "updates to driverName are forbidden.");
        }
        if self.parameters != old.parameters {
            errors.forbidden(&Path::new("parameters"), "updates to parameters are forbidden.");
        }
        errors.extend(self.validate());
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

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
