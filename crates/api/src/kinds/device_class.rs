//! DeviceClass: a kind of devices that can be asked for.

use k8s_openapi::api::resource::v1::DeviceClass;
use k8s_openapi::jiff::Timestamp;

use super::checks::count_generation;
use super::device_requests;
use crate::field::{Errors, Path};
use crate::strategy::{MetadataChecks, Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for DeviceClass {
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
        let selectors = self.spec.selectors.as_deref();
        device_requests::selectors(&mut errors, &path.child("selectors"), selectors);
        for (i, config) in self.spec.config.iter().flatten().enumerate() {
            let path = path.child("config").index(i);
            device_requests::configuration(&mut errors, &path, config.opaque.as_ref());
        }
        errors
    }

    fn columns() -> &'static [Column] {
        table::NAME_AND_AGE
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        table::name_and_age(&self.metadata, now)
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
