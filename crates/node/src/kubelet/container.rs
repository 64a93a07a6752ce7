//! A container's configuration in CRI's terms. A plain function: all inputs were fetched and mounted before.

use std::collections::HashMap;
use std::path::PathBuf;

use k8s_cri::v1;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::devicemanager::{self, ContainerOptions};
use knarr_kubelet::huge_pages::PageSizes;
use knarr_kubelet::pod::definition_hash;
use knarr_kubelet::self_fencing::TerminationMode;

use super::downward::DownwardValues;
use super::env::{self, Sources};
use super::resources::CpuQuota;
use super::security_context::{self, Seccomp};
use super::{labels, resources, sandbox};
use crate::containermanager::Placement;
use crate::runtime::Image;
use crate::volumes::Mounted;

/// Everything a container's configuration is made from.
pub struct ContainerInputs<'a> {
    pub pod: &'a core::Pod,
    pub container: &'a core::Container,
    pub attempt: u32,
    pub image: &'a Image,
    pub sources: &'a Sources,
    pub values: &'a DownwardValues,
    /// Where each of the container's volume mounts is on the node, in the spec's order.
    pub mounts: Vec<Mounted>,
    /// What it gets of plugins.
    pub devices: ContainerOptions,
    /// The pod's `/etc/hosts`; none where the image's own is to be seen.
    pub hosts_file: Option<PathBuf>,
    pub termination_log: PathBuf,
    pub node_memory_bytes: i64,
    pub cpu_quota: CpuQuota,
    pub placement: Placement,
    pub huge_pages: &'a PageSizes,
    pub seccomp: Seccomp,
    /// How its node terminates it when the node is cut off, if it does.
    pub self_fenced: Option<TerminationMode>,
    /// On OOM all processes of the container are killed; cgroup v2 only.
    pub oom_group: bool,
}

/// Why a container has no configuration; shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerConfigError {
    #[error(transparent)]
    Environment(#[from] env::EnvError),
    #[error(transparent)]
    SecurityContext(#[from] security_context::SecurityContextError),
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but it is not \
         supported by the runtime"
    )]
    RecursiveReadOnly { volume: String },
}

/// The container's configuration for the runtime.
pub fn config(parts: ContainerInputs<'_>) -> Result<v1::ContainerConfig, ContainerConfigError> {
    let ContainerInputs { pod, container, .. } = &parts;
    let env = env::environment(pod, container, parts.sources, parts.values)?;
    let security = security_context::of_container(pod, container, parts.image, &parts.seccomp)?;
    let mut linux = v1::LinuxContainerConfig {
        resources: Some(resources::of_container(
            pod,
            container,
            parts.node_memory_bytes,
            parts.cpu_quota,
            parts.huge_pages,
        )),
        security_context: Some(security),
    };
    if let Some(resources) = &mut linux.resources {
        resources.cpuset_cpus.clone_from(&parts.placement.cpus);
        resources.cpuset_mems.clone_from(&parts.placement.memory_nodes);
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
        envs: envs(&parts.devices, env),
        devices: device_nodes(&parts.devices),
        cdi_devices: cdi_devices(&parts.devices),
        linux: Some(linux),
        ..v1::ContainerConfig::default()
    })
}

fn annotations(parts: &ContainerInputs<'_>) -> HashMap<String, String> {
    let container = parts.container;
    let text = |t: &Option<String>, otherwise: &str| t.clone().unwrap_or_else(|| otherwise.to_string());
    let own = [
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
    ];
    // The kubelet's own are never a plugin's.
    let of_devices = parts.devices.annotations.clone().into_iter();
    let mut annotations: HashMap<String, String> = of_devices.chain(own).collect();
    let grace = parts
        .pod
        .spec
        .as_ref()
        .and_then(|s| s.termination_grace_period_seconds);
    if let Some(grace) = grace {
        annotations.insert(labels::POD_GRACE.to_string(), grace.to_string());
    }
    if let Some(ending) = parts.self_fenced {
        annotations.insert(
            labels::SELF_FENCED.to_string(),
            labels::of_termination_mode(ending).to_string(),
        );
    }
    annotations
}

fn mounts(parts: &ContainerInputs<'_>) -> Result<Vec<v1::Mount>, ContainerConfigError> {
    let mut mounts: Vec<v1::Mount> = parts.devices.mounts.iter().map(device_mount).collect();
    for (mount, volume) in parts.container.volume_mounts.iter().flatten().zip(&parts.mounts) {
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
        // No mount that could be written below is called read-only all through.
        if mount.read_only == Some(true) && mount.recursive_read_only.as_deref() == Some("Enabled") {
            return Err(ContainerConfigError::RecursiveReadOnly {
                volume: mount.name.clone(),
            });
        }
        mounts.push(v1::Mount {
            container_path,
            host_path: volume.path.to_string_lossy().into_owned(),
            readonly: volume.read_only || mount.read_only == Some(true),
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
    // Last, over whatever the pod mounts there: the message is read from this file and no other.
    if !message_path.is_empty() {
        mounts.push(v1::Mount {
            container_path: message_path.into(),
            host_path: parts.termination_log.to_string_lossy().into_owned(),
            ..v1::Mount::default()
        });
    }
    Ok(mounts)
}

/// A plugin's variable, unless the container sets it itself.
fn envs(devices: &ContainerOptions, own: Vec<(String, String)>) -> Vec<v1::KeyValue> {
    let is_own = |key: &String| own.iter().any(|(name, _)| name == key);
    let of_devices: Vec<_> = devices
        .envs
        .clone()
        .into_iter()
        .filter(|(key, _)| !is_own(key))
        .collect();
    let all = of_devices.into_iter().chain(own);
    all.map(|(key, value)| v1::KeyValue { key, value }).collect()
}

fn device_mount(mount: &devicemanager::Mount) -> v1::Mount {
    v1::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.read_only,
        ..v1::Mount::default()
    }
}

fn device_nodes(devices: &ContainerOptions) -> Vec<v1::Device> {
    let nodes = devices.devices.iter();
    let node = |node: &devicemanager::DeviceNode| v1::Device {
        container_path: node.container_path.clone(),
        host_path: node.host_path.clone(),
        permissions: node.permissions.clone(),
    };
    nodes.map(node).collect()
}

fn cdi_devices(devices: &ContainerOptions) -> Vec<v1::CdiDevice> {
    let names = devices.cdi_devices.iter();
    names.map(|name| v1::CdiDevice { name: name.clone() }).collect()
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
        recursive: &str,
    ) -> Result<v1::ContainerConfig, ContainerConfigError> {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"securityContext": pod_context, "containers": []},
        }))
        .unwrap();
        let container: core::Container = serde_json::from_value(json!({
            "name": "c", "image": "i", "command": ["sh", "$(A)"], "env": [{"name": "A", "value": "1"}],
            "securityContext": own, "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": recursive}],
        }))
        .unwrap();
        config(ContainerInputs {
            pod: &pod,
            container: &container,
            attempt: 3,
            image: &Image::default(),
            sources: &Sources::default(),
            values: &DownwardValues::default(),
            devices: ContainerOptions::default(),
            mounts: vec![Mounted {
                path: "/host/v".into(),
                read_only: false,
            }],
            hosts_file: Some("/pod/hosts".into()),
            termination_log: "/pod/log".into(),
            node_memory_bytes: 1 << 30,
            cpu_quota: CpuQuota::of(&KubeletConfiguration::default()),
            placement: Placement::default(),
            huge_pages: &PageSizes::default(),
            seccomp: Seccomp {
                by_default: true,
                root: "/kubelet/seccomp".into(),
            },
            self_fenced: Some(TerminationMode::Kill),
            oom_group: true,
        })
    }

    #[test]
    fn a_containers_own_settings_override_the_pods() {
        let config = made(
            json!({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3, "supplementalGroups": [4]}),
            json!({"runAsUser": 9, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}),
            "Disabled",
        )
        .unwrap();
        let security = config.linux.clone().unwrap().security_context.unwrap();
        assert_eq!(security.run_as_user.unwrap().value, 9);
        assert_eq!(security.run_as_group.unwrap().value, 2);
        assert_eq!(security.supplemental_groups, [3, 4]);
        assert!(security.no_new_privs);
        assert_eq!(security.capabilities.unwrap().drop_capabilities, ["ALL"]);
        assert!(!security.masked_paths.is_empty());
        assert_eq!(
            config.linux.clone().unwrap().resources.unwrap().unified["memory.oom.group"],
            "1"
        );
        let runtimes_own = v1::security_profile::ProfileType::RuntimeDefault as i32;
        assert_eq!(security.seccomp.unwrap().profile_type, runtimes_own);
        assert_eq!(
            labels::termination_mode(&config.annotations),
            Some(TerminationMode::Kill)
        );
    }

    #[test]
    fn l4_a_recursively_read_only_mount_is_rejected_where_the_runtime_has_none() {
        let error_of = |mode: &str| made(json!({}), json!({}), mode).err();
        assert_eq!(error_of("IfPossible"), None);
        let message = error_of("Enabled").unwrap().to_string();
        assert!(
            message.ends_with(
                "volume \"v\" requested recursive read-only mode, but it is not supported by the runtime"
            ),
            "{message}"
        );
    }

    #[test]
    fn paths_names_and_commands_are_where_the_runtime_expects_them() {
        let config = made(json!({}), json!({"privileged": true}), "Disabled").unwrap();
        assert_eq!(config.command, ["sh", "1"]);
        assert_eq!(config.log_path, "c/3.log");
        let paths: Vec<_> = config.mounts.iter().map(|m| m.container_path.as_str()).collect();
        assert_eq!(paths, ["/v", "/etc/hosts", "/dev/termination-log"]);
        assert!(config.mounts[0].readonly);
        let security = config.linux.unwrap().security_context.unwrap();
        assert!(security.privileged && security.masked_paths.is_empty());
    }
}
