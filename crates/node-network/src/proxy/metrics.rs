//! What the proxy counts, under kube-proxy's names (nftables mode). Both families are committed together, so that what
//! kube-proxy counts for each is the same for both.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_client::metrics::{Registry, count, doubling};
use knarr_network::proxy::Family;
use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};

use super::transaction::FAMILIES;

const FAMILY: &[&str] = &["ip_family"];
const CODE: &[&str] = &["code"];

/// A commit that was made.
pub(super) struct Synced {
    pub took: Duration,
    /// Everything was compared.
    pub is_full: bool,
    pub now: Timestamp,
    /// The age of the slices' triggers.
    pub since_triggered: Vec<SignedDuration>,
}

/// See the module.
pub(super) struct Metrics {
    registry: Registry,
    sync_seconds: HistogramVec,
    full_sync_seconds: HistogramVec,
    partial_sync_seconds: HistogramVec,
    last_sync: GaugeVec,
    last_queued: GaugeVec,
    programming_seconds: HistogramVec,
    endpoint_changes: IntCounter,
    endpoint_changes_pending: IntGauge,
    service_changes: IntCounter,
    service_changes_pending: IntGauge,
    sync_failures: IntCounterVec,
    reconcile_seconds: HistogramVec,
    deleted_flows: IntCounterVec,
    healthz: IntCounterVec,
    livez: IntCounterVec,
}

/// Bounds of the durations until the kernel has a change, in seconds: kube-proxy's.
fn programming_buckets() -> Vec<f64> {
    let linear = |start: f64, width: f64, n: u32| (0..n).map(move |i| start + width * f64::from(i));
    let first = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128];
    first
        .into_iter()
        .chain(linear(0.25, 0.25, 2))
        .chain(linear(1.0, 1.0, 59))
        .chain(linear(60.0, 5.0, 12))
        .chain(linear(120.0, 30.0, 7))
        .collect()
}

impl Metrics {
    pub fn new() -> Self {
        let registry = Registry::default();
        let sync_buckets = doubling(0.001, 15);
        let name_of = |name: &str| format!("kubeproxy_{name}");
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            registry.histograms(&name_of(name), help, FAMILY, buckets)
        };
        let gauges = |name: &str, help: &str| registry.seconds_by(&name_of(name), help, FAMILY);
        let gauge = |name: &str, help: &str| registry.gauge(&name_of(name), help);
        let counter = |name: &str, help: &str| registry.counter(&name_of(name), help);
        let counters =
            |name: &str, help: &str, labels: &[&str]| registry.counters(&name_of(name), help, labels);
        Metrics {
            sync_seconds: histogram(
                "sync_proxy_rules_duration_seconds",
                "How long commits took, the comparison of everything included",
                &sync_buckets,
            ),
            full_sync_seconds: histogram(
                "sync_full_proxy_rules_duration_seconds",
                "How long comparisons of everything took",
                &sync_buckets,
            ),
            partial_sync_seconds: histogram(
                "sync_partial_proxy_rules_duration_seconds",
                "How long commits of changes took",
                &sync_buckets,
            ),
            last_sync: gauges(
                "sync_proxy_rules_last_timestamp_seconds",
                "When the kernel last had everything",
            ),
            last_queued: gauges(
                "sync_proxy_rules_last_queued_timestamp_seconds",
                "When a change last came for the kernel",
            ),
            programming_seconds: histogram(
                "network_programming_duration_seconds",
                "From the change of a Pod or Service to the kernel of this node",
                &programming_buckets(),
            ),
            endpoint_changes: counter(
                "sync_proxy_rules_endpoint_changes_total",
                "Changes of EndpointSlices",
            ),
            endpoint_changes_pending: gauge(
                "sync_proxy_rules_endpoint_changes_pending",
                "Changes of EndpointSlices that the kernel does not have yet",
            ),
            service_changes: counter("sync_proxy_rules_service_changes_total", "Changes of Services"),
            service_changes_pending: gauge(
                "sync_proxy_rules_service_changes_pending",
                "Changes of Services that the kernel does not have yet",
            ),
            sync_failures: counters(
                "sync_proxy_rules_nftables_sync_failures_total",
                "Commits that the kernel rejected",
                FAMILY,
            ),
            reconcile_seconds: histogram(
                "conntrack_reconciler_sync_duration_seconds",
                "How long deleting stale flows took",
                &sync_buckets,
            ),
            deleted_flows: counters(
                "conntrack_reconciler_deleted_entries_total",
                "Stale flows deleted",
                FAMILY,
            ),
            healthz: counters("proxy_healthz_total", "Answers of /healthz", CODE),
            livez: counters("proxy_livez_total", "Answers of /livez", CODE),
            registry,
        }
    }

    /// Changes were queued.
    pub fn queued(&self, service_changes: usize, slice_changes: usize, now: Timestamp) {
        if service_changes + slice_changes == 0 {
            return;
        }
        self.service_changes.inc_by(service_changes as u64);
        self.endpoint_changes.inc_by(slice_changes as u64);
        self.service_changes_pending.add(count(service_changes));
        self.endpoint_changes_pending.add(count(slice_changes));
        set_for_both(&self.last_queued, now);
    }

    /// The kernel has the queued changes.
    pub fn synced(&self, synced: Synced) {
        self.service_changes_pending.set(0);
        self.endpoint_changes_pending.set(0);
        set_for_both(&self.last_sync, synced.now);
        let of_kind = match synced.is_full {
            true => &self.full_sync_seconds,
            false => &self.partial_sync_seconds,
        };
        let seconds = synced.took.as_secs_f64();
        for family in FAMILIES.map(Family::api_name) {
            of_family(&self.sync_seconds, family).observe(seconds);
            of_family(of_kind, family).observe(seconds);
            let programming = of_family(&self.programming_seconds, family);
            for since in &synced.since_triggered {
                programming.observe(since.as_secs_f64().max(0.0));
            }
        }
    }

    /// A commit or a comparison failed.
    pub fn failed(&self) {
        for family in FAMILIES.map(Family::api_name) {
            self.sync_failures.with_label_values(&[family]).inc();
        }
    }

    /// Stale flows were deleted.
    pub fn reconciled(&self, family: Family, took: Duration, deleted: usize) {
        let family = family.api_name();
        of_family(&self.reconcile_seconds, family).observe(took.as_secs_f64());
        let deleted_flows = self.deleted_flows.with_label_values(&[family]);
        deleted_flows.inc_by(deleted as u64);
    }

    pub fn count_healthz(&self, code: u16) {
        self.healthz.with_label_values(&[code.to_string().as_str()]).inc();
    }

    pub fn count_livez(&self, code: u16) {
        self.livez.with_label_values(&[code.to_string().as_str()]).inc();
    }

    /// Prometheus' text format.
    pub fn text(&self) -> String {
        self.registry.text()
    }
}

fn of_family(series: &HistogramVec, family: &str) -> Histogram {
    series.with_label_values(&[family])
}

fn set_for_both(series: &GaugeVec, now: Timestamp) {
    for family in FAMILIES.map(Family::api_name) {
        let gauge = series.with_label_values(&[family]);
        gauge.set(now.as_nanosecond() as f64 / 1e9);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n3_the_series_have_kube_proxys_names() {
        let metrics = Metrics::new();
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        metrics.queued(2, 3, now);
        let pending = "kubeproxy_sync_proxy_rules_endpoint_changes_pending 3";
        assert!(metrics.text().contains(pending));
        metrics.synced(Synced {
            took: Duration::from_millis(3),
            is_full: false,
            now,
            since_triggered: vec![SignedDuration::from_millis(7)],
        });
        metrics.failed();
        metrics.reconciled(Family::V4, Duration::from_millis(1), 5);
        metrics.count_healthz(200);
        metrics.count_livez(503);
        let text = metrics.text();
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 1",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.008\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 0",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 3",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
            "kubeproxy_sync_proxy_rules_service_changes_total 2",
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} 1767225610",
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"} 1",
            "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"} 5",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
            "kubeproxy_proxy_livez_total{code=\"503\"} 1",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
