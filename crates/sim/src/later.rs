//! Effects after some time of the history.

use std::time::Duration;

use tokio::time::sleep;

/// Does this after so long, in a task of its own.
pub(crate) fn later(length: Duration, what: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        sleep(length).await;
        what();
    });
}
