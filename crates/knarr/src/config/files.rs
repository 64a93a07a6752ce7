//! Files that settings name. They are read before anything starts, so that an invalid one is reported like any other error.
//!
//! A file of keys must be closed to other users of the host, as ssh requires of its keys: its owner is root or the user
//! that knarr runs as, its group may at most read it (a package gives it to the group of its service), and other users
//! have no permission. The permissions of the opened file are checked, not of its name.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::reader::Reader;

/// Mode bits that a file of keys must not have: write for its group, any for others.
const TOO_WIDE: u32 = 0o027;

impl Reader {
    /// The parsed content of a file, if one is named; its errors are collected.
    pub(super) fn parsed<T>(
        &mut self,
        path: Option<PathBuf>,
        parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
    ) -> Option<T> {
        self.read(path?, |_| Ok(()), parse)
    }

    /// The same for a file of keys; one that is open to other users is an error.
    pub(super) fn parsed_secret<T>(
        &mut self,
        path: Option<PathBuf>,
        parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
    ) -> Option<T> {
        self.read(path?, check_closed, parse)
    }

    fn read<T>(
        &mut self,
        path: PathBuf,
        check: impl FnOnce(&File) -> Result<(), KeyFileError>,
        parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
    ) -> Option<T> {
        let shown = path.display();
        let mut text = String::new();
        let read = File::open(&path).and_then(|mut file| file.read_to_string(&mut text).map(|_| file));
        let mut errors = Vec::new();
        let parsed = match read {
            Err(e) => {
                errors.push(format!("cannot be read: {e}"));
                None
            }
            Ok(file) => {
                errors.extend(check(&file).err().map(|e| e.to_string()));
                match parse(&text) {
                    Ok(value) => Some(value),
                    Err(found) => {
                        errors.extend(found);
                        None
                    }
                }
            }
        };
        self.errors.extend(errors.iter().map(|m| format!("{shown}: {m}")));
        parsed
    }
}

/// Why a file of keys is not used.
#[derive(Debug, thiserror::Error)]
enum KeyFileError {
    #[error(transparent)]
    Metadata(#[from] std::io::Error),
    #[error("its owner is user {owner}: expected root or user {own} for a file of keys")]
    Owner { owner: u32, own: u32 },
    #[error(
        "its mode is {0:04o}, so that other users may read or change it: expected mode 0600, 0640 or less for a file of keys (chmod go=)"
    )]
    Mode(u32),
}

fn check_closed(file: &File) -> Result<(), KeyFileError> {
    let metadata = file.metadata()?;
    let (owner, own) = (metadata.uid(), nix::unistd::geteuid().as_raw());
    if owner != 0 && owner != own {
        return Err(KeyFileError::Owner { owner, own });
    }
    match metadata.mode() & 0o777 {
        mode if mode & TOO_WIDE != 0 => Err(KeyFileError::Mode(mode)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a5_a_file_of_keys_is_closed_to_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (mode, good) in [
            (0o600, true),
            (0o400, true),
            (0o640, true),
            (0o440, true),
            (0o644, false),
            (0o604, false),
            (0o620, false),
            (0o660, false),
            (0o601, false),
        ] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(file.path(), permissions).unwrap();
            let found = check_closed(file.as_file());
            assert_eq!(found.is_ok(), good, "{mode:o}: {found:?}");
        }
    }
}
