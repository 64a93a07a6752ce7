//! Paths that stay below the directory that they are relative to.

use knarr_apimachinery::field::{ErrorList, Path};

/// Checks that a path has no `..` element.
pub(in crate::kinds) fn no_backsteps(target: &str, path: &Path, errors: &mut ErrorList) {
    if target.split('/').any(|part| part == "..") {
        errors.invalid(path, target, "must not contain '..'");
    }
}

/// Checks that a path is relative and has no `..` element.
pub(super) fn local_descending_path(target: &str, path: &Path, errors: &mut ErrorList) {
    if target.starts_with('/') {
        errors.invalid(path, target, "must be a relative path");
    }
    no_backsteps(target, path, errors);
}

/// [`local_descending_path`] that also does not begin with `..`, which the kubelet reserves.
pub(super) fn local_path(target: &str, path: &Path, errors: &mut ErrorList) {
    local_descending_path(target, path, errors);
    if target.starts_with("..") && !target.starts_with("../") {
        errors.invalid(path, target, "must not start with '..'");
    }
}
