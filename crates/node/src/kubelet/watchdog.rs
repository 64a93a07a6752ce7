//! The hardware watchdog (`--watchdog-device`), self-fencing's last resort (SPEC B4): a hardware timer that resets the
//! host unless it is fed. It is fed while the lease is fresh, and after that only while none of the pods that must not
//! run twice has a process; when, is in [`knarr_kubelet::self_fencing`].
//!
//! What it adds: a kubelet that hangs or has died feeds nothing, a process that the kernel cannot kill keeps it from
//! being fed. Stopped in order, the kubelet disarms it; killed, it does not, and has the watchdog's time to come back.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_kubelet::self_fencing::{WATCHDOG_TIMEOUT, may_feed};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::lease_trust::LeaseTrust;
use super::self_fencing::SelfFencer;

/// How often it is fed.
const FEED: Duration = Duration::from_secs(1);
/// Any byte feeds; this one, the last before it is closed, disarms (the kernel's watchdog API).
const DISARM: &[u8] = b"V";
const FOOD: &[u8] = b"1";
/// Major and minor number of `/dev/watchdog`, another name of the first watchdog.
const FIRST: (u32, u32) = (10, 130);

/// Why a watchdog is not used, and what to change.
#[derive(Debug, thiserror::Error)]
pub enum WatchdogError {
    #[error("cannot see watchdog {}: {source}", device.display())]
    NoDevice { device: PathBuf, source: io::Error },
    #[error("{} has no readable timeout ({}): {source}", device.display(), sysfs.display())]
    NoTimeout {
        device: PathBuf,
        sysfs: PathBuf,
        source: io::Error,
    },
    #[error("{} contains {text:?}, expected seconds", sysfs.display())]
    NotSeconds { sysfs: PathBuf, text: String },
    #[error(
        "watchdog {} resets the host after {} s, expected {most} s at the most: set it where its driver is loaded \
         (softdog: soft_margin={most}), or leave --watchdog-device out",
        device.display(),
        timeout.as_secs(),
        most = WATCHDOG_TIMEOUT.as_secs()
    )]
    TooLate { device: PathBuf, timeout: Duration },
    #[error(
        "watchdog {} resets the host after {} s, expected {} s at the least: it is fed each second",
        device.display(),
        timeout.as_secs(),
        (2 * FEED).as_secs()
    )]
    TooSoon { device: PathBuf, timeout: Duration },
    #[error("cannot open watchdog {}: {source}", device.display())]
    Open { device: PathBuf, source: io::Error },
}

/// A watchdog that counts from now on.
pub struct Watchdog {
    device: File,
}

impl Watchdog {
    /// Rejected if it would reset the host too late. The error says what to change.
    pub fn arm(path: &Path) -> Result<Self, WatchdogError> {
        let timeout = timeout_of(path)?;
        Self::arm_with(path, timeout)
    }

    fn arm_with(path: &Path, timeout: Duration) -> Result<Self, WatchdogError> {
        let device = path.to_path_buf();
        if timeout > WATCHDOG_TIMEOUT {
            return Err(WatchdogError::TooLate { device, timeout });
        }
        if timeout < 2 * FEED {
            return Err(WatchdogError::TooSoon { device, timeout });
        }
        match crate::host_fs::open_with(OpenOptions::new().write(true), path) {
            Ok(device) => Ok(Watchdog { device }),
            Err(source) => Err(WatchdogError::Open { device, source }),
        }
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
fn timeout_of(path: &Path) -> Result<Duration, WatchdogError> {
    let device = path.to_path_buf();
    let meta = match crate::host_fs::metadata(path) {
        Ok(meta) => meta,
        Err(source) => return Err(WatchdogError::NoDevice { device, source }),
    };
    let number = meta.st_rdev();
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    let sysfs = match (u32::try_from(major), u32::try_from(minor)) {
        (Ok(major), Ok(minor)) if (major, minor) == FIRST => {
            PathBuf::from("/sys/class/watchdog/watchdog0/timeout")
        }
        _ => PathBuf::from(format!("/sys/dev/char/{major}:{minor}/timeout")),
    };
    let text = match crate::host_fs::read_to_string(&sysfs) {
        Ok(text) => text.trim().to_string(),
        Err(source) => {
            return Err(WatchdogError::NoTimeout {
                device,
                sysfs,
                source,
            });
        }
    };
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => Err(WatchdogError::NotSeconds { sysfs, text }),
    }
}

/// Feeds it until dropped, and disarms it then.
pub(super) async fn run(fencer: Arc<SelfFencer>, trust: Arc<LeaseTrust>, path: PathBuf) {
    let mut watchdog = match Watchdog::arm(&path) {
        Ok(watchdog) => watchdog,
        Err(why) => return error!(%why, "the watchdog does not watch"),
    };
    info!(device = %path.display(), "the watchdog watches");
    let mut hungry = false;
    loop {
        // What cannot be seen counts as running.
        let since = trust.since_renewal();
        let feeds = may_feed(since, || false) || {
            let exited = fencer.all_exited().await;
            may_feed(trust.since_renewal(), || exited)
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
        let mut watchdog = Watchdog::arm_with(file.path(), WATCHDOG_TIMEOUT).unwrap();
        watchdog.feed().unwrap();
        watchdog.feed().unwrap();
        drop(watchdog);
        assert_eq!(std::fs::read(file.path()).unwrap(), b"11V");
        for (seconds, part) in [
            (60, "expected 10 s at the most"),
            (1, "expected 2 s at the least"),
        ] {
            let rejected = Watchdog::arm_with(file.path(), Duration::from_secs(seconds))
                .err()
                .unwrap()
                .to_string();
            assert!(rejected.contains(part), "{rejected}");
        }
    }

    #[test]
    fn a_file_that_is_no_watchdog_is_rejected() {
        for path in ["/no/such/watchdog", "/dev/null"] {
            let rejected = Watchdog::arm(Path::new(path)).err().unwrap().to_string();
            assert!(rejected.contains(path), "{rejected}");
        }
    }
}
