//! How full claimed volumes are.
//!
//! A network file system may not answer at all and would block the caller: each is measured on its own thread, is not
//! awaited for longer than a moment, and not measured again before it has answered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::disk::{self, Filesystem};

/// For all of them together.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Measurements without an answer yet.
#[derive(Default)]
pub(super) struct ClaimedVolumes {
    pending: BTreeMap<PathBuf, oneshot::Receiver<Option<Filesystem>>>,
}

impl ClaimedVolumes {
    /// What is known now: nothing of those that do not answer.
    pub async fn measure(&mut self, paths: impl Iterator<Item = PathBuf>) -> BTreeMap<PathBuf, Filesystem> {
        self.measure_with(paths, disk::mounted).await
    }

    async fn measure_with(
        &mut self,
        paths: impl Iterator<Item = PathBuf>,
        ask: fn(&std::path::Path) -> Option<Filesystem>,
    ) -> BTreeMap<PathBuf, Filesystem> {
        for path in paths {
            if self.pending.contains_key(&path) {
                continue;
            }
            let (answer, answered) = oneshot::channel();
            let pending = path.clone();
            let thread = std::thread::Builder::new().name("volume".into());
            // The answer may not be awaited any more.
            let started = thread.spawn(move || {
                let _ = answer.send(ask(&pending));
            });
            match started {
                Ok(_) => drop(self.pending.insert(path, answered)),
                Err(error) => warn!(path = %path.display(), %error, "cannot measure a volume's usage"),
            }
        }
        let until = Instant::now() + TIMEOUT;
        let mut found = BTreeMap::new();
        for (path, mut answered) in std::mem::take(&mut self.pending) {
            match timeout_at(until, &mut answered).await {
                Ok(Ok(Some(filesystem))) => drop(found.insert(path, filesystem)),
                // It was removed, or does not exist.
                Ok(Ok(None) | Err(_)) => {}
                Err(_) => drop(self.pending.insert(path, answered)),
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static MEASURED: AtomicUsize = AtomicUsize::new(0);

    fn hangs(path: &Path) -> Option<Filesystem> {
        if path.starts_with("/hangs") {
            MEASURED.fetch_add(1, Ordering::SeqCst);
            std::thread::park();
        }
        disk::mounted(path)
    }

    #[tokio::test]
    async fn t8_a_volume_that_does_not_answer_delays_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let paths = || {
            [
                PathBuf::from("/hangs"),
                dir.path().into(),
                dir.path().join("gone"),
            ]
            .into_iter()
        };
        let mut claimed = ClaimedVolumes::default();
        for _ in 0..2 {
            let found = claimed.measure_with(paths(), hangs).await;
            assert_eq!(found.keys().collect::<Vec<_>>(), [dir.path()]);
        }
        assert_eq!(MEASURED.load(Ordering::SeqCst), 1, "not asked again");
    }
}
