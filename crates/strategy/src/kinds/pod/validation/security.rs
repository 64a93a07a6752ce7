//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, PodSecurityContext, PodSpec, SeccompProfile, SecurityContext,
};
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path, Shown};
use knarr_apimachinery::names;

use super::local_paths::local_descending_path;
use super::{every_container, windows};
use crate::facts;
use crate::kinds::pod::internal;

/// Maximum length of a sysctl's name in bytes.
const SYSCTL_MAX: usize = 253;
const SYSCTL_FORM: &str = "^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
/// Maximum length of `localhostProfile` of AppArmor: PATH_MAX without the terminating zero.
const APP_ARMOR_MAX: usize = 4095;
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn ids(list: &[(&str, Option<i64>)], path: &Path, errors: &mut ErrorList) {
    for (field, id) in list {
        if let Some(id) = *id {
            for detail in names::user_or_group_id(id) {
                errors.invalid(&path.child(field), id, detail);
            }
        }
    }
}

pub(super) fn pod(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    let empty = PodSecurityContext::default();
    let context = spec.security_context.as_ref().unwrap_or(&empty);
    ids(
        &[
            ("fsGroup", context.fs_group),
            ("runAsUser", context.run_as_user),
            ("runAsGroup", context.run_as_group),
        ],
        path,
        errors,
    );
    for (i, id) in context.supplemental_groups.iter().flatten().enumerate() {
        for detail in names::user_or_group_id(*id) {
            errors.invalid(&path.child("supplementalGroups").index(i), *id, detail);
        }
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        errors.invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    sysctls(spec, context, &path.child("sysctls"), errors);
    facts::check(errors, path, context, &["fsGroupChangePolicy"]);
    seccomp(
        context.seccomp_profile.as_ref(),
        &path.child("seccompProfile"),
        errors,
    );
    windows::options(
        context.windows_options.as_ref(),
        &path.child("windowsOptions"),
        errors,
    );
    app_armor(
        context.app_armor_profile.as_ref(),
        &path.child("appArmorProfile"),
        errors,
    );
    // The other policy of SELinux, MountOption, belongs to a disabled feature.
    const POLICIES: &[&str] = &["supplementalGroupsPolicy", "seLinuxChangePolicy"];
    facts::check(errors, path, context, POLICIES);
}

fn is_sysctl(name: &str) -> bool {
    let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let segment = |s: &str| {
        let bytes = s.as_bytes();
        bytes.first().is_some_and(|c| edge(*c))
            && bytes.last().is_some_and(|c| edge(*c))
            && bytes.iter().all(|c| edge(*c) || matches!(c, b'-' | b'_'))
    };
    name.len() <= SYSCTL_MAX && name.split(['.', '/']).all(segment)
}

fn sysctls(spec: &PodSpec, context: &PodSecurityContext, path: &Path, errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (i, sysctl) in context.sysctls.iter().flatten().enumerate() {
        let at = path.index(i).child("name");
        let name = sysctl.name.as_str();
        if name.is_empty() {
            errors.required(&at, "");
        } else if !is_sysctl(name) {
            errors.invalid(
                &at,
                name,
                format!("must have at most {SYSCTL_MAX} characters and match regex {SYSCTL_FORM}"),
            );
        } else if seen.contains(name) {
            errors.duplicate(&at, name);
        }
        seen.insert(name);
        // With a host namespace the sysctls of that namespace would change the node's.
        let dotted = name.replace('/', ".");
        let of_network = dotted.starts_with("net.");
        let of_ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|p| dotted.starts_with(p))
            || dotted == "kernel.sem";
        if of_network && spec.host_network == Some(true) {
            errors.invalid(&at, name, "may not be specified when 'hostNetwork' is true");
        } else if of_ipc && spec.host_ipc == Some(true) {
            errors.invalid(&at, name, "may not be specified when 'hostIPC' is true");
        }
    }
}

fn seccomp(profile: Option<&SeccompProfile>, path: &Path, errors: &mut ErrorList) {
    let Some(profile) = profile else {
        return;
    };
    let of = profile.type_.as_str();
    match of {
        "" => errors.required(&path.child("type"), "type is required when seccompProfile is set"),
        of if PROFILE_TYPES.contains(&of) => {}
        other => errors.not_supported(&path.child("type"), other, &PROFILE_TYPES),
    }
    let at = path.child("localhostProfile");
    match (of, &profile.localhost_profile) {
        ("Localhost", None) => errors.required(&at, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(file)) => local_descending_path(file, &at, errors),
        (_, Some(_)) => errors.push(FieldError {
            cause: Cause::Invalid,
            field: at.to_string(),
            value: Some(internal::json("SeccompProfile", profile)),
            detail: "can only be set when seccomp type is Localhost".into(),
        }),
        (_, None) => {}
    }
}

fn app_armor(profile: Option<&AppArmorProfile>, path: &Path, errors: &mut ErrorList) {
    let Some(profile) = profile else {
        return;
    };
    let at = path.child("localhostProfile");
    const NEEDED: &str = "must be set when AppArmor type is Localhost";
    match (profile.type_.as_str(), &profile.localhost_profile) {
        ("Localhost", None) => errors.required(&at, NEEDED),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                errors.invalid(&at, name, "must not be padded with whitespace");
            } else if name.is_empty() {
                errors.required(&at, NEEDED);
            }
            if name.len() > APP_ARMOR_MAX {
                errors.too_long(&at, APP_ARMOR_MAX);
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.invalid(&at, name, "can only be set when AppArmor type is Localhost");
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => errors.required(
            &path.child("type"),
            "type is required when appArmorProfile is set",
        ),
        (other, _) => errors.not_supported(&path.child("type"), other, &PROFILE_TYPES),
    }
}

pub(super) fn container(context: &SecurityContext, host_users: bool, path: &Path, errors: &mut ErrorList) {
    ids(
        &[
            ("runAsUser", context.run_as_user),
            ("runAsGroup", context.run_as_group),
        ],
        path,
        errors,
    );
    facts::check(errors, path, context, &["procMount"]);
    if let Some(mount) = &context.proc_mount
        && host_users
        && mount == "Unmasked"
    {
        let at = path.child("procMount");
        errors.invalid(&at, mount, "`hostUsers` must be false to use `Unmasked`");
    }
    seccomp(
        context.seccomp_profile.as_ref(),
        &path.child("seccompProfile"),
        errors,
    );
    if context.allow_privilege_escalation == Some(false) {
        let mut contradicts = |what: &str| {
            errors.push(FieldError {
                cause: Cause::Invalid,
                field: path.to_string(),
                value: Some(internal::json("SecurityContext", context)),
                detail: format!("cannot set `allowPrivilegeEscalation` to false and {what}"),
            });
        };
        if context.privileged == Some(true) {
            contradicts("`privileged` to true");
        }
        let added = context.capabilities.iter().flat_map(|c| c.add.iter().flatten());
        for _ in added.filter(|c| *c == "CAP_SYS_ADMIN") {
            contradicts("`capabilities.Add` CAP_SYS_ADMIN");
        }
    }
    windows::options(
        context.windows_options.as_ref(),
        &path.child("windowsOptions"),
        errors,
    );
    app_armor(
        context.app_armor_profile.as_ref(),
        &path.child("appArmorProfile"),
        errors,
    );
}

/// `hostUsers: false` is not compatible with host namespaces.
pub(super) fn host_users(spec: &PodSpec, path: &Path, errors: &mut ErrorList) {
    if spec.host_users != Some(false) {
        return;
    }
    for (field, shared) in [
        ("hostNetwork", spec.host_network),
        ("HostPID", spec.host_pid),
        ("HostIPC", spec.host_ipc),
    ] {
        if shared == Some(true) {
            errors.forbidden(&path.child(field), "when `hostUsers` is false");
        }
    }
    for (container, at) in every_container(spec, path) {
        if container.volume_devices.as_ref().is_some_and(|d| !d.is_empty()) {
            errors.forbidden(&at.child("volumeDevices"), "when `hostUsers` is false");
        }
    }
}

/// A value as error messages show it: null if it is absent.
pub(super) fn shown_or_null(value: Option<&String>) -> String {
    value.map_or_else(|| "null".into(), |v| v.shown())
}
