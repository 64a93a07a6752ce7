//! The metrics of the controller, with kube-controller-manager's names.

use std::time::Duration;

use knarr_client::ObjectKey;
use knarr_client::metrics::{Registry, count, doubling};
use knarr_controllers::podautoscaling::{Computation, Report};
use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec};

/// See the module. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciliations: IntCounterVec,
    seconds: HistogramVec,
    computations: IntCounterVec,
    computation_seconds: HistogramVec,
    known: IntGauge,
    desired: IntGaugeVec,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let labels = &["action", "error"];
        let of_metric = &["action", "error", "metric_type"];
        let buckets = doubling(0.001, 15);
        Metrics {
            reconciliations: registry.counters(
                "horizontal_pod_autoscaler_controller_reconciliations_total",
                "Number of reconciliations of HPA controller. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the \
                 label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a \
                 reconciliation, the first one to occur is reported in `error` label.",
                labels,
            ),
            seconds: registry.histograms(
                "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
                "The time(seconds) that the HPA controller takes to reconcile once. The label 'action' should be either 'scale_down', 'scale_up', \
                 or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors \
                 happen during a reconciliation, the first one to occur is reported in `error` label.",
                labels,
                &buckets,
            ),
            computations: registry.counters(
                "horizontal_pod_autoscaler_controller_metric_computation_total",
                "Number of metric computations. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' \
                 should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type",
                of_metric,
            ),
            computation_seconds: registry.histograms(
                "horizontal_pod_autoscaler_controller_metric_computation_duration_seconds",
                "The time(seconds) that the HPA controller takes to calculate one metric. The label 'action' should be either 'scale_down', \
                 'scale_up', or 'none'. The label 'error' should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to \
                 HPA.spec.metrics[*].type",
                of_metric,
                &buckets,
            ),
            known: registry.gauge(
                "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers",
                "Current number of controlled HPA objects.",
            ),
            desired: registry.gauges(
                "horizontal_pod_autoscaler_controller_desired_replicas",
                "Current desired replica count for HPA objects.",
                &["namespace", "hpa_name"],
            ),
        }
    }

    pub(super) fn known(&self, autoscalers: usize) {
        self.known.set(count(autoscalers));
    }

    pub(super) fn reconciled(&self, key: &ObjectKey, report: &Report, took: Duration) {
        // Errors of the spec are rejected by the API server; what is left is of metrics and targets.
        let error = if report.error.is_some() {
            "internal"
        } else {
            "none"
        };
        let labels = [report.action, error];
        self.reconciliations.with_label_values(&labels).inc();
        self.seconds
            .with_label_values(&labels)
            .observe(took.as_secs_f64());
        let desired = self.desired.with_label_values(&[&key.namespace, &key.name]);
        desired.set(report.status.desired_replicas.into());
    }

    /// A metric was read and computed in this time.
    pub(super) fn computed(&self, computation: &Computation, took: Duration) {
        let error = if computation.has_failed {
            "internal"
        } else {
            "none"
        };
        let labels = [computation.action, error, &computation.metric_type];
        self.computations.with_label_values(&labels).inc();
        let seconds = self.computation_seconds.with_label_values(&labels);
        seconds.observe(took.as_secs_f64());
    }

    /// An autoscaler was deleted.
    pub(super) fn forget(&self, key: &ObjectKey) {
        // An error means that there was no such series.
        let _ = self.desired.remove_label_values(&[&key.namespace, &key.name]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_have_valid_and_different_names() {
        let registry = Registry::default();
        let metrics = Metrics::new(&registry);
        metrics.known(3);
        let computation = Computation {
            metric_type: "Resource".into(),
            action: "scale_up",
            has_failed: false,
        };
        metrics.computed(&computation, Duration::from_millis(5));
        let page = registry.text();
        for line in [
            "# HELP horizontal_pod_autoscaler_controller_metric_computation_total [BETA] Number of metric computations. The label 'action' should be",
            "horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers 3",
            "horizontal_pod_autoscaler_controller_metric_computation_total{action=\"scale_up\",error=\"none\",metric_type=\"Resource\"} 1",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
    }
}
