//! Claims of pods and the volumes they are bound to, including `local` and `hostPath` ones: directories of this node
//! that are not the pod's, and stay after it.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use knarr_api::{Shared, k8s_openapi};
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

/// The claim, and its bound volume; else what is missing, as a message for users.
pub(super) async fn volume(
    api: &dyn Api,
    pod: &Pod,
    named: &ClaimReference,
) -> Result<(Shared<PersistentVolumeClaim>, Shared<PersistentVolume>), String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
    let name = named.name.as_str();
    let claim = api
        .get_as::<PersistentVolumeClaim>(namespace, name)
        .await
        .map_err(|e| format!("failed to fetch PVC from API server: {}", e.message()))?;
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let own = owners.any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref());
    if named.ephemeral && !own {
        let pod = pod.metadata.name.as_deref().unwrap_or("");
        return Err(format!(
            "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("PVC is being deleted".into());
    }
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.clone());
    let volume = volume
        .filter(|v| bound && !v.is_empty())
        .ok_or("PVC is not bound")?;
    let volume = api
        .get_as::<PersistentVolume>("", &volume)
        .await
        .map_err(|e| format!("failed to fetch PV {volume} from API server: {}", e.message()))?;
    let spec = volume.spec.as_ref();
    let holder = spec
        .and_then(|s| s.claim_ref.as_ref())
        .and_then(|r| r.uid.as_deref());
    if holder != claim.metadata.uid.as_deref() {
        return Err("the PV is bound to another claim".into());
    }
    Ok((claim, volume))
}

/// Whether the pod's containers use the volume as what it is.
pub(super) fn check_mode(pod: &Pod, volume: &str, mode: VolumeMode) -> Result<(), String> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut all = all.map(|c| (&c.volume_mounts, &c.volume_devices));
    match mode {
        VolumeMode::Block if all.any(|(m, _)| m.iter().flatten().any(|m| m.name == volume)) => Err(format!(
            "volume {volume} has volumeMode Block, but is specified in volumeMounts"
        )),
        VolumeMode::Filesystem if all.any(|(_, d)| d.iter().flatten().any(|d| d.name == volume)) => Err(
            format!("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices"),
        ),
        _ => Ok(()),
    }
}

/// Where the volume is on this node.
pub(super) fn local_path(volume: &PersistentVolume, mode: VolumeMode) -> Result<PathBuf, String> {
    let spec = volume.spec.as_ref();
    let local = spec.and_then(|s| s.local.as_ref()).map(|l| &l.path);
    let host = spec.and_then(|s| s.host_path.as_ref()).map(|h| &h.path);
    // hostPath volumes have no devices in Kubernetes either.
    let host = host.filter(|_| mode == VolumeMode::Filesystem);
    let path = local
        .or(host)
        .ok_or("its kind of volume is not supported by knarr yet")?;
    Ok(PathBuf::from(path))
}
