//! What is done to the cache and the store at intervals: old revisions are compacted, and old changes and decoded values that are not needed
//! are dropped.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Cache;

/// How long the store keeps history, for lists that continue; Kubernetes' etcd compaction interval.
const COMPACT_EVERY: Duration = Duration::from_secs(5 * 60);

/// How often typed values that were decoded, and are most likely not needed any more, are dropped.
const SLIM_EVERY: Duration = Duration::from_secs(30);

/// How often changes that are too old to be resumed from are dropped.
const FORGET_EVERY: Duration = Duration::from_secs(15);

/// How many of these intervals a change is kept, if the window has room: 75 s, as in kube-apiserver (`DefaultEventFreshDuration`). That is more than the time
/// between the bookmarks of a watch, so that a client that watches again at once has a revision that is kept.
const FRESH_INTERVALS: usize = 5;

/// Compacts, slims and forgets while it exists.
pub(crate) struct CacheMaintenance {
    pub cache: Arc<Cache>,
}

/// Compacts revisions older than one to two intervals.
pub(crate) async fn compact(maintenance: Weak<CacheMaintenance>) {
    let mut before = 0;
    loop {
        tokio::time::sleep(COMPACT_EVERY).await;
        let Some(maintenance) = maintenance.upgrade() else {
            return;
        };
        if before > 0
            && let Err(e) = maintenance.cache.store().compact(before).await
        {
            // Another server of the cluster may have compacted further.
            tracing::debug!("compaction to revision {before} failed: {e}");
        }
        before = maintenance.cache.revision();
    }
}

pub(crate) async fn slim(maintenance: Weak<CacheMaintenance>) {
    loop {
        tokio::time::sleep(SLIM_EVERY).await;
        let Some(maintenance) = maintenance.upgrade() else {
            return;
        };
        maintenance.cache.slim();
    }
}

/// Drops the changes that are older than [`FRESH_INTERVALS`]. After many writes they are most of the cache's memory, also if every object
/// that was written has been deleted.
pub(crate) async fn forget_changes(maintenance: Weak<CacheMaintenance>) {
    // The cache's revision at each of the last intervals.
    let mut revisions = VecDeque::with_capacity(FRESH_INTERVALS + 1);
    loop {
        tokio::time::sleep(FORGET_EVERY).await;
        let Some(maintenance) = maintenance.upgrade() else {
            return;
        };
        revisions.push_back(maintenance.cache.revision());
        if revisions.len() > FRESH_INTERVALS
            && let Some(revision) = revisions.pop_front()
        {
            maintenance.cache.forget_changes(revision);
        }
    }
}
