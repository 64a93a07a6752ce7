//! VolumeAttachment: the record that a volume is, or is to be, at a node (SPEC S7). Its spec never changes.

use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::jiff::Timestamp;

use super::checks::{dns_subdomain, immutable, qualified_name, text};
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy, keep_metadata};
use crate::table::{self, Cell, Column};

const ONE_SOURCE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";

impl Strategy for VolumeAttachment {
    fn set_defaults(&mut self) {
        self.status.get_or_insert_default();
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(Default::default());
    }

    fn prepare_for_update(&mut self, old: &Self, part: Part) {
        match part {
            Part::Status => {
                self.spec = old.spec.clone();
                // Finalizers go with the state of the volume, so the attacher may write them here; the rest stays.
                let finalizers = self.metadata.finalizers.take();
                keep_metadata(&mut self.metadata, &old.metadata);
                self.metadata.finalizers = finalizers;
            }
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let path = Path::new("spec");
        let at = path.child("attacher");
        if self.spec.attacher.is_empty() {
            errors.required(&at, "");
        } else {
            qualified_name(&mut errors, &at, &self.spec.attacher.to_lowercase());
        }
        let source = &self.spec.source;
        let at = path.child("source");
        match (
            &source.inline_volume_spec,
            source.persistent_volume_name.as_deref(),
        ) {
            (None, None) => errors.required(&at, ONE_SOURCE),
            (Some(_), Some(_)) => errors.forbidden(&at, ONE_SOURCE),
            (None, Some("")) => errors.required(
                &at.child("persistentVolumeName"),
                "must specify non empty persistentVolumeName",
            ),
            _ => {}
        }
        dns_subdomain(&mut errors, &path.child("nodeName"), &self.spec.node_name);
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = self.validate();
        immutable(&mut errors, &Path::new("spec"), &self.spec, &old.spec);
        errors
    }

    /// A node lists and watches its own attachments by it. Kubernetes has no such field here: its nodes read attachments one by
    /// one.
    const SELECTABLE_FIELDS: &'static [&'static str] = &["spec.nodeName"];

    fn field(&self, path: &str) -> String {
        match path {
            "spec.nodeName" => self.spec.node_name.clone(),
            _ => String::new(),
        }
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::string("Attacher").names_object(),
            Column::string("PV"),
            Column::string("Node"),
            Column::boolean("Attached"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        vec![
            table::name(&self.metadata),
            self.spec.attacher.as_str().into(),
            text(&self.spec.source.persistent_volume_name).into(),
            self.spec.node_name.as_str().into(),
            self.status.as_ref().is_some_and(|s| s.attached).into(),
            table::created(&self.metadata, now),
        ]
    }
}
