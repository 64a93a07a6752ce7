//! What is counted.

use std::time::Duration;

use knarr_client::metrics::{Registry, count, doubling};
use knarr_network::policy::Counts;
use prometheus::{HistogramVec, IntCounter, IntGauge};

pub(super) struct Metrics {
    registry: Registry,
    policies: IntGauge,
    local_pods: IntGauge,
    isolated_pods: IntGauge,
    pods: IntGauge,
    groups: IntGauge,
    sets: IntGauge,
    sync_seconds: HistogramVec,
    failures: IntCounter,
}

impl Metrics {
    pub fn new() -> Self {
        let registry = Registry::default();
        let gauge = |name: &str, help: &str| registry.gauge(&format!("knarr_network_policy_{name}"), help);
        Metrics {
            policies: gauge("policies", "NetworkPolicies of the cluster."),
            local_pods: gauge("local_pods", "Pods of this node with an address."),
            isolated_pods: gauge(
                "isolated_pods",
                "Pods of this node that are isolated in at least one direction.",
            ),
            pods: gauge("pods", "Pods that are known, other nodes' included."),
            groups: gauge("groups", "Different combinations of rules, one chain each."),
            sets: gauge("sets", "Different sets of peers."),
            sync_seconds: registry.histograms(
                "knarr_network_policy_sync_duration_seconds",
                "How long the kernel took to follow a change (partial) or to be compared with everything (full).",
                &["kind"],
                &doubling(0.0005, 16),
            ),
            failures: registry.counter(
                "knarr_network_policy_sync_failures_total",
                "Attempts to program the kernel that failed.",
            ),
            registry,
        }
    }

    pub fn synced(&self, took: Duration, is_full: bool) {
        let kind = if is_full { "full" } else { "partial" };
        self.sync_seconds
            .with_label_values(&[kind])
            .observe(took.as_secs_f64());
    }

    pub fn failed(&self) {
        self.failures.inc();
    }

    pub fn text(&self, counts: &Counts) -> String {
        for (gauge, value) in [
            (&self.policies, counts.policies),
            (&self.local_pods, counts.local_pods),
            (&self.isolated_pods, counts.isolated_pods),
            (&self.pods, counts.pods),
            (&self.groups, counts.groups),
            (&self.sets, counts.sets),
        ] {
            gauge.set(count(value));
        }
        self.registry.text()
    }
}
