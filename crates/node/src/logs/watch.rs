//! Wakes a follower when something was written in a log's folder, or a file came or went there. Costs nothing
//! while nothing happens.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(super) struct Watch(AsyncFd<Fd>);

struct Fd(Inotify);

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Watch {
    pub(super) fn folder(path: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let flags = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_CLOSE_WRITE;
        inotify.add_watch(path, flags)?;
        // The other constructor is unsafe, for types that may close their descriptor early. This one owns it.
        #[expect(deprecated, reason = "sound for a type that owns its descriptor")]
        let fd = AsyncFd::with_interest(Fd(inotify), Interest::READABLE)?;
        Ok(Watch(fd))
    }

    /// Resolves after something has happened since the last call.
    pub(super) async fn changed(&self) -> io::Result<()> {
        loop {
            let mut guard = self.0.readable().await?;
            // What happened does not matter: whoever waits looks at the files.
            match self.0.get_ref().0.read_events() {
                Ok(_) => return Ok(()),
                Err(Errno::EAGAIN) => guard.clear_ready(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
