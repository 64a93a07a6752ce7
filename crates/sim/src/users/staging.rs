//! What users do with staged volumes: bare pods with a CSI or an iSCSI volume, some of them two on one node, which
//! they delete, move to another node, and delete by force when a node does not answer.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{k8s_openapi, registry};
use knarr_client::Error;
use serde_json::{Value, json};

use super::storage::mount;
use super::{NAMESPACE, Users};
use crate::finding::Finding;
use crate::random::Stream;
use crate::rules::s7_staging;
use crate::staging::{DRIVER, PORTAL, TARGET};
use crate::world::{World, node_of};

const CLASS: &str = "staged";
/// The prefix before a pod's number and letter.
const POD: &str = "staged";
/// Volumes for one pod at a time, on any node.
const MOVING: u64 = 4;
/// Volumes that two pods of one node share.
const SHARED: u64 = 2;
/// Where those are.
const SHARED_ON: &str = "n1";

fn volume(number: u64) -> String {
    match number.is_multiple_of(2) {
        true => format!("iscsi{number}"),
        false => format!("csi{number}"),
    }
}

/// The number of the volume that a pod of this name has.
fn number_of(pod: &str) -> Option<u64> {
    let rest = pod.strip_prefix(POD)?;
    rest.trim_end_matches(['a', 'b']).parse().ok()
}

fn draw_name(chance: &mut Stream) -> String {
    let number = chance.between(1, MOVING + SHARED);
    let letter = if number > MOVING && chance.per_mille(500) {
        "b"
    } else {
        "a"
    };
    format!("{POD}{number}{letter}")
}

/// Adds the volume to a pod whose name has one.
pub(super) fn give_volume(name: &str, spec: &mut Value) {
    let Some(number) = number_of(name) else { return };
    mount(spec);
    spec["volumes"] = json!([{"name": "disk", "persistentVolumeClaim": {"claimName": volume(number)}}]);
    if number > MOVING {
        spec["nodeSelector"] = json!({"kubernetes.io/hostname": SHARED_ON});
    }
}

impl Users {
    /// Creates the volumes, each bound to a claim of its name.
    pub async fn create_volumes(&mut self) -> Result<(), Error> {
        let class = json!({"metadata": {"name": CLASS}, "provisioner": "kubernetes.io/no-provisioner"});
        self.create(&registry::STORAGE_CLASS, class).await?;
        for name in (1..=MOVING + SHARED).map(volume) {
            self.observer.add_disk(&name, false);
            self.note(format!("create persistentvolumes {name}"));
            let mut object = json!({
                "metadata": {"name": name},
                "spec": {
                    "storageClassName": CLASS,
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": {"storage": "1Gi"},
                    "claimRef": {"namespace": NAMESPACE, "name": name},
                },
            });
            let spec = &mut object["spec"];
            match name.starts_with("csi") {
                true => spec["csi"] = json!({"driver": DRIVER, "volumeHandle": name, "fsType": "ext4"}),
                false => {
                    let iqn = format!("{TARGET}{name}");
                    spec["iscsi"] = json!({"targetPortal": PORTAL, "iqn": iqn, "lun": 0, "fsType": "ext4"});
                }
            }
            self.create(&registry::PERSISTENT_VOLUME, object).await?;
            let claim = json!({
                "metadata": {"namespace": NAMESPACE, "name": name},
                "spec": {
                    "storageClassName": CLASS,
                    "volumeName": name,
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            });
            self.create(&registry::PERSISTENT_VOLUME_CLAIM, claim).await?;
        }
        Ok(())
    }

    /// One user action with such a volume.
    pub async fn act_with_volumes(&mut self, chance: &mut Stream) -> Result<(), Error> {
        let done = match chance.between(0, 9) {
            0..5 => {
                let name = draw_name(chance);
                self.create_named(name).await
            }
            5..7 => self.delete_with_volume(chance, None).await,
            7 => {
                let grace = i64::try_from(chance.between(1, 5)).ok();
                self.delete_with_volume(chance, grace).await
            }
            _ => self.delete_with_volume(chance, Some(0)).await,
        };
        match done {
            // Another request was faster, or it exists.
            Err(e) if e.is_not_found() || e.is_conflict() || e.is_already_exists() => Ok(()),
            other => other,
        }
    }

    /// Deletes a pod with such a volume; by force, another one of its name is created at once.
    async fn delete_with_volume(&mut self, chance: &mut Stream, grace: Option<i64>) -> Result<(), Error> {
        let mut pods = self.pods().await?;
        pods.retain(|pod| number_of(pod.name()).is_some());
        let Some(pod) = chance.pick(&pods).cloned() else {
            return Ok(());
        };
        self.delete(&pod, grace).await?;
        match grace {
            Some(0) => self.create_named(pod.name().to_string()).await,
            _ => Ok(()),
        }
    }
}

/// At rest: volumes of nodes that no pod of theirs uses.
pub(crate) fn stray_volume(world: &World) -> Result<(), Finding> {
    let mut used = BTreeSet::new();
    let lives = world
        .pods
        .values()
        .filter(|life| !life.removed() && !is_terminal(&life.pod));
    for pod in lives.map(|life| &life.pod) {
        used.extend(claims(pod).map(|claim| (claim.to_string(), node_of(pod).to_string())));
    }
    s7_staging::at_rest(world, |volume, node| {
        used.contains(&(volume.to_string(), node.to_string()))
    })
}

/// The names of a pod's claims, which are those of its volumes.
fn claims(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let claims = volumes.filter_map(|v| v.persistent_volume_claim.as_ref());
    claims.map(|claim| claim.claim_name.as_str())
}
