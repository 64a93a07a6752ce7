//! CDI devices for runtimes without the Container Device Interface: containerd before 1.7 ignores the device names in a
//! container's configuration, and the container would run without its claimed devices. For these, the specifications
//! that drivers write are read here, and their edits become part of the container's configuration. Hooks and other
//! edits for which CRI has no field are an error: a container never runs with half a device.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use knarr_kubelet::devicemanager::{ContainerOptions, DeviceNode, Mount};
use serde::Deserialize;
use thiserror::Error;

use crate::untrusted_fs::{Dir, Kind};

/// In falling priority.
const DIRECTORIES: [&str; 2] = ["/var/run/cdi", "/etc/cdi"];
/// Specifications of one directory, and the size of each.
const SPECS_MAX: usize = 1024;
const SPEC_MAX_BYTES: usize = 1024 * 1024;

/// Why a container does not get its devices.
#[derive(Debug, Error)]
pub enum Unresolved {
    #[error("read CDI specifications in {}", directory.display())]
    Read {
        directory: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("unresolvable CDI devices {0}")]
    Unknown(String),
    #[error("conflicting device {device:?} in CDI specifications of {}", directory.display())]
    Conflict { device: String, directory: PathBuf },
    #[error(
        "CDI device {device:?} has {edit}, which need a runtime that supports CDI (containerd 1.7 or later)"
    )]
    Unsupported { device: String, edit: &'static str },
    #[error("reading CDI specifications was cut off")]
    Interrupted {
        #[source]
        source: tokio::task::JoinError,
    },
}

#[derive(Deserialize)]
struct Spec {
    kind: String,
    #[serde(default)]
    devices: Vec<Device>,
    #[serde(default, rename = "containerEdits")]
    edits: Edits,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    #[serde(default, rename = "containerEdits")]
    edits: Edits,
}

/// What a device adds to a container.
#[derive(Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Edits {
    env: Vec<String>,
    device_nodes: Vec<Node>,
    mounts: Vec<Mounted>,
    hooks: Vec<serde::de::IgnoredAny>,
    net_devices: Vec<serde::de::IgnoredAny>,
    intel_rdt: Option<serde::de::IgnoredAny>,
    #[serde(rename = "additionalGids")]
    additional_gids: Vec<u32>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    path: String,
    #[serde(default)]
    host_path: String,
    #[serde(default)]
    permissions: String,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mounted {
    host_path: String,
    container_path: String,
    #[serde(default)]
    options: Vec<String>,
}

/// Whether a runtime of this name and version passes over CDI devices.
pub fn is_unknown_to(runtime: &str, version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '~', '-', '+']);
    let mut number = || numbers.next().and_then(|text| text.parse::<u32>().ok());
    let (major, minor) = (number(), number());
    runtime == "containerd" && matches!((major, minor), (Some(0), _) | (Some(1), Some(0..=6)))
}

/// Replaces the devices' names by their edits of the container.
pub async fn resolve(mut options: ContainerOptions) -> Result<ContainerOptions, Unresolved> {
    let resolved = tokio::task::spawn_blocking(move || {
        resolve_in(&DIRECTORIES.map(PathBuf::from), &mut options).map(|()| options)
    });
    resolved
        .await
        .map_err(|source| Unresolved::Interrupted { source })?
}

fn resolve_in(directories: &[PathBuf], options: &mut ContainerOptions) -> Result<(), Unresolved> {
    // By the device's full name. A directory of higher priority comes first, and stays.
    let mut known: BTreeMap<String, (usize, Edits, Edits)> = BTreeMap::new();
    for (priority, directory) in directories.iter().enumerate() {
        for spec in read(directory)? {
            for device in spec.devices {
                let name = format!("{}={}", spec.kind, device.name);
                if !options.cdi_devices.contains(&name) {
                    continue;
                }
                match known.get(&name) {
                    Some((same, _, _)) if *same == priority => {
                        let directory = directory.clone();
                        return Err(Unresolved::Conflict {
                            device: name,
                            directory,
                        });
                    }
                    Some(_) => {}
                    None => {
                        known.insert(name, (priority, spec.edits.clone(), device.edits));
                    }
                }
            }
        }
    }
    let missing = options
        .cdi_devices
        .iter()
        .filter(|name| !known.contains_key(*name));
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    if !missing.is_empty() {
        return Err(Unresolved::Unknown(missing.join(", ")));
    }
    for name in std::mem::take(&mut options.cdi_devices) {
        if let Some((_, of_spec, of_device)) = known.remove(&name) {
            apply(&name, of_spec, options)?;
            apply(&name, of_device, options)?;
        }
    }
    Ok(())
}

fn apply(device: &str, edits: Edits, options: &mut ContainerOptions) -> Result<(), Unresolved> {
    let unsupported = [
        (!edits.hooks.is_empty(), "hooks"),
        (!edits.net_devices.is_empty(), "network devices"),
        (edits.intel_rdt.is_some(), "settings of Intel RDT"),
        (!edits.additional_gids.is_empty(), "additional groups"),
    ];
    if let Some((_, edit)) = unsupported.iter().find(|(is_there, _)| *is_there) {
        let device = device.to_string();
        return Err(Unresolved::Unsupported { device, edit });
    }
    for variable in &edits.env {
        let (name, value) = variable.split_once('=').unwrap_or((variable, ""));
        options.envs.insert(name.to_string(), value.to_string());
    }
    for node in edits.device_nodes {
        let node = DeviceNode {
            host_path: match node.host_path.as_str() {
                "" => node.path.clone(),
                path => path.to_string(),
            },
            container_path: node.path,
            permissions: match node.permissions.as_str() {
                "" => "rwm".to_string(),
                permissions => permissions.to_string(),
            },
        };
        let mut others = options.devices.iter();
        if !others.any(|other| other.container_path == node.container_path) {
            options.devices.push(node);
        }
    }
    for mount in edits.mounts {
        let mut others = options.mounts.iter();
        if !others.any(|other| other.container_path == mount.container_path) {
            options.mounts.push(Mount {
                read_only: mount.options.iter().any(|option| option == "ro"),
                container_path: mount.container_path,
                host_path: mount.host_path,
            });
        }
    }
    Ok(())
}

/// The specifications of a directory that can be read; one that cannot is logged and passed over.
fn read(directory: &Path) -> Result<Vec<Spec>, Unresolved> {
    let failed = |source| Unresolved::Read {
        directory: directory.to_path_buf(),
        source,
    };
    let opened = match Dir::open(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(failed)?,
    };
    let mut specs = Vec::new();
    for entry in opened.entries(SPECS_MAX).map_err(failed)? {
        let path = directory.join(&entry.name);
        let is_spec = path.extension().is_some_and(|of| of == "json" || of == "yaml");
        if !is_spec || entry.kind != Kind::File {
            continue;
        }
        match read_spec(&opened, &entry.name) {
            Ok(spec) => specs.push(spec),
            Err(error) => tracing::warn!(path = %path.display(), %error, "skipped a CDI specification"),
        }
    }
    Ok(specs)
}

/// Why a specification is skipped.
#[derive(Debug, Error)]
enum SpecError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    #[error(transparent)]
    Text(#[from] std::string::FromUtf8Error),
    #[error(transparent)]
    Yaml(#[from] Box<serde_saphyr::Error>),
}

fn read_spec(directory: &Dir, name: impl AsRef<Path>) -> Result<Spec, SpecError> {
    let text = String::from_utf8(directory.read_whole(name, SPEC_MAX_BYTES)?)?;
    // YAML is JSON's superset.
    Ok(serde_saphyr::from_str(&text).map_err(Box::new)?)
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "tests create the files that they read by name"
)]
mod tests {
    use super::*;

    fn options(names: &[&str]) -> ContainerOptions {
        ContainerOptions {
            cdi_devices: names.iter().map(|name| name.to_string()).collect(),
            ..ContainerOptions::default()
        }
    }

    #[test]
    fn l4_only_containerd_before_1_7_does_not_know_cdi() {
        for (runtime, version, expect) in [
            ("containerd", "1.6.20~ds1", true),
            ("containerd", "v1.5.0", true),
            ("containerd", "1.7.0", false),
            ("containerd", "v2.1.4", false),
            ("containerd", "unknown", false),
            ("cri-o", "1.6.0", false),
        ] {
            assert_eq!(is_unknown_to(runtime, version), expect, "{runtime} {version}");
        }
    }

    #[test]
    fn l4_a_container_gets_what_its_devices_add_and_never_half_of_it() {
        let root = tempfile::tempdir().unwrap();
        let directories = ["run", "etc"].map(|name| root.path().join(name));
        let write = |at: usize, name: &str, text: &str| {
            std::fs::create_dir_all(&directories[at]).unwrap();
            std::fs::write(directories[at].join(name), text).unwrap();
        };
        let resolved = |names: &[&str]| {
            let mut options = options(names);
            resolve_in(&directories, &mut options).map(|()| options)
        };
        let error = |names: &[&str]| resolved(names).unwrap_err().to_string();
        assert_eq!(error(&["a.b/gpu=x"]), "unresolvable CDI devices a.b/gpu=x");
        write(
            0,
            "gpu.json",
            r#"{"cdiVersion": "0.3.0", "kind": "a.b/gpu", "containerEdits": {"env": ["ALL=1"]}, "devices": [
                {"name": "x", "containerEdits": {"env": ["X=a=b"], "deviceNodes": [{"path": "/dev/zero"}],
                 "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"]}]}},
                {"name": "y", "containerEdits": {"hooks": [{"hookName": "createContainer", "path": "/h"}]}}]}"#,
        );
        write(
            1,
            "gpu.yaml",
            "kind: a.b/gpu\ndevices:\n- name: x\n- name: z\n  containerEdits: {env: [Z=1]}\n",
        );
        write(0, "broken.json", "{");
        let of = resolved(&["a.b/gpu=x", "a.b/gpu=z"]).unwrap();
        let envs: Vec<_> = of.envs.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(envs, ["ALL=1", "X=a=b", "Z=1"]);
        assert_eq!(of.devices[0].permissions, "rwm");
        assert_eq!(of.devices[0].host_path, "/dev/zero");
        assert!(of.mounts[0].read_only && of.mounts[0].host_path == "/h");
        assert!(of.cdi_devices.is_empty());
        assert_eq!(
            error(&["a.b/gpu=y"]),
            "CDI device \"a.b/gpu=y\" has hooks, which need a runtime that supports CDI (containerd 1.7 or later)"
        );
        write(1, "again.yaml", "kind: a.b/gpu\ndevices:\n- name: z\n");
        assert!(error(&["a.b/gpu=z"]).starts_with("conflicting device \"a.b/gpu=z\""));
    }
}
