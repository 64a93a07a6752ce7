//! Files that settings name. They are read before anything starts, so that a bad one is reported like any other mistake.
//!
//! A file of keys must be closed to other users of the machine, as ssh demands of its keys: it belongs to root or to
//! the user that knarr runs as, its group may read it at most (a package gives it to the group of its service), and
//! others have no permission at all. What is checked is the file that is then read, not its name.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::reader::Reader;

/// What a file of keys must not have: writing for its group, anything for others.
const TOO_WIDE: u32 = 0o027;

impl Reader {
    /// What a file holds, if one is named; what is wrong with it is collected.
    pub(super) fn parsed<T>(
        &mut self,
        path: Option<PathBuf>,
        parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
    ) -> Option<T> {
        self.read(path?, |_| Ok(()), parse)
    }

    /// The same for a file that holds keys; one that is open to other users is a mistake.
    pub(super) fn parsed_secret<T>(
        &mut self,
        path: Option<PathBuf>,
        parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
    ) -> Option<T> {
        self.read(path?, closed, parse)
    }

    fn read<T>(
        &mut self,
        path: PathBuf,
        check: impl FnOnce(&File) -> Result<(), String>,
        parse: impl FnOnce(&str) -> Result<T, Vec<String>>,
    ) -> Option<T> {
        let shown = path.display();
        let mut text = String::new();
        let read = File::open(&path).and_then(|mut file| file.read_to_string(&mut text).map(|_| file));
        let mut mistakes = Vec::new();
        let parsed = match read {
            Err(e) => {
                mistakes.push(format!("cannot be read: {e}"));
                None
            }
            Ok(file) => {
                mistakes.extend(check(&file).err());
                match parse(&text) {
                    Ok(value) => Some(value),
                    Err(found) => {
                        mistakes.extend(found);
                        None
                    }
                }
            }
        };
        self.mistakes
            .extend(mistakes.iter().map(|m| format!("{shown}: {m}")));
        parsed
    }
}

fn closed(file: &File) -> Result<(), String> {
    let about = file.metadata().map_err(|e| e.to_string())?;
    let own = nix::unistd::geteuid().as_raw();
    if about.uid() != 0 && about.uid() != own {
        return Err(format!(
            "it belongs to user {}: a file of keys must belong to root or to user {own}",
            about.uid()
        ));
    }
    let mode = about.mode() & 0o777;
    if mode & TOO_WIDE != 0 {
        return Err(format!(
            "its mode is {mode:04o}, so that other users may read or change it: a file of keys must have mode 0600, 0640 or less (chmod go= on it)"
        ));
    }
    Ok(())
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
            let found = closed(file.as_file());
            assert_eq!(found.is_ok(), good, "{mode:o}: {found:?}");
        }
    }
}
