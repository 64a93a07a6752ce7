//! Watches for processes that the kernel kills because a container's memory is used up.
//!
//! With cgroup v2 the kernel counts them in memory.events, a change of which inotify reports; with cgroup v1 it signals
//! an eventfd. Before a container's exit is reported, its watch is read once more, so that the reason is published
//! before the exit.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{CWD, Mode, OFlags, inotify, openat};

use crate::cgroup::{Cgroup, v2};
use crate::poll::{Interest, Poll, Source};

/// cgroup v1's file, and the one in which an eventfd is registered for it.
const V1_CONTROL: &str = "memory.oom_control";
const V1_REGISTER: &str = "cgroup.event_control";

#[derive(Debug)]
enum Watch {
    V1 {
        eventfd: OwnedFd,
        directory: PathBuf,
        number: u32,
    },
    V2 {
        directory: PathBuf,
        descriptor: i32,
        kills: u64,
    },
}

impl Watch {
    /// Whether something was killed since it was last asked.
    fn take(&mut self) -> bool {
        match self {
            Watch::V1 {
                eventfd, directory, ..
            } => {
                let mut count = [0; 8];
                let signalled = rustix::io::read(&*eventfd, &mut count).is_ok();
                // The removal of a group signals, too.
                signalled && directory.exists()
            }
            Watch::V2 { directory, kills, .. } => {
                let now = v2::oom_kills(directory);
                let more = now > *kills;
                *kills = now.max(*kills);
                more
            }
        }
    }
}

/// The watches by container.
#[derive(Debug, Default)]
pub struct OomWatches {
    watches: BTreeMap<String, Watch>,
    inotify: Option<OwnedFd>,
    last: u32,
}

impl OomWatches {
    pub fn add(&mut self, container: &str, cgroup: &Cgroup, poll: &Poll) -> io::Result<()> {
        let watch = match cgroup {
            Cgroup::V1(groups) => {
                let Some(directory) = groups.get("memory") else {
                    return Ok(());
                };
                let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let control = openat(CWD, directory.join(V1_CONTROL), flags, Mode::empty())?;
                let registration = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
                std::fs::write(directory.join(V1_REGISTER), registration)?;
                self.last = self.last.wrapping_add(1);
                poll.add(&event, Source::OutOfMemory(self.last), Interest::Read)?;
                Watch::V1 {
                    eventfd: event,
                    directory: directory.to_owned(),
                    number: self.last,
                }
            }
            Cgroup::V2(directory) => {
                let inotify = match &self.inotify {
                    Some(inotify) => inotify,
                    None => {
                        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
                        let inotify = inotify::init(flags)?;
                        poll.add(&inotify, Source::MemoryEvents, Interest::Read)?;
                        self.inotify.insert(inotify)
                    }
                };
                let descriptor =
                    inotify::add_watch(inotify, directory.join(v2::EVENTS), inotify::WatchFlags::MODIFY)?;
                Watch::V2 {
                    directory: directory.clone(),
                    descriptor,
                    kills: 0,
                }
            }
        };
        self.watches.insert(container.to_owned(), watch);
        Ok(())
    }

    pub fn remove(&mut self, container: &str) {
        if let (Some(Watch::V2 { descriptor, .. }), Some(inotify)) =
            (self.watches.remove(container), &self.inotify)
        {
            // The kernel has removed it if the group is gone.
            let _ = inotify::remove_watch(inotify, descriptor);
        }
    }

    /// Whether a process of this container was killed since it was last asked.
    pub fn take(&mut self, container: &str) -> bool {
        self.watches.get_mut(container).is_some_and(Watch::take)
    }

    /// The container whose eventfd was signalled.
    pub fn signalled(&mut self, number: u32) -> Option<String> {
        let is_it = |watch: &Watch| matches!(watch, Watch::V1 { number: of, .. } if *of == number);
        let (container, watch) = self.watches.iter_mut().find(|(_, watch)| is_it(watch))?;
        watch.take().then(|| container.clone())
    }

    /// The containers of which processes were killed, when inotify reports changes.
    pub fn changed(&mut self) -> Vec<String> {
        let Some(inotify) = &self.inotify else {
            return Vec::new();
        };
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = inotify::Reader::new(inotify, &mut buffer);
        // Which one changed does not matter: reading all of them is cheap, and right.
        while events.next().is_ok() {}
        let killed = self
            .watches
            .iter_mut()
            .filter_map(|(id, watch)| watch.take().then(|| id.clone()));
        killed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kill_in_a_v2_group_is_seen_once() {
        let directory = tempfile::tempdir().unwrap();
        let events = directory.path().join(v2::EVENTS);
        std::fs::write(&events, "oom 0\noom_kill 0\n").unwrap();
        let poll = Poll::new().unwrap();
        let mut watches = OomWatches::default();
        let group = Cgroup::V2(directory.path().to_owned());
        watches.add("a", &group, &poll).unwrap();
        assert!(!watches.take("a"));
        std::fs::write(&events, "oom 2\noom_kill 1\n").unwrap();
        let wait = Some(std::time::Duration::from_secs(5));
        assert_eq!(poll.wait(wait).unwrap(), [Source::MemoryEvents]);
        assert_eq!(watches.changed(), ["a"]);
        assert!(watches.changed().is_empty());
        assert!(!watches.take("a"));
        std::fs::write(&events, "oom 2\noom_kill 2\n").unwrap();
        assert!(watches.take("a"), "seen before inotify's event is");
        watches.remove("a");
        assert!(!watches.take("a"));
    }
}
