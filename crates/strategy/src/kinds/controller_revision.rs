//! ControllerRevision: an immutable snapshot of a workload's template.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use serde_json::Value;

use super::checks::{immutable, not_negative};
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

impl Strategy for ControllerRevision {
    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        not_negative(&mut errors, &Path::new("revision"), self.revision);
        let data = Path::new("data");
        match self.data.as_ref().map(|d| &d.0) {
            None | Some(Value::Null) => errors.required(&data, "data is mandatory"),
            Some(Value::Object(_)) => {}
            Some(_) => errors.required(&data, "data must be a valid JSON object"),
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = ErrorList::new();
        not_negative(&mut errors, &Path::new("revision"), self.revision);
        immutable(&mut errors, &Path::new("data"), &self.data, &old.data);
        errors
    }

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Controller"),
            Column::string("Revision"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let owners = self.metadata.owner_references.iter().flatten();
        let controller = owners.into_iter().find(|o| o.controller == Some(true)).map(|o| {
            let group = o.api_version.split_once('/').map(|(group, _)| group);
            let kind = o.kind.to_lowercase();
            match group {
                Some(group) => format!("{kind}.{}/{}", group.to_lowercase(), o.name),
                None => format!("{kind}/{}", o.name),
            }
        });
        vec![
            table::name(&self.metadata),
            table::or(controller.as_deref(), "<none>").into(),
            self.revision.into(),
            table::created(&self.metadata, now),
        ]
    }

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::BOTH
    }
}
