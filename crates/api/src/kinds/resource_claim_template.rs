//! ResourceClaimTemplate: claims made for each pod. Never changes.

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::jiff::Timestamp;

use super::checks::immutable;
use super::device_requests;
use crate::field::{Errors, Path};
use crate::strategy::{MetadataChecks, Part, Strategy};
use crate::table::{self, Cell, Column};

impl Strategy for ResourceClaimTemplate {
    fn set_defaults(&mut self) {
        device_requests::set_defaults(&mut self.spec.spec);
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        device_requests::validate(&mut errors, &Path::new("spec").child("spec"), &self.spec.spec);
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = Errors::new();
        immutable(&mut errors, &Path::new("spec"), &self.spec, &old.spec);
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
