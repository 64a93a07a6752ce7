//! The engine's access to the operating system: every file operation of the store is here.
//!
//! Production has one disk, the real one, so all of this compiles to the system calls. Tests have a second, which
//! keeps apart what is durable and what is only in the page cache (`disk/simulated.rs`).

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[cfg(test)]
pub(super) mod simulated;

#[derive(Clone)]
pub(super) enum Disk {
    Real,
    #[cfg(test)]
    Simulated(std::sync::Arc<simulated::SimulatedDisk>),
}

pub(super) enum DiskFile {
    Real(File),
    #[cfg(test)]
    Simulated(simulated::SimulatedFile),
}

impl Disk {
    /// Makes a directory, whose parent exists; `false` if it is there already. What is durable in it is worth nothing
    /// before its parent is synced.
    pub fn create_dir(&self, dir: &Path) -> io::Result<bool> {
        let created = match self {
            Disk::Real => DirBuilder::new().mode(0o700).create(dir),
            #[cfg(test)]
            Disk::Simulated(disk) => disk.create_dir(dir),
        };
        match created {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn exists(&self, path: &Path) -> io::Result<bool> {
        match self {
            Disk::Real => path.try_exists(),
            #[cfg(test)]
            Disk::Simulated(disk) => Ok(disk.exists(path)),
        }
    }

    /// Makes the names in a directory durable.
    pub fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        match self {
            Disk::Real => File::open(dir)?.sync_all(),
            #[cfg(test)]
            Disk::Simulated(disk) => disk.sync_dir(dir),
        }
    }

    /// The paths of what is in a directory, in no order.
    pub fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        match self {
            Disk::Real => fs::read_dir(dir)?
                .map(|entry| entry.map(|entry| entry.path()))
                .collect(),
            #[cfg(test)]
            Disk::Simulated(disk) => Ok(disk.list(dir)),
        }
    }

    /// An empty file of this name, for reading and writing.
    pub fn create(&self, path: &Path) -> io::Result<DiskFile> {
        match self {
            Disk::Real => {
                let mut options = OpenOptions::new();
                options
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600);
                options.open(path).map(DiskFile::Real)
            }
            #[cfg(test)]
            Disk::Simulated(disk) => disk.create(path).map(DiskFile::Simulated),
        }
    }

    /// The file of this name, for reading and writing.
    pub fn open(&self, path: &Path) -> io::Result<DiskFile> {
        match self {
            Disk::Real => OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .map(DiskFile::Real),
            #[cfg(test)]
            Disk::Simulated(disk) => disk.open(path).map(DiskFile::Simulated),
        }
    }

    /// The file of this name, made if it is missing, to be locked.
    pub fn open_lock(&self, path: &Path) -> io::Result<DiskFile> {
        match self {
            Disk::Real => {
                let mut options = OpenOptions::new();
                options.create(true).truncate(false).write(true).mode(0o600);
                options.open(path).map(DiskFile::Real)
            }
            #[cfg(test)]
            Disk::Simulated(disk) => disk.open_lock(path).map(DiskFile::Simulated),
        }
    }

    /// Gives a file another name, in the same directory.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self {
            Disk::Real => fs::rename(from, to),
            #[cfg(test)]
            Disk::Simulated(disk) => disk.rename(from, to),
        }
    }

    pub fn remove(&self, path: &Path) -> io::Result<()> {
        match self {
            Disk::Real => fs::remove_file(path),
            #[cfg(test)]
            Disk::Simulated(disk) => disk.remove(path),
        }
    }
}

impl DiskFile {
    pub fn len(&self) -> io::Result<u64> {
        match self {
            DiskFile::Real(file) => file.metadata().map(|metadata| metadata.len()),
            #[cfg(test)]
            DiskFile::Simulated(file) => Ok(file.len()),
        }
    }

    pub fn read_exact_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        match self {
            DiskFile::Real(file) => file.read_exact_at(bytes, place),
            #[cfg(test)]
            DiskFile::Simulated(file) => file.read_exact_at(bytes, place),
        }
    }

    pub fn write_all_at(&self, bytes: &[u8], place: u64) -> io::Result<()> {
        match self {
            DiskFile::Real(file) => file.write_all_at(bytes, place),
            #[cfg(test)]
            DiskFile::Simulated(file) => file.write_all_at(bytes, place),
        }
    }

    /// Makes content and length durable.
    pub fn sync(&self) -> io::Result<()> {
        match self {
            DiskFile::Real(file) => file.sync_data(),
            #[cfg(test)]
            DiskFile::Simulated(file) => file.sync(),
        }
    }

    pub fn cut(&self, len: u64) -> io::Result<()> {
        match self {
            DiskFile::Real(file) => file.set_len(len),
            #[cfg(test)]
            DiskFile::Simulated(file) => file.cut(len),
        }
    }

    /// Takes the advisory lock of the file for this process.
    pub fn try_lock(&self) -> Result<(), fs::TryLockError> {
        match self {
            DiskFile::Real(file) => file.try_lock(),
            #[cfg(test)]
            DiskFile::Simulated(file) => file.try_lock(),
        }
    }

    pub fn unlock(&self) -> io::Result<()> {
        match self {
            DiskFile::Real(file) => file.unlock(),
            #[cfg(test)]
            DiskFile::Simulated(file) => file.unlock(),
        }
    }
}
