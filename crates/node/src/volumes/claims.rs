//! Claimed volumes that are a directory of this node: `local` and `hostPath` PersistentVolumes. What is claimed is not
//! this pod's, and stays when the pod goes.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_api::{Shared, k8s_openapi};
use knarr_client::{Api, TypedApi};

/// The volume that the claim is bound to; else what is missing, as users are told.
pub(super) async fn volume(
    api: &dyn Api,
    namespace: &str,
    name: &str,
) -> Result<Shared<PersistentVolume>, String> {
    let claim = api
        .get_as::<PersistentVolumeClaim>(namespace, name)
        .await
        .map_err(|e| format!("failed to fetch PVC from API server: {}", e.message()))?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("PVC is being deleted".into());
    }
    let bound = claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref());
    let volume = volume
        .filter(|v| bound && !v.is_empty())
        .ok_or("PVC is not bound")?;
    let volume = api
        .get_as::<PersistentVolume>("", volume)
        .await
        .map_err(|e| format!("failed to fetch PV {volume} from API server: {}", e.message()))?;
    let spec = volume.spec.as_ref();
    let holder = spec
        .and_then(|s| s.claim_ref.as_ref())
        .and_then(|r| r.uid.as_deref());
    if holder != claim.metadata.uid.as_deref() {
        return Err("the PV is bound to another claim".into());
    }
    Ok(volume)
}

/// Where the volume is on this node.
pub(super) fn local_path(volume: &PersistentVolume) -> Result<PathBuf, String> {
    let spec = volume.spec.as_ref();
    let local = spec.and_then(|s| s.local.as_ref()).map(|l| &l.path);
    let host = spec.and_then(|s| s.host_path.as_ref()).map(|h| &h.path);
    let path = local
        .or(host)
        .ok_or("its kind of volume is not supported by knarr yet")?;
    Ok(PathBuf::from(path))
}
