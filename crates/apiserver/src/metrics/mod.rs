//! The metrics of the API server, under kube-apiserver's names. `docs/metrics.md` lists those that Kubernetes has declared stable.

mod gauges;
pub(crate) mod pod_resources;
mod series;

use std::time::Duration;

use http::StatusCode;
use knarr_api::Kind;
use knarr_client::metrics::{Registry, Samples};
use parking_lot::Mutex;
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use tokio::time::Instant;

pub(crate) use self::gauges::{InFlightGauge, LongRunningGauge};
pub(crate) use self::series::Bounded;
pub use self::series::Series;
use self::series::{DRY_RUN, LABELS};

/// Upper bounds of the durations of requests, in seconds: kube-apiserver's.
const REQUEST_SECONDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// Upper bounds of the sizes of responses, in bytes: kube-apiserver's.
const RESPONSE_BYTES: [f64; 7] = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Bounds for the store, which is faster.
const STORE_SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];
/// Upper bounds of the time that requests wait for a seat, in seconds: kube-apiserver's.
const WAIT_SECONDS: [f64; 13] = [
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];
/// Upper bounds of the durations of admission, in seconds: kube-apiserver's.
const ADMISSION_SECONDS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
/// Upper bounds of the durations of admission webhooks, in seconds: kube-apiserver's.
const WEBHOOK_SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];

/// Upper bounds of the durations of a ValidatingAdmissionPolicy's checks, in seconds: kube-apiserver's.
const POLICY_SECONDS: [f64; 5] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0];

/// Further metrics of the process, in Prometheus' text format.
type Source = Box<dyn Fn() -> String + Send + Sync>;

/// A request that a component's role does not allow, as labels.
pub(crate) struct DeniedRequest<'a> {
    pub user: &'a str,
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
}

/// A phase of admission, as Kubernetes' label `type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdmissionType {
    Admit,
    Validate,
}

impl AdmissionType {
    fn as_str(self) -> &'static str {
        match self {
            AdmissionType::Admit => "admit",
            AdmissionType::Validate => "validate",
        }
    }
}

/// The metrics of an API server.
pub struct Metrics {
    registry: Registry,
    /// Those of `/metrics/slis` (KEP-3466).
    slis: Registry,
    others: Mutex<Vec<Source>>,

    requests: IntCounterVec,
    request_seconds: HistogramVec,
    response_bytes: HistogramVec,
    long_running: IntGaugeVec,
    known_series: Bounded<Series>,
    read_only: IntGauge,
    mutating: IntGauge,
    deprecated: IntGaugeVec,
    rejected: IntCounterVec,
    wait_seconds: HistogramVec,
    known_schemas: Bounded<String>,
    step_seconds: HistogramVec,
    plugin_seconds: HistogramVec,
    webhook_seconds: HistogramVec,
    known_webhooks: Bounded<String>,
    policy_checks: IntCounterVec,
    policy_check_seconds: HistogramVec,
    known_policies: Bounded<String>,

    watch_events: IntCounterVec,
    known_watches: Bounded<String>,
    cache_received: IntCounterVec,
    cache_dispatched: IntCounterVec,
    cache_initializations: IntCounterVec,
    terminated_watchers: IntCounterVec,
    store_seconds: HistogramVec,
    known_resources: Bounded<String>,

    in_process: IntCounter,
    denied: IntCounterVec,
    health: IntGaugeVec,
    health_results: IntCounterVec,
}

impl Default for Metrics {
    fn default() -> Self {
        let (registry, slis) = (Registry::default(), Registry::default());
        let of_kind = &["group", "resource"];
        let of_admission = &["operation", "rejected", "type"];
        let of_policy = &["policy", "policy_binding", "enforcement_action", "error_type"];
        let in_flight = registry.gauges(
            "apiserver_current_inflight_requests",
            "Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
            &["request_kind"],
        );
        Metrics {
            others: Mutex::default(),
            requests: registry.counters(
                "apiserver_request_total",
                "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP \
                 response code.",
                &[LABELS, &[DRY_RUN, "code"]].concat(),
            ),
            request_seconds: registry.histograms(
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
                &[LABELS, &[DRY_RUN]].concat(),
                &REQUEST_SECONDS,
            ),
            response_bytes: registry.histograms(
                "apiserver_response_sizes",
                "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component.",
                LABELS,
                &RESPONSE_BYTES,
            ),
            long_running: registry.gauges(
                "apiserver_longrunning_requests",
                "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all \
                 requests are tracked this way.",
                LABELS,
            ),
            known_series: Bounded::default(),
            read_only: in_flight.with_label_values(&["readOnly"]),
            mutating: in_flight.with_label_values(&["mutating"]),
            deprecated: registry.gauges(
                "apiserver_requested_deprecated_apis",
                "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release.",
                &["group", "version", "resource", "subresource", "removed_release"],
            ),
            rejected: registry.counters(
                "apiserver_flowcontrol_rejected_requests_total",
                "Number of requests rejected by API Priority and Fairness subsystem",
                &["flow_schema", "priority_level", "reason"],
            ),
            wait_seconds: registry.histograms(
                "apiserver_flowcontrol_request_wait_duration_seconds",
                "Length of time a request spent waiting in its queue",
                &["flow_schema", "priority_level", "execute"],
                &WAIT_SECONDS,
            ),
            known_schemas: Bounded::default(),
            step_seconds: registry.histograms(
                "apiserver_admission_step_admission_duration_seconds",
                "Admission sub-step latency histogram in seconds, broken out for each operation and API resource and step type (validate or \
                 admit).",
                of_admission,
                &ADMISSION_SECONDS,
            ),
            plugin_seconds: registry.histograms(
                "apiserver_admission_controller_admission_duration_seconds",
                "Admission controller latency histogram in seconds, identified by name and broken out for each operation and API resource and \
                 type (validate or admit).",
                &[&["name"][..], &of_admission[..]].concat(),
                &ADMISSION_SECONDS,
            ),
            webhook_seconds: registry.histograms(
                "apiserver_admission_webhook_admission_duration_seconds",
                "Admission webhook latency histogram in seconds, identified by name and broken out for each operation and API resource and type \
                 (validate or admit).",
                &[&["name"][..], &of_admission[..]].concat(),
                &WEBHOOK_SECONDS,
            ),
            known_webhooks: Bounded::default(),
            policy_checks: registry.counters(
                "apiserver_validating_admission_policy_check_total",
                "Validation admission policy check total, labeled by policy and further identified by binding and enforcement action taken.",
                of_policy,
            ),
            policy_check_seconds: registry.histograms(
                "apiserver_validating_admission_policy_check_duration_seconds",
                "Validation admission latency for individual validation expressions in seconds, labeled by policy and further including binding \
                 and enforcement action taken.",
                of_policy,
                &POLICY_SECONDS,
            ),
            known_policies: Bounded::default(),
            watch_events: registry.counters(
                "apiserver_watch_events_total",
                "Number of events sent in watch clients",
                &["group", "version", "kind"],
            ),
            known_watches: Bounded::default(),
            cache_received: registry.counters(
                "apiserver_watch_cache_events_received_total",
                "Counter of events received in watch cache broken by resource type.",
                of_kind,
            ),
            cache_dispatched: registry.counters(
                "apiserver_watch_cache_events_dispatched_total",
                "Counter of events dispatched in watch cache broken by resource type.",
                of_kind,
            ),
            cache_initializations: registry.counters(
                "apiserver_watch_cache_initializations_total",
                "Counter of watch cache initializations broken by resource type.",
                of_kind,
            ),
            terminated_watchers: registry.counters(
                "apiserver_terminated_watchers_total",
                "Counter of watchers closed due to unresponsiveness broken by resource type.",
                of_kind,
            ),
            store_seconds: registry.histograms(
                "etcd_request_duration_seconds",
                "Etcd request latency in seconds for each operation and object type.",
                &["operation", "type"],
                &STORE_SECONDS,
            ),
            known_resources: Bounded::default(),
            in_process: registry.counter(
                "knarr_in_process_requests_total",
                "Requests of components in this process.",
            ),
            denied: registry.counters(
                "knarr_component_requests_denied_total",
                "Requests of components in this process that their roles do not allow; none is expected.",
                &["group", "resource", "subresource", "user", "verb"],
            ),
            health: slis.gauges(
                "kubernetes_healthcheck",
                "This metric records the result of a single healthcheck.",
                &["name", "type"],
            ),
            health_results: slis.counters(
                "kubernetes_healthchecks_total",
                "This metric records the results of all healthcheck.",
                &["name", "type", "status"],
            ),
            registry,
            slis,
        }
    }
}

impl Metrics {
    /// Where other parts of the server register their metrics.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts a request of a component in this process.
    pub fn count_in_process(&self) {
        self.in_process.inc();
    }

    /// Counts a request of a component in this process that its role does not allow.
    pub(crate) fn component_denied(&self, denied: &DeniedRequest<'_>) {
        let labels = [
            denied.group,
            denied.resource,
            denied.subresource,
            denied.user,
            denied.verb,
        ];
        self.denied.with_label_values(&labels).inc();
    }

    /// The denied requests of components, as labels.
    pub(crate) fn denied_components(&self) -> Vec<String> {
        use prometheus::core::Collector;
        let families = self.denied.collect();
        let denied = families.iter().flat_map(|family| family.get_metric());
        let labels = denied.map(|metric| {
            let labels = metric.get_label().iter();
            let labels = labels.map(|label| format!("{}=\"{}\"", label.name(), label.value()));
            labels.collect::<Vec<_>>().join(",")
        });
        labels.collect()
    }

    /// A request was answered; `took` if it was not a watch or stream.
    pub fn finished(&self, series: &Series, code: StatusCode, took: Option<Duration>) {
        let series = self.admitted(series);
        let labels = series.labels_with_dry_run();
        let with_code = [&labels[..], &[code.as_str()]].concat();
        self.requests.with_label_values(&with_code).inc();
        if let Some(took) = took {
            self.request_seconds
                .with_label_values(&labels)
                .observe(took.as_secs_f64());
        }
    }

    /// A get or list was answered with so many bytes.
    pub(crate) fn responded(&self, series: &Series, bytes: u64) {
        let series = self.admitted(series);
        let sizes = self.response_bytes.with_label_values(&series.labels());
        sizes.observe(bytes as f64);
    }

    pub fn long_running(&self, series: &Series, change: i64) {
        let series = self.admitted(series);
        self.long_running.with_label_values(&series.labels()).add(change);
    }

    /// The series, or that of all resources without one if there are too many.
    fn admitted<'a>(&self, series: &'a Series) -> std::borrow::Cow<'a, Series> {
        match self.known_series.admits(series) {
            true => std::borrow::Cow::Borrowed(series),
            false => std::borrow::Cow::Owned(series.of_others()),
        }
    }

    pub fn in_flight(&self, mutating: bool, change: i64) {
        let gauge = if mutating { &self.mutating } else { &self.read_only };
        gauge.add(change);
    }

    /// A deprecated API was requested.
    pub(crate) fn deprecated(&self, kind: &Kind, subresource: &str) {
        let labels = [kind.group(), kind.version(), kind.plural(), subresource, ""];
        self.deprecated.with_label_values(&labels).set(1);
    }

    pub fn rejected(&self, schema: &str, level: &str, reason: &str) {
        let (schema, level) = self.schema_labels(schema, level);
        self.rejected.with_label_values(&[schema, level, reason]).inc();
    }

    /// A request has waited for a seat, and got it or not.
    pub(crate) fn waited(&self, schema: &str, level: &str, executes: bool, took: Duration) {
        let (schema, level) = self.schema_labels(schema, level);
        let execute = if executes { "true" } else { "false" };
        self.wait_seconds
            .with_label_values(&[schema, level, execute])
            .observe(took.as_secs_f64());
    }

    fn schema_labels<'a>(&self, schema: &'a str, level: &'a str) -> (&'a str, &'a str) {
        match self.known_schemas.admits(schema) {
            true => (schema, level),
            false => ("", ""),
        }
    }

    /// Times a phase of admission: that it rejected the request, unless [`AdmissionStep::allowed`] is called.
    pub(crate) fn admission_step(&self, of: AdmissionType, operation: &'static str) -> AdmissionStep<'_> {
        AdmissionStep {
            metrics: self,
            of,
            operation,
            rejected: true,
            begun: Instant::now(),
        }
    }

    /// A plugin has decided.
    pub(crate) fn admission_plugin(
        &self,
        name: &'static str,
        of: AdmissionType,
        (operation, rejected): (&str, bool),
        took: Duration,
    ) {
        let rejected = if rejected { "true" } else { "false" };
        self.plugin_seconds
            .with_label_values(&[name, operation, rejected, of.as_str()])
            .observe(took.as_secs_f64());
    }

    /// A webhook has decided. Its label `type` is `admit` or `validating`, as in Kubernetes.
    pub(crate) fn webhook(
        &self,
        name: &str,
        of: &'static str,
        (operation, rejected): (&str, bool),
        took: Duration,
    ) {
        let name = if self.known_webhooks.admits(name) {
            name
        } else {
            ""
        };
        let rejected = if rejected { "true" } else { "false" };
        self.webhook_seconds
            .with_label_values(&[name, operation, rejected, of])
            .observe(took.as_secs_f64());
    }

    /// A ValidatingAdmissionPolicy did not accept an object; `action` is `deny`, `warn` or `audit`.
    pub(crate) fn policy_check(&self, (policy, binding): (&str, &str), action: &str, took: Duration) {
        let (policy, binding) = match self.known_policies.admits(format!("{policy}/{binding}").as_str()) {
            true => (policy, binding),
            false => ("", ""),
        };
        let labels = [policy, binding, action, "no_error"];
        self.policy_checks.with_label_values(&labels).inc();
        self.policy_check_seconds
            .with_label_values(&labels)
            .observe(took.as_secs_f64());
    }

    /// Counts the result of a health check; `of` is `healthz`, `livez` or `readyz`.
    pub fn health_checked(&self, name: &'static str, of: &'static str, ok: bool) {
        self.health.with_label_values(&[name, of]).set(i64::from(ok));
        let status = if ok { "success" } else { "error" };
        self.health_results.with_label_values(&[name, of, status]).inc();
    }

    /// The metrics of `/metrics/slis` (KEP-3466): the health checks that have been called.
    pub fn slis(&self) -> String {
        self.slis.text()
    }

    /// Counts the events that are sent to watchers of a kind.
    pub(crate) fn watch_events_of(&self, group: &str, version: &str, kind: &str) -> IntCounter {
        let labels = match self
            .known_watches
            .admits(format!("{group}/{version}/{kind}").as_str())
        {
            true => [group, version, kind],
            false => [""; 3],
        };
        self.watch_events.with_label_values(&labels)
    }

    /// The watch cache has applied a change; so many watchers were closed because they did not read theirs.
    pub(crate) fn cache_event(&self, kind: &Kind, terminated_watchers: usize) {
        let labels = self.kind_labels(kind);
        self.cache_received.with_label_values(&labels).inc();
        self.cache_dispatched.with_label_values(&labels).inc();
        if terminated_watchers > 0 {
            let terminated = self.terminated_watchers.with_label_values(&labels);
            terminated.inc_by(terminated_watchers as u64);
        }
    }

    /// The watch cache of a kind was filled.
    pub(crate) fn cache_initialized(&self, kind: &Kind) {
        let labels = self.kind_labels(kind);
        self.cache_initializations.with_label_values(&labels).inc();
    }

    fn kind_labels<'a>(&self, kind: &'a Kind) -> [&'a str; 2] {
        match self.known_resources.admits(kind.plural()) {
            true => [kind.group(), kind.plural()],
            false => [""; 2],
        }
    }

    pub fn store_took(&self, operation: &'static str, resource: &str, took: Duration) {
        let resource = match self.known_resources.admits(resource) {
            true => resource,
            false => "",
        };
        self.store_seconds
            .with_label_values(&[operation, resource])
            .observe(took.as_secs_f64());
    }

    pub fn show(&self, source: Source) {
        self.others.lock().push(source);
    }

    /// All metrics in Prometheus' text format; `samples` are those of the server's state.
    pub fn text(&self, samples: Samples) -> String {
        let others: String = self.others.lock().iter().map(|source| source()).collect();
        self.registry.text() + &samples.text() + &others
    }
}

/// A phase of admission of one request.
pub(crate) struct AdmissionStep<'a> {
    metrics: &'a Metrics,
    of: AdmissionType,
    operation: &'static str,
    rejected: bool,
    begun: Instant,
}

impl AdmissionStep<'_> {
    pub fn allowed(mut self) {
        self.rejected = false;
    }
}

impl Drop for AdmissionStep<'_> {
    fn drop(&mut self) {
        let rejected = if self.rejected { "true" } else { "false" };
        self.metrics
            .step_seconds
            .with_label_values(&[self.operation, rejected, self.of.as_str()])
            .observe(self.begun.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::series::SERIES_MAX;
    use super::*;
    use crate::request::RequestInfo;
    use http::Method;

    #[test]
    fn requests_are_counted_by_what_they_ask_for() {
        let metrics = Metrics::default();
        let of = |method: &Method, path: &str| RequestInfo::parse(method, path, false);
        let list = of(&Method::GET, "/api/v1/namespaces/a/pods");
        for millis in [1, 30, 90_000] {
            let took = Duration::from_millis(millis);
            metrics.finished(&Series::of(&list, true, false), StatusCode::OK, Some(took));
        }
        let unknown = of(&Method::GET, "/apis/made.up/v1/things");
        metrics.finished(&Series::of(&unknown, false, false), StatusCode::NOT_FOUND, None);
        let text = metrics.text(Samples::default());
        let pods = "component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"pods\",scope=\"namespace\",subresource=\"\",verb=\"LIST\",version=\"v1\"";
        for line in [
            format!("apiserver_request_total{{code=\"200\",{pods}}} 3"),
            format!("apiserver_request_duration_seconds_bucket{{{pods},le=\"0.005\"}} 1"),
            format!("apiserver_request_duration_seconds_bucket{{{pods},le=\"60\"}} 2"),
            format!("apiserver_request_duration_seconds_bucket{{{pods},le=\"+Inf\"}} 3"),
            format!("apiserver_request_duration_seconds_count{{{pods}}} 3"),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("made.up"));
        assert!(text.contains("code=\"404\""));
    }

    #[test]
    fn a6_resources_that_come_and_go_do_not_make_series_without_bound() {
        let metrics = Metrics::default();
        for n in 0..SERIES_MAX + 100 {
            let list = RequestInfo::parse(&Method::GET, &format!("/apis/example.com/v1/things{n}"), false);
            metrics.finished(&Series::of(&list, true, false), StatusCode::OK, None);
            metrics
                .watch_events_of("example.com", "v1", &format!("Thing{n}"))
                .inc();
            metrics.store_took("get", &format!("things{n}"), Duration::ZERO);
        }
        let text = metrics.text(Samples::default());
        for name in [
            "apiserver_request_total{",
            "apiserver_watch_events_total{",
            "etcd_request_duration_seconds_count{",
        ] {
            let series = text.lines().filter(|line| line.starts_with(name)).count();
            assert_eq!(series, SERIES_MAX + 1, "{name}");
        }
        let others = "component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"\",scope=\"\",subresource=\"\",verb=\"LIST\",version=\"\"";
        let line = format!("apiserver_request_total{{code=\"200\",{others}}} 100");
        assert!(text.lines().any(|l| l == line));
    }

    #[test]
    fn a6_the_denied_requests_of_components_are_named_by_their_labels() {
        let metrics = Metrics::default();
        metrics.component_denied(&DeniedRequest {
            user: "system:node:n",
            verb: "get",
            group: "",
            resource: "pods",
            subresource: "",
        });
        let expected = "group=\"\",resource=\"pods\",subresource=\"\",user=\"system:node:n\",verb=\"get\"";
        assert_eq!(metrics.denied_components(), [expected]);
    }
}
