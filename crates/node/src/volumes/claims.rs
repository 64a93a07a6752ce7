//! Claims of pods and the volumes they are bound to, including `local` and `hostPath` ones: directories of this node
//! that are not the pod's, and stay after it.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use knarr_api::{Shared, k8s_openapi};
use knarr_apimachinery::Error;
use knarr_client::{Api, TypedApi};

use super::storage::VolumeMode;

/// A claim as a pod's volume names it.
pub(super) struct ClaimReference {
    pub name: String,
    pub read_only: bool,
    /// Made for this pod, from the template in it.
    ephemeral: bool,
}

/// The claim that a volume of the pod is of, if it is of one.
pub(super) fn of(pod: &Pod, volume: &Volume) -> Option<ClaimReference> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(ClaimReference {
            name: source.claim_name.clone(),
            read_only: source.read_only == Some(true),
            ephemeral: false,
        });
    }
    volume.ephemeral.as_ref().map(|_| ClaimReference {
        name: format!("{}-{}", pod.metadata.name.as_deref().unwrap_or(""), volume.name),
        read_only: false,
        ephemeral: true,
    })
}

/// Why a pod cannot use a claim's volume; shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    #[error("failed to fetch PVC from API server: {}", .0.message())]
    GetClaim(#[source] Error),
    #[error("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwner {
        namespace: String,
        name: String,
        pod: String,
    },
    #[error("PVC is being deleted")]
    Deleting,
    #[error("PVC is not bound")]
    NotBound,
    #[error("failed to fetch PV {volume} from API server: {}", source.message())]
    GetVolume { volume: String, source: Error },
    #[error("the PV is bound to another claim")]
    OtherClaim,
    #[error("volume {volume} has volumeMode Block, but is specified in volumeMounts")]
    BlockIsMounted { volume: String },
    #[error("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices")]
    FilesystemIsDevice { volume: String },
    #[error("its kind of volume is not supported by knarr yet")]
    Unsupported,
}

/// The claim, and its bound volume; else what is missing.
pub(super) async fn volume(
    api: &dyn Api,
    pod: &Pod,
    named: &ClaimReference,
) -> Result<(Shared<PersistentVolumeClaim>, Shared<PersistentVolume>), ClaimError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let name = named.name.as_str();
    let claim = api
        .get_as::<PersistentVolumeClaim>(namespace, name)
        .await
        .map_err(ClaimError::GetClaim)?;
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let own = owners.any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref());
    if named.ephemeral && !own {
        return Err(ClaimError::NotOwner {
            namespace: namespace.into(),
            name: name.into(),
            pod: pod.metadata.name.clone().unwrap_or_default(),
        });
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(ClaimError::Deleting);
    }
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.clone());
    let volume = volume
        .filter(|v| bound && !v.is_empty())
        .ok_or(ClaimError::NotBound)?;
    let volume = match api.get_as::<PersistentVolume>("", &volume).await {
        Ok(volume) => volume,
        Err(source) => return Err(ClaimError::GetVolume { volume, source }),
    };
    let spec = volume.spec.as_ref();
    let holder = spec
        .and_then(|s| s.claim_ref.as_ref())
        .and_then(|r| r.uid.as_deref());
    if holder != claim.metadata.uid.as_deref() {
        return Err(ClaimError::OtherClaim);
    }
    Ok((claim, volume))
}

/// Whether the pod's containers use the volume as what it is.
pub(super) fn check_mode(pod: &Pod, volume: &str, mode: VolumeMode) -> Result<(), ClaimError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut all = all.map(|c| (&c.volume_mounts, &c.volume_devices));
    match mode {
        VolumeMode::Block if all.any(|(m, _)| m.iter().flatten().any(|m| m.name == volume)) => {
            let volume = volume.to_string();
            Err(ClaimError::BlockIsMounted { volume })
        }
        VolumeMode::Filesystem if all.any(|(_, d)| d.iter().flatten().any(|d| d.name == volume)) => {
            let volume = volume.to_string();
            Err(ClaimError::FilesystemIsDevice { volume })
        }
        _ => Ok(()),
    }
}

/// Where the volume is on this node.
pub(super) fn local_path(volume: &PersistentVolume, mode: VolumeMode) -> Result<PathBuf, ClaimError> {
    let spec = volume.spec.as_ref();
    let local = spec.and_then(|s| s.local.as_ref()).map(|l| &l.path);
    let host = spec.and_then(|s| s.host_path.as_ref()).map(|h| &h.path);
    // hostPath volumes have no devices in Kubernetes either.
    let host = host.filter(|_| mode == VolumeMode::Filesystem);
    let path = local.or(host).ok_or(ClaimError::Unsupported)?;
    Ok(PathBuf::from(path))
}
