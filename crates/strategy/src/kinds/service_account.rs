//! ServiceAccount: only the names of the secrets that it lists are stored.

use k8s_openapi::api::core::v1::{ObjectReference, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use knarr_api::well_known::ENFORCE_MOUNTABLE_SECRETS;

use super::checks::drop_empty;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

fn keep_names_of_secrets(account: &mut ServiceAccount) {
    for secret in account.secrets.iter_mut().flatten() {
        *secret = ObjectReference {
            name: secret.name.take(),
            ..ObjectReference::default()
        };
    }
}

impl Strategy for ServiceAccount {
    fn set_defaults(&mut self) {
        drop_empty(&mut self.secrets);
        drop_empty(&mut self.image_pull_secrets);
    }

    fn prepare_for_create(&mut self) {
        keep_names_of_secrets(self);
    }

    fn prepare_for_update(&mut self, _old: &Self, _part: Part) {
        keep_names_of_secrets(self);
    }

    fn warnings(&self) -> Vec<String> {
        let annotations = self.metadata.annotations.as_ref();
        let is_set = annotations.is_some_and(|a| a.contains_key(ENFORCE_MOUNTABLE_SECRETS));
        let warning = format!(
            "metadata.annotations[{ENFORCE_MOUNTABLE_SECRETS}]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
        );
        is_set.then_some(warning).into_iter().collect()
    }

    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        match old.warnings().is_empty() {
            true => self.warnings(),
            false => Vec::new(),
        }
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
