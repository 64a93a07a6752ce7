//! Changes the group of a volume's files (`fsGroup`), by descriptors: no link that a container creates meanwhile is
//! followed, and no other file system entered.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{self, AtFlags, CWD, Gid, Mode};
use rustix::io::Errno;

use super::dir::{Dir, Kind, Links, invalid, own_link};

/// Directories that are held open at a time. A volume that is deeper is an error: half a volume is not given away.
const DEPTH_MAX: usize = 512;

/// Changes the group of everything beneath `top`, itself included, and adds to each mode what `grants` returns for a
/// directory (`true`) or a file. Links change their own group and are not followed.
pub fn set_ownership(top: &Dir, group: u32, grants: &dyn Fn(bool) -> u32) -> io::Result<()> {
    let own = top.locate(".", Links::Never)?;
    let device = fs::fstat(&own)?.st_dev;
    one(&own, group, grants)?;
    let mut open = vec![(top.open_dir(".", Links::Never)?, None::<Vec<std::ffi::OsString>>)];
    while let Some((dir, left)) = open.last_mut() {
        let left = match left {
            Some(left) => left,
            None => {
                let mut directories = Vec::new();
                for entry in dir.entries(usize::MAX)? {
                    let located = match dir.locate(&entry.name, Links::Never) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                        other => other?,
                    };
                    let stat = fs::fstat(&located)?;
                    if stat.st_dev != device {
                        continue;
                    }
                    one(&located, group, grants)?;
                    if Kind::of(&stat) == Kind::Directory {
                        directories.push(entry.name);
                    }
                }
                left.insert(directories)
            }
        };
        let Some(name) = left.pop() else {
            open.pop();
            continue;
        };
        match dir.open_child(&name) {
            // Removed, exchanged for something else, or another file system.
            Err(error) if is_another(&error) => {}
            Err(error) => return Err(error),
            Ok(_) if open.len() == DEPTH_MAX => {
                return Err(invalid("the volume's directories are too deep"));
            }
            Ok(child) => open.push((child, None)),
        }
    }
    Ok(())
}

fn is_another(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        code,
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)
    )
}

fn one(located: &OwnedFd, group: u32, grants: &dyn Fn(bool) -> u32) -> io::Result<()> {
    let stat = fs::fstat(located)?;
    let kind = Kind::of(&stat);
    if stat.st_gid != group {
        fs::chownat(located, "", None, Some(Gid::from_raw(group)), AtFlags::EMPTY_PATH)?;
    }
    if kind == Kind::Link {
        return Ok(());
    }
    let now = stat.st_mode & 0o7777;
    let mode = now | grants(kind == Kind::Directory);
    if mode != now {
        // A descriptor of a path alone has no fchmod; the kernel's link to it leads to the same inode.
        fs::chmodat(
            CWD,
            own_link(located.as_fd()),
            Mode::from_raw_mode(mode),
            AtFlags::empty(),
        )?;
    }
    Ok(())
}
