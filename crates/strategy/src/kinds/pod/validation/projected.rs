//! Projected volumes: several sources in one directory, with distinct paths.
//!
//! Cluster trust bundles and pod certificates need no validation: they are dropped before, since their features are disabled.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ProjectedVolumeSource, ServiceAccountTokenProjection};
use knarr_apimachinery::field::{ErrorList, Path};

use super::local_paths::local_path;
use super::required;
use super::volume_files::{downward_file, items, mode};

/// Minimum `expirationSeconds` of a token.
const TOKEN_SECONDS_MIN: i64 = 600;
/// Maximum `expirationSeconds` of a token.
const TOKEN_SECONDS_MAX: i64 = 1 << 32;

pub(super) fn validate(volume: &ProjectedVolumeSource, path: &Path, errors: &mut ErrorList) {
    mode(volume.default_mode, &path.child("defaultMode"), errors);
    let mut taken = BTreeSet::new();
    for (i, source) in volume.sources.iter().flatten().enumerate() {
        let at = path.child("sources").index(i);
        let mut count = 0;
        let keyed = [
            (
                "secret",
                source.secret.as_ref().map(|s| (&s.name, s.items.as_deref())),
            ),
            (
                "configMap",
                source.config_map.as_ref().map(|c| (&c.name, c.items.as_deref())),
            ),
        ];
        for (field, given) in keyed {
            let Some((name, keys)) = given else {
                continue;
            };
            count += 1;
            let at = at.child(field);
            required(name, &at.child("name"), errors);
            items(keys, &at.child("items"), errors);
            for item in keys
                .unwrap_or_default()
                .iter()
                .filter(|item| !item.path.is_empty())
            {
                if !taken.insert(item.path.as_str()) {
                    errors.invalid(path, name, "conflicting duplicate paths");
                }
            }
        }
        if let Some(downward) = &source.downward_api {
            count += 1;
            for file in downward.items.iter().flatten() {
                downward_file(file, &at.child("downwardAPI"), errors);
                if !file.path.is_empty() && !taken.insert(file.path.as_str()) {
                    errors.invalid(path, &file.path, "conflicting duplicate paths");
                }
            }
        }
        if let Some(token) = &source.service_account_token {
            count += 1;
            service_account_token(token, &at.child("serviceAccountToken"), path, errors);
        }
        if count > 1 {
            errors.forbidden(&at, "may not specify more than 1 volume type per source");
        }
    }
}

/// An error in `path` is reported at the volume's path, as in `validateProjectionSources`.
fn service_account_token(
    token: &ServiceAccountTokenProjection,
    path: &Path,
    volume: &Path,
    errors: &mut ErrorList,
) {
    let seconds = token.expiration_seconds.unwrap_or(0);
    let at = path.child("expirationSeconds");
    if seconds < TOKEN_SECONDS_MIN {
        errors.invalid(&at, seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > TOKEN_SECONDS_MAX {
        errors.invalid(
            &at,
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        );
    }
    if token.path.is_empty() {
        errors.required(&volume.child("path"), "");
    } else {
        local_path(&token.path, &volume.child("path"), errors);
    }
}
