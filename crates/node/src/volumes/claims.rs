//! Claimed volumes that are a directory of this node: `local` and `hostPath` PersistentVolumes. What is claimed is not
//! this pod's, and stays when the pod goes.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use knarr_api::k8s_openapi;
use knarr_client::{Api, TypedApi};

/// Where the claim's volume is on this node; else what is missing, as users are told.
pub(super) async fn local_path(api: &dyn Api, namespace: &str, name: &str) -> Result<PathBuf, String> {
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
    let local = spec.and_then(|s| s.local.as_ref()).map(|l| &l.path);
    let host = spec.and_then(|s| s.host_path.as_ref()).map(|h| &h.path);
    let path = local
        .or(host)
        .ok_or("its kind of volume is not supported by knarr yet")?;
    Ok(PathBuf::from(path))
}
