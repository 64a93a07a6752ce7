//! One knarr process for one data directory: a lock that the kernel releases when the process exits. The process that takes
//! it creates the directory, and closes it to other users ([`crate::private`]).

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::command::Failure;
use crate::private;

/// The lock, while it is held; its file has the process id of the holder.
pub struct DataDir {
    _lock: Flock<File>,
}

fn file(data_dir: &Path) -> PathBuf {
    data_dir.join(private::LOCK_FILE)
}

impl DataDir {
    /// Takes the lock; the error names the process that holds it.
    pub fn lock(data_dir: &Path) -> Result<DataDir, Failure> {
        private::make_data_dir(data_dir)?;
        let path = file(data_dir);
        let failed = |e| Failure::new(format!("cannot write {}", path.display())).because(e);
        let open = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(failed)?;
        let mut lock = match Flock::lock(open, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                let holder = holder(data_dir).map_or_else(
                    || "another knarr process".into(),
                    |pid| format!("knarr process {pid}"),
                );
                return Err(Failure::new(format!(
                    "the data directory {} is in use by {holder}: stop it with `knarr down --data-dir {}`, or choose another directory with --data-dir",
                    data_dir.display(),
                    data_dir.display(),
                )));
            }
            Err((_, e)) => return Err(failed(e.into())),
        };
        // Only with the lock: no other process changes the directory now.
        private::repair(data_dir)?;
        lock.set_len(0).and_then(|()| lock.rewind()).map_err(failed)?;
        writeln!(lock, "{}", std::process::id()).map_err(failed)?;
        Ok(DataDir { _lock: lock })
    }
}

/// The process that holds the data directory's lock.
pub fn holder(data_dir: &Path) -> Option<i32> {
    let mut open = File::options().read(true).write(true).open(file(data_dir)).ok()?;
    let mut text = String::new();
    open.read_to_string(&mut text).ok()?;
    match Flock::lock(open, FlockArg::LockSharedNonblock) {
        Ok(_) => None,
        Err(_) => text.trim().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_locked_directory_names_the_holder_and_dropping_the_lock_releases_it() {
        let dir = tempfile::tempdir().unwrap();
        let held = DataDir::lock(dir.path()).unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        assert_eq!(holder(dir.path()), Some(me));
        let error = DataDir::lock(dir.path()).err().unwrap().to_string();
        assert!(
            error.contains(&format!("in use by knarr process {me}")),
            "{error}"
        );
        drop(held);
        assert_eq!(holder(dir.path()), None);
        assert!(DataDir::lock(dir.path()).is_ok());
    }
}
