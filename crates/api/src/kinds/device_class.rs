//! DeviceClass: a kind of devices that can be asked for.

use k8s_openapi::api::resource::v1::DeviceClass;
use k8s_openapi::jiff::Timestamp;

use super::checks::count_generation;
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
