//! Which container has which devices, stored so that a restarted kubelet keeps it: in the file and fields of v1.36's
//! `kubelet_internal_checkpoint`, which other programs of a node read. The file is replaced atomically, so it needs no
//! checksum.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_apimachinery::ids::PodUid;
use knarr_kubelet::devicemanager::{Assigned, Assignment, DeviceManager};
use prost::Message;
use serde::{Deserialize, Serialize};

use super::wire::ContainerAllocateResponse;
use crate::untrusted_fs::{Dir, NewFile};

pub const FILE: &str = "kubelet_internal_checkpoint";
/// Some kilobytes for each container that has devices.
const BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    pod_device_entries: Vec<Entry>,
    #[serde(default)]
    registered_devices: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: PodUid,
    #[serde(rename = "ContainerName")]
    container_name: String,
    #[serde(rename = "ResourceName")]
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<i64, Vec<String>>,
    #[serde(rename = "AllocResp")]
    alloc_resp: String,
}

/// What is written down.
pub struct Restored {
    pub resources: BTreeSet<String>,
    pub assigned: Assigned,
}

pub fn encode(manager: &DeviceManager) -> io::Result<Vec<u8>> {
    let entries = manager
        .assigned()
        .iter()
        .map(|(uid, container, resource, of)| Entry {
            pod_uid: uid.clone(),
            container_name: container.into(),
            resource_name: resource.into(),
            device_ids: of.devices.clone(),
            alloc_resp: STANDARD.encode(ContainerAllocateResponse::from(&of.allocation).encode_to_vec()),
        });
    let data = Data {
        pod_device_entries: entries.collect(),
        registered_devices: manager.resources(),
    };
    Ok(serde_json::to_vec(&Checkpoint { data })?)
}

/// Plugins' containers can write into the directory: nothing there is followed.
pub fn write(directory: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = NewFile {
        bytes,
        mode: 0o600,
        ..NewFile::default()
    };
    Dir::open(directory)?.replace(FILE, file)
}

/// None where nothing was ever written.
pub fn read(directory: &Path) -> io::Result<Option<Restored>> {
    let bytes = match Dir::open(directory).and_then(|dir| dir.read_whole(FILE, BYTES_MAX)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let checkpoint: Checkpoint = serde_json::from_slice(&bytes)?;
    let mut assigned = Assigned::default();
    for entry in checkpoint.data.pod_device_entries {
        let bytes = STANDARD.decode(&entry.alloc_resp);
        let bytes = bytes.map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
        let answer = ContainerAllocateResponse::decode(bytes.as_slice());
        let answer = answer.map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
        let assignment = Assignment {
            devices: entry.device_ids,
            allocation: answer.into(),
        };
        assigned.insert(
            &entry.pod_uid,
            &entry.container_name,
            &entry.resource_name,
            assignment,
        );
    }
    Ok(Some(Restored {
        resources: checkpoint.data.registered_devices.into_keys().collect(),
        assigned,
    }))
}
