//! ConfigMap: keys must be valid file names, the data has at most 1 MiB and cannot change when `immutable` is set.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::drop_empty;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

/// Maximum total size of the values of a ConfigMap or Secret in bytes (`MaxSecretSize`): 1 MiB, so that the object fits into
/// one transaction of the store.
pub const MAX_BYTES: usize = 1024 * 1024;

pub(super) const IMMUTABLE_WHEN_SET: &str = "field is immutable when `immutable` is set";

impl Strategy for ConfigMap {
    fn set_defaults(&mut self) {
        drop_empty(&mut self.data);
        drop_empty(&mut self.binary_data);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let mut bytes = 0;
        for (key, value) in self.data.iter().flatten() {
            let path = Path::new("data").key(key);
            errors.all_invalid(&path, key.as_str(), names::config_map_key(key));
            if self.binary_data.as_ref().is_some_and(|b| b.contains_key(key)) {
                errors.invalid(&path, key, "duplicate of key present in binaryData");
            }
            bytes += value.len();
        }
        for (key, value) in self.binary_data.iter().flatten() {
            let path = Path::new("binaryData").key(key);
            errors.all_invalid(&path, key.as_str(), names::config_map_key(key));
            bytes += value.0.len();
        }
        if bytes > MAX_BYTES {
            // The error is about the object as a whole: its path is empty, which Kubernetes shows as `[]`.
            errors.too_long(&Path::new("[]"), MAX_BYTES);
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        if old.immutable == Some(true) {
            for (changed, field) in [
                (self.immutable != Some(true), "immutable"),
                (self.data != old.data, "data"),
                (self.binary_data != old.binary_data, "binaryData"),
            ] {
                if changed {
                    errors.forbidden(&Path::new(field), IMMUTABLE_WHEN_SET);
                }
            }
        }
        errors.extend(self.validate());
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::string("Data"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let keys =
            self.data.as_ref().map_or(0, |d| d.len()) + self.binary_data.as_ref().map_or(0, |d| d.len());
        vec![
            table::name(&self.metadata),
            keys.into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
