//! Watches a directory (inotify). Costs nothing while nothing happens.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

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

impl Watch {
    /// Of these happenings, from now on.
    pub fn directory(path: &Path, flags: AddWatchFlags) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(path, flags)?;
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
