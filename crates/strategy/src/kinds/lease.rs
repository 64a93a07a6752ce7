//! Lease: its holder and for how long it is held. A `PUT` may create it.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{NOT_GREATER_THAN_ZERO, text};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy, facts};

impl Strategy for Lease {
    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        // CoordinatedLeaderElection is off by default.
        spec.strategy = None;
        spec.preferred_holder = None;
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let Some(spec) = &self.spec else { return errors };
        let path = Path::new("spec");
        if let Some(seconds) = spec.lease_duration_seconds.filter(|s| *s <= 0) {
            errors.invalid(
                &path.child("leaseDurationSeconds"),
                seconds,
                NOT_GREATER_THAN_ZERO,
            );
        }
        facts::check(&mut errors, &path, spec, &["leaseTransitions"]);
        errors
    }

    fn validate_update(&self, _old: &Self, _part: Part) -> ErrorList {
        self.validate()
    }

    const CREATE_ON_UPDATE: bool = true;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("Holder"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let holder = self.spec.as_ref().map_or("", |s| text(&s.holder_identity));
        vec![
            table::name(&self.metadata),
            holder.into(),
            table::created(&self.metadata, now),
        ]
    }

    const STANDARD_FINALIZERS: bool = false;
}
