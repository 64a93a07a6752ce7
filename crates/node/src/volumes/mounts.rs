//! What is mounted where, and paths inside volumes that must not lead out of them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

/// Everything mounted below a directory, the innermost first.
pub(super) fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = mount_points(&table)
        .filter(|path| path.starts_with(directory))
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    Ok(found)
}

pub(super) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_points(&table).any(|mounted| mounted == path))
}

/// The fifth field of each line, its escapes undone.
fn mount_points(table: &str) -> impl Iterator<Item = PathBuf> + '_ {
    table.lines().filter_map(|line| {
        let escaped = line.split(' ').nth(4)?;
        let mut plain = escaped.to_string();
        for (code, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
            plain = plain.replace(code, character);
        }
        Some(PathBuf::from(plain))
    })
}

/// A path inside a volume, made if it is not there. Symbolic links are followed only as far as they stay inside.
pub(super) fn sub_path(base: &Path, sub_path: &str) -> io::Result<PathBuf> {
    let outside = || io::Error::new(io::ErrorKind::InvalidInput, "the subPath leads out of its volume");
    let wanted = Path::new(sub_path);
    if wanted
        .components()
        .any(|c| !matches!(c, Component::Normal(_) | Component::CurDir))
    {
        return Err(outside());
    }
    let real_base = base.canonicalize()?;
    if !real_base.is_dir() {
        return Err(io::Error::new(
            io::ErrorKind::NotADirectory,
            "the volume is a file",
        ));
    }
    let mut at = real_base.clone();
    for component in wanted.components() {
        at.push(component);
        match at.canonicalize() {
            Ok(real) if real.starts_with(&real_base) => at = real,
            Ok(_) => return Err(outside()),
            Err(e) if e.kind() == io::ErrorKind::NotFound && at.symlink_metadata().is_err() => {
                std::fs::create_dir(&at)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(at)
}

/// At most the first `most` bytes of a file in a volume that containers write to, and whether there is more. Whatever
/// they put there leads nowhere out of the volume and holds nobody up: links are followed as if the volume were all
/// there is, and only a plain file is read.
pub(super) fn read_inside(base: &Path, path: &str, most: usize) -> io::Result<(Vec<u8>, bool)> {
    let directory = open(
        base,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = File::from(openat2(directory, path, how)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
    }
    let mut text = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut text)?;
    let cut = text.len() > most;
    text.truncate(most);
    Ok((text, cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_a_file_is_read_inside_its_volume_only_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("v");
        std::fs::create_dir_all(base.join("etc")).unwrap();
        std::fs::write(dir.path().join("secret"), "not yours").unwrap();
        std::fs::write(base.join("etc/env"), "12345").unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, base.join(name)).unwrap();
        link("etc/env", "in");
        link("/etc/env", "absolute");
        link("../../../../etc/env", "above");
        link("../secret", "out");
        link("loop", "loop");
        link("/proc/self/exe", "magic");
        nix::unistd::mkfifo(&base.join("pipe"), Mode::from_bits_truncate(0o666)).unwrap();
        // The volume is all there is, as for a process that lives in it.
        for inside in ["etc/env", "in", "absolute", "above", "./etc//env"] {
            let read = read_inside(&base, inside, 5).unwrap();
            assert_eq!(read, (b"12345".to_vec(), false), "{inside}");
        }
        assert_eq!(read_inside(&base, "in", 4).unwrap(), (b"1234".to_vec(), true));
        for bad in ["out", "../secret", "etc", "loop", "magic", "absent", "pipe"] {
            assert!(read_inside(&base, bad, 5).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_sub_path_is_made_and_never_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("v");
        std::fs::create_dir(&base).unwrap();
        std::os::unix::fs::symlink("/etc", base.join("out")).unwrap();
        std::fs::create_dir(base.join("real")).unwrap();
        std::os::unix::fs::symlink("real", base.join("in")).unwrap();
        let inside = base.canonicalize().unwrap();
        assert_eq!(sub_path(&base, "a/b").unwrap(), inside.join("a/b"));
        assert!(inside.join("a/b").is_dir());
        assert_eq!(sub_path(&base, "in").unwrap(), inside.join("real"));
        for bad in ["../x", "/etc", "out", "out/passwd", "a/../../x"] {
            assert!(sub_path(&base, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let table = "36 35 98:0 / /a\\040b rw - tmpfs none rw\n37 35 0:1 / /c rw - proc proc rw\n";
        let found: Vec<_> = mount_points(table).collect();
        assert_eq!(found, [PathBuf::from("/a b"), PathBuf::from("/c")]);
    }
}
