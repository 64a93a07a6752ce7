//! Waiting for a condition whose changes a [`Notify`] announces.

use tokio::sync::Notify;

/// Waits until the check yields a value. It is made at once, and again after each `notify_waiters`.
pub async fn notified_until<T>(changed: &Notify, check: impl Fn() -> Option<T>) -> T {
    loop {
        let mut notified = std::pin::pin!(changed.notified());
        // Registered before the check, so that no notification is missed between the two.
        notified.as_mut().enable();
        if let Some(value) = check() {
            return value;
        }
        notified.await;
    }
}
