//! A value that tasks wait for.
//!
//! Like `tokio::sync::watch`, which wakes its receivers in a random order; here waiters are woken in the order of their
//! arrival, so that a simulated history can be replayed.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// See the module.
#[derive(Debug, Default)]
pub struct Signal<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T: Clone> Signal<T> {
    pub fn new(value: T) -> Self {
        Signal {
            value: Mutex::new(value),
            changed: Notify::new(),
        }
    }

    pub fn get(&self) -> T {
        self.value.lock().clone()
    }

    /// Wakes all waiters.
    pub fn set(&self, value: T) {
        *self.value.lock() = value;
        self.changed.notify_waiters();
    }

    /// Changes the value in place and wakes all waiters.
    pub fn update(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.value.lock());
        self.changed.notify_waiters();
    }

    /// Returns the value as soon as it is one that `holds` accepts.
    pub async fn wait_for(&self, mut holds: impl FnMut(&T) -> bool) -> T {
        loop {
            // Registered before the value is read, so that no change falls between.
            let changed = self.changed.notified();
            {
                let value = self.value.lock();
                if holds(&value) {
                    return value.clone();
                }
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn waiters_are_notified_of_every_change_in_their_order() {
        let signal = Arc::new(Signal::new(0));
        let received = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = tokio::task::JoinSet::new();
        for name in 0..5 {
            let (signal, received) = (signal.clone(), received.clone());
            waiting.spawn(async move {
                let value = signal.wait_for(|value| *value > name % 2).await;
                received.lock().push((name, value));
            });
        }
        tokio::task::yield_now().await;
        signal.set(1);
        tokio::task::yield_now().await;
        signal.update(|value| *value += 1);
        waiting.join_all().await;
        assert_eq!(*received.lock(), [(0, 1), (2, 1), (4, 1), (1, 2), (3, 2)]);
        assert_eq!(
            signal.wait_for(|value| *value == 2).await,
            2,
            "what holds already"
        );
    }
}
