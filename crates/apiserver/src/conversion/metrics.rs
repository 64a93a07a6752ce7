//! Number and duration of conversion webhook calls, under Kubernetes' metric names.

use std::time::Duration;

use knarr_api::custom::conversion::FailureType;
use knarr_client::metrics::{Registry, doubling};
use prometheus::{HistogramVec, IntCounterVec};

use crate::metrics::Bounded;

/// Upper bounds of the buckets of request durations, in seconds.
const REQUEST_SECONDS: [f64; 15] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0,
];
/// How many series by definition are kept. Definitions are created and deleted without bound: SPEC A6.
const DEFINITION_SERIES_MAX: usize = 1000;

/// The metrics of conversion webhooks. See the module.
pub(crate) struct ConversionMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    definition_seconds: HistogramVec,
    known: Bounded<[String; 3]>,
}

impl ConversionMetrics {
    pub fn new(registry: &Registry) -> Self {
        let of_request = &["failure_type", "result"];
        ConversionMetrics {
            requests: registry.counters(
                "apiserver_conversion_webhook_request_total",
                "Counter for conversion webhook requests with success/failure and failure error type",
                of_request,
            ),
            seconds: registry.histograms(
                "apiserver_conversion_webhook_duration_seconds",
                "Conversion webhook request latency",
                of_request,
                &REQUEST_SECONDS,
            ),
            definition_seconds: registry.histograms(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "CRD webhook conversion duration in seconds",
                &["crd_name", "from_version", "to_version", "succeeded"],
                &doubling(0.001, 15),
            ),
            known: Bounded::at_most(DEFINITION_SERIES_MAX),
        }
    }

    pub(super) fn observe(
        &self,
        definition: &str,
        (from, to): (&str, &str),
        failure: Option<FailureType>,
        took: Duration,
    ) {
        let (failure_type, result) = match &failure {
            None => ("", "success"),
            Some(failure) => (failure.as_str(), "failure"),
        };
        let labels = [failure_type, result];
        self.requests.with_label_values(&labels).inc();
        self.seconds
            .with_label_values(&labels)
            .observe(took.as_secs_f64());
        // A list has the version that it is converted to.
        if from == to || !self.known.admits(&[definition, from, to].map(str::to_string)) {
            return;
        }
        let succeeded = if failure.is_none() { "true" } else { "false" };
        self.definition_seconds
            .with_label_values(&[definition, from, to, succeeded])
            .observe(took.as_secs_f64());
    }
}
