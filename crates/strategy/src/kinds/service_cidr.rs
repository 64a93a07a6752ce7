//! ServiceCIDR: a range of cluster IPs for services.

use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::cidr::Cidr;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::{IMMUTABLE, Json, canonical_cidr, json, json_list};
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy};

impl Strategy for ServiceCIDR {
    fn set_defaults(&mut self) {
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => self.spec = old.spec.clone(),
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec").child("cidrs");
        let cidrs = self.spec.clone().unwrap_or_default().cidrs.unwrap_or_default();
        match cidrs.len() {
            0 => {
                errors.required(&path, "at least one CIDR required");
                return errors;
            }
            1 | 2 => {}
            _ => {
                // The error shows the whole spec in Kubernetes' internal form.
                let shown = Json(format!(r#"{{"CIDRs":{}}}"#, json(&cidrs).0));
                errors.invalid(&path, shown, "may only hold up to 2 values");
                return errors;
            }
        }
        for (i, value) in cidrs.iter().enumerate() {
            canonical_cidr(&mut errors, &path.index(i), value);
        }
        if let [one, other] = cidrs.as_slice() {
            let family = |c: &str| Cidr::parse(c).map(|c| c.family());
            if family(one).is_some() && family(one) == family(other) {
                errors.invalid(
                    &path,
                    json(&cidrs),
                    "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
                );
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, part: Part) -> ErrorList {
        if part == Part::Status {
            return ErrorList::new();
        }
        let mut errors = ErrorList::new();
        let cidrs = |s: &ServiceCIDR| s.spec.clone().unwrap_or_default().cidrs.unwrap_or_default();
        let (new, old) = (cidrs(self), cidrs(old));
        let path = Path::new("spec").child("cidrs");
        // A CIDR of the second family may be added; nothing else may change.
        match (old.len(), new.len()) {
            (before, after) if before == after || (before, after) == (1, 2) => {
                for (i, (before, after)) in old.iter().zip(&new).enumerate() {
                    if before != after {
                        errors.invalid(&path.index(i), after, IMMUTABLE);
                    }
                }
                if before != after {
                    errors.extend(self.validate());
                }
            }
            _ => errors.invalid(&path, json_list(&new), IMMUTABLE),
        }
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("CIDRs"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let cidrs = self.spec.clone().unwrap_or_default().cidrs.unwrap_or_default();
        vec![
            table::name(&self.metadata),
            cidrs.join(",").into(),
            table::created(&self.metadata, now),
        ]
    }
}
