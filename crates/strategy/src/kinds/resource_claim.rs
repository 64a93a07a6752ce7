//! ResourceClaim: a request for devices. Its spec is immutable.

use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{IMMUTABLE, Json};
use super::pod::internal;
use super::{device_requests, resource_claim_status};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for ResourceClaim {
    fn set_defaults(&mut self) {
        let status = self.status.get_or_insert_default();
        let allocation = status.allocation.iter_mut();
        let results =
            allocation.flat_map(|a| a.devices.iter_mut().flat_map(|d| d.results.iter_mut().flatten()));
        for result in results {
            device_requests::default_operators(&mut result.tolerations);
        }
        device_requests::set_defaults(&mut self.spec);
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => {
                self.spec = old.spec.clone();
                let old = old.status.clone().unwrap_or_default();
                resource_claim_status::drop_deallocated(self.status.get_or_insert_default(), &old);
            }
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        device_requests::validate(&mut errors, &Path::new("spec"), &self.spec);
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        match part {
            Part::Status => resource_claim_status::validate(&mut errors, self, old),
            Part::Main | Part::Other(_) => {
                if self.spec != old.spec {
                    let shown = Json(internal::json("ResourceClaimSpec", &self.spec));
                    errors.invalid(&Path::new("spec"), shown, IMMUTABLE);
                }
            }
        }
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("State"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let status = self.status.clone().unwrap_or_default();
        let deleted = self.metadata.deletion_timestamp.is_some();
        let allocated = status.allocation.is_some();
        let reserved = allocated && status.reserved_for.is_some_and(|r| !r.is_empty());
        let states: Vec<&str> = [
            (deleted, "deleted"),
            (!allocated && !deleted, "pending"),
            (allocated, "allocated"),
            (reserved, "reserved"),
        ]
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, state)| *state)
        .collect();
        vec![
            table::name(&self.metadata),
            states.join(",").into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(part: Part) -> MetadataChecks {
        match part {
            Part::Status => MetadataChecks::UPDATE,
            Part::Main | Part::Other(_) => MetadataChecks::BOTH,
        }
    }
}
