//! What is mounted where, by the kernel's table.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

/// Everything mounted below a directory, the innermost first. The kernel writes its table of all mounts for each reader: it is not read for a
/// directory that does not exist, below which nothing can be reached by its name.
pub(super) fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    if crate::host_fs::metadata(directory).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
        return Ok(Vec::new());
    }
    let table = crate::host_fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = mount_points(&table)
        .filter(|path| Path::new(&**path).starts_with(directory))
        .map(|path| PathBuf::from(path.into_owned()))
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    Ok(found)
}

pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let table = crate::host_fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_points(&table).any(|mounted| Path::new(&*mounted) == path))
}

/// The fifth field of each line, unescaped.
fn mount_points(table: &str) -> impl Iterator<Item = Cow<'_, str>> {
    table.lines().filter_map(|line| {
        let escaped = line.split(' ').nth(4)?;
        if !escaped.contains('\\') {
            return Some(Cow::Borrowed(escaped));
        }
        let mut plain = escaped.to_string();
        for (code, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
            plain = plain.replace(code, character);
        }
        Some(Cow::Owned(plain))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let table = "36 35 98:0 / /a\\040b rw - tmpfs none rw\n37 35 0:1 / /c rw - proc proc rw\n";
        let found: Vec<_> = mount_points(table).collect();
        assert_eq!(found, ["/a b", "/c"]);
    }

    #[test]
    fn nothing_is_mounted_below_a_directory_that_does_not_exist() {
        let directory = tempfile::tempdir().unwrap();
        assert!(below(&directory.path().join("none")).unwrap().is_empty());
        let proc = below(Path::new("/proc")).unwrap();
        assert!(proc.contains(&PathBuf::from("/proc")), "{proc:?}");
    }
}
