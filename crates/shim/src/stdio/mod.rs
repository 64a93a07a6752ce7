//! Standard input and output of containers.
//!
//! containerd makes a FIFO for each stream; the container gets a pipe (or a terminal), and the shim copies between the
//! two. It holds the other end of each FIFO open as well, so that nothing ends when containerd does: output then waits
//! in the FIFO, the pipe, and the container's own write. When output has ended while no process reads the FIFO, its
//! write end is kept until one does or the container is deleted: what is in a FIFO that no process has open is lost.
//!
//! The container does not get the FIFO itself: runc would make its user the FIFO's owner.

pub mod console;
pub mod copy;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::pipe::{PipeFlags, pipe_with};

use self::copy::Copy;
use crate::runtime::Streams;

/// Logs to a file instead of a FIFO, as containerd's clients name them.
const FILE_SCHEME: &str = "file://";

/// The paths that containerd named.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stdio {
    pub stdin: String,
    pub stdout: String,
    pub stderr: String,
    pub terminal: bool,
}

/// Which of a process's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdin,
    Stdout,
    Stderr,
}

/// What a process's streams need besides the copies.
#[derive(Debug, Default)]
pub struct Io {
    /// The write end of standard input's FIFO; closed by `CloseIO`.
    pub stdin: Option<OwnedFd>,
    /// The terminal's master.
    pub console: Option<OwnedFd>,
    /// The copies under way, by their numbers in the loop.
    pub copies: Vec<(Stream, u32)>,
}

impl Io {
    /// Whether output may still come.
    pub fn has_output(&self) -> bool {
        self.copies.iter().any(|(stream, _)| *stream != Stream::Stdin)
    }
}

/// A process's streams before it is started.
#[derive(Default)]
pub struct Prepared {
    pub copies: Vec<(Stream, Copy)>,
    /// See [`Io::stdin`].
    pub stdin: Option<OwnedFd>,
}

/// Who is to own the container's ends of pipes.
#[derive(Debug, Clone, Copy)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// Opens the FIFOs and makes the pipes of a process without a terminal.
pub fn prepare(stdio: &Stdio, owner: Owner) -> io::Result<(Streams, Prepared)> {
    let mut prepared = Prepared::default();
    let mut stdin = None;
    if !stdio.stdin.is_empty() {
        let (fifo, hold) = open_input(Path::new(&stdio.stdin))?;
        let (theirs, ours) = pipe(owner, Direction::ToContainer)?;
        prepared.copies.push((Stream::Stdin, Copy::input(fifo, ours)));
        prepared.stdin = Some(hold);
        stdin = Some(theirs);
    }
    let mut output = |stream, path: &str| -> io::Result<Option<OwnedFd>> {
        if path.is_empty() {
            return Ok(None);
        }
        let sink = open_output(path)?;
        let (theirs, ours) = pipe(owner, Direction::FromContainer)?;
        prepared.copies.push((stream, Copy::output(ours, sink)));
        Ok(Some(theirs))
    };
    let stdout = output(Stream::Stdout, &stdio.stdout)?;
    let stderr = output(Stream::Stderr, &stdio.stderr)?;
    Ok((
        Streams::Container {
            stdin,
            stdout,
            stderr,
        },
        prepared,
    ))
}

/// Opens the FIFOs of a process with a terminal whose master has been received.
pub fn prepare_terminal(stdio: &Stdio, master: &OwnedFd) -> io::Result<Prepared> {
    rustix::io::ioctl_fionbio(master, true)?;
    let mut prepared = Prepared::default();
    if !stdio.stdin.is_empty() {
        let (fifo, hold) = open_input(Path::new(&stdio.stdin))?;
        prepared
            .copies
            .push((Stream::Stdin, Copy::input(fifo, master.try_clone()?)));
        prepared.stdin = Some(hold);
    }
    if !stdio.stdout.is_empty() {
        let sink = open_output(&stdio.stdout)?;
        prepared
            .copies
            .push((Stream::Stdout, Copy::terminal_output(master.try_clone()?, sink)));
    }
    Ok(prepared)
}

/// What output is written to.
pub enum Sink {
    /// Its write end, and the read end that keeps writes from failing.
    Fifo {
        write: OwnedFd,
        read: OwnedFd,
    },
    File(OwnedFd),
}

enum Direction {
    ToContainer,
    FromContainer,
}

/// The container's end, and ours, which does not block.
fn pipe(owner: Owner, direction: Direction) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (theirs, ours) = match direction {
        Direction::ToContainer => (read, write),
        Direction::FromContainer => (write, read),
    };
    let uid = rustix::fs::Uid::from_raw(owner.uid);
    let gid = rustix::fs::Gid::from_raw(owner.gid);
    rustix::fs::fchown(&theirs, Some(uid), Some(gid))?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((theirs, ours))
}

fn open(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    openat(CWD, path, flags, Mode::from_raw_mode(0o644))
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{}: {e}", path.display())))
}

/// Both ends of standard input's FIFO. With the write end open, the read end does not end before it is closed.
fn open_input(path: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let read = open(path, OFlags::RDONLY)?;
    let write = open(path, OFlags::WRONLY)?;
    Ok((read, write))
}

fn open_output(name: &str) -> io::Result<Sink> {
    let flags = OFlags::WRONLY | OFlags::APPEND;
    if let Some(path) = name.strip_prefix(FILE_SCHEME) {
        let path = Path::new(path);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        return Ok(Sink::File(open(path, flags | OFlags::CREATE)?));
    }
    if let Some((scheme, _)) = name.split_once("://") {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("unknown STDIO scheme {scheme}"),
        ));
    }
    let path = Path::new(name);
    // A FIFO can be opened for reading at once, and then for writing.
    let read = open(path, OFlags::RDONLY)?;
    if FileType::from_raw_mode(fstat(&read)?.st_mode) == FileType::Fifo {
        let write = open(path, OFlags::WRONLY)?;
        return Ok(Sink::Fifo { write, read });
    }
    Ok(Sink::File(open(path, flags)?))
}
