//! ResourceClaimTemplate: the template of ResourceClaims that are generated for each pod. Its spec is immutable.

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{IMMUTABLE, Json};
use super::device_requests;
use super::pod::{internal, template_metadata};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for ResourceClaimTemplate {
    fn set_defaults(&mut self) {
        self.spec.metadata.get_or_insert_default();
        device_requests::set_defaults(&mut self.spec.spec);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        if let Some(metadata) = &self.spec.metadata {
            template_metadata(metadata, &path.child("metadata"), &mut errors);
        }
        device_requests::validate(&mut errors, &path.child("spec"), &self.spec.spec);
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        if self.spec != old.spec {
            let shown = Json(internal::json("ResourceClaimTemplateSpec", &self.spec));
            errors.invalid(&Path::new("spec"), shown, IMMUTABLE);
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
