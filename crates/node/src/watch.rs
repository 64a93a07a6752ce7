//! Watches a directory (inotify). Costs nothing while nothing happens.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
pub(crate) use nix::sys::inotify::{AddWatchFlags, InotifyEvent};
use nix::sys::inotify::{InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) struct Watch(AsyncFd<Fd>);

struct Fd(Inotify);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

fn watched(path: &Path, flags: AddWatchFlags) -> io::Result<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    inotify.add_watch(path, flags)?;
    Ok(inotify)
}

impl Watch {
    /// Of these happenings, from now on.
    pub fn directory(path: &Path, flags: AddWatchFlags) -> io::Result<Self> {
        let inotify = watched(path, flags)?;
        // The other constructor is unsafe, for types that may close their descriptor early. This one owns it.
        #[expect(deprecated, reason = "sound for a type that owns its descriptor")]
        let fd = AsyncFd::with_interest(Fd(inotify), Interest::READABLE)?;
        Ok(Watch(fd))
    }

    /// What has happened since the last call; resolves when it is something. Nothing is lost if it is dropped before.
    pub async fn changed(&self) -> io::Result<Vec<InotifyEvent>> {
        loop {
            let mut guard = self.0.readable().await?;
            match self.0.get_ref().0.read_events() {
                Ok(events) => return Ok(events),
                Err(Errno::EAGAIN) => guard.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Says whether a directory's entries may have changed, to a loop that reads them now and then.
pub(crate) struct Changes {
    directory: PathBuf,
    /// `None`: the directory does not exist, or was moved; or the host has no inotify instance left.
    inotify: Option<Inotify>,
}

impl Changes {
    pub fn of(directory: &Path) -> Self {
        Changes {
            directory: directory.into(),
            inotify: None,
        }
    }

    /// Whether an entry was created, removed, renamed or changed since the last call: at the first call, and wherever it is not known, yes.
    pub fn take(&mut self) -> bool {
        let gone = AddWatchFlags::IN_IGNORED | AddWatchFlags::IN_MOVE_SELF;
        match self.inotify.as_ref().map(Inotify::read_events) {
            Some(Err(Errno::EAGAIN)) => return false,
            Some(Ok(events)) if !events.iter().any(|event| event.mask.intersects(gone)) => {}
            // Its watch begins before the caller reads the directory, so that no change is between the two.
            _ => self.inotify = watched(&self.directory, Self::FLAGS).ok(),
        }
        true
    }

    const FLAGS: AddWatchFlags = AddWatchFlags::IN_CREATE
        .union(AddWatchFlags::IN_DELETE)
        .union(AddWatchFlags::IN_MOVED_FROM)
        .union(AddWatchFlags::IN_MOVED_TO)
        .union(AddWatchFlags::IN_ATTRIB)
        .union(AddWatchFlags::IN_MOVE_SELF)
        .union(AddWatchFlags::IN_ONLYDIR);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn changes_are_reported_once() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("registry");
        let mut changes = Changes::of(&directory);
        assert!(changes.take() && changes.take(), "a directory that is not there");
        fs::create_dir(&directory).unwrap();
        assert!(changes.take(), "its first reading");
        assert!(!changes.take());
        let socket = directory.join("d.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(changes.take());
        assert!(!changes.take());
        drop(listener);
        fs::remove_file(&socket).unwrap();
        assert!(changes.take());
        assert!(!changes.take());
    }

    #[test]
    fn a_directory_that_is_replaced_is_watched_again() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path().join("registry");
        fs::create_dir(&directory).unwrap();
        let mut changes = Changes::of(&directory);
        assert!(changes.take());
        fs::rename(&directory, parent.path().join("old")).unwrap();
        assert!(changes.take());
        fs::create_dir(&directory).unwrap();
        assert!(changes.take());
        assert!(!changes.take());
        fs::write(directory.join("f"), "").unwrap();
        assert!(changes.take());
        fs::remove_dir_all(&directory).unwrap();
        assert!(changes.take());
        fs::create_dir(&directory).unwrap();
        assert!(changes.take());
        fs::write(directory.join("f"), "").unwrap();
        assert!(changes.take());
    }
}
