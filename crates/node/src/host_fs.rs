//! Files of the host that no container can change: `/proc`, `/sys`, cgroups, the node's own configuration and state.
//!
//! These are opened by name. Everything that a container can change, or put a link into, is opened by
//! [`crate::untrusted_fs`] instead; clippy forbids the standard library's functions everywhere else in this crate
//! (SPEC A3).
#![expect(
    clippy::disallowed_methods,
    reason = "the one place that opens the host's own files by name"
)]

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, ReadDir};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    fs::read(path)
}

pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    fs::read_to_string(path)
}

pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    fs::write(path, bytes)
}

pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    File::open(path)
}

pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
    File::create(path)
}

/// Opens with these options. A device or FIFO in place of a file does not block.
pub fn open_with(options: &mut OpenOptions, path: impl AsRef<Path>) -> io::Result<File> {
    let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY;
    options.custom_flags(flags.bits()).open(path)
}

pub fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    fs::create_dir(path)
}

pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    fs::create_dir_all(path)
}

pub fn create_dir_all_with(path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_file(path)
}

pub fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_dir(path)
}

pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    fs::rename(from, to)
}

pub fn read_dir(path: impl AsRef<Path>) -> io::Result<ReadDir> {
    fs::read_dir(path)
}

pub fn read_link(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    fs::read_link(path)
}

pub fn symlink(target: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    fs::metadata(path)
}

pub fn canonicalize(path: impl AsRef<Path>) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

pub fn exists(path: impl AsRef<Path>) -> bool {
    path.as_ref().exists()
}

pub fn is_file(path: impl AsRef<Path>) -> bool {
    path.as_ref().is_file()
}

pub fn is_dir(path: impl AsRef<Path>) -> bool {
    path.as_ref().is_dir()
}

/// The same for async code: each call runs on a thread that may block.
pub mod nonblocking {
    use std::fs::Metadata;
    use std::io;
    use std::path::Path;

    pub async fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
        tokio::fs::metadata(path).await
    }

    pub async fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        tokio::fs::rename(from, to).await
    }

    /// Opens for reading. A device or FIFO in place of a file does not block.
    pub async fn open(path: impl AsRef<Path>) -> io::Result<tokio::fs::File> {
        let flags = nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY;
        let mut options = tokio::fs::OpenOptions::new();
        options.read(true).custom_flags(flags.bits()).open(path).await
    }

    pub async fn read_dir(path: impl AsRef<Path>) -> io::Result<tokio::fs::ReadDir> {
        tokio::fs::read_dir(path).await
    }
}
