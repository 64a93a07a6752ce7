//! PersistentVolume: the names that knarr and CSI give to volumes, and what decoding marks in it.

use k8s_openapi::api::core::v1::PersistentVolume;
use knarr_apimachinery::ids::NodeName;

use crate::api_type::ApiType;

/// The provisioner of volumes that are directories of a node.
pub const LOCAL_PROVISIONER: &str = "knarr.io/local";
/// Label of a volume of that provisioner: the node that has the directory.
pub const LOCAL_NODE: &str = "knarr.io/node";
/// Annotation of a node: the directory in which these volumes are created.
pub const LOCAL_PATH: &str = "knarr.io/local-volumes";
/// Finalizer of such a volume, which its node removes after the directory.
pub const LOCAL_FINALIZER: &str = "knarr.io/local-volume";

/// The attacher of volumes that may be used from one node at a time and have no lock of their own (SPEC S7).
pub const ATTACHER: &str = "exclusive.knarr.io";
/// Finalizer of a VolumeAttachment whose node uses the volume; the node removes it when it no longer does.
pub const IN_USE: &str = "knarr.io/in-use";
/// Annotation of the VolumeAttachment of a ReadWriteOncePod volume: the pod's UID.
pub const ATTACHED_POD: &str = "knarr.io/pod-uid";
/// Annotation of a VolumeAttachment in use: the UID of the pod that its node last mounted the volume for, and the kubelet
/// that did.
pub const USED_BY: &str = "knarr.io/used-by";

/// The VolumeAttachment of a volume that only one node or one pod may use at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExclusiveAttachment {
    /// The name of the VolumeAttachment. It does not depend on the node, so that only one can exist for the volume.
    pub attachment: String,
    /// Whether only one pod may use the volume (ReadWriteOncePod), not only one node.
    pub one_pod: bool,
}

/// The VolumeAttachment that knarr requires before the volume may be used: of volumes for a single node or pod, unless they are
/// bound to one node anyway or have a CSI driver, which attaches them.
pub fn exclusive_attachment(volume: &PersistentVolume) -> Option<ExclusiveAttachment> {
    let spec = volume.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let single = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
    if modes.is_empty() || !modes.iter().all(single) || spec.csi.is_some() {
        return None;
    }
    let one_pod = modes.iter().all(|mode| mode == "ReadWriteOncePod");
    let labels = volume.metadata.labels.as_ref();
    let pinned = labels.is_some_and(|l| l.contains_key(LOCAL_NODE));
    let uid = volume.metadata.uid.as_deref().unwrap_or("");
    (one_pod || !pinned).then(|| ExclusiveAttachment {
        attachment: format!("knarr-{uid}"),
        one_pod,
    })
}

/// The volume's name in `volumesAttached` and `volumesInUse` of a node's status.
pub fn unique_name(volume: &str) -> String {
    format!("{ATTACHER}/{volume}")
}

/// The name of the VolumeAttachment of a CSI volume to a node, as external attachers and kubelets compute it.
pub fn csi_attachment(handle: &str, driver: &str, node: &NodeName) -> String {
    format!("csi-{}", sha256(&format!("{handle}{driver}{node}")))
}

/// The SHA-256 digest of a text in hexadecimal, of which names of attachments and mounts are made.
pub fn sha256(text: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The name of a CSI volume in `volumesInUse` of a node's status.
pub fn csi_unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

impl ApiType for PersistentVolume {
    /// Keeps an absent capacity and an empty one apart: error messages show them differently. Both are invalid.
    fn after_decode(&mut self, json: &[u8]) {
        let spec = self.spec.get_or_insert_default();
        if spec.capacity.is_none() {
            let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
            if document["spec"]["capacity"].is_object() {
                spec.capacity.get_or_insert_default();
            }
        }
    }
}
