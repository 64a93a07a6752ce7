//! VolumeAttachment: records that a volume is, or should be, attached to a node (SPEC S7). Its spec is immutable.

use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeAttachmentStatus};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::field::{ErrorList, Path};
use knarr_apimachinery::names;

use super::checks::{IMMUTABLE, Json, dns_subdomain, text};
use super::persistent_volume;
use super::pod::internal;
use super::pod::validation::volume_plugins::csi_driver;
use crate::strategy::keep_metadata;
use crate::table::{self, Cell, Column};
use crate::{MetadataChecks, Part, Strategy};

const METADATA_MAX_BYTES: usize = 256 * 1024;
const MESSAGE_MAX_BYTES: usize = 1024;
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
                // The attacher sets finalizers together with the status, so they may change here; the other metadata stays.
                let finalizers = self.metadata.finalizers.take();
                keep_metadata(&mut self.metadata, &old.metadata);
                self.metadata.finalizers = finalizers;
            }
            Part::Main | Part::Other(_) => self.status = old.status.clone(),
        }
    }

    fn validate(&self) -> ErrorList {
        let mut errors = ErrorList::new();
        let path = Path::new("spec");
        csi_driver(&self.spec.attacher, &path.child("attacher"), &mut errors);
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
            (Some(inline), None) => {
                persistent_volume::validate_inline(inline, &at.child("inlineVolumeSpec"), &mut errors);
            }
            _ => {}
        }
        dns_subdomain(&mut errors, &path.child("nodeName"), &self.spec.node_name);
        validate_status(&self.status.clone().unwrap_or_default(), &mut errors);
        if let Some(volume) = &source.persistent_volume_name {
            // The field path of the error is that of a single field.
            dns_subdomain(
                &mut errors,
                &Path::new("spec.source.persistentVolumeName"),
                volume,
            );
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> ErrorList {
        let mut errors = self.validate();
        if self.spec != old.spec {
            let shown = Json(internal::json("VolumeAttachmentSpec", &self.spec));
            errors.invalid(&Path::new("spec"), shown, IMMUTABLE);
        }
        errors
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

    fn metadata_checks(_part: Part) -> MetadataChecks {
        MetadataChecks::FULL
    }
}

/// Validates the status, which the attacher sets: sizes of metadata and messages are limited.
fn validate_status(status: &VolumeAttachmentStatus, errors: &mut ErrorList) {
    let path = Path::new("status");
    let metadata = status.attachment_metadata.iter().flatten();
    let bytes: usize = metadata.map(|(key, value)| key.len() + value.len()).sum();
    if bytes > METADATA_MAX_BYTES {
        errors.too_long(&path.child("attachmentMetadata"), METADATA_MAX_BYTES);
    }
    for (field, error) in [
        ("attachError", &status.attach_error),
        ("detachError", &status.detach_error),
    ] {
        let Some(error) = error else { continue };
        let path = path.child(field);
        if text(&error.message).len() > MESSAGE_MAX_BYTES {
            // The error names the limit of the metadata, as in Kubernetes.
            errors.too_long(&path.child("message"), METADATA_MAX_BYTES);
        }
        if let Some(code) = error.error_code.filter(|c| *c < 0) {
            let detail = names::inclusive_range_error(0, i64::from(i32::MAX));
            errors.invalid(&path.child("errorCode"), code, detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::kinds::persistent_volume::ATTACHER;

    use super::*;

    #[test]
    fn s7_attachments_of_exclusive_volumes_are_valid() {
        let mut attachment = VolumeAttachment::default();
        attachment.spec.attacher = ATTACHER.into();
        attachment.spec.source.persistent_volume_name = Some("v".into());
        attachment.spec.node_name = "n1".into();
        assert_eq!(attachment.validate(), ErrorList::new());
        attachment.spec.attacher = "knarr.io/exclusive".into();
        assert!(!attachment.validate().is_empty());
    }
}
