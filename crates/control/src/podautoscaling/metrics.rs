//! What the controller counts, under kube-controller-manager's names.

use std::sync::Arc;
use std::time::Duration;

use knarr_client::ObjectKey;
use knarr_controllers::podautoscaling::{Computation, Report};
use prometheus::core::Collector;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    exponential_buckets,
};

const SUBSYSTEM: &str = "horizontal_pod_autoscaler_controller";

#[derive(Debug)]
struct Series {
    registry: Registry,
    reconciliations: IntCounterVec,
    seconds: HistogramVec,
    computations: IntCounterVec,
    computation_seconds: HistogramVec,
    known: IntGauge,
    desired: IntGaugeVec,
}

impl Series {
    fn new() -> prometheus::Result<Self> {
        let opts = |name: &str, help: &str| Opts::new(name, help).subsystem(SUBSYSTEM);
        let labels = ["action", "error"];
        let duration = HistogramOpts::new(
            "reconciliation_duration_seconds",
            "How long the controller needed to reconcile an autoscaler.",
        );
        let duration = duration
            .subsystem(SUBSYSTEM)
            .buckets(exponential_buckets(0.001, 2.0, 15)?);
        let of_metric = ["action", "error", "metric_type"];
        let computation = HistogramOpts::new(
            "metric_computation_duration_seconds",
            "How long the controller needed to read and compute one metric.",
        );
        let computation = computation
            .subsystem(SUBSYSTEM)
            .buckets(exponential_buckets(0.001, 2.0, 15)?);
        let series = Series {
            reconciliations: IntCounterVec::new(
                opts("reconciliations_total", "Reconciliations of autoscalers."),
                &labels,
            )?,
            seconds: HistogramVec::new(duration, &labels)?,
            computations: IntCounterVec::new(
                opts("metric_computation_total", "Metrics that were computed."),
                &of_metric,
            )?,
            computation_seconds: HistogramVec::new(computation, &of_metric)?,
            known: IntGauge::with_opts(opts("num_horizontal_pod_autoscalers", "Autoscalers."))?,
            desired: IntGaugeVec::new(
                opts("desired_replicas", "Replicas that an autoscaler asks for."),
                &["namespace", "hpa_name"],
            )?,
            registry: Registry::new(),
        };
        let all: [Box<dyn Collector>; 6] = [
            Box::new(series.reconciliations.clone()),
            Box::new(series.seconds.clone()),
            Box::new(series.computations.clone()),
            Box::new(series.computation_seconds.clone()),
            Box::new(series.known.clone()),
            Box::new(series.desired.clone()),
        ];
        for collector in all {
            series.registry.register(collector)?;
        }
        Ok(series)
    }
}

/// See the module. Clones count together; nothing is counted where the series could not be made.
#[derive(Clone, Debug)]
pub struct Metrics(Option<Arc<Series>>);

impl Default for Metrics {
    fn default() -> Self {
        // The names are constants: that they are valid and different is shown by a test.
        let series = Series::new();
        if let Err(error) = &series {
            tracing::error!(%error, "autoscaling is not counted");
        }
        Metrics(series.ok().map(Arc::new))
    }
}

impl Metrics {
    /// The page, in Prometheus' text form.
    pub fn text(&self) -> String {
        let Some(series) = &self.0 else {
            return String::new();
        };
        let encoded = TextEncoder::new().encode_to_string(&series.registry.gather());
        encoded.unwrap_or_else(|error| {
            tracing::error!(%error, "the metrics of autoscaling cannot be written");
            String::new()
        })
    }

    pub(super) fn known(&self, autoscalers: usize) {
        if let Some(series) = &self.0 {
            series.known.set(i64::try_from(autoscalers).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn reconciled(&self, key: &ObjectKey, report: &Report, took: Duration) {
        let Some(series) = &self.0 else { return };
        // Errors of the spec are rejected by the API server; what is left is of metrics and targets.
        let error = if report.error.is_some() {
            "internal"
        } else {
            "none"
        };
        let labels = [report.action, error];
        series.reconciliations.with_label_values(&labels).inc();
        series
            .seconds
            .with_label_values(&labels)
            .observe(took.as_secs_f64());
        let desired = series.desired.with_label_values(&[&key.namespace, &key.name]);
        desired.set(report.status.desired_replicas.into());
    }

    /// A metric was read and computed in this time.
    pub(super) fn computed(&self, computation: &Computation, took: Duration) {
        let Some(series) = &self.0 else { return };
        let error = if computation.has_failed {
            "internal"
        } else {
            "none"
        };
        let labels = [computation.action, error, &computation.metric_type];
        series.computations.with_label_values(&labels).inc();
        let seconds = series.computation_seconds.with_label_values(&labels);
        seconds.observe(took.as_secs_f64());
    }

    /// An autoscaler was deleted.
    pub(super) fn forget(&self, key: &ObjectKey) {
        if let Some(series) = &self.0 {
            // An error means that there was no such series.
            let _ = series.desired.remove_label_values(&[&key.namespace, &key.name]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_have_valid_and_different_names() {
        Series::new().unwrap();
        let metrics = Metrics::default();
        metrics.known(3);
        let computation = Computation {
            metric_type: "Resource".into(),
            action: "scale_up",
            has_failed: false,
        };
        metrics.computed(&computation, Duration::from_millis(5));
        let page = metrics.text();
        for line in [
            "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers 3",
            "horizontal_pod_autoscaler_controller_metric_computation_total{action=\"scale_up\",error=\"none\",metric_type=\"Resource\"} 1",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
