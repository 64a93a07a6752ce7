//! The metrics of a process, under Kubernetes' names and in Prometheus' text format.
//!
//! What happens is counted by series of a [`Registry`]; what is known only when the metrics are read is written as [`Samples`]. Both use the
//! `prometheus` crate: clients of Kubernetes expect version 0.0.4 of the text format, with timestamps and with names as they are
//! (`apiserver_storage_objects`, `container_cpu_usage_seconds_total`), which `prometheus-client`, a library for OpenMetrics, does not write.
//! There is no registry of the process: each component gets its own from its constructor, so that servers of one simulation do not share one.

pub mod leader_election;
mod level;
pub mod reflector;
pub mod rest_client;
mod samples;
pub mod workqueue;

use prometheus::core::Collector;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    TextEncoder,
};

pub use self::samples::Samples;
pub use prometheus::Histogram;
pub use prometheus::proto::MetricType;

/// The content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The series of a component. Clones share them.
///
/// Names and labels are constants of the program: to register an invalid name, or one name twice, panics.
#[derive(Clone, Debug, Default)]
pub struct Registry(prometheus::Registry);

impl Registry {
    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.registered(IntCounter::new(name, help))
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
    }

    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.registered(IntGauge::new(name, help))
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    /// Gauges of seconds, which are not whole numbers.
    pub fn seconds_by(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.registered(GaugeVec::new(Opts::new(name, help), labels))
    }

    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.registered(Histogram::with_opts(opts))
    }

    pub fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.registered(HistogramVec::new(opts, labels))
    }

    /// Registers series that are updated when they are read.
    pub fn register(&self, collector: impl Collector + 'static) {
        if let Err(error) = self.0.register(Box::new(collector)) {
            panic!("the metrics cannot be registered: {error}");
        }
    }

    fn registered<C: Collector + Clone + 'static>(&self, series: prometheus::Result<C>) -> C {
        match series {
            Ok(series) => {
                self.register(series.clone());
                series
            }
            Err(error) => panic!("an invalid metric: {error}"),
        }
    }

    /// All series that have a value, in the text format.
    pub fn text(&self) -> String {
        let mut families = self.0.gather();
        level::annotate(&mut families);
        encode(&families)
    }
}

fn encode(families: &[prometheus::proto::MetricFamily]) -> String {
    let encoded = TextEncoder::new().encode_to_string(families);
    encoded.unwrap_or_else(|error| {
        tracing::error!(%error, "the metrics cannot be written");
        String::new()
    })
}

/// A histogram of no registry, for [`Samples::histograms`], which gives it name and labels.
pub fn histogram(buckets: &[f64]) -> Histogram {
    match Histogram::with_opts(HistogramOpts::new("unnamed", "Unnamed.").buckets(buckets.to_vec())) {
        Ok(histogram) => histogram,
        Err(error) => panic!("invalid buckets: {error}"),
    }
}

/// The upper bounds of `count` buckets, each twice the one before.
pub fn doubling(start: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * 2.0))
        .take(count)
        .collect()
}

/// A number of things as a gauge's value.
pub fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_written_by_name_with_their_labels_by_name() {
        let registry = Registry::default();
        let requests = registry.counters("z_requests_total", "Requests.", &["verb", "code"]);
        requests.with_label_values(&["GET", "200"]).inc_by(3);
        registry.gauge("a_depth", "Depth.").set(2);
        registry.counters("m_unused_total", "Has no value.", &["label"]);
        let seconds = registry.histogram("h_seconds", "Durations.", &doubling(0.5, 2));
        seconds.observe(0.7);
        assert_eq!(
            registry.text(),
            "# HELP a_depth [ALPHA] Depth.\n\
             # TYPE a_depth gauge\n\
             a_depth 2\n\
             # HELP h_seconds [ALPHA] Durations.\n\
             # TYPE h_seconds histogram\n\
             h_seconds_bucket{le=\"0.5\"} 0\n\
             h_seconds_bucket{le=\"1\"} 1\n\
             h_seconds_bucket{le=\"+Inf\"} 1\n\
             h_seconds_sum 0.7\n\
             h_seconds_count 1\n\
             # HELP z_requests_total [ALPHA] Requests.\n\
             # TYPE z_requests_total counter\n\
             z_requests_total{code=\"200\",verb=\"GET\"} 3\n"
        );
    }
}
