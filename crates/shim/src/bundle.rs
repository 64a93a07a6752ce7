//! The bundle of a container: the directory that containerd made for it, with `config.json` and `rootfs`.
//!
//! Files in it are opened beneath its descriptor, never through a link, and read with a limit. Only root writes to a
//! bundle; what a container can change is below `rootfs`, and nothing below `rootfs` is ever opened here.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use rustix::process::Pid;

/// The OCI configuration of the container.
pub const CONFIG: &str = "config.json";
/// The shim's address, as containerd reads it after a restart.
pub const ADDRESS: &str = "address";
/// Where the OCI runtime writes the process id of the container.
pub const INIT_PID: &str = "init.pid";
pub const ROOTFS: &str = "rootfs";
/// How the container ended (`DeleteResponse`), once nothing is left of it but the bundle.
pub const DELETED: &str = "deleted";

/// containerd's largest configurations (thousands of mounts and variables) have a few MB.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Enough for a process id, an address, a program's name.
pub const MAX_SMALL_BYTES: u64 = 4096;

/// An open bundle.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    directory: OwnedFd,
}

impl Bundle {
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        Ok(Bundle {
            path: path.to_owned(),
            directory,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mode = if flags.contains(OFlags::CREATE) {
            Mode::RUSR | Mode::WUSR
        } else {
            Mode::empty()
        };
        // A FIFO or device in place of a file does not block.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        Ok(File::from(openat2(&self.directory, name, flags, mode, resolve)?))
    }

    /// Reads a file of at most `limit` bytes; a longer one is an error.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file(name, OFlags::RDONLY)?;
        let length = file.metadata()?.len().min(limit);
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0) + 1);
        file.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("{name} has more than {limit} bytes"),
            ));
        }
        Ok(bytes)
    }

    /// Reads the last `limit` bytes of a file.
    pub fn read_end(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        use std::io::{Seek, SeekFrom};
        let mut file = self.open_file(name, OFlags::RDONLY)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub fn read_string(&self, name: &str) -> io::Result<String> {
        String::from_utf8(self.read(name, MAX_SMALL_BYTES)?)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// A process id that the OCI runtime wrote.
    pub fn read_pid(&self, name: &str) -> io::Result<Pid> {
        let text = self.read_string(name)?;
        let pid = text
            .trim()
            .parse()
            .ok()
            .filter(|pid| *pid > 0)
            .and_then(Pid::from_raw);
        pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{name} has no process id")))
    }

    /// Replaces a file; only root may read it.
    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        // A new file: a process that has the old one open keeps it.
        self.remove(name);
        self.open_file(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?
            .write_all(bytes)
    }

    /// Removes a file; it may not be there.
    pub fn remove(&self, name: &str) {
        let _ = unlinkat(&self.directory, name, AtFlags::empty());
    }

    /// Makes the directory `rootfs` unless it is there.
    pub fn create_rootfs(&self) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.directory, ROOTFS, Mode::from_raw_mode(0o711)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn bundle() -> (tempfile::TempDir, Bundle) {
        let directory = tempfile::tempdir().unwrap();
        let bundle = Bundle::open(directory.path()).unwrap();
        (directory, bundle)
    }

    #[test]
    fn a_link_is_neither_read_nor_written_through() {
        let (directory, bundle) = bundle();
        let victim = directory.path().join("victim");
        std::fs::write(&victim, "secret").unwrap();
        symlink(&victim, directory.path().join("link")).unwrap();
        symlink("/etc", directory.path().join("etc")).unwrap();
        assert!(bundle.read("link", 100).is_err());
        assert!(bundle.read("etc/hostname", 100).is_err());
        assert!(bundle.read("../victim", 100).is_err());
        bundle.write("link", b"new").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"secret");
        assert_eq!(bundle.read("link", 100).unwrap(), b"new");
    }

    #[test]
    fn a_file_that_is_too_long_is_an_error_and_a_fifo_does_not_block() {
        let (directory, bundle) = bundle();
        bundle.write("a", b"12345").unwrap();
        assert_eq!(bundle.read("a", 5).unwrap(), b"12345");
        assert_eq!(
            bundle.read("a", 4).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        assert_eq!(bundle.read_end("a", 2).unwrap(), b"45");
        rustix::fs::mknodat(
            CWD,
            directory.path().join("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR,
            0,
        )
        .unwrap();
        let _ = bundle.read("fifo", 4);
    }

    #[test]
    fn what_is_written_is_for_root_only_and_replaces_what_was_there() {
        let (directory, bundle) = bundle();
        let path = directory.path().join("options.json");
        std::fs::write(&path, "longer than the new one").unwrap();
        bundle.write("options.json", b"{}").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"{}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_process_id_is_a_positive_number() {
        let (_directory, bundle) = bundle();
        for (text, pid) in [
            ("12", Some(12)),
            ("12\n", Some(12)),
            ("0", None),
            ("-3", None),
            ("", None),
            ("x", None),
        ] {
            bundle.write(INIT_PID, text.as_bytes()).unwrap();
            assert_eq!(
                bundle.read_pid(INIT_PID).ok(),
                pid.and_then(Pid::from_raw),
                "{text:?}"
            );
        }
        bundle.remove(INIT_PID);
        assert!(bundle.read_pid(INIT_PID).is_err());
    }
}
