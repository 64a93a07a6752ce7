//! What is mounted where, and paths inside volumes that must not lead out of them.

use std::io;
use std::path::{Component, Path, PathBuf};

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

#[cfg(test)]
mod tests {
    use super::*;

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
