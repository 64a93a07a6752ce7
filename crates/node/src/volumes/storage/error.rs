//! Why storage from elsewhere is not set up or released; shown to the user.

use std::io;
use std::path::PathBuf;

use crate::host::CommandError;
use crate::plugins::CallError;
use crate::untrusted_fs;

/// A variant for each operation.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    IsMounted(io::Error),
    #[error("cannot see what is mounted at {}: {source}", at.display())]
    MountTable { at: PathBuf, source: io::Error },
    #[error("mount failed: {device:?} cannot be mounted: it begins with a \"-\"")]
    MountOption { device: String },
    #[error(
        "mount failed: {status}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}\n"
    )]
    Mount {
        status: String,
        arguments: String,
        output: String,
    },
    #[error("unmount failed: {status}\nUnmounting arguments: {at}\nOutput: {output}\n")]
    Unmount {
        status: String,
        at: String,
        output: String,
    },
    #[error("{kind:?} is not the name of a file system")]
    FilesystemName { kind: String },
    #[error("failed to mount the volume as {kind:?}, it already contains {there}")]
    OtherFilesystem { kind: String, there: String },
    #[error("'fsck' found errors on device {device} but could not correct them: {output}")]
    Fsck { device: String, output: String },
    #[error("format of disk {device:?} failed: type:({kind:?}) ({status}): {output}")]
    Format {
        device: String,
        kind: String,
        status: String,
        output: String,
    },
    #[error("blkid of {device} failed: {status}: {output}")]
    Blkid {
        device: String,
        status: String,
        output: String,
    },
    #[error("cannot parse the output of blkid for {device}: {output}")]
    BlkidOutput { device: String, output: String },
    #[error("cannot make {}: {source}", at.display())]
    Make {
        at: PathBuf,
        source: untrusted_fs::Error,
    },
    #[error("cannot remove {}: {source}", at.display())]
    Remove {
        at: PathBuf,
        source: untrusted_fs::Error,
    },
    #[error("applyFSGroup failed for vol {volume}: {source}")]
    GiveToGroup {
        volume: String,
        source: untrusted_fs::Error,
    },
    #[error("{at:?} is not the name of a volume")]
    VolumeName { at: PathBuf },
    #[error("cannot note what is mounted at {}: {source}", at.display())]
    WriteRecord {
        at: PathBuf,
        source: untrusted_fs::Error,
    },
    #[error(transparent)]
    ReadRecords(untrusted_fs::Error),
    #[error("the pod does not use the attachment {attachment} of the volume any more")]
    NotInUse { attachment: String },
    #[error("cannot note that the volume of attachment {attachment} is staged: {source}")]
    WriteStaged {
        attachment: String,
        source: untrusted_fs::Error,
    },
    #[error("the record of how the volume of attachment {attachment} is staged cannot be read")]
    StagedUnknown { attachment: String },
    #[error("what is staged at {} is still used by pods without the attachment {attachment}", at.display())]
    StagedForOthers { attachment: String, at: PathBuf },
    #[error("cannot remove the record of how the volume of attachment {attachment} is staged: {source}")]
    RemoveStaged {
        attachment: String,
        source: untrusted_fs::Error,
    },
    #[error("cannot remove the record of volume {volume}: {source}")]
    RemoveRecord {
        volume: String,
        source: untrusted_fs::Error,
    },
    #[error(transparent)]
    Secret(#[from] SecretError),

    #[error("iscsiadm -m {mode} {what} at portal {portal} failed: {status}: {output}")]
    Iscsiadm {
        mode: String,
        what: String,
        portal: String,
        status: String,
        output: String,
    },
    #[error("{key} in the secret has a control character")]
    ControlCharacter { key: String },
    /// And neither was the record of it removed.
    #[error("{discovery}; {removal}")]
    Discovery {
        #[source]
        discovery: Box<StorageError>,
        removal: Box<StorageError>,
    },
    #[error("timed out waiting for the device {path}")]
    NoDevice { path: String },
    #[error("failed to get any path for iscsi disk, last err seen:\n{failures}")]
    NoPath { failures: String },
    #[error("the disk is not mounted on this node")]
    NotStaged,
    #[error("the disk is not there any more")]
    DeviceRemoved,
    #[error("cannot see the disks of a session: {0}")]
    Session(#[source] untrusted_fs::Error),

    #[error("kubernetes.io/csi: cannot see CSIDriver {driver}: {source}")]
    CsiDriver {
        driver: String,
        source: knarr_client::Error,
    },
    #[error(
        "kubernetes.io/csi: {doing}: driver name {driver} not found in the list of registered CSI drivers"
    )]
    NotRegistered { doing: &'static str, driver: String },
    #[error("volume {handle} has GET error for volume attachment {name}: {}", source.message())]
    GetAttachment {
        handle: String,
        name: String,
        source: knarr_client::Error,
    },
    #[error("volume {handle} is not attached for volume attachment {name}")]
    NotAttached { handle: String, name: String },
    #[error(
        "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode {mode:?} not supported by \
         driver {driver} (only supports {modes:?})"
    )]
    LifecycleMode {
        mode: &'static str,
        driver: String,
        modes: Vec<String>,
    },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A secret that a volume refers to cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {namespace}/{name}{failed}: {}", source.message())]
pub struct SecretError {
    pub doing: String,
    pub namespace: String,
    pub name: String,
    /// The end of the message before the cause.
    pub failed: &'static str,
    pub source: knarr_client::Error,
}

/// The step that failed; each has its own message.
#[derive(Debug, thiserror::Error)]
pub enum StorageFailure {
    #[error(transparent)]
    Stage(StorageError),
    #[error(transparent)]
    Publish(StorageError),
}
