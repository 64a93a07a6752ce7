//! One direction of one stream: bytes are moved from a descriptor to another until one of them would block.
//!
//! Between pipes they are moved by splice(2) and never enter this process. Both descriptors are in the loop's epoll set,
//! edge-triggered; whichever becomes ready, [`Copy::run`] is called and continues.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, splice};

use super::Sink;
use crate::poll::{Interest, Poll, Source};

/// Bytes moved by one call: a pipe's usual capacity.
const SPLICE_BYTES: usize = 64 << 10;
/// Bytes moved before other streams get their turn.
const TURN_BYTES: usize = 1 << 20;
/// What a terminal gives at once.
const BUFFER_BYTES: usize = 4096;

/// How bytes get from one end to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Splice,
    /// One end is no pipe, or the kernel cannot splice it.
    Buffer,
}

/// Why [`Copy::run`] returned.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// It continues when one of the ends becomes ready.
    Blocked,
    /// There is more, but others are to have their turn.
    More,
    /// The end of the input, or the reader of the output has closed it.
    Ended,
}

/// A stream under way.
#[derive(Debug)]
pub struct Copy {
    from: OwnedFd,
    to: OwnedFd,
    /// The read end of the FIFO that is written to.
    hold: Option<OwnedFd>,
    way: Way,
    /// Read and not written yet; at most [`BUFFER_BYTES`].
    pending: Vec<u8>,
    /// The writer has exited: the end is where nothing is to be read.
    last: bool,
}

impl Copy {
    fn new(from: OwnedFd, to: OwnedFd, hold: Option<OwnedFd>, way: Way) -> Self {
        Copy {
            from,
            to,
            hold,
            way,
            pending: Vec::new(),
            last: false,
        }
    }

    /// From standard input's FIFO to the container.
    pub fn input(fifo: OwnedFd, container: OwnedFd) -> Self {
        Copy::new(fifo, container, None, Way::Splice)
    }

    /// From a container's pipe.
    pub fn output(container: OwnedFd, sink: Sink) -> Self {
        match sink {
            Sink::Fifo { write, read } => Copy::new(container, write, Some(read), Way::Splice),
            // Files that are appended to cannot be spliced to.
            Sink::File(file) => Copy::new(container, file, None, Way::Buffer),
        }
    }

    /// From a terminal.
    pub fn terminal_output(master: OwnedFd, sink: Sink) -> Self {
        Copy {
            way: Way::Buffer,
            ..Copy::output(master, sink)
        }
    }

    pub fn watch(&self, poll: &Poll, number: u32) -> io::Result<()> {
        poll.add(&self.from, Source::Copy(number), Interest::Read)?;
        poll.add(&self.to, Source::Copy(number), Interest::Write)
    }

    /// What can be read now is all there is: the process has exited, but another one may hold its terminal open.
    pub fn finish(&mut self) {
        self.last = true;
    }

    /// Moves bytes.
    pub fn run(&mut self) -> Progress {
        let mut moved = 0;
        while moved < TURN_BYTES {
            let step = match self.way {
                Way::Splice => self.splice(),
                Way::Buffer => self.buffer(),
            };
            match step {
                Ok(0) => return Progress::Ended,
                Ok(length) => moved += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Progress::Blocked,
                Err(Errno::INVAL) if self.way == Way::Splice => self.way = Way::Buffer,
                // EPIPE: the container closed its standard input. EIO: no process has the terminal open.
                Err(_) => return Progress::Ended,
            }
        }
        Progress::More
    }

    fn splice(&self) -> rustix::io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        splice(&self.from, None, &self.to, None, SPLICE_BYTES, flags)
    }

    fn buffer(&mut self) -> rustix::io::Result<usize> {
        if !self.pending.is_empty() {
            let written = rustix::io::write(&self.to, &self.pending)?;
            self.pending.drain(..written);
            if self.pending.is_empty() {
                self.pending = Vec::new();
            }
            return Ok(written);
        }
        let mut buffer = [0; BUFFER_BYTES];
        let length = match rustix::io::read(&self.from, &mut buffer) {
            Err(Errno::AGAIN) if self.last => return Ok(0),
            read => read?,
        };
        let read = &buffer[..length];
        let written = match rustix::io::write(&self.to, read) {
            Err(Errno::AGAIN | Errno::INTR) => 0,
            written => written?,
        };
        if written < length {
            self.pending = read[written..].to_vec();
        }
        Ok(length)
    }

    /// The output has ended. Returns what keeps it in the FIFO, if no process has the FIFO open to read it.
    pub fn end(mut self) -> Option<Unread> {
        drop(self.hold.take()?);
        let unread = Unread { fifo: self.to };
        unread.is_kept().then_some(unread)
    }
}

/// The write end of a FIFO with output that has not been read yet.
#[derive(Debug)]
pub struct Unread {
    fifo: OwnedFd,
}

impl Unread {
    /// Whether the output would be lost if this were dropped. A process that has the FIFO open gets it in any case.
    pub fn is_kept(&self) -> bool {
        let mut poll_fd = [PollFd::new(&self.fifo, PollFlags::OUT)];
        let polled = poll(&mut poll_fd, Some(&Timespec::default()));
        // A pipe without readers is in error.
        let no_reader = polled.is_ok() && poll_fd[0].revents().contains(PollFlags::ERR);
        no_reader && rustix::io::ioctl_fionread(&self.fifo).is_ok_and(|bytes| bytes > 0)
    }
}

#[cfg(test)]
#[path = "copy/tests.rs"]
mod tests;
