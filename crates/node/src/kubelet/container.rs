//! What a container asks of the runtime, in CRI's terms. Plain: all that it needs was fetched and mounted before.

use std::collections::HashMap;
use std::path::PathBuf;

use k8s_cri::v1;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::pod::definition_hash;

use super::downward::Place;
use super::env::{self, Sources};
use super::resources::CpuQuota;
use super::{labels, resources, sandbox};
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

/// Everything a container's configuration is made from.
pub struct Parts<'a> {
    pub pod: &'a core::Pod,
    pub container: &'a core::Container,
    pub attempt: u32,
    pub image: &'a Image,
    pub sources: &'a Sources,
    pub place: &'a Place,
    /// Where each of the container's volume mounts is on the node, in the spec's order.
    pub mounts: Vec<PathBuf>,
    /// The pod's `/etc/hosts`; none where the image's own is to be seen.
    pub hosts_file: Option<PathBuf>,
    pub termination_log: PathBuf,
    pub node_memory_bytes: i64,
    pub cpu_quota: CpuQuota,
    /// Containers that say nothing of seccomp get the runtime's own profile.
    pub seccomp_default: bool,
    /// Where memory runs out, all of the container goes; only version 2 of cgroups knows how.
    pub oom_group: bool,
}

/// The configuration; the error is shown to the user (`CreateContainerConfigError`).
pub fn config(parts: Parts<'_>) -> Result<v1::ContainerConfig, String> {
    let Parts { pod, container, .. } = &parts;
    let env = env::environment(pod, container, parts.sources, parts.place)?;
    let security = security(pod, container, parts.image, parts.seccomp_default)?;
    let privileged = security.privileged;
    let mut linux = v1::LinuxContainerConfig {
        resources: Some(resources::of_container(
            pod,
            container,
            parts.node_memory_bytes,
            parts.cpu_quota,
        )),
        security_context: Some(security),
    };
    if privileged && let Some(context) = &mut linux.security_context {
        context.masked_paths.clear();
        context.readonly_paths.clear();
    }
    let mut labels = sandbox::pod_labels(pod);
    labels.insert(labels::CONTAINER_NAME.into(), container.name.clone());
    if parts.oom_group
        && let Some(resources) = &mut linux.resources
    {
        resources.unified.insert("memory.oom.group".into(), "1".into());
    }
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: parts.attempt,
        }),
        image: Some(v1::ImageSpec {
            image: parts.image.id.clone(),
            ..v1::ImageSpec::default()
        }),
        command: env::expand_all(container.command.as_ref(), &env),
        args: env::expand_all(container.args.as_ref(), &env),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts: mounts(&parts)?,
        labels,
        annotations: annotations(&parts),
        log_path: format!("{}/{}.log", container.name, parts.attempt),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        envs: env
            .into_iter()
            .map(|(key, value)| v1::KeyValue { key, value })
            .collect(),
        linux: Some(linux),
        ..v1::ContainerConfig::default()
    })
}

fn annotations(parts: &Parts<'_>) -> HashMap<String, String> {
    let container = parts.container;
    let text = |t: &Option<String>, otherwise: &str| t.clone().unwrap_or_else(|| otherwise.to_string());
    let mut annotations = HashMap::from([
        (labels::CONTAINER_HASH.to_string(), definition_hash(container)),
        (
            labels::CONTAINER_RESTART_COUNT.to_string(),
            parts.attempt.to_string(),
        ),
        (
            labels::TERMINATION_MESSAGE_PATH.to_string(),
            text(&container.termination_message_path, "/dev/termination-log"),
        ),
        (
            labels::TERMINATION_MESSAGE_POLICY.to_string(),
            text(&container.termination_message_policy, "File"),
        ),
    ]);
    let grace = parts
        .pod
        .spec
        .as_ref()
        .and_then(|s| s.termination_grace_period_seconds);
    if let Some(grace) = grace {
        annotations.insert(labels::POD_GRACE.to_string(), grace.to_string());
    }
    annotations
}

fn mounts(parts: &Parts<'_>) -> Result<Vec<v1::Mount>, String> {
    let mut mounts = Vec::new();
    for (mount, host_path) in parts.container.volume_mounts.iter().flatten().zip(&parts.mounts) {
        let propagation = match mount.mount_propagation.as_deref() {
            Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
            Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
            _ => v1::MountPropagation::PropagationPrivate,
        };
        let container_path = if mount.mount_path.starts_with('/') {
            mount.mount_path.clone()
        } else {
            format!("/{}", mount.mount_path)
        };
        mounts.push(v1::Mount {
            container_path,
            host_path: host_path.to_string_lossy().into_owned(),
            readonly: mount.read_only == Some(true),
            propagation: propagation as i32,
            ..v1::Mount::default()
        });
    }
    let mounted = |mounts: &[v1::Mount], path: &str| mounts.iter().any(|m| m.container_path == path);
    if let Some(hosts) = &parts.hosts_file
        && !mounted(&mounts, "/etc/hosts")
    {
        mounts.push(v1::Mount {
            container_path: "/etc/hosts".into(),
            host_path: hosts.to_string_lossy().into_owned(),
            ..v1::Mount::default()
        });
    }
    let message_path = parts.container.termination_message_path.as_deref();
    let message_path = message_path.unwrap_or("/dev/termination-log");
    if !message_path.is_empty() && !mounted(&mounts, message_path) {
        mounts.push(v1::Mount {
            container_path: message_path.into(),
            host_path: parts.termination_log.to_string_lossy().into_owned(),
            ..v1::Mount::default()
        });
    }
    Ok(mounts)
}

/// The container's own settings, and the pod's where it has none.
fn security(
    pod: &core::Pod,
    container: &core::Container,
    image: &Image,
    seccomp_default: bool,
) -> Result<v1::LinuxContainerSecurityContext, String> {
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|s| s.security_context.clone())
        .unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let privileged = own.privileged == Some(true);
    let user = own.run_as_user.or(of_pod.run_as_user);
    let group = own.run_as_group.or(of_pod.run_as_group);
    if own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true) {
        check_not_root(pod, container, user, image)?;
    }
    let capabilities = own.capabilities.as_ref();
    let added = capabilities.and_then(|c| c.add.clone()).unwrap_or_default();
    let may_gain = privileged || added.iter().any(|c| c == "SYS_ADMIN" || c == "CAP_SYS_ADMIN");
    let by_default = core::SeccompProfile {
        type_: "RuntimeDefault".into(),
        localhost_profile: None,
    };
    let profile = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    let profile = profile.or(seccomp_default.then_some(&by_default));
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
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
            add_capabilities: added,
            drop_capabilities: capabilities.and_then(|c| c.drop.clone()).unwrap_or_default(),
            ..v1::Capability::default()
        }),
        privileged,
        namespace_options: Some(sandbox::namespaces(pod)),
        run_as_user: run_as_user.map(|value| v1::Int64Value { value }),
        run_as_group: group.map(|value| v1::Int64Value { value }),
        run_as_username,
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: sandbox::supplemental_groups(pod),
        no_new_privs: own.allow_privilege_escalation == Some(false) && !may_gain,
        masked_paths: paths(&MASKED_PATHS),
        readonly_paths: paths(&READONLY_PATHS),
        seccomp: Some(sandbox::seccomp(profile.filter(|_| !privileged))),
        ..v1::LinuxContainerSecurityContext::default()
    })
}

fn check_not_root(
    pod: &core::Pod,
    container: &core::Container,
    user: Option<i64>,
    image: &Image,
) -> Result<(), String> {
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
        (Some(0), ..) => Err(format!("container's runAsUser breaks non-root policy {whose}")),
        (Some(_), ..) => Ok(()),
        (None, Some(uid), _) if uid != 0 => Ok(()),
        (None, None, name) if !name.is_empty() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root {whose}"
        )),
        _ => Err(format!(
            "container has runAsNonRoot and image will run as root {whose}"
        )),
    }
}

/// The pod's `/etc/hosts`.
pub fn hosts_file(
    pod: &core::Pod,
    ips: &[String],
    hostname: &str,
    fqdn: Option<&str>,
    node_hosts: Option<&str>,
) -> String {
    let mut text = match node_hosts {
        Some(node) => format!("# Kubernetes-managed hosts file (host network).\n{node}"),
        None => {
            let mut text = String::from(
                "# Kubernetes-managed hosts file.\n\
                 127.0.0.1\tlocalhost\n\
                 ::1\tlocalhost ip6-localhost ip6-loopback\n\
                 fe00::0\tip6-localnet\n\
                 fe00::0\tip6-mcastprefix\n\
                 fe00::1\tip6-allnodes\n\
                 fe00::2\tip6-allrouters\n",
            );
            for ip in ips {
                match fqdn {
                    Some(fqdn) => text.push_str(&format!("{ip}\t{fqdn}\t{hostname}\n")),
                    None => text.push_str(&format!("{ip}\t{hostname}\n")),
                }
            }
            text
        }
    };
    let aliases = pod.spec.iter().flat_map(|s| s.host_aliases.iter().flatten());
    let aliases: Vec<String> = aliases
        .map(|a| {
            format!(
                "{}\t{}\n",
                a.ip,
                a.hostnames.clone().unwrap_or_default().join("\t")
            )
        })
        .collect();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
        text.extend(aliases);
    }
    text
}

/// What `Quantity` of memory the node has, by `/proc/meminfo`'s text.
pub fn memory_bytes(meminfo: &str) -> Option<i64> {
    let line = meminfo.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: i64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_kubelet::configuration::KubeletConfiguration;
    use serde_json::json;

    fn made(
        pod_context: serde_json::Value,
        own: serde_json::Value,
        image: &Image,
    ) -> Result<v1::ContainerConfig, String> {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"securityContext": pod_context, "containers": []},
        }))
        .unwrap();
        let container: core::Container = serde_json::from_value(json!({
            "name": "c", "image": "i", "command": ["sh", "$(A)"], "env": [{"name": "A", "value": "1"}],
            "securityContext": own, "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}],
        }))
        .unwrap();
        config(Parts {
            pod: &pod,
            container: &container,
            attempt: 3,
            image,
            sources: &Sources::default(),
            place: &Place::default(),
            mounts: vec!["/host/v".into()],
            hosts_file: Some("/pod/hosts".into()),
            termination_log: "/pod/log".into(),
            node_memory_bytes: 1 << 30,
            cpu_quota: CpuQuota::of(&KubeletConfiguration::default()),
            seccomp_default: true,
            oom_group: true,
        })
    }

    #[test]
    fn a_containers_own_settings_go_before_the_pods() {
        let config = made(
            json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4]}),
            json!({"runAsUser": 9, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}),
            &Image::default(),
        )
        .unwrap();
        let security = config.linux.clone().unwrap().security_context.unwrap();
        assert_eq!(security.run_as_user.unwrap().value, 9);
        assert_eq!(security.run_as_group.unwrap().value, 2);
        assert_eq!(security.supplemental_groups, [4, 3]);
        assert!(security.no_new_privs);
        assert_eq!(security.capabilities.unwrap().drop_capabilities, ["ALL"]);
        assert!(!security.masked_paths.is_empty());
        assert_eq!(
            config.linux.clone().unwrap().resources.unwrap().unified["memory.oom.group"],
            "1"
        );
        let runtimes_own = v1::security_profile::ProfileType::RuntimeDefault as i32;
        assert_eq!(security.seccomp.unwrap().profile_type, runtimes_own);
    }

    #[test]
    fn paths_names_and_commands_are_where_they_are_looked_for() {
        let config = made(json!({}), json!({"privileged": true}), &Image::default()).unwrap();
        assert_eq!(config.command, ["sh", "1"]);
        assert_eq!(config.log_path, "c/3.log");
        let paths: Vec<_> = config.mounts.iter().map(|m| m.container_path.as_str()).collect();
        assert_eq!(paths, ["/v", "/etc/hosts", "/dev/termination-log"]);
        assert!(config.mounts[0].readonly);
        let security = config.linux.unwrap().security_context.unwrap();
        assert!(security.privileged && security.masked_paths.is_empty());
        let unconfined = v1::security_profile::ProfileType::Unconfined as i32;
        assert_eq!(security.seccomp.unwrap().profile_type, unconfined);
    }

    #[test]
    fn l4_root_is_refused_where_it_is_not_wanted() {
        let image = |uid, name: &str| Image {
            uid,
            username: name.into(),
            ..Image::default()
        };
        let non_root = json!({"runAsNonRoot": true});
        for (image, own, want) in [
            (image(Some(5), ""), json!({}), None),
            (image(Some(0), ""), json!({}), Some("image will run as root")),
            (image(None, ""), json!({}), Some("image will run as root")),
            (image(None, "www"), json!({}), Some("non-numeric user (www)")),
            (image(None, "www"), json!({"runAsUser": 7}), None),
            (
                image(None, ""),
                json!({"runAsUser": 0}),
                Some("breaks non-root policy"),
            ),
        ] {
            match (made(non_root.clone(), own, &image), want) {
                (Ok(_), None) => {}
                (Err(message), Some(want)) => assert!(message.contains(want), "{message}"),
                (got, want) => panic!("{got:?}, wanted {want:?}"),
            }
        }
    }
}
