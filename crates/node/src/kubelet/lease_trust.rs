//! What a node knows of its own lease, and which pods are its own for sure (SPEC B4).
//!
//! Time since the last renewal is measured by a clock that includes suspend, and the last renewal is stored, so that a
//! restarted kubelet continues from it.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_kubelet::self_fencing::{Verdict, decide, may_start as may_start_by};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;
use tracing::warn;

use crate::host::Host;

/// The file in the kubelet's directory with the time of the last renewal.
pub(super) const RENEWALS: &str = "lease-renewed";

/// What a node knows of its own lease.
pub(super) struct LeaseTrust {
    host: Arc<dyn Host>,
    start: Instant,
    /// Where the last renewal is written down; a hollow node's is not.
    file: Option<PathBuf>,
    /// When the last answered renewal was sent, by [`LeaseTrust::now`]: this kubelet's, or one before it, or its start.
    renewed: Mutex<Option<Duration>>,
    /// The same of this kubelet alone.
    own: Mutex<Option<Duration>>,
    changed: Notify,
    confirmed: Mutex<Confirmed>,
}

/// Which pods are this node's for sure. While it is cut off, any may be given to another node.
#[derive(Default)]
struct Confirmed {
    /// How often the node was cut off; while it is 0, all pods are this node's.
    round: u64,
    /// By uid: pods that the API has confirmed since then to be still this node's.
    pods: BTreeSet<String>,
}

impl LeaseTrust {
    pub fn new(host: Arc<dyn Host>, file: Option<PathBuf>) -> Self {
        let trust = LeaseTrust {
            host,
            start: Instant::now(),
            file,
            renewed: Mutex::new(None),
            own: Mutex::new(None),
            changed: Notify::new(),
            confirmed: Mutex::default(),
        };
        // What was written before this boot is later than now: nothing of then runs any more.
        let before = trust
            .file
            .as_deref()
            .and_then(written)
            .filter(|at| *at <= trust.now());
        *trust.renewed.lock() = Some(before.unwrap_or_else(|| trust.now()));
        trust
    }

    /// A clock that only moves forward.
    pub fn now(&self) -> Duration {
        // Every real host has this clock; elsewhere the time since the start is used.
        self.host.since_boot().unwrap_or_else(|| self.start.elapsed())
    }

    /// A renewal that was sent at this time has been answered.
    pub fn renewed(&self, sent: Duration) {
        *self.renewed.lock() = Some(sent);
        *self.own.lock() = Some(sent);
        if let Some(file) = &self.file
            && let Err(error) = note(file, sent)
        {
            warn!(%error, "cannot store the time of the lease's renewal");
        }
        self.changed.notify_waiters();
    }

    /// How long ago this was, by [`LeaseTrust::now`].
    pub fn since(&self, at: Duration) -> Duration {
        self.now().saturating_sub(at)
    }

    /// How long ago the last answered renewal was sent.
    pub fn since_renewal(&self) -> Option<Duration> {
        let renewed = *self.renewed.lock();
        renewed.map(|at| self.since(at))
    }

    /// Returns when the lease was renewed, after this was called.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    pub fn verdict(&self) -> Verdict {
        decide(self.since_renewal())
    }

    pub fn may_start(&self) -> bool {
        let own = *self.own.lock();
        may_start_by(own.map(|at| self.since(at)))
    }

    /// This node is cut off: from now on every pod has to be confirmed by the API.
    pub fn cut_off(&self) {
        let mut confirmed = self.confirmed.lock();
        confirmed.round += 1;
        confirmed.pods.clear();
    }

    /// The round in which the pod has to be confirmed; `None` if it need not be.
    pub fn to_confirm(&self, uid: &str) -> Option<u64> {
        let confirmed = self.confirmed.lock();
        (confirmed.round > 0 && !confirmed.pods.contains(uid)).then_some(confirmed.round)
    }

    /// The API confirmed the pod as this node's. An answer requested in an earlier round does not count in this one.
    pub fn confirm(&self, uid: &str, round: u64) {
        let mut confirmed = self.confirmed.lock();
        if confirmed.round == round {
            confirmed.pods.insert(uid.into());
        }
    }
}

fn written(file: &Path) -> Option<Duration> {
    let text = crate::host_fs::read_to_string(file).ok()?;
    text.trim().parse().ok().map(Duration::from_millis)
}

/// Atomic without a rename: the same number of bytes is overwritten in one write. The value is meaningless after a
/// reboot, so it need not be synced to disk.
fn note(file: &Path, at: Duration) -> std::io::Result<()> {
    let open =
        || crate::host_fs::open_with(OpenOptions::new().write(true).create(true).truncate(false), file);
    let open = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            crate::host_fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
            open()?
        }
        other => other?,
    };
    open.write_all_at(format!("{:020}\n", at.as_millis()).as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::host_of;
    use crate::kubelet::machine::Machine;

    #[test]
    fn b4_an_answer_requested_before_the_node_was_cut_off_again_confirms_no_pod() {
        let machine = Machine::Hollow {
            cpus: 1,
            memory_bytes: 1,
        };
        let trust = LeaseTrust::new(host_of(machine), None);
        assert_eq!(trust.to_confirm("a"), None, "never cut off");
        trust.cut_off();
        let first = trust.to_confirm("a").expect("any pod may be another node's now");
        trust.cut_off();
        trust.confirm("a", first);
        let second = trust.to_confirm("a").expect("the answer is from before");
        trust.confirm("a", second);
        assert_eq!(trust.to_confirm("a"), None);
        assert!(trust.to_confirm("b").is_some());
    }
}
