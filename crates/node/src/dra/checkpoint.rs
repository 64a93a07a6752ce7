//! Which claims are prepared for which pods, written down before drivers are called: in the file and fields of v1.36's
//! `dra_manager_state`.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::Path;

use knarr_apimachinery::ids::PodUid;
use knarr_kubelet::dra::{Claim, Claims, Device};
use serde::{Deserialize, Serialize};

use crate::untrusted_fs::{Dir, NewFile};

const FILE: &str = "dra_manager_state";
const KIND: &str = "DRACheckpoint";
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";
/// Some kilobytes for each claim.
const BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    /// JSON of [`Data`].
    data: String,
    /// CRC-32 (IEEE) of that text.
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct Data {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    #[serde(rename = "ClaimInfoStateList")]
    claims: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    #[serde(rename = "ClaimUID")]
    claim_uid: String,
    #[serde(rename = "ClaimName")]
    claim_name: String,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pod_uids: BTreeMap<PodUid, Empty>,
    #[serde(rename = "DriverState")]
    driver_state: BTreeMap<String, DriverState>,
}

#[derive(Serialize, Deserialize)]
struct Empty {}

#[derive(Serialize, Deserialize)]
struct DriverState {
    #[serde(rename = "Devices")]
    devices: Option<Vec<Device>>,
}

pub fn encode(claims: &Claims) -> io::Result<Vec<u8>> {
    let entries = claims.iter().map(|(namespace, name, claim)| Entry {
        claim_uid: claim.uid.clone(),
        claim_name: name.into(),
        namespace: namespace.into(),
        pod_uids: claim.pods.iter().map(|uid| (uid.clone(), Empty {})).collect(),
        driver_state: {
            let state = |devices: &Vec<Device>| DriverState {
                devices: Some(devices.clone()),
            };
            let drivers = claim.drivers.iter();
            drivers
                .map(|(driver, devices)| (driver.clone(), state(devices)))
                .collect()
        },
    });
    let data = serde_json::to_string(&Data {
        kind: KIND.into(),
        api_version: API_VERSION.into(),
        claims: entries.collect(),
    })?;
    let checksum = crc32(data.as_bytes());
    Ok(serde_json::to_vec(&Checkpoint { data, checksum })?)
}

pub fn write(root: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = NewFile {
        bytes,
        mode: 0o600,
        ..NewFile::default()
    };
    Dir::open_named(root)?.replace(FILE, file)
}

/// None where nothing was ever written.
pub fn read(root: &Path) -> io::Result<Option<Claims>> {
    let bytes = match Dir::open_named(root).and_then(|dir| dir.read_whole(FILE, BYTES_MAX)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let checkpoint: Checkpoint = serde_json::from_slice(&bytes)?;
    if crc32(checkpoint.data.as_bytes()) != checkpoint.checksum {
        return Err(io::Error::new(ErrorKind::InvalidData, "checkpoint is corrupted"));
    }
    let data: Data = serde_json::from_str(&checkpoint.data)?;
    let claims = data.claims.into_iter().map(|entry| {
        let drivers = entry.driver_state.into_iter();
        let claim = Claim {
            uid: entry.claim_uid,
            pods: entry.pod_uids.into_keys().collect(),
            drivers: drivers
                .map(|(driver, state)| (driver, state.devices.unwrap_or_default()))
                .collect(),
            is_prepared: false,
        };
        (entry.namespace, entry.claim_name, claim)
    });
    Ok(Some(Claims::restored(claims)))
}

/// Of Ethernet and gzip; flate2 has it with its own tables.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
