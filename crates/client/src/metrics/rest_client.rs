//! The metrics of requests to the API server, under client-go's names.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec};

use super::Registry;

/// Upper bounds of durations, in seconds: client-go's.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// See the module.
#[derive(Clone, Debug)]
pub struct RestClientMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
}

impl RestClientMetrics {
    pub fn new(registry: &Registry) -> Self {
        RestClientMetrics {
            requests: registry.counters(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "method", "host"],
            ),
            seconds: registry.histograms(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                &["verb", "host"],
                &SECONDS,
            ),
        }
    }

    /// A request was answered with this code; `None`: it got no answer.
    pub(crate) fn count(&self, host: &str, method: &str, code: Option<u16>, took: Duration) {
        let code = code.map_or_else(|| "<error>".to_string(), |code| code.to_string());
        self.requests
            .with_label_values(&[code.as_str(), method, host])
            .inc();
        self.seconds
            .with_label_values(&[method, host])
            .observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_code_method_and_host() {
        let registry = Registry::default();
        let metrics = RestClientMetrics::new(&registry);
        metrics.count("10.0.0.1:6443", "GET", Some(200), Duration::from_millis(7));
        metrics.count("10.0.0.1:6443", "GET", None, Duration::from_secs(2));
        let text = registry.text();
        for line in [
            r#"rest_client_requests_total{code="200",host="10.0.0.1:6443",method="GET"} 1"#,
            r#"rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="GET"} 1"#,
            r#"rest_client_request_duration_seconds_bucket{host="10.0.0.1:6443",verb="GET",le="0.025"} 1"#,
            r#"rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="GET"} 2"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
