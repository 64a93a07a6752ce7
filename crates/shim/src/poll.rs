//! The epoll set, with a typed source for each descriptor.
//!
//! Everything is edge-triggered: an event is handled until the kernel says that the next call would block.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Events taken at once.
const BATCH: usize = 16;

/// What a descriptor in the set belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// New connections of containerd.
    Listener,
    /// SIGCHLD, SIGTERM, SIGINT.
    Signals,
    /// The connection to containerd's events service.
    Publisher,
    /// inotify of cgroup v2's memory.events.
    MemoryEvents,
    /// A connection of containerd.
    Connection(u32),
    /// Either end of a stream that is copied.
    Copy(u32),
    /// The eventfd of a cgroup v1's memory.oom_control.
    OutOfMemory(u32),
    /// The socket of a sandbox's process.
    Sandbox(u32),
    /// The FIFO at which a container's process waits for its start.
    Release(u32),
}

impl Source {
    fn encode(self) -> u64 {
        let (kind, number) = match self {
            Source::Listener => (0, 0),
            Source::Signals => (1, 0),
            Source::Publisher => (2, 0),
            Source::MemoryEvents => (3, 0),
            Source::Connection(number) => (4, number),
            Source::Copy(number) => (5, number),
            Source::OutOfMemory(number) => (6, number),
            Source::Release(number) => (7, number),
            Source::Sandbox(number) => (8, number),
        };
        kind << 32 | u64::from(number)
    }

    fn decode(data: u64) -> Option<Self> {
        // The low half is the number.
        let number = (data & u64::from(u32::MAX)) as u32;
        Some(match data >> 32 {
            0 => Source::Listener,
            1 => Source::Signals,
            2 => Source::Publisher,
            3 => Source::MemoryEvents,
            4 => Source::Connection(number),
            5 => Source::Copy(number),
            6 => Source::OutOfMemory(number),
            7 => Source::Release(number),
            8 => Source::Sandbox(number),
            _ => return None,
        })
    }
}

/// Which readiness is of interest. Errors and hang-ups always are.
#[derive(Debug, Clone, Copy)]
pub enum Interest {
    Read,
    Write,
    Both,
}

pub struct Poll(OwnedFd);

impl Poll {
    pub fn new() -> io::Result<Self> {
        Ok(Poll(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor; closing it removes it. Files that are always ready (regular ones) cannot be added, and that is
    /// no error.
    pub fn add(&self, descriptor: impl AsFd, source: Source, interest: Interest) -> io::Result<()> {
        let flags = match interest {
            Interest::Read => EventFlags::IN,
            Interest::Write => EventFlags::OUT,
            Interest::Both => EventFlags::IN | EventFlags::OUT,
        };
        let data = EventData::new_u64(source.encode());
        match epoll::add(&self.0, descriptor, data, flags | EventFlags::ET) {
            Ok(()) | Err(Errno::PERM) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes a descriptor, which may be added again as another source.
    pub fn remove(&self, descriptor: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.0, descriptor)?)
    }

    /// Waits for events, for at most `wait`. An interrupted wait returns none.
    pub fn wait(&self, wait: Option<Duration>) -> io::Result<Vec<Source>> {
        let wait = wait.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; BATCH];
        match epoll::wait(&self.0, &mut events, wait.as_ref()) {
            Ok((events, _)) => Ok(events
                .iter()
                .filter_map(|event| Source::decode(event.data.u64()))
                .collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(e) => Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_the_kernel() {
        for source in [
            Source::Listener,
            Source::Signals,
            Source::Publisher,
            Source::MemoryEvents,
            Source::Connection(7),
            Source::Copy(u32::MAX),
            Source::OutOfMemory(0),
            Source::Release(9),
            Source::Sandbox(3),
        ] {
            assert_eq!(Source::decode(source.encode()), Some(source));
        }
        assert_eq!(Source::decode(u64::MAX), None);
    }
}
