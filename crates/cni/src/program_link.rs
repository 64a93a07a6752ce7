//! The link by which containerd finds a program of knarr's, as a CNI plugin or as the shim.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// Makes the link, or replaces it at once. A hard link, where it can be one, outlives the program's own name: containerd runs the
/// program also when knarr was replaced or removed.
pub fn make(link: &Path, program: &Path) -> io::Result<()> {
    let inode = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    let leads_there = match inode(program) {
        Some(of_program) => inode(link) == Some(of_program),
        None => fs::read_link(link).is_ok_and(|target| target == program),
    };
    if leads_there {
        return Ok(());
    }
    let part = link.with_extension("part");
    remove(&part)?;
    // A hard link to a symbolic link with a relative target would lead elsewhere.
    fs::canonicalize(program)
        .and_then(|file| fs::hard_link(file, &part))
        .or_else(|_| symlink(program, &part))?;
    fs::rename(part, link)
}

/// Removes the file, if it exists.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_follows_the_program_and_outlives_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let (program, link) = (directory.path().join("knarr"), directory.path().join("link"));
        let missing = directory.path().join("missing");
        make(&link, &missing).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), missing);
        for text in ["one", "two"] {
            fs::write(&program, text).unwrap();
            make(&link, &program).unwrap();
            fs::remove_file(&program).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_file());
            assert_eq!(fs::read_to_string(&link).unwrap(), text);
        }
    }

    #[test]
    fn a_program_that_is_a_symbolic_link_is_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (program, links) = (directory.path().join("knarr"), directory.path().join("links"));
        fs::write(directory.path().join("knarr-1"), "one").unwrap();
        symlink("knarr-1", &program).unwrap();
        fs::create_dir(&links).unwrap();
        make(&links.join("link"), &program).unwrap();
        assert_eq!(fs::read_to_string(links.join("link")).unwrap(), "one");
    }
}
