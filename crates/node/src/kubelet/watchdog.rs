//! The hardware watchdog (`--watchdog-device`), self-fencing's last resort (SPEC B4): a hardware timer that resets the
//! host unless it is fed. It is fed while the lease is fresh, and after that only while none of the pods that must not
//! run twice has a process; when, is in [`knarr_kubelet::self_fencing`].
//!
//! What it adds: a kubelet that hangs or has died feeds nothing, a process that the kernel cannot kill keeps it from
//! being fed. Stopped in order, the kubelet disarms it; killed, it does not, and has the watchdog's time to come back.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_kubelet::self_fencing::{WATCHDOG, may_feed};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::{Shared, self_fencing};

/// How often it is fed.
const FEED: Duration = Duration::from_secs(1);
/// Any byte feeds; this one, the last before it is closed, disarms (the kernel's watchdog API).
const DISARM: &[u8] = b"V";
const FOOD: &[u8] = b"1";
/// Major and minor number of `/dev/watchdog`, another name of the first watchdog.
const FIRST: (u32, u32) = (10, 130);

/// A watchdog that counts from now on.
pub struct Watchdog {
    device: File,
}

impl Watchdog {
    /// Rejected if it would reset the host too late. The error says what to change.
    pub fn arm(path: &Path) -> Result<Self, String> {
        let timeout = timeout_of(path)?;
        Self::arm_with(path, timeout)
    }

    fn arm_with(path: &Path, timeout: Duration) -> Result<Self, String> {
        let at = path.display();
        if timeout > WATCHDOG {
            return Err(format!(
                "watchdog {at} resets the host after {} s, expected {} s at the most: set it where its driver is \
                 loaded (softdog: soft_margin={}), or leave --watchdog-device out",
                timeout.as_secs(),
                WATCHDOG.as_secs(),
                WATCHDOG.as_secs()
            ));
        }
        if timeout < 2 * FEED {
            return Err(format!(
                "watchdog {at} resets the host after {} s, expected {} s at the least: it is fed each second",
                timeout.as_secs(),
                (2 * FEED).as_secs()
            ));
        }
        let device = crate::host_fs::open_with(OpenOptions::new().write(true), path);
        let device = device.map_err(|e| format!("cannot open watchdog {at}: {e}"))?;
        Ok(Watchdog { device })
    }

    fn feed(&mut self) -> std::io::Result<()> {
        self.device.write_all(FOOD)
    }
}

impl Drop for Watchdog {
    /// Disarms the device on a proper drop. Not so if the feeding task has failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        match self.device.write_all(DISARM) {
            Ok(()) => info!("the watchdog is disarmed"),
            Err(error) => error!(%error, "cannot disarm the watchdog: it resets this host"),
        }
    }
}

/// The device's timeout, from its driver's sysfs attribute.
fn timeout_of(path: &Path) -> Result<Duration, String> {
    let at = path.display();
    let meta = crate::host_fs::metadata(path).map_err(|e| format!("cannot see watchdog {at}: {e}"))?;
    let number = meta.st_rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let sysfs = match (u32::try_from(major), u32::try_from(minor)) {
        (Ok(major), Ok(minor)) if (major, minor) == FIRST => {
            PathBuf::from("/sys/class/watchdog/watchdog0/timeout")
        }
        _ => PathBuf::from(format!("/sys/dev/char/{major}:{minor}/timeout")),
    };
    let text = crate::host_fs::read_to_string(&sysfs)
        .map_err(|e| format!("{at} has no readable timeout ({}): {e}", sysfs.display()))?;
    let seconds = text.trim().parse();
    seconds
        .map(Duration::from_secs)
        .map_err(|_| format!("{} contains {:?}, expected seconds", sysfs.display(), text.trim()))
}

/// Feeds it until dropped, and disarms it then.
pub(super) async fn run(shared: Arc<Shared>, path: PathBuf) {
    let mut watchdog = match Watchdog::arm(&path) {
        Ok(watchdog) => watchdog,
        Err(why) => return error!(why, "the watchdog does not watch"),
    };
    info!(device = %path.display(), "the watchdog watches");
    let mut hungry = false;
    loop {
        // What cannot be seen counts as running.
        let since = shared.trust.since_renewal();
        let feeds = may_feed(since, || false) || {
            let ended = self_fencing::all_ended(&shared).await;
            may_feed(shared.trust.since_renewal(), || ended)
        };
        if feeds {
            if let Err(error) = watchdog.feed() {
                warn!(%error, "cannot feed the watchdog");
            }
        } else if !hungry {
            error!(
                "pods that must not run twice have not terminated: the watchdog is about to reset this host"
            );
        }
        hungry = !feeds;
        sleep(FEED).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b4_a_watchdog_is_fed_disarmed_at_the_end_and_rejected_if_its_timeout_is_too_long() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut watchdog = Watchdog::arm_with(file.path(), WATCHDOG).unwrap();
        watchdog.feed().unwrap();
        watchdog.feed().unwrap();
        drop(watchdog);
        assert_eq!(std::fs::read(file.path()).unwrap(), b"11V");
        for (seconds, word) in [
            (60, "expected 10 s at the most"),
            (1, "expected 2 s at the least"),
        ] {
            let rejected = Watchdog::arm_with(file.path(), Duration::from_secs(seconds))
                .err()
                .unwrap();
            assert!(rejected.contains(word), "{rejected}");
        }
    }

    #[test]
    fn a_file_that_is_no_watchdog_is_rejected() {
        for path in ["/no/such/watchdog", "/dev/null"] {
            let rejected = Watchdog::arm(Path::new(path)).err().unwrap();
            assert!(rejected.contains(path), "{rejected}");
        }
    }
}
