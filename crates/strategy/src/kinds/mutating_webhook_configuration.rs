//! MutatingWebhookConfiguration: the webhooks that may mutate the objects of requests.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::update_generation;
use super::webhook::{self, hook, webhook_defaults};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy, facts};

impl Strategy for MutatingWebhookConfiguration {
    fn set_defaults(&mut self) {
        for hook in self.webhooks.iter_mut().flatten() {
            webhook_defaults!(hook);
            hook.reinvocation_policy.get_or_insert_with(|| "Never".into());
        }
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.webhooks != old.webhooks;
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let mut errors = webhook::validate(self.webhooks.iter().flatten().map(|h| hook!(h)));
        facts::check(&mut errors, &Path::default(), self, &["webhooks"]);
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[table::NAME, Column::integer("Webhooks"), table::AGE];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            self.webhooks.as_ref().map_or(0, |w| w.len()).into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }

    const STANDARD_FINALIZERS: bool = false;
}
