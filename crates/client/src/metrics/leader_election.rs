//! The metrics of leader election, under client-go's names.

use prometheus::{IntCounterVec, IntGaugeVec};

use super::Registry;

/// See the module.
#[derive(Clone, Debug)]
pub struct LeaderElectionMetrics {
    master_status: IntGaugeVec,
    slowpath: IntCounterVec,
}

impl LeaderElectionMetrics {
    pub fn new(registry: &Registry) -> Self {
        LeaderElectionMetrics {
            master_status: registry.gauges(
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master.",
                &["name"],
            ),
            slowpath: registry.counters(
                "leader_election_slowpath_total",
                "Total number of slow path exercised in renewing leader leases.",
                &["name"],
            ),
        }
    }

    pub(crate) fn set_leading(&self, lease: &str, is_leading: bool) {
        let status = self.master_status.with_label_values(&[lease]);
        status.set(i64::from(is_leading));
    }

    /// A renewal had to read the lease first.
    pub(crate) fn slowpath(&self, lease: &str) {
        self.slowpath.with_label_values(&[lease]).inc();
    }
}
