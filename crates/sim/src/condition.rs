//! The health of a node's container runtime and host programs: slow, or failing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use knarr_node::runtime::{Result, RuntimeError};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::random::Stream;

/// The error rates of a runtime.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    /// Calls that fail before anything is done, per mille; as many fail after it.
    pub failing: u32,
    pub slowest_millis: u64,
}

/// The health of a node's runtime, over all incarnations of its kubelet.
pub(crate) struct Condition {
    state: Mutex<(Health, Stream)>,
    /// Counts the host's reboots: calls in progress do not survive one.
    boots: Arc<AtomicU64>,
}

impl Condition {
    pub fn new(chance: Stream) -> Self {
        Condition {
            state: Mutex::new((Health::default(), chance)),
            boots: Arc::default(),
        }
    }

    pub fn set(&self, health: Health) {
        self.state.lock().0 = health;
    }

    /// Whether every call is carried out, if slowly.
    pub fn is_reliable(&self) -> bool {
        self.state.lock().0.failing == 0
    }

    pub fn rebooted(&self) {
        self.boots.fetch_add(1, Ordering::Relaxed);
    }

    /// How long a call takes, and whether it fails before anything is done, or after it.
    pub fn draw(&self) -> (Duration, bool, bool) {
        let mut state = self.state.lock();
        let (health, chance) = &mut *state;
        let slow = health.slowest_millis > 0 && chance.per_mille(300);
        let delay = chance.millis(0, if slow { health.slowest_millis } else { 3 });
        (
            delay,
            chance.per_mille(health.failing),
            chance.per_mille(health.failing),
        )
    }

    /// A call that was begun is carried out even if its caller has died, unless the host is switched off before.
    pub async fn order<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (delay, before, after) = self.draw();
        if before {
            sleep(delay).await;
            return Err(failed());
        }
        let (done, answer) = oneshot::channel();
        let boots = self.boots.clone();
        let boot = boots.load(Ordering::Relaxed);
        tokio::spawn(async move {
            sleep(delay).await;
            if boot != boots.load(Ordering::Relaxed) {
                return;
            }
            // The caller may have died.
            let _ = done.send(call.await);
        });
        let answer = answer.await.unwrap_or_else(|_| Err(failed()));
        if after { Err(failed()) } else { answer }
    }
}

pub(crate) fn failed() -> RuntimeError {
    RuntimeError::new("Unavailable", "the runtime failed")
}
