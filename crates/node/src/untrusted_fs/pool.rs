//! Runs what may block off the async workers: so many at once, for each pod and altogether, and each waited for only so long.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Calls at once of one pod. A file system that does not answer holds up this many threads for it and no more.
const OF_ONE_MAX: usize = 4;
/// Calls at once altogether; tokio has 512 threads for all that blocks.
const ALL_MAX: usize = 128;
/// How long a caller waits. The call itself cannot be cancelled; it keeps its permits until it returns.
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the file system did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    #[error(transparent)]
    File(#[from] io::Error),
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::File(error) => error,
            Error::Timeout => io::Error::new(io::ErrorKind::TimedOut, error.to_string()),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Set for a pool that runs every call on the caller's thread: its kubelet has been killed when this is cancelled.
    inline: Option<CancellationToken>,
    all: Arc<Semaphore>,
    each: Arc<Mutex<BTreeMap<String, Arc<Semaphore>>>>,
    limit: Duration,
}

impl Pool {
    pub fn new() -> Self {
        Pool::with_limit(TIMEOUT)
    }

    pub(super) fn with_limit(limit: Duration) -> Self {
        Pool {
            inline: None,
            all: Arc::new(Semaphore::new(ALL_MAX)),
            each: Arc::default(),
            limit,
        }
    }

    /// For hollow nodes: nothing blocks there, and everything happens in one order. After `killed` no call is run, and none
    /// returns: the process of a killed kubelet would not exist any more, while here its tasks still wait for timeouts.
    pub fn inline(killed: CancellationToken) -> Self {
        Pool {
            inline: Some(killed),
            ..Pool::new()
        }
    }

    /// Runs `call` for the pod of this uid (or another key).
    pub async fn run<T: Send + 'static>(
        &self,
        of: impl AsRef<str>,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        if let Some(killed) = &self.inline {
            if killed.is_cancelled() {
                std::future::pending::<()>().await;
            }
            return Ok(call()?);
        }
        let permits = async {
            // A semaphore that is never closed returns permits.
            let own = self
                .of(of.as_ref())
                .acquire_owned()
                .await
                .map_err(io::Error::other)?;
            let all = self.all.clone().acquire_owned().await.map_err(io::Error::other)?;
            Ok::<[OwnedSemaphorePermit; 2], io::Error>([own, all])
        };
        let done = async {
            let permits = permits.await?;
            let called = tokio::task::spawn_blocking(move || {
                let answer = call();
                drop(permits);
                answer
            });
            Ok(called.await.map_err(io::Error::other)??)
        };
        timeout(self.limit, done).await.unwrap_or(Err(Error::Timeout))
    }

    fn of(&self, of: &str) -> Arc<Semaphore> {
        let mut each = self.each.lock();
        if !each.contains_key(of) {
            // Entries without calls in progress are removed.
            each.retain(|_, s| Arc::strong_count(s) > 1 || s.available_permits() < OF_ONE_MAX);
        }
        let made = || Arc::new(Semaphore::new(OF_ONE_MAX));
        each.entry(of.to_string()).or_insert_with(made).clone()
    }
}

impl Default for Pool {
    fn default() -> Self {
        Pool::new()
    }
}
