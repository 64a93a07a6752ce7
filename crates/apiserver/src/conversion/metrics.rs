//! How often conversion webhooks were called, and how long they took, under Kubernetes' names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use knarr_api::custom::conversion::FailureType;
use parking_lot::Mutex;

use crate::metrics::{Histogram, head};

/// Upper bounds of a request's duration, in seconds.
const REQUEST_BOUNDS: [f64; 15] = [
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0,
];
/// Those of the metric that names the definition: they double.
const DEFINITION_BOUNDS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];
/// How many series that name a definition are kept. Definitions come and go: SPEC A6.
const DEFINITION_SERIES_MAX: usize = 1000;

/// See the module.
#[derive(Default)]
pub(crate) struct ConversionMetrics {
    requests: Mutex<BTreeMap<Option<FailureType>, Histogram>>,
    definitions: Mutex<BTreeMap<String, Histogram>>,
}

impl ConversionMetrics {
    pub(super) fn observe(
        &self,
        definition: &str,
        (from, to): (&str, &str),
        failure: Option<FailureType>,
        took: Duration,
    ) {
        let mut requests = self.requests.lock();
        let of_request = requests
            .entry(failure)
            .or_insert_with(|| Histogram::new(&REQUEST_BOUNDS));
        of_request.observe(took);
        drop(requests);
        // A list is of the version that it becomes.
        if from == to {
            return;
        }
        let succeeded = failure.is_none();
        let labels = format!(
            "crd_name=\"{definition}\",from_version=\"{from}\",succeeded=\"{succeeded}\",to_version=\"{to}\""
        );
        let mut definitions = self.definitions.lock();
        if definitions.len() < DEFINITION_SERIES_MAX || definitions.contains_key(&labels) {
            let of_definition = definitions
                .entry(labels)
                .or_insert_with(|| Histogram::new(&DEFINITION_BOUNDS));
            of_definition.observe(took);
        }
    }

    /// In Prometheus' text form; empty where no webhook was called.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let requests = self.requests.lock();
        if requests.is_empty() {
            return out;
        }
        let labels = |failure: &Option<FailureType>| match failure {
            None => "failure_type=\"\",result=\"success\"".to_string(),
            Some(failure) => format!("failure_type=\"{}\",result=\"failure\"", failure.as_str()),
        };
        let name = "apiserver_conversion_webhook_request_total";
        head(
            &mut out,
            name,
            "counter",
            "Calls of conversion webhooks, by result.",
        );
        for (failure, took) in requests.iter() {
            let _ = writeln!(out, "{name}{{{}}} {}", labels(failure), took.count());
        }
        let name = "apiserver_conversion_webhook_duration_seconds";
        head(
            &mut out,
            name,
            "histogram",
            "How long calls of conversion webhooks took.",
        );
        for (failure, took) in requests.iter() {
            took.write(&mut out, name, &labels(failure));
        }
        drop(requests);
        let name = "apiserver_crd_conversion_webhook_duration_seconds";
        head(
            &mut out,
            name,
            "histogram",
            "How long conversions took, by definition and versions.",
        );
        for (labels, took) in self.definitions.lock().iter() {
            took.write(&mut out, name, labels);
        }
        out
    }
}
