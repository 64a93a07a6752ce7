//! The files of volumes that Kubernetes itself fills: keys with their paths and modes, and downwardAPI files.

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath};
use knarr_apimachinery::field::{ErrorList, Path};

use super::local_paths::local_path;
use super::{env, required};

/// Fields of the pod that `fieldRef` of a downwardAPI volume supports.
const FIELDS: [&str; 5] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "metadata.uid",
];

const FILE_MODE_DETAIL: &str = "must be a number between 0 and 0777 (octal), both inclusive";

pub(super) fn mode(mode: Option<i32>, path: &Path, errors: &mut ErrorList) {
    if let Some(mode) = mode
        && !(0..=0o777).contains(&mode)
    {
        errors.invalid(path, mode, FILE_MODE_DETAIL);
    }
}

pub(super) fn items(items: Option<&[KeyToPath]>, path: &Path, errors: &mut ErrorList) {
    for (i, item) in items.into_iter().flatten().enumerate() {
        let at = path.index(i);
        required(&item.key, &at.child("key"), errors);
        required(&item.path, &at.child("path"), errors);
        local_path(&item.path, &at.child("path"), errors);
        mode(item.mode, &at.child("mode"), errors);
    }
}

pub(super) fn downward_file(file: &DownwardAPIVolumeFile, path: &Path, errors: &mut ErrorList) {
    required(&file.path, &path.child("path"), errors);
    local_path(&file.path, &path.child("path"), errors);
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), resource) => {
            env::field_ref(field, &FIELDS, &path.child("fieldRef"), errors);
            if resource.is_some() {
                errors.invalid(
                    path,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
        }
        (None, Some(resource)) => {
            env::resource_field_ref(resource, true, &path.child("resourceFieldRef"), errors);
        }
        (None, None) => errors.required(path, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(file.mode, &path.child("mode"), errors);
}
