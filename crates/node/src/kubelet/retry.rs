//! Retries of what cannot be given up.

use std::time::Duration;

use tokio::time::sleep;
use tracing::warn;

/// Between two attempts: at first, doubled up to the second.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Tries until it is so.
pub(super) async fn retry_until_done<T, E, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, E>>,
    E: std::fmt::Display,
{
    let mut wait = RETRY.0;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => warn!(%error, "cannot {what} yet"),
        }
        sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}
