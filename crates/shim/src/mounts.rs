//! The mounts of a container's root file system, as containerd's snapshotter describes them (fstab style).

use std::ffi::CString;
use std::io;
use std::path::Path;

use containerd_shim_protos::types::mount::Mount;
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

/// The kernel takes one page of data.
const MAX_DATA_BYTES: usize = 4096;
/// Mounts on top of each other that are undone at most.
const MAX_STACK: usize = 128;

/// What the kernel leaves in an overlay's work directory when it was mounted `volatile`: directories, and a file in the last.
const VOLATILE_DIRECTORIES: &str = "work/incompat/volatile";
const VOLATILE_FILE: &str = "dirty";

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("a mount of type {kind:?} is not supported")]
    Unsupported { kind: String },
    #[error("the mount's options have {0} bytes, the kernel takes {MAX_DATA_BYTES}")]
    TooLong(usize),
    #[error("the directory {directory:?} of the layers")]
    Directory { directory: String, source: io::Error },
    #[error("{kind} {from:?}")]
    Mount {
        kind: String,
        from: String,
        source: io::Error,
    },
}

/// Options of a mount: flags, and data for the file system.
#[derive(Debug, PartialEq, Eq)]
pub struct Parsed {
    pub flags: MountFlags,
    remount: bool,
    pub data: String,
}

/// Separates flags from data.
pub fn parse(options: &[String]) -> Parsed {
    let mut parsed = Parsed {
        flags: MountFlags::empty(),
        remount: false,
        data: String::new(),
    };
    for option in options {
        let (set, flag) = match option.as_str() {
            "defaults" => continue,
            "remount" => {
                parsed.remount = true;
                continue;
            }
            "bind" => (true, MountFlags::BIND),
            "rbind" => (true, MountFlags::BIND | MountFlags::REC),
            "ro" => (true, MountFlags::RDONLY),
            "rw" => (false, MountFlags::RDONLY),
            "nosuid" => (true, MountFlags::NOSUID),
            "suid" => (false, MountFlags::NOSUID),
            "nodev" => (true, MountFlags::NODEV),
            "dev" => (false, MountFlags::NODEV),
            "noexec" => (true, MountFlags::NOEXEC),
            "exec" => (false, MountFlags::NOEXEC),
            "noatime" => (true, MountFlags::NOATIME),
            "atime" => (false, MountFlags::NOATIME),
            "nodiratime" => (true, MountFlags::NODIRATIME),
            "diratime" => (false, MountFlags::NODIRATIME),
            "relatime" => (true, MountFlags::RELATIME),
            "norelatime" => (false, MountFlags::RELATIME),
            "strictatime" => (true, MountFlags::STRICTATIME),
            "nostrictatime" => (false, MountFlags::STRICTATIME),
            "sync" => (true, MountFlags::SYNCHRONOUS),
            "async" => (false, MountFlags::SYNCHRONOUS),
            "dirsync" => (true, MountFlags::DIRSYNC),
            data => {
                if !parsed.data.is_empty() {
                    parsed.data.push(',');
                }
                parsed.data.push_str(data);
                continue;
            }
        };
        parsed.flags.set(flag, set);
    }
    parsed
}

/// The options with an overlay's lower directories relative to the directory that all of them are in, and that
/// directory: with many layers their absolute paths do not fit into a page.
fn shorten(options: &[String]) -> Option<(String, Vec<String>)> {
    let position = options
        .iter()
        .position(|option| option.starts_with("lowerdir="))?;
    let layers: Vec<&str> = options[position].strip_prefix("lowerdir=")?.split(':').collect();
    let mut common = layers.first()?.rsplit_once('/')?.0;
    while !layers.iter().all(|layer| {
        layer
            .strip_prefix(common)
            .is_some_and(|rest| rest.starts_with('/'))
    }) {
        common = common.rsplit_once('/')?.0;
    }
    if common.is_empty() || layers.len() < 2 {
        return None;
    }
    let relative: Vec<&str> = layers.iter().map(|layer| &layer[common.len() + 1..]).collect();
    let mut options = options.to_vec();
    options[position] = format!("lowerdir={}", relative.join(":"));
    Some((common.to_owned(), options))
}

/// Mounts one of a root file system's mounts at `target`. The working directory may change for the time of the call.
pub fn mount(mount: &Mount, target: &Path) -> Result<(), MountError> {
    let kind = mount.type_.clone();
    // What needs helper programs: FUSE file systems, and loop devices.
    if kind.starts_with("fuse") || mount.options.iter().any(|option| option == "loop") {
        return Err(MountError::Unsupported { kind });
    }
    let length: usize = mount.options.iter().map(String::len).sum();
    let shortened = (kind == "overlay" && length >= MAX_DATA_BYTES - 512)
        .then(|| shorten(&mount.options))
        .flatten();
    match shortened {
        None => mount_unsynced(mount, &mount.options, target),
        Some((directory, options)) => {
            let failed = |source| MountError::Directory {
                directory: directory.clone(),
                source,
            };
            let before = rustix::fs::openat(
                CWD,
                ".",
                rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
                rustix::fs::Mode::empty(),
            )
            .map_err(|e| failed(e.into()))?;
            std::env::set_current_dir(&directory).map_err(failed)?;
            let mounted = mount_unsynced(mount, &options, target);
            rustix::process::fchdir(&before).map_err(|e| failed(e.into()))?;
            mounted
        }
    }
}

/// Mounts an overlay so that its unmount does not write the whole file system of its upper directory to the disk first
/// (`volatile`, Linux 5.10), which takes milliseconds on an idle disk and seconds on a busy one. After a crash of the host
/// no container is started from an old root file system: its pod gets a sandbox and containers of its own.
fn mount_unsynced(mount: &Mount, options: &[String], target: &Path) -> Result<(), MountError> {
    let Some(work) = work_directory(options).filter(|_| mount.type_ == "overlay") else {
        return mount_here(mount, options, target);
    };
    let unsynced = [options, &["volatile".to_owned()]].concat();
    if mount_here(mount, &unsynced, target).is_ok() {
        return Ok(());
    }
    // The kernel rejects a work directory that was used so before: by a start that the end of containerd interrupted.
    if remove_volatile_marker(Path::new(work)).is_ok() && mount_here(mount, &unsynced, target).is_ok() {
        return Ok(());
    }
    mount_here(mount, options, target)
}

/// Removes the kernel's marker from an overlay's work directory, and nothing else. No container sees this directory.
fn remove_volatile_marker(work: &Path) -> io::Result<()> {
    let directory = work.join(VOLATILE_DIRECTORIES);
    std::fs::remove_file(directory.join(VOLATILE_FILE))?;
    std::fs::remove_dir(&directory)?;
    directory.parent().map_or(Ok(()), std::fs::remove_dir)
}

/// The work directory of an overlay that can be written to.
fn work_directory(options: &[String]) -> Option<&str> {
    options.iter().find_map(|option| option.strip_prefix("workdir="))
}

fn mount_here(mount: &Mount, options: &[String], target: &Path) -> Result<(), MountError> {
    let failed = |source: Errno| MountError::Mount {
        kind: mount.type_.clone(),
        from: mount.source.clone(),
        source: source.into(),
    };
    let parsed = parse(options);
    if parsed.data.len() >= MAX_DATA_BYTES {
        return Err(MountError::TooLong(parsed.data.len()));
    }
    let data = CString::new(parsed.data.as_str()).map_err(|_| failed(Errno::INVAL))?;
    if parsed.remount {
        rustix::mount::mount_remount(target, parsed.flags, data.as_c_str()).map_err(failed)?;
    } else {
        rustix::mount::mount(
            mount.source.as_str(),
            target,
            mount.type_.as_str(),
            parsed.flags,
            data.as_c_str(),
        )
        .map_err(failed)?;
    }
    // A bind mount gets the file system's flags first; they are changed by a second call.
    if parsed.flags.contains(MountFlags::BIND | MountFlags::RDONLY) {
        rustix::mount::mount_remount(target, parsed.flags, c"").map_err(failed)?;
    }
    Ok(())
}

/// Undoes everything that is mounted at `target`. `Errno::BUSY` may pass.
pub fn unmount_all(target: &Path) -> Result<(), Errno> {
    for _ in 0..MAX_STACK {
        match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not a mount point, or no such directory.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Err(Errno::BUSY)
}

/// Detaches what is mounted at `target`, used or not.
pub fn detach(target: &Path) -> Result<(), Errno> {
    match rustix::mount::unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Vec<String> {
        text.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn options_are_flags_or_data_and_the_last_one_counts() {
        let parsed = parse(&options("ro rbind nosuid suid lowerdir=/a:/b index=off"));
        assert_eq!(
            parsed.flags,
            MountFlags::RDONLY | MountFlags::BIND | MountFlags::REC
        );
        assert_eq!(parsed.data, "lowerdir=/a:/b,index=off");
        assert_eq!(parse(&options("rw defaults")).flags, MountFlags::empty());
        assert!(parse(&options("remount")).remount);
    }

    #[test]
    fn layers_are_named_relative_to_the_directory_that_has_all_of_them() {
        let given = options("upperdir=/s/9/fs lowerdir=/s/snap/12/fs:/s/snap/1/fs:/s/snap/10/fs");
        let (directory, short) = shorten(&given).unwrap();
        assert_eq!(directory, "/s/snap");
        assert_eq!(short[1], "lowerdir=12/fs:1/fs:10/fs");
        assert_eq!(short[0], given[0]);
        // Nothing in common, one layer, no layers.
        assert_eq!(shorten(&options("lowerdir=/a/fs:/b/fs")), None);
        assert_eq!(shorten(&options("lowerdir=/a/fs")), None);
        assert_eq!(shorten(&options("ro")), None);
    }

    #[test]
    fn what_needs_a_helper_program_is_rejected() {
        let mut fuse = Mount::new();
        fuse.type_ = "fuse3.fuse-overlayfs".into();
        assert!(matches!(
            mount(&fuse, Path::new("/nowhere")),
            Err(MountError::Unsupported { .. })
        ));
    }

    #[test]
    fn the_work_directory_is_that_of_an_overlay_with_an_upper_directory() {
        let given = options("workdir=/s/9/work upperdir=/s/9/fs lowerdir=/s/1/fs");
        assert_eq!(work_directory(&given), Some("/s/9/work"));
        assert_eq!(work_directory(&options("lowerdir=/s/1/fs:/s/2/fs")), None);
    }

    #[test]
    fn the_marker_of_a_volatile_mount_is_removed_and_nothing_else() {
        let work = tempfile::tempdir().unwrap();
        assert!(remove_volatile_marker(work.path()).is_err(), "there is none");
        let directory = work.path().join(VOLATILE_DIRECTORIES);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(VOLATILE_FILE), "").unwrap();
        remove_volatile_marker(work.path()).unwrap();
        let left = std::fs::read_dir(work.path().join("work")).unwrap();
        assert_eq!(left.count(), 0);
        std::fs::create_dir_all(directory.join("other")).unwrap();
        std::fs::write(directory.join(VOLATILE_FILE), "").unwrap();
        assert!(remove_volatile_marker(work.path()).is_err());
        assert!(directory.join("other").exists());
    }

    #[test]
    fn unmounting_what_is_not_mounted_is_done() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(unmount_all(&directory.path().join("absent")), Ok(()));
    }
}
