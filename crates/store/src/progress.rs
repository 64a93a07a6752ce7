//! How far an engine has notified its watchers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::Revision;

/// The revision up to which all watchers have been notified. Those that wait for it to move wake in the order in which they
/// began to wait, unlike those of `tokio::sync::watch`, whose order is random: simulated histories depend on it.
#[derive(Debug)]
pub(crate) struct Progress {
    revision: AtomicU64,
    moved: Notify,
}

impl Progress {
    pub fn new(revision: Revision) -> Arc<Self> {
        Arc::new(Progress {
            revision: AtomicU64::new(revision),
            moved: Notify::new(),
        })
    }

    pub fn revision(&self) -> Revision {
        self.revision.load(Ordering::Acquire)
    }

    pub fn set(&self, revision: Revision) {
        self.revision.store(revision, Ordering::Release);
        self.moved.notify_waiters();
    }

    /// Waits until it is not this revision.
    pub async fn moves_from(&self, revision: Revision) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            moved.as_mut().enable();
            if self.revision() != revision {
                return;
            }
            moved.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn s9_watchers_wake_in_the_order_in_which_they_wait() {
        const WATCHERS: usize = 20;
        let progress = Progress::new(1);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for watcher in 0..WATCHERS {
            let (progress, woken) = (progress.clone(), woken.clone());
            tasks.push(tokio::spawn(async move {
                progress.moves_from(1).await;
                woken.lock().unwrap().push(watcher);
            }));
        }
        // All of them wait.
        tokio::task::yield_now().await;
        progress.set(2);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*woken.lock().unwrap(), (0..WATCHERS).collect::<Vec<_>>());
    }
}
