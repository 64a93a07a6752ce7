//! `hostPath`: a path of the node, checked or created by its type.

use crate::host_fs;
use std::fs::{FileType, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// With kubelet's messages.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostPathError {
    #[error("hostPath type check failed: {path} is not {what}")]
    Type { path: String, what: &'static str },
    #[error("cannot make {}: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("{kind:?} is not a known type of hostPath")]
    UnknownType { kind: String },
}

/// Checks that the path is of this type.
pub(super) fn check(path: &str, kind: &str) -> Result<(), HostPathError> {
    let at = Path::new(path);
    let there = host_fs::metadata(at).ok();
    let is = |test: fn(&FileType) -> bool| there.as_ref().is_some_and(|m| test(&m.file_type()));
    let wrong_type = |what| {
        let path = path.to_string();
        Err(HostPathError::Type { path, what })
    };
    match kind {
        "" => {
            // As the runtimes did of old: what is not there is made a directory.
            if there.is_none() {
                make_directory(at)?;
            }
            Ok(())
        }
        "DirectoryOrCreate" if there.is_none() => make_directory(at),
        "FileOrCreate" if there.is_none() => {
            let made = host_fs::open_with(OpenOptions::new().write(true).create_new(true), at);
            made.map(drop).map_err(|source| HostPathError::Make {
                path: at.into(),
                source,
            })
        }
        "Directory" | "DirectoryOrCreate" if !is(FileType::is_dir) => wrong_type("a directory"),
        "File" | "FileOrCreate" if !is(FileType::is_file) => wrong_type("a file"),
        "Socket" if !is(FileType::is_socket) => wrong_type("a socket file"),
        "CharDevice" if !is(FileType::is_char_device) => wrong_type("a character device"),
        "BlockDevice" if !is(FileType::is_block_device) => wrong_type("a block device"),
        "Directory" | "DirectoryOrCreate" | "File" | "FileOrCreate" | "Socket" | "CharDevice"
        | "BlockDevice" => Ok(()),
        other => Err(HostPathError::UnknownType { kind: other.into() }),
    }
}

fn make_directory(at: &Path) -> Result<(), HostPathError> {
    host_fs::create_dir_all_with(at, 0o755).map_err(|source| HostPathError::Make {
        path: at.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_type_takes_what_it_names_and_makes_what_it_may() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        fs::write(path("file"), "").unwrap();
        fs::create_dir(path("dir")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("sock")).unwrap();
        for (name, kind, good) in [
            ("file", "File", true),
            ("file", "Directory", false),
            ("dir", "Directory", true),
            ("dir", "File", false),
            ("none", "Directory", false),
            ("none", "File", false),
            ("new-dir", "DirectoryOrCreate", true),
            ("new-file", "FileOrCreate", true),
            ("dir", "FileOrCreate", false),
            ("any", "", true),
            ("sock", "Socket", true),
            ("file", "Socket", false),
            ("file", "Bogus", false),
        ] {
            assert_eq!(check(&path(name), kind).is_ok(), good, "{name} as {kind:?}");
        }
        assert!(check("/dev/null", "CharDevice").is_ok());
        assert!(dir.path().join("new-dir").is_dir() && dir.path().join("new-file").is_file());
    }
}
