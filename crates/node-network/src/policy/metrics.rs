//! What is counted.

use std::time::Duration;

use knarr_network::policy::Counts;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntGauge, Registry, TextEncoder, exponential_buckets,
};
use tracing::error;

struct Series {
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

impl Series {
    fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str| {
            let series = IntGauge::new(format!("knarr_network_policy_{name}"), help)?;
            registry.register(Box::new(series.clone()))?;
            Ok::<_, prometheus::Error>(series)
        };
        let opts = HistogramOpts::new(
            "knarr_network_policy_sync_duration_seconds",
            "How long the kernel took to follow a change (partial) or to be compared with everything (full).",
        );
        let opts = opts.buckets(exponential_buckets(0.0005, 2.0, 16)?);
        let sync_seconds = HistogramVec::new(opts, &["kind"])?;
        registry.register(Box::new(sync_seconds.clone()))?;
        let failures = IntCounter::new(
            "knarr_network_policy_sync_failures_total",
            "Attempts to program the kernel that failed.",
        )?;
        registry.register(Box::new(failures.clone()))?;
        Ok(Series {
            policies: gauge("policies", "NetworkPolicies of the cluster.")?,
            local_pods: gauge("local_pods", "Pods of this node with an address.")?,
            isolated_pods: gauge(
                "isolated_pods",
                "Pods of this node that are isolated in at least one direction.",
            )?,
            pods: gauge("pods", "Pods that are known, other nodes' included.")?,
            groups: gauge("groups", "Different combinations of rules, one chain each.")?,
            sets: gauge("sets", "Different sets of peers.")?,
            registry,
            sync_seconds,
            failures,
        })
    }
}

pub(super) struct Metrics {
    /// `None` if the names above were invalid.
    series: Option<Series>,
}

impl Metrics {
    pub fn new() -> Self {
        let series = Series::new();
        if let Err(error) = &series {
            error!(%error, "cannot define metrics of NetworkPolicies");
        }
        Metrics { series: series.ok() }
    }

    pub fn synced(&self, took: Duration, is_full: bool) {
        let kind = if is_full { "full" } else { "partial" };
        let series = self.series.as_ref();
        let histogram: Option<Histogram> =
            series.and_then(|s| s.sync_seconds.get_metric_with_label_values(&[kind]).ok());
        if let Some(histogram) = histogram {
            histogram.observe(took.as_secs_f64());
        }
    }

    pub fn failed(&self) {
        if let Some(series) = &self.series {
            series.failures.inc();
        }
    }

    pub fn text(&self, counts: &Counts) -> String {
        let Some(series) = &self.series else {
            return String::new();
        };
        for (gauge, value) in [
            (&series.policies, counts.policies),
            (&series.local_pods, counts.local_pods),
            (&series.isolated_pods, counts.isolated_pods),
            (&series.pods, counts.pods),
            (&series.groups, counts.groups),
            (&series.sets, counts.sets),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let text = TextEncoder::new().encode_to_string(&series.registry.gather());
        text.unwrap_or_else(|error| {
            error!(%error, "cannot encode metrics of NetworkPolicies");
            String::new()
        })
    }
}
