//! The file systems that a sandbox's process sees: mounts, devices, `pivot_root`, read-only and masked paths.
//!
//! It runs in the sandbox's process, in its own mount namespace, as root. Every path below the root file system is walked
//! from its descriptor, a component at a time and without links, so nothing outside of it is reached however the image is
//! made. A link on the way is an error, and runc makes the sandbox.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, mkdirat, mknodat, openat, openat2, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount,
};
use rustix::process::{fchdir, pivot_root};

use super::config::Mount;
use super::plan::Plan;
use super::{At, Error};
use crate::mounts::parse;

/// Name, major and minor of the devices that every container has.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("random", 1, 8),
    ("full", 1, 7),
    ("tty", 5, 0),
    ("zero", 1, 5),
    ("urandom", 1, 9),
];
/// Name and target.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
const CORE: &str = "/proc/kcore";

/// A path that is mounted on.
enum Leaf {
    Directory,
    File,
}

/// Gives this process the root file system in `rootfs`, with everything in it. Nothing of the host's stays reachable.
pub fn enter(plan: &Plan, rootfs: &Path) -> Result<(), Error> {
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", slave).at("making mounts slaves")?;
    mount(rootfs, rootfs, "bind", MountFlags::BIND | MountFlags::REC, None)
        .at("binding the root file system")?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, rootfs, flags, Mode::empty()).at("opening the root file system")?;
    for of in &plan.mounts {
        mount_one(&root, of)?;
    }
    make_devices(&root)?;
    let host = openat(CWD, "/", flags, Mode::empty()).at("opening the host's root")?;
    fchdir(&root).at("the root file system")?;
    pivot_root(".", ".").at("pivot_root")?;
    // The old root is on top of the new one.
    fchdir(&host).at("the host's root")?;
    mount_change(".", slave).at("making the host's mounts slaves")?;
    unmount(".", UnmountFlags::DETACH).at("detaching the host's root")?;
    rustix::process::chdir("/").at("the new root")?;
    drop((root, host));
    if plan.readonly_root {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::REC;
        mount_remount("/", flags, c"").at("making the root file system read-only")?;
    }
    Ok(())
}

/// Makes paths read-only and hides others. It comes after what is written there (sysctls).
pub fn protect(plan: &Plan) -> Result<(), Error> {
    for path in &plan.readonly_paths {
        make_readonly(path).map_err(|e| e.with(path))?;
    }
    for path in &plan.masked_paths {
        mask(path).map_err(|e| e.with(path))?;
    }
    Ok(())
}

fn mount_one(root: &OwnedFd, of: &Mount) -> Result<(), Error> {
    let parsed = parse(&of.options);
    let is_bind = parsed.flags.contains(MountFlags::BIND);
    let leaf = if is_bind && !Path::new(&of.source).is_dir() {
        Leaf::File
    } else {
        Leaf::Directory
    };
    let target = create(root, &of.destination, leaf).map_err(|e| e.with(&of.destination))?;
    let data = CString::new(parsed.data.as_str())
        .map_err(|_| Errno::INVAL)
        .at("options of a mount")?;
    let path = by_descriptor(&target);
    if is_bind {
        let flags = parsed.flags & (MountFlags::BIND | MountFlags::REC);
        mount(of.source.as_str(), path.as_str(), "bind", flags, None).at("bind mount")?;
        let more = parsed.flags - flags;
        if !more.is_empty() {
            // The path now leads to the mount, the descriptor to what is below it.
            let mounted = create(root, &of.destination, leaf_of(&target)?)?;
            mount_remount(by_descriptor(&mounted).as_str(), parsed.flags, c"").at("flags of a bind mount")?;
        }
    } else {
        mount(
            of.source.as_str(),
            path.as_str(),
            of.kind.as_str(),
            parsed.flags,
            data.as_c_str(),
        )
        .at("mount")
        .map_err(|e| e.with(&of.destination))?;
    }
    Ok(())
}

fn leaf_of(descriptor: &OwnedFd) -> Result<Leaf, Error> {
    let stat = rustix::fs::fstat(descriptor).at("stat")?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(Leaf::Directory),
        _ => Ok(Leaf::File),
    }
}

fn make_devices(root: &OwnedFd) -> Result<(), Error> {
    let dev = create(root, "/dev", Leaf::Directory)?;
    for (name, major, minor) in DEVICES {
        let device = rustix::fs::makedev(major, minor);
        mknodat(
            &dev,
            name,
            FileType::CharacterDevice,
            Mode::from_raw_mode(0o666),
            device,
        )
        .at("device")?;
    }
    for (name, target) in LINKS {
        symlinkat(target, &dev, name).at("link in /dev")?;
    }
    if Path::new(CORE).exists() {
        symlinkat(CORE, &dev, "core").at("link in /dev")?;
    }
    Ok(())
}

fn make_readonly(path: &str) -> Result<(), Error> {
    let Some(target) = find(path)? else { return Ok(()) };
    let by = by_descriptor(&target);
    mount(
        by.as_str(),
        by.as_str(),
        "bind",
        MountFlags::BIND | MountFlags::REC,
        None,
    )
    .at("read-only path")?;
    let Some(mounted) = find(path)? else { return Ok(()) };
    let has = rustix::fs::fstatvfs(&mounted).at("statfs")?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (of, flag) in [
        (rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        flags.set(flag, has.contains(of));
    }
    mount_remount(by_descriptor(&mounted).as_str(), flags, c"").at("read-only path")
}

fn mask(path: &str) -> Result<(), Error> {
    let Some(target) = find(path)? else { return Ok(()) };
    let by = by_descriptor(&target);
    match leaf_of(&target)? {
        Leaf::File => mount("/dev/null", by.as_str(), "bind", MountFlags::BIND, None).at("masked file"),
        Leaf::Directory => {
            mount("tmpfs", by.as_str(), "tmpfs", MountFlags::RDONLY, None).at("masked directory")
        }
    }
}

/// A path that names what a descriptor is open for, without a link of the image in it.
fn by_descriptor(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

fn step(from: impl AsFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(from, name, flags, Mode::empty(), resolve)
}

fn components(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !name.is_empty()).collect()
}

/// Opens a path below the root file system, and makes what is not there.
fn create(root: &OwnedFd, path: &str, leaf: Leaf) -> Result<OwnedFd, Error> {
    let mut at = root.try_clone().map_err(|_| Errno::MFILE).at("descriptor")?;
    let names = components(path);
    for (index, name) in names.iter().enumerate() {
        let is_file = matches!(leaf, Leaf::File) && index + 1 == names.len();
        let kind = if is_file {
            OFlags::empty()
        } else {
            OFlags::DIRECTORY
        };
        at = match step(&at, name, kind) {
            Err(Errno::NOENT) => {
                if is_file {
                    let flags =
                        OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                    openat(&at, *name, flags, Mode::from_raw_mode(0o755)).at("making a file to mount on")?;
                } else {
                    mkdirat(&at, *name, Mode::from_raw_mode(0o755)).at("making a directory to mount on")?;
                }
                step(&at, name, kind).at("what is mounted on")?
            }
            found => found.at("what is mounted on")?,
        };
    }
    Ok(at)
}

/// Opens a path of the new root; none if it is not there.
fn find(path: &str) -> Result<Option<OwnedFd>, Error> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, "/", flags, Mode::empty()).at("the root")?;
    for name in components(path) {
        at = match step(&at, name, OFlags::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            found => found.at("a path")?,
        };
    }
    Ok(Some(at))
}

/// Whether a file of the new root is there.
pub fn exists(path: &str) -> bool {
    rustix::fs::accessat(CWD, path, rustix::fs::Access::EXISTS, AtFlags::SYMLINK_NOFOLLOW).is_ok()
}
