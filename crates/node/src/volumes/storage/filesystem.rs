//! Mounts with kubelet's messages on failure, file systems on devices without one, and files of a pod's group.

use std::path::Path;

use super::error::StorageError;
use crate::host::{CommandOutput, Host};
use crate::untrusted_fs::{Dir, set_ownership};

/// `mount`, with its output on failure.
pub async fn mount(
    host: &dyn Host,
    kind: Option<&str>,
    source: &str,
    at: &Path,
    options: &[String],
) -> Result<(), StorageError> {
    let at = at.display().to_string();
    let options = options.join(",");
    let mut args = Vec::new();
    if let Some(kind) = kind {
        args.extend(["-t", kind]);
    }
    if !options.is_empty() {
        args.extend(["-o", &options]);
    }
    // A name from the API is never an option: the server of an NFS volume may be any text.
    if source.starts_with('-') {
        let device = source.to_string();
        return Err(StorageError::MountOption { device });
    }
    args.extend(["--", source, &at]);
    let ran = host.run("mount", &args).await?;
    if ran.ok() {
        return Ok(());
    }
    Err(StorageError::Mount {
        status: ran.status(),
        arguments: args.join(" "),
        output: ran.output,
    })
}

/// Unmounts what is mounted there, if anything is.
pub async fn unmount(host: &dyn Host, at: &Path) -> Result<(), StorageError> {
    let mounted = host.is_mounted(at).map_err(|source| StorageError::MountTable {
        at: at.into(),
        source,
    })?;
    if !mounted {
        return Ok(());
    }
    let at = at.display().to_string();
    let ran = host.run("umount", &["--", &at]).await?;
    if ran.ok() {
        return Ok(());
    }
    Err(StorageError::Unmount {
        status: ran.status(),
        at,
        output: ran.output,
    })
}

/// `fsck`: found errors, and mended them; found some that it could not.
const REPAIRED: i32 = 1;
const UNREPAIRED: i32 = 4;
/// `blkid`: there is nothing on the device.
const NOTHING: i32 = 2;

/// Mounts a device, with a file system made on it if it is empty. What has data of another kind is left as it is.
pub async fn format_and_mount(
    host: &dyn Host,
    device: &str,
    at: &Path,
    kind: &str,
    options: &[String],
) -> Result<(), StorageError> {
    check_kind(kind)?;
    let read_only = options.iter().any(|o| o == "ro");
    let mut options = options.to_vec();
    options.push("defaults".into());
    if !read_only {
        match found(host, device).await? {
            None => make(host, device, kind).await?,
            Some(there) if there != kind => {
                let kind = kind.to_string();
                return Err(StorageError::OtherFilesystem { kind, there });
            }
            Some(_) => check(host, device).await?,
        }
    }
    mount(host, Some(kind), device, at, &options).await
}

/// The name of a file system becomes that of a program (`mkfs.<kind>`).
fn check_kind(kind: &str) -> Result<(), StorageError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    match kind.starts_with(|c: char| c.is_ascii_alphanumeric()) && kind.chars().all(is_name) {
        true => Ok(()),
        false => Err(StorageError::FilesystemName { kind: kind.into() }),
    }
}

async fn check(host: &dyn Host, device: &str) -> Result<(), StorageError> {
    let ran = host.run("fsck", &["-a", "--", device]).await;
    match ran {
        Ok(CommandOutput {
            code: Some(UNREPAIRED),
            output,
        }) => Err(StorageError::Fsck {
            device: device.into(),
            output,
        }),
        Ok(CommandOutput {
            code: Some(REPAIRED),
            output,
        }) => {
            tracing::info!(device, output, "fsck repaired a volume");
            Ok(())
        }
        // Without fsck, or where its result is unclear: the mount decides.
        Ok(_) | Err(_) => Ok(()),
    }
}

async fn make(host: &dyn Host, device: &str, kind: &str) -> Result<(), StorageError> {
    let flags: &[&str] = match kind {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let mut args = flags.to_vec();
    args.extend(["--", device]);
    let ran = host.run(&format!("mkfs.{kind}"), &args).await?;
    if ran.ok() {
        return Ok(());
    }
    Err(StorageError::Format {
        device: device.into(),
        kind: kind.into(),
        status: ran.status(),
        output: ran.output,
    })
}

/// The device's content, by `blkid`.
async fn found(host: &dyn Host, device: &str) -> Result<Option<String>, StorageError> {
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--", device];
    let ran = host.run("blkid", &arguments).await?;
    if ran.code == Some(NOTHING) {
        return Ok(None);
    }
    if !ran.ok() {
        return Err(StorageError::Blkid {
            device: device.into(),
            status: ran.status(),
            output: ran.output,
        });
    }
    let value = |key: &str| {
        let line = ran.output.lines().find_map(|line| line.strip_prefix(key));
        line.map(str::to_string)
    };
    match (value("TYPE="), value("PTTYPE=")) {
        (Some(kind), _) => Ok(Some(kind)),
        (None, Some(_)) => Ok(Some("unknown data, probably partitions".into())),
        (None, None) => Err(StorageError::BlkidOutput {
            device: device.into(),
            output: ran.output,
        }),
    }
}

/// The group that a pod's volumes are given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsGroup {
    pub id: u32,
    /// Only where the volume's own directory is not the group's yet (`fsGroupChangePolicy`).
    pub on_root_mismatch: bool,
}

/// What the group may do with a file.
fn granted(is_dir: bool, read_only: bool) -> u32 {
    const READ: u32 = 0o440;
    const READ_WRITE: u32 = 0o660;
    const ENTER_INHERITED: u32 = 0o2110;
    let file = if read_only { READ } else { READ_WRITE };
    if is_dir { file | ENTER_INHERITED } else { file }
}

/// Gives everything there to the group, which may then read and write it.
pub fn give_to(group: FsGroup, at: &Path, read_only: bool) -> std::io::Result<()> {
    let root = Dir::open_named(at)?;
    if group.on_root_mismatch {
        let stat = root.own_stat()?;
        let desired = granted(true, read_only);
        if stat.st_gid == group.id && stat.st_mode & desired == desired {
            return Ok(());
        }
    }
    set_ownership(&root, group.id, &|is_dir| granted(is_dir, read_only))
}
