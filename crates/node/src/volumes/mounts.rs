//! What is mounted where, by the kernel's table.

use std::io;
use std::path::{Path, PathBuf};

/// Everything mounted below a directory, the innermost first.
pub(super) fn below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let table = crate::host_fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = mount_points(&table)
        .filter(|path| path.starts_with(directory))
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    Ok(found)
}

pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let table = crate::host_fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_points(&table).any(|mounted| mounted == path))
}

/// The fifth field of each line, unescaped.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_with_their_escapes() {
        let table = "36 35 98:0 / /a\\040b rw - tmpfs none rw\n37 35 0:1 / /c rw - proc proc rw\n";
        let found: Vec<_> = mount_points(table).collect();
        assert_eq!(found, [PathBuf::from("/a b"), PathBuf::from("/c")]);
    }
}
