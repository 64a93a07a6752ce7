//! What is done to the cache and the store at intervals: old revisions are compacted, and decoded values that are not needed are dropped.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Cache;

/// How long the store keeps history, for lists that continue; Kubernetes' etcd compaction interval.
const COMPACT_EVERY: Duration = Duration::from_secs(5 * 60);

/// How often typed values that were decoded, and are most likely not needed any more, are dropped.
const SLIM_EVERY: Duration = Duration::from_secs(30);

/// Compacts and slims while it exists.
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
