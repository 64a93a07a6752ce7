//! CSIDriver: what a storage driver can do and wants to be told.

use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::jiff::Timestamp;

use super::checks::{drop_empty, immutable, text};
use crate::field::{Errors, Path};
use crate::strategy::{Part, Strategy};
use crate::table::{self, Cell, Column};

/// RFC 1035's label, as drivers are called in paths.
const NAME_MAX: usize = 63;

impl Strategy for CSIDriver {
    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        spec.attach_required.get_or_insert(true);
        spec.pod_info_on_mount.get_or_insert(false);
        spec.storage_capacity.get_or_insert(false);
        spec.requires_republish.get_or_insert(false);
        spec.se_linux_mount.get_or_insert(false);
        spec.fs_group_policy
            .get_or_insert_with(|| "ReadWriteOnceWithFSType".into());
        drop_empty(&mut spec.volume_lifecycle_modes);
        spec.volume_lifecycle_modes
            .get_or_insert_with(|| vec!["Persistent".into()]);
    }

    fn validate(&self) -> Errors {
        let mut errors = Errors::new();
        let name = text(&self.metadata.name);
        if name.len() > NAME_MAX {
            errors.too_long(&Path::new("metadata").child("name"), NAME_MAX);
        }
        let path = Path::new("spec");
        const POLICIES: &[&str] = &["File", "None", "ReadWriteOnceWithFSType"];
        if let Some(policy) = &self.spec.fs_group_policy
            && !POLICIES.contains(&policy.as_str())
        {
            errors.not_supported_in_order(&path.child("fsGroupPolicy"), policy, POLICIES);
        }
        const MODES: &[&str] = &["Ephemeral", "Persistent"];
        for (i, mode) in self.spec.volume_lifecycle_modes.iter().flatten().enumerate() {
            if !MODES.contains(&mode.as_str()) {
                let path = path.child("volumeLifecycleModes").index(i);
                errors.not_supported_in_order(&path, mode, MODES);
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self, _part: Part) -> Errors {
        let mut errors = self.validate();
        let path = Path::new("spec");
        let (new, old) = (&self.spec, &old.spec);
        immutable(
            &mut errors,
            &path.child("attachedRequired"),
            &new.attach_required,
            &old.attach_required,
        );
        immutable(
            &mut errors,
            &path.child("volumeLifecycleModes"),
            &new.volume_lifecycle_modes,
            &old.volume_lifecycle_modes,
        );
        errors
    }

    const UNCONDITIONAL_UPDATE: bool = false;

    fn columns() -> &'static [Column] {
        const COLUMNS: &[Column] = &[
            table::NAME,
            Column::boolean("AttachRequired"),
            Column::boolean("PodInfoOnMount"),
            Column::boolean("StorageCapacity"),
            Column::string("TokenRequests"),
            Column::boolean("RequiresRepublish"),
            Column::string("Modes"),
            table::AGE,
        ];
        COLUMNS
    }

    fn row(&self, now: Timestamp) -> Vec<Cell> {
        let spec = &self.spec;
        let tokens = spec.token_requests.as_ref().map(|requests| {
            let audiences: Vec<&str> = requests.iter().map(|r| r.audience.as_str()).collect();
            audiences.join(",")
        });
        let modes = spec.volume_lifecycle_modes.clone().unwrap_or_default().join(",");
        vec![
            table::name(&self.metadata),
            spec.attach_required.unwrap_or(true).into(),
            spec.pod_info_on_mount.unwrap_or(false).into(),
            spec.storage_capacity.unwrap_or(false).into(),
            tokens.as_deref().unwrap_or("<unset>").into(),
            spec.requires_republish.unwrap_or(false).into(),
            table::or(Some(&modes), "<none>").into(),
            table::created(&self.metadata, now),
        ]
    }
}
