//! What an assumed pod waits for before it is bound (PreBind): its volumes and the devices of its claims.

use knarr_apimachinery::ids::NodeName;

/// Why they will not be ready: the pod is scheduled again. Worded as kube-scheduler's plugins word it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreBindError {
    #[error("pod does not exist any more")]
    PodGone,
    #[error("failed to get node {0:?}: node {0:?} not found")]
    NodeGone(NodeName),
    #[error("failed to check binding: could not find v1.PersistentVolume {0:?}")]
    VolumeGone(String),
    #[error("failed to check binding: could not find v1.PersistentVolumeClaim \"{0}\"")]
    ClaimGone(String),
    #[error("failed to check provisioning pvc: could not find v1.PersistentVolumeClaim \"{0}\"")]
    ProvisionedClaimGone(String),
    #[error("pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms")]
    NodeAffinity { volume: String, node: NodeName },
    #[error("ClaimRef got reset for pv {0:?}")]
    ClaimRefReset(String),
    #[error("selectedNode annotation reset for PVC {0:?}")]
    SelectedNodeReset(String),
    #[error("provisioning failed for PVC {0:?}")]
    ProvisioningFailed(String),
    #[error("could not find resource claim \"{0}\"")]
    ResourceClaimGone(String),
    #[error("device binding failed: claim={claim}, reason={reason}, message={message:?}")]
    DeviceFailed {
        claim: String,
        reason: String,
        message: String,
    },
    #[error("device binding timeout: claim={0}")]
    DeviceTimeout(String),
}
