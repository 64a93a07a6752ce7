//! Volume mounts and volume devices of a container.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Volume, VolumeMount};
use knarr_apimachinery::field::{ErrorList, Path};

use super::local_paths::local_descending_path;
use super::text;
use crate::facts;

type Volumes<'a> = BTreeMap<&'a str, &'a Volume>;

pub(super) fn mounts(container: &Container, known: &Volumes<'_>, path: &Path, errors: &mut ErrorList) {
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    let mut taken = BTreeSet::new();
    for (i, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = path.index(i);
        if mount.name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if !known.contains_key(mount.name.as_str()) {
            errors.not_found(&at.child("name"), &mount.name);
        }
        let point = &mount.mount_path;
        if point.is_empty() {
            errors.required(&at.child("mountPath"), "");
        }
        if !taken.insert(point.as_str()) {
            errors.invalid(&at.child("mountPath"), point, "must be unique");
        }
        if devices.iter().any(|d| d.name == mount.name) {
            errors.invalid(
                &at.child("name"),
                &mount.name,
                "must not already exist in volumeDevices",
            );
        }
        if devices.iter().any(|d| d.device_path == *point) {
            errors.invalid(
                &at.child("mountPath"),
                point,
                "must not already exist as a path in volumeDevices",
            );
        }
        let (sub_path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
        // From here on the paths lack the index, as in `ValidateVolumeMounts`.
        if !sub_path.is_empty() {
            local_descending_path(sub_path, &path.child("subPath"), errors);
        }
        if !expression.is_empty() {
            if !sub_path.is_empty() {
                errors.invalid(
                    &at.child("subPathExpr"),
                    expression,
                    "subPathExpr and subPath are mutually exclusive",
                );
            }
            local_descending_path(expression, &path.child("subPathExpr"), errors);
        }
        facts::check(errors, path, mount, &["mountPropagation"]);
        propagation(mount, container, &path.child("mountPropagation"), errors);
        recursive_read_only(mount, &path.child("recursiveReadOnly"), errors);
    }
}

fn propagation(mount: &VolumeMount, container: &Container, path: &Path, errors: &mut ErrorList) {
    let Some(mode) = mount.mount_propagation.as_deref() else {
        return;
    };
    let privileged = container.security_context.as_ref().and_then(|c| c.privileged) == Some(true);
    if mode == "Bidirectional" && !privileged {
        errors.forbidden(
            path,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
}

fn recursive_read_only(mount: &VolumeMount, path: &Path, errors: &mut ErrorList) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(path, "may only be specified when readOnly is true");
            }
            if mount
                .mount_propagation
                .as_deref()
                .is_some_and(|mode| mode != "None")
            {
                errors.forbidden(
                    path,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        Some(other) => errors.not_supported(path, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

pub(super) fn devices(container: &Container, known: &Volumes<'_>, path: &Path, errors: &mut ErrorList) {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let (mut taken, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in container.volume_devices.iter().flatten().enumerate() {
        let at = path.index(i);
        let (name_at, path_at) = (at.child("name"), at.child("devicePath"));
        let name = device.name.as_str();
        if name.is_empty() {
            errors.required(&name_at, "");
        }
        if seen.contains(name) {
            errors.invalid(&name_at, name, "must be unique");
        }
        match known.get(name) {
            None => errors.not_found(&name_at, name),
            Some(v) if v.persistent_volume_claim.is_none() && v.ephemeral.is_none() => errors.invalid(
                &name_at,
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
            ),
            Some(_) => {}
        }
        let point = device.device_path.as_str();
        if point.is_empty() {
            errors.required(&path_at, "");
        }
        if taken.contains(point) {
            errors.invalid(&path_at, point, "must be unique");
        }
        if point.split('/').any(|part| part == "..") {
            errors.invalid(&path_at, point, "can not contain backsteps ('..')");
        } else {
            taken.insert(point);
        }
        if mounts.iter().any(|m| m.name == name) {
            errors.invalid(&name_at, name, "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|m| m.mount_path == point) {
            errors.invalid(
                &path_at,
                point,
                "must not already exist as a path in volumeMounts",
            );
        }
        if !name.is_empty() {
            seen.insert(name);
        }
    }
}
