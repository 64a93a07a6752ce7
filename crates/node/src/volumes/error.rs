//! Why a pod's volumes are not set up or torn down, in the kubelet's words.

use knarr_apimachinery::ids::PodUid;

use super::storage::{StorageFailure, VolumeMode};

/// Why a volume is not set up; shown to the user.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("MountVolume.SetUp failed for volume \"{volume}\" : {why}")]
    SetUp { volume: String, why: String },
    #[error("MountVolume.MountDevice failed for volume \"{volume}\" : {why}")]
    MountDevice { volume: String, why: String },
    #[error("MapVolume.MapPodDevice failed for volume \"{volume}\" : {why}")]
    MapPodDevice { volume: String, why: String },
    #[error("MountVolume.Setup failed while expanding volume for volume \"{volume}\" : {why}")]
    Expand { volume: String, why: String },
    #[error("MapVolume.MarkVolumeAsMounted failed while expanding volume for volume \"{volume}\" : {why}")]
    ExpandDevice { volume: String, why: String },
    #[error("MapVolume.SetUpDevice failed for volume \"{volume}\" : {why}")]
    SetUpDevice { volume: String, why: String },
    #[error(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process volumes=[{volume}]: {why}"
    )]
    Claim { volume: String, why: String },
    #[error("failed to prepare subPath for volumeMount \"{mount}\" of container \"{container}\"")]
    SubPath { mount: String, container: String },
    #[error("cannot find volume \"{volume}\" to mount into container \"{container}\"")]
    NoVolume { volume: String, container: String },
    #[error("cannot make the pod's directory: {why}")]
    PodDirectory { why: String },
    #[error("another operation on the volumes of pod {uid} is in progress")]
    Busy { uid: PodUid },
    #[error("cannot free {path}: {why}")]
    TearDown { path: String, why: String },
    #[error("UnmountDevice failed for the volume of attachment {attachment}: {why}")]
    UnmountDevice { attachment: String, why: String },
    #[error("cannot release a pod's volumes: {why}")]
    Release { why: String },
}

impl VolumeError {
    /// Of the event.
    pub fn reason(&self) -> &'static str {
        match self {
            VolumeError::MapPodDevice { .. }
            | VolumeError::SetUpDevice { .. }
            | VolumeError::ExpandDevice { .. } => "FailedMapVolume",
            _ => "FailedMount",
        }
    }
}

/// With the message of the step that failed.
pub(super) fn mount_error(volume: &str, mode: VolumeMode, failure: StorageFailure) -> VolumeError {
    let (volume, why) = (volume.to_string(), failure.to_string());
    match (failure, mode) {
        (StorageFailure::Stage(_), VolumeMode::Filesystem) => VolumeError::MountDevice { volume, why },
        (StorageFailure::Publish(_), VolumeMode::Filesystem) => VolumeError::SetUp { volume, why },
        (StorageFailure::Stage(_), VolumeMode::Block) => VolumeError::SetUpDevice { volume, why },
        (StorageFailure::Publish(_), VolumeMode::Block) => VolumeError::MapPodDevice { volume, why },
    }
}
