//! How full claimed volumes are.
//!
//! A filesystem of another machine's may not answer at all, and then holds up whoever asks: each is asked on a thread of
//! its own, is not waited for longer than a moment, and not asked again before it has answered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::disk::{self, Filesystem};

/// For all of them together.
const PATIENCE: Duration = Duration::from_secs(1);

/// Who has not answered yet.
#[derive(Default)]
pub(super) struct Claimed {
    asked: BTreeMap<PathBuf, oneshot::Receiver<Option<Filesystem>>>,
}

impl Claimed {
    /// What is known now: nothing of those that do not answer.
    pub async fn look(&mut self, paths: impl Iterator<Item = PathBuf>) -> BTreeMap<PathBuf, Filesystem> {
        self.look_with(paths, disk::mounted).await
    }

    async fn look_with(
        &mut self,
        paths: impl Iterator<Item = PathBuf>,
        ask: fn(&std::path::Path) -> Option<Filesystem>,
    ) -> BTreeMap<PathBuf, Filesystem> {
        for path in paths {
            if self.asked.contains_key(&path) {
                continue;
            }
            let (answer, answered) = oneshot::channel();
            let asked = path.clone();
            let thread = std::thread::Builder::new().name("volume".into());
            // Nobody waits for the answer when the node is not measured any more.
            let started = thread.spawn(move || {
                let _ = answer.send(ask(&asked));
            });
            match started {
                Ok(_) => drop(self.asked.insert(path, answered)),
                Err(error) => warn!(path = %path.display(), %error, "cannot ask how full a volume is"),
            }
        }
        let until = Instant::now() + PATIENCE;
        let mut found = BTreeMap::new();
        for (path, mut answered) in std::mem::take(&mut self.asked) {
            match timeout_at(until, &mut answered).await {
                Ok(Ok(Some(filesystem))) => drop(found.insert(path, filesystem)),
                // It is gone, or is none.
                Ok(Ok(None) | Err(_)) => {}
                Err(_) => drop(self.asked.insert(path, answered)),
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

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn hangs(path: &Path) -> Option<Filesystem> {
        if path.starts_with("/hangs") {
            ASKED.fetch_add(1, Ordering::SeqCst);
            std::thread::park();
        }
        disk::mounted(path)
    }

    #[tokio::test]
    async fn t8_a_volume_that_does_not_answer_holds_up_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let paths = || {
            [
                PathBuf::from("/hangs"),
                dir.path().into(),
                dir.path().join("gone"),
            ]
            .into_iter()
        };
        let mut claimed = Claimed::default();
        for _ in 0..2 {
            let found = claimed.look_with(paths(), hangs).await;
            assert_eq!(found.keys().collect::<Vec<_>>(), [dir.path()]);
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 1, "not asked again");
    }
}
