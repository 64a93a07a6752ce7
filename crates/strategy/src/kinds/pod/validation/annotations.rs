//! Annotations of pods that have rules: mirror pods, tolerations, the pod deletion cost, and the deprecated ones for seccomp and
//! AppArmor profiles.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, PodSpec, SeccompProfile, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kinds::pod::APP_ARMOR_ANNOTATION;
use knarr_api::well_known::{MIRROR_ANNOTATION, POD_DELETION_COST};
use knarr_apimachinery::codec;
use knarr_apimachinery::field::{ErrorList, Path};

use super::{every_container, text};

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
pub(in crate::kinds::pod) const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
pub(in crate::kinds::pod) const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

type Annotations = BTreeMap<String, String>;

pub(super) fn validate(
    annotations: Option<&Annotations>,
    spec: &PodSpec,
    path: &Path,
    errors: &mut ErrorList,
) {
    let Some(annotations) = annotations else {
        return;
    };
    if let Some(value) = annotations.get(MIRROR_ANNOTATION)
        && text(&spec.node_name).is_empty()
    {
        errors.invalid(
            &path.key(MIRROR_ANNOTATION),
            value,
            "must set spec.nodeName if mirror pod annotation is set",
        );
    }
    if let Some(value) = annotations.get(TOLERATIONS).filter(|v| !v.is_empty()) {
        match codec::read::<Vec<Toleration>>(value.as_bytes()) {
            Err(e) => errors.invalid(path, TOLERATIONS, e.message),
            Ok((tolerations, ..)) => {
                errors.extend(super::validate_tolerations(
                    &tolerations,
                    &path.child(TOLERATIONS),
                ));
            }
        }
    }
    if let Some(value) = annotations.get(POD_DELETION_COST)
        && !is_deletion_cost(value)
    {
        errors.invalid(&path.key(POD_DELETION_COST), value, "must be a 32bit integer");
    }
    for (key, value) in annotations {
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            seccomp(value, &path.child(key), errors);
        }
    }
    for (key, value) in annotations {
        if let Some(container) = key.strip_prefix(APP_ARMOR_ANNOTATION) {
            let known = every_container(spec, path)
                .iter()
                .any(|(c, _)| c.name == container);
            if !known {
                errors.invalid(&path.key(key), container, "container not found");
            }
            let valid = matches!(value.as_str(), "" | "runtime/default" | "unconfined")
                || value.starts_with("localhost/");
            if !valid {
                errors.invalid(
                    &path.key(key),
                    value,
                    format!("invalid AppArmor profile name: {value:?}"),
                );
            }
        }
    }
}

/// Whether a text is a 32-bit number without plus sign or leading zeros.
fn is_deletion_cost(value: &str) -> bool {
    let first = value.bytes().next().unwrap_or(b'+');
    let valid = first == b'-' || value == "0" || (b'1'..=b'9').contains(&first);
    valid && value.parse::<i32>().is_ok()
}

fn seccomp(profile: &str, path: &Path, errors: &mut ErrorList) {
    if matches!(profile, "runtime/default" | "docker/default" | "unconfined") {
        return;
    }
    match profile.strip_prefix("localhost/") {
        Some(file) => super::local_paths::local_descending_path(file, path, errors),
        None => errors.invalid(path, profile, "must be a valid seccomp profile"),
    }
}

/// Checks that annotations that correspond to immutable fields are not added, changed or removed.
pub(super) fn validate_change(
    new: Option<&Annotations>,
    old: Option<&Annotations>,
    path: &Path,
    errors: &mut ErrorList,
) {
    let empty = Annotations::new();
    let (new, old) = (new.unwrap_or(&empty), old.unwrap_or(&empty));
    for (key, value) in old {
        if new.get(key) == Some(value) {
            continue;
        }
        if key.starts_with(APP_ARMOR_ANNOTATION) {
            errors.forbidden(&path.key(key), "may not remove or update AppArmor annotations");
        }
        if key == MIRROR_ANNOTATION {
            errors.forbidden(&path.key(key), "may not remove or update mirror pod annotation");
        }
    }
    for key in new.keys().filter(|key| !old.contains_key(*key)) {
        if key.starts_with(APP_ARMOR_ANNOTATION) {
            errors.forbidden(&path.key(key), "may not add AppArmor annotations");
        }
        if key == MIRROR_ANNOTATION {
            errors.forbidden(&path.key(key), "may not add mirror pod annotation");
        }
    }
}

/// Checks that a deprecated annotation and the field that replaced it agree if both are set.
pub(super) fn match_fields(meta: &ObjectMeta, spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let Some(annotations) = &meta.annotations else {
        return;
    };
    let of_pod = spec.security_context.as_ref();
    if let Some(profile) = of_pod.and_then(|c| c.seccomp_profile.as_ref())
        && let Some(annotation) = annotations.get(SECCOMP_POD)
    {
        let at = path.child("securityContext").child("seccompProfile");
        seccomp_matches(annotation, profile, &at, errors);
    }
    let windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    let containers = every_container(spec, path);
    for (container, at) in &containers {
        let at = at.child("securityContext").child("seccompProfile");
        let profile = container
            .security_context
            .as_ref()
            .and_then(|c| c.seccomp_profile.as_ref());
        let annotation = annotations.get(&format!("{SECCOMP_CONTAINER}{}", container.name));
        if let (Some(profile), Some(annotation)) = (profile, annotation) {
            seccomp_matches(annotation, profile, &at, errors);
        }
    }
    for (container, at) in containers.iter().filter(|_| !windows) {
        let at = at.child("securityContext").child("appArmorProfile");
        let own = |c: &Container| {
            c.security_context
                .as_ref()
                .and_then(|c| c.app_armor_profile.clone())
        };
        let profile = own(container).or_else(|| of_pod.and_then(|c| c.app_armor_profile.clone()));
        let annotation = annotations.get(&format!("{APP_ARMOR_ANNOTATION}{}", container.name));
        if let (Some(profile), Some(annotation)) = (profile, annotation) {
            app_armor_matches(annotation, &profile, &at, errors);
        }
    }
}

fn seccomp_matches(annotation: &str, profile: &SeccompProfile, path: &Path, errors: &mut ErrorList) {
    let type_matches = match profile.type_.as_str() {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => matches!(annotation, "runtime/default" | "docker/default"),
        "Localhost" => match annotation.strip_prefix("localhost/") {
            Some(file) => {
                if profile.localhost_profile.as_deref() != Some(file) {
                    errors.forbidden(
                        &path.child("localhostProfile"),
                        "seccomp profile in annotation and field must match",
                    );
                }
                true
            }
            None => false,
        },
        _ => true,
    };
    if !type_matches {
        errors.forbidden(
            &path.child("type"),
            "seccomp type in annotation and field must match",
        );
    }
}

fn app_armor_matches(annotation: &str, profile: &AppArmorProfile, path: &Path, errors: &mut ErrorList) {
    let type_matches = match profile.type_.as_str() {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default",
        "Localhost" => match annotation.strip_prefix("localhost/") {
            Some(name) => {
                if profile.localhost_profile.as_deref() != Some(name) {
                    errors.forbidden(
                        &path.child("localhostProfile"),
                        "apparmor profile in annotation and field must match",
                    );
                }
                true
            }
            None => false,
        },
        _ => true,
    };
    if !type_matches {
        errors.forbidden(
            &path.child("type"),
            "apparmor type in annotation and field must match",
        );
    }
}
