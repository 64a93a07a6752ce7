//! PodTemplate: a pod template as an object of its own.

use k8s_openapi::api::core::v1::PodTemplate;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};

use super::checks::update_generation;
use super::template;
use crate::table::{self, Cell, Column};
use crate::{Part, Strategy};

impl Strategy for PodTemplate {
    fn set_defaults(&mut self) {
        template::set_defaults(self.template.get_or_insert_default());
    }

    fn prepare_for_create(&mut self) {
        self.metadata.generation = Some(1);
    }

    fn prepare_for_update(&mut self, old: &Self, _part: Part) {
        let changed = self.template != old.template;
        update_generation(&mut self.metadata, &old.metadata, changed);
    }

    fn validate(&self) -> ErrorList {
        let template = self.template.clone().unwrap_or_default();
        template::validate(&template, &Path::new("template"))
    }

    fn warnings(&self) -> Vec<String> {
        let template = self.template.as_ref();
        template.map_or_else(Vec::new, |t| template::warnings_at(t, &Path::new("template")))
    }

    /// The template is only checked for warnings if the generation changed: an update of the metadata alone does not repeat them.
    fn warnings_on_update(&self, old: &Self) -> Vec<String> {
        match self.metadata.generation == old.metadata.generation {
            true => Vec::new(),
            false => self.warnings(),
        }
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Containers"),
            Column::string("Images"),
            Column::string("Pod Labels"),
        ];
        COLUMNS
    }

    fn row(&self, _now: Timestamp) -> Vec<Cell> {
        let [containers, images] = template::cells(self.template.as_ref());
        let meta = self.template.as_ref().and_then(|t| t.metadata.as_ref());
        let labels = meta.and_then(|m| m.labels.clone()).unwrap_or_default();
        vec![
            table::name(&self.metadata),
            containers,
            images,
            table::labels(&labels).into(),
        ]
    }
}
