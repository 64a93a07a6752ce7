//! `cpu_manager_state`: the state as v1.36's kubelet writes it, with its checksum, so that either reads the other's file.

use std::collections::BTreeMap;

use knarr_apimachinery::ids::PodUid;
use serde::{Deserialize, Serialize};

use super::cpuset::{self, ParseError};
use super::state::State;
use crate::checksum::fnv32a;

/// In the kubelet's directory.
pub const FILE: &str = "cpu_manager_state";
const STATIC: &str = "static";

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Checkpoint {
    policy_name: String,
    // The kubelet writes the first spelling and reads any case; its own tests use the second.
    #[serde(rename = "defaultCpuSet", alias = "defaultCPUSet")]
    default: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<PodUid, BTreeMap<String, String>>,
    checksum: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the checkpoint")]
    Json(#[from] serde_json::Error),
    #[error("checkpoint is corrupted")]
    Checksum,
    #[error("configured policy {STATIC:?} differs from state checkpoint policy {0:?}")]
    OtherPolicy(String),
    #[error("could not parse default cpu set {text:?}")]
    Default {
        text: String,
        #[source]
        source: ParseError,
    },
    #[error("could not parse cpuset {text:?} for container {container:?} in pod {uid:?}")]
    Entry {
        text: String,
        container: String,
        uid: PodUid,
        #[source]
        source: ParseError,
    },
}

impl Checkpoint {
    /// Over the Go structure as the kubelet's checkpoint manager prints it.
    fn checksum(&self) -> u64 {
        let containers = |(uid, of): (&PodUid, &BTreeMap<String, String>)| {
            let of: Vec<String> = of.iter().map(|(name, cpus)| format!("{name}:{cpus}")).collect();
            format!("{uid}:map[{}]", of.join(" "))
        };
        let entries: Vec<String> = self.entries.iter().map(containers).collect();
        let text = format!(
            "(*state.CPUManagerCheckpoint){{PolicyName:(string){} DefaultCPUSet:(string){} \
             Entries:(map[string]map[string]string)map[{}] Checksum:(checksum.Checksum)0}}",
            self.policy_name,
            self.default,
            entries.join(" ")
        );
        u64::from(fnv32a(&text))
    }
}

/// The file's content with the static policy.
pub fn encode(state: &State) -> Result<Vec<u8>, Error> {
    let containers = |of: &BTreeMap<String, cpuset::CpuSet>| {
        let of = of.iter();
        of.map(|(name, cpus)| (name.clone(), cpuset::format(cpus)))
            .collect()
    };
    let entries = state.assigned.iter();
    let mut checkpoint = Checkpoint {
        policy_name: STATIC.into(),
        default: cpuset::format(&state.default),
        entries: entries.map(|(uid, of)| (uid.clone(), containers(of))).collect(),
        checksum: 0,
    };
    checkpoint.checksum = checkpoint.checksum();
    Ok(serde_json::to_vec(&checkpoint)?)
}

/// Reads a file that a kubelet with the static policy has written.
pub fn decode(bytes: &[u8]) -> Result<State, Error> {
    let checkpoint: Checkpoint = serde_json::from_slice(bytes)?;
    // Files of old kubelets have no checksum.
    if checkpoint.checksum != 0 && checkpoint.checksum != checkpoint.checksum() {
        return Err(Error::Checksum);
    }
    if checkpoint.policy_name != STATIC {
        return Err(Error::OtherPolicy(checkpoint.policy_name));
    }
    let default = cpuset::parse(&checkpoint.default).map_err(|source| Error::Default {
        text: checkpoint.default.clone(),
        source,
    })?;
    let mut state = State {
        default,
        ..State::default()
    };
    for (uid, containers) in checkpoint.entries {
        let of = state.assigned.entry(uid.clone()).or_default();
        for (container, text) in containers {
            let cpus = cpuset::parse(&text).map_err(|source| Error::Entry {
                text,
                container: container.clone(),
                uid: uid.clone(),
                source,
            })?;
            of.insert(container, cpus);
        }
    }
    Ok(state)
}
