//! What a container may and may not do, in CRI's terms: its own settings, and the pod's where it has none.
//!
//! No requested setting is dropped silently: what the runtime does not receive, it cannot reject.

use std::path::PathBuf;

use k8s_cri::v1;
use k8s_cri::v1::security_profile::ProfileType;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::app_armor;

use super::namespaces::namespaces;
use crate::runtime::Image;

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/interrupts",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// What holds for all containers of a node.
#[derive(Clone, Debug)]
pub struct Seccomp {
    /// Containers without a seccomp profile get the runtime's default profile.
    pub by_default: bool,
    /// The directory of the node's own profiles.
    pub root: PathBuf,
}

/// Why a container cannot be confined as requested; shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecurityContextError {
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoLocalhostProfile,
    #[error("container's runAsUser breaks non-root policy {whose}")]
    RunAsRoot { whose: String },
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({max})): must be between 0 and \
         {max}, inclusive {whose}",
        max = UID_MAX
    )]
    InvalidUserId { uid: i64, whose: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root {whose}"
    )]
    NonNumericUser { user: String, whose: String },
    #[error("container has runAsNonRoot and image will run as root {whose}")]
    ImageRunsAsRoot { whose: String },
}

/// The largest user id that a container may run as.
const UID_MAX: i64 = i32::MAX as i64;

/// The settings for the runtime.
pub(super) fn of_container(
    pod: &core::Pod,
    container: &core::Container,
    image: &Image,
    node: &Seccomp,
) -> Result<v1::LinuxContainerSecurityContext, SecurityContextError> {
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|s| s.security_context.clone())
        .unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let user = own.run_as_user.or(of_pod.run_as_user);
    let group = own.run_as_group.or(of_pod.run_as_group);
    if own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true) {
        check_not_root(pod, container, user, image)?;
    }
    let profile = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    let capabilities = own.capabilities.unwrap_or_default();
    let privileged = own.privileged == Some(true);
    let unmasked = privileged || own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| {
        let list = list.iter().map(|p| (*p).to_string());
        if unmasked { Vec::new() } else { list.collect() }
    };
    let (run_as_user, run_as_username) = match (user, image.uid, image.username.as_str()) {
        (Some(uid), ..) | (None, Some(uid), _) => (Some(uid), String::new()),
        (None, None, name) => (None, name.to_string()),
    };
    // CRI knows no group without a user.
    let run_as_user = run_as_user.or_else(|| (group.is_some() && run_as_username.is_empty()).then_some(0));
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: Some(v1::Capability {
            add_capabilities: capabilities.add.unwrap_or_default(),
            drop_capabilities: capabilities.drop.unwrap_or_default(),
            ..v1::Capability::default()
        }),
        privileged,
        namespace_options: Some(namespaces(pod)),
        selinux_options: own
            .se_linux_options
            .or(of_pod.se_linux_options)
            .as_ref()
            .map(selinux),
        run_as_user: run_as_user.map(|value| v1::Int64Value { value }),
        run_as_group: group.map(|value| v1::Int64Value { value }),
        run_as_username,
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: supplemental_groups(pod),
        supplemental_groups_policy: supplemental_groups_policy(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        seccomp: Some(seccomp(profile, node)?),
        apparmor: app_armor::profile(pod, container).as_ref().map(app_armor_profile),
        ..v1::LinuxContainerSecurityContext::default()
    })
}

fn seccomp(
    profile: Option<&core::SeccompProfile>,
    node: &Seccomp,
) -> Result<v1::SecurityProfile, SecurityContextError> {
    let of = |kind: ProfileType, path: String| v1::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: path,
    };
    let Some(profile) = profile else {
        let kind = match node.by_default {
            true => ProfileType::RuntimeDefault,
            false => ProfileType::Unconfined,
        };
        return Ok(of(kind, String::new()));
    };
    match (profile.type_.as_str(), profile.localhost_profile.as_deref()) {
        ("RuntimeDefault", _) => Ok(of(ProfileType::RuntimeDefault, String::new())),
        ("Localhost", None | Some("")) => Err(SecurityContextError::NoLocalhostProfile),
        ("Localhost", Some(file)) => {
            let path = node.root.join(file.trim_start_matches('/'));
            Ok(of(ProfileType::Localhost, path.to_string_lossy().into_owned()))
        }
        _ => Ok(of(ProfileType::Unconfined, String::new())),
    }
}

fn app_armor_profile(profile: &core::AppArmorProfile) -> v1::SecurityProfile {
    let (kind, name) = match profile.type_.as_str() {
        "RuntimeDefault" => (ProfileType::RuntimeDefault, None),
        "Localhost" => (ProfileType::Localhost, profile.localhost_profile.clone()),
        _ => (ProfileType::Unconfined, None),
    };
    v1::SecurityProfile {
        profile_type: kind as i32,
        localhost_ref: name.unwrap_or_default(),
    }
}

pub(super) fn selinux(options: &core::SELinuxOptions) -> v1::SeLinuxOption {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

pub(super) fn supplemental_groups(pod: &core::Pod) -> Vec<i64> {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let groups = context.and_then(|c| c.supplemental_groups.clone());
    let own = context.and_then(|c| c.fs_group);
    own.into_iter().chain(groups.unwrap_or_default()).collect()
}

pub(super) fn supplemental_groups_policy(pod: &core::Pod) -> i32 {
    let context = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let policy = match context.and_then(|c| c.supplemental_groups_policy.as_deref()) {
        Some("Strict") => v1::SupplementalGroupsPolicy::Strict,
        _ => v1::SupplementalGroupsPolicy::Merge,
    };
    policy as i32
}

fn check_not_root(
    pod: &core::Pod,
    container: &core::Container,
    user: Option<i64>,
    image: &Image,
) -> Result<(), SecurityContextError> {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let meta = &pod.metadata;
    let whose = format!(
        "(pod: \"{}_{}({})\", container: {})",
        text(&meta.name),
        text(&meta.namespace),
        text(&meta.uid),
        container.name
    );
    match (user, image.uid, image.username.as_str()) {
        (Some(0), ..) => Err(SecurityContextError::RunAsRoot { whose }),
        (Some(_), ..) => Ok(()),
        (None, Some(1..=UID_MAX), _) => Ok(()),
        (None, Some(uid), _) if uid != 0 => Err(SecurityContextError::InvalidUserId { uid, whose }),
        (None, None, name) if !name.is_empty() => {
            let user = name.to_string();
            Err(SecurityContextError::NonNumericUser { user, whose })
        }
        _ => Err(SecurityContextError::ImageRunsAsRoot { whose }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn made(
        of_pod: Value,
        own: Value,
        image: &Image,
    ) -> Result<v1::LinuxContainerSecurityContext, SecurityContextError> {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"securityContext": of_pod, "containers": []},
        }))
        .unwrap();
        let container = json!({"name": "c", "securityContext": own});
        let node = Seccomp {
            by_default: false,
            root: "/kubelet/seccomp".into(),
        };
        of_container(&pod, &serde_json::from_value(container).unwrap(), image, &node)
    }

    #[test]
    fn l1_a_localhost_seccomp_profile_is_read_from_the_kubelets_seccomp_directory() {
        let profile = |type_: &str, file: Option<&str>| json!({"seccompProfile": {"type": type_, "localhostProfile": file}});
        let (runtimes, own) = (ProfileType::RuntimeDefault, ProfileType::Localhost);
        for (of_pod, of_container, want) in [
            (json!({}), json!({}), Ok((ProfileType::Unconfined, ""))),
            (profile("RuntimeDefault", None), json!({}), Ok((runtimes, ""))),
            (
                profile("RuntimeDefault", None),
                profile("Localhost", Some("a/b.json")),
                Ok((own, "/kubelet/seccomp/a/b.json")),
            ),
            (
                profile("Localhost", Some("a")),
                profile("Unconfined", None),
                Ok((ProfileType::Unconfined, "")),
            ),
            (
                json!({}),
                profile("Localhost", None),
                Err(SecurityContextError::NoLocalhostProfile),
            ),
        ] {
            let got = made(of_pod, of_container, &Image::default()).map(|c| {
                let profile = c.seccomp.unwrap();
                (profile.profile_type, profile.localhost_ref)
            });
            let want = want.map(|(kind, path)| (kind as i32, path.to_string()));
            assert_eq!(got, want);
        }
    }

    #[test]
    fn l1_what_confines_a_container_reaches_the_runtime() {
        let app_armor = |type_: &str, name: Option<&str>| json!({"type": type_, "localhostProfile": name});
        let context = made(
            json!({
                "appArmorProfile": app_armor("RuntimeDefault", None), "fsGroup": 3, "supplementalGroups": [4, 5],
                "supplementalGroupsPolicy": "Strict", "seLinuxOptions": {"level": "s0:c1"},
            }),
            json!({
                "appArmorProfile": app_armor("Localhost", Some("mine")), "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "capabilities": {"add": ["SYS_ADMIN"]},
            }),
            &Image::default(),
        )
        .unwrap();
        let profile = context.apparmor.unwrap();
        assert_eq!(profile.profile_type, ProfileType::Localhost as i32);
        assert_eq!(profile.localhost_ref, "mine");
        assert_eq!(context.selinux_options.unwrap().level, "s0:c1");
        assert_eq!(context.supplemental_groups, [3, 4, 5]);
        let strict = v1::SupplementalGroupsPolicy::Strict as i32;
        assert_eq!(context.supplemental_groups_policy, strict);
        // Running a program never adds privileges.
        assert!(context.no_new_privs && context.readonly_rootfs);
        assert!(
            made(json!({}), json!({}), &Image::default())
                .unwrap()
                .apparmor
                .is_none()
        );
    }

    #[test]
    fn l1_proc_is_masked_but_for_who_asks_or_is_privileged() {
        for (own, masked) in [
            (json!({}), true),
            (json!({"procMount": "Default"}), true),
            (json!({"procMount": "Unmasked"}), false),
            (json!({"privileged": true}), false),
        ] {
            let context = made(json!({}), own, &Image::default()).unwrap();
            assert_eq!(!context.masked_paths.is_empty(), masked);
            assert_eq!(!context.readonly_paths.is_empty(), masked);
        }
    }

    #[test]
    fn l4_root_is_rejected_where_the_pod_must_run_as_non_root() {
        let image = |uid, name: &str| Image {
            uid,
            username: name.into(),
            ..Image::default()
        };
        for (image, own, want) in [
            (image(Some(5), ""), json!({}), None),
            (image(Some(0), ""), json!({}), Some("image will run as root")),
            (image(None, ""), json!({}), Some("image will run as root")),
            (image(None, "www"), json!({}), Some("non-numeric user (www)")),
            (image(None, "www"), json!({"runAsUser": 7}), None),
            (
                image(Some(5), ""),
                json!({"runAsUser": 0}),
                Some("breaks non-root policy"),
            ),
            (image(Some(0), ""), json!({"runAsNonRoot": false}), None),
            (
                image(Some(1 << 31), ""),
                json!({}),
                Some(
                    "image has an invalid user id (2147483648). (Must be 1-(2147483647)): must be between 0 and",
                ),
            ),
        ] {
            match (made(json!({"runAsNonRoot": true}), own, &image), want) {
                (Ok(_), None) => {}
                (Err(error), Some(want)) => {
                    let message = error.to_string();
                    assert!(message.contains(want), "{message}");
                    assert!(message.ends_with("(pod: \"p_n(u)\", container: c)"), "{message}");
                }
                (got, want) => panic!("{got:?}, wanted {want:?}"),
            }
        }
    }
}
