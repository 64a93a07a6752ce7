//! Counters for `/metrics`, under Kubernetes' names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::authz::Attributes;
use crate::request::RequestInfo;

/// Upper bounds of durations, in seconds; the last bucket is what took longer.
const BOUNDS: [f64; 16] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 60.0,
];
/// Those of the store, which is faster.
const STORE_BOUNDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// How many took at most so long.
#[derive(Clone)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Histogram {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0.0,
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn observe(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        let at = self.bounds.partition_point(|b| *b < seconds);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum += seconds;
    }

    pub(crate) fn write(&self, out: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut so_far = 0;
        for (count, bound) in self.counts.iter().zip(self.bounds) {
            so_far += count;
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {so_far}");
        }
        so_far += self.counts.last().copied().unwrap_or(0);
        let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {so_far}");
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}", self.sum);
        let _ = writeln!(out, "{name}_count{{{labels}}} {so_far}");
    }
}

/// The most series that one metric has. They are named after resources that are or were served, and definitions come and
/// go: what comes once so many names have been seen is counted without its resource. Each takes some hundred bytes.
const SERIES_MAX: usize = 10_000;

/// The entry of a series, or of `other` where the metric has as many as it may have.
fn bounded<K: Ord, V: Default>(all: &mut BTreeMap<K, V>, key: K, other: impl FnOnce() -> K) -> &mut V {
    let key = match all.len() < SERIES_MAX || all.contains_key(&key) {
        true => key,
        false => other(),
    };
    all.entry(key).or_default()
}

/// What a request is counted under; only what this server knows, so that nobody makes up series.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Series {
    pub verb: &'static str,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub scope: &'static str,
    pub dry_run: bool,
}

impl Series {
    /// `known`: whether the resource is served, and the subresource, if one is asked for.
    pub fn of(info: &RequestInfo, known: bool, dry_run: bool) -> Self {
        let verb = match info.verb {
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "create" | "post" => "POST",
            "update" | "put" => "PUT",
            "patch" => "PATCH",
            "delete" => "DELETE",
            "deletecollection" => "DELETECOLLECTION",
            "head" => "GET",
            _ => "other",
        };
        if !info.is_resource || !known {
            return Series {
                verb,
                ..Series::default()
            };
        }
        let scope = match (
            info.name.is_empty() && info.verb != "create",
            info.namespace.is_empty(),
        ) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
        Series {
            verb,
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: info.subresource.clone(),
            scope,
            dry_run,
        }
    }

    /// The series of all resources that have none of their own.
    fn of_others(&self) -> Self {
        Series {
            verb: self.verb,
            ..Series::default()
        }
    }

    fn labels(&self) -> String {
        let Series {
            verb,
            group,
            version,
            resource,
            subresource,
            scope,
            dry_run,
        } = self;
        let dry_run = if *dry_run { "All" } else { "" };
        format!(
            "component=\"apiserver\",dry_run=\"{dry_run}\",group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",\
subresource=\"{subresource}\",verb=\"{verb}\",version=\"{version}\""
        )
    }
}

#[derive(Default)]
struct Requests {
    by_code: BTreeMap<u16, u64>,
    took: Option<Histogram>,
    running: i64,
}

/// What else in the process has something to show, in Prometheus' text form.
type Source = Box<dyn Fn() -> String + Send + Sync>;

/// All of them.
#[derive(Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<Series, Requests>>,
    in_process: AtomicU64,
    /// By the labels.
    denied: Mutex<BTreeMap<String, u64>>,
    read_only: AtomicI64,
    mutating: AtomicI64,
    /// By the labels.
    rejected: Mutex<BTreeMap<String, u64>>,
    watch_events: Mutex<BTreeMap<String, u64>>,
    store: Mutex<BTreeMap<(&'static str, String), Option<Histogram>>>,
    others: Mutex<Vec<Source>>,
    /// By name and by which of the three paths asked.
    health: Mutex<BTreeMap<(&'static str, &'static str), Checked>>,
}

/// The results of one health check.
#[derive(Default)]
struct Checked {
    last: bool,
    passed: u64,
    failed: u64,
}

impl Metrics {
    /// One more request of a component in this process.
    pub fn count_in_process(&self) {
        self.in_process.fetch_add(1, Ordering::Relaxed);
    }

    /// A component in this process asked for what its role does not allow.
    pub(crate) fn component_denied(&self, user: &str, request: &Attributes<'_>) {
        let Attributes {
            verb,
            group,
            resource,
            subresource,
            ..
        } = request;
        let labels = format!(
            "group=\"{group}\",resource=\"{resource}\",subresource=\"{subresource}\",user=\"{user}\",verb=\"{verb}\""
        );
        *self.denied.lock().entry(labels).or_default() += 1;
    }

    /// What components were denied, as labels.
    pub(crate) fn denied_components(&self) -> Vec<String> {
        self.denied.lock().keys().cloned().collect()
    }

    pub fn finished(&self, series: Series, code: u16, took: Option<Duration>) {
        let mut requests = self.requests.lock();
        let others = series.of_others();
        let entry = bounded(&mut requests, series, || others);
        *entry.by_code.entry(code).or_default() += 1;
        if let Some(took) = took {
            entry
                .took
                .get_or_insert_with(|| Histogram::new(&BOUNDS))
                .observe(took);
        }
    }

    pub fn long_running(&self, series: &Series, change: i64) {
        let mut requests = self.requests.lock();
        match requests.get_mut(series) {
            Some(entry) => entry.running += change,
            None => {
                let entry = bounded(&mut requests, series.clone(), || series.of_others());
                entry.running += change;
            }
        }
    }

    pub fn in_flight(&self, mutating: bool, change: i64) {
        let gauge = if mutating { &self.mutating } else { &self.read_only };
        gauge.fetch_add(change, Ordering::Relaxed);
    }

    pub fn rejected(&self, schema: &str, level: &str, reason: &str) {
        let labels = format!("flow_schema=\"{schema}\",priority_level=\"{level}\",reason=\"{reason}\"");
        let others = || format!("flow_schema=\"\",priority_level=\"\",reason=\"{reason}\"");
        *bounded(&mut self.rejected.lock(), labels, others) += 1;
    }

    /// The result of a health check; `of` is `healthz`, `livez` or `readyz`.
    pub fn health_checked(&self, name: &'static str, of: &'static str, ok: bool) {
        let mut all = self.health.lock();
        let checked = all.entry((name, of)).or_default();
        checked.last = ok;
        match ok {
            true => checked.passed += 1,
            false => checked.failed += 1,
        }
    }

    /// What `/metrics/slis` answers (KEP-3466): the health checks that have been asked.
    pub fn slis(&self) -> String {
        let mut out = String::new();
        let all = self.health.lock();
        let (name, help) = ("kubernetes_healthcheck", "The last result of each health check.");
        head(&mut out, name, "gauge", help);
        for ((check, of), checked) in all.iter() {
            let _ = writeln!(
                out,
                "{name}{{name=\"{check}\",type=\"{of}\"}} {}",
                u8::from(checked.last)
            );
        }
        let (name, help) = (
            "kubernetes_healthchecks_total",
            "The results of each health check.",
        );
        head(&mut out, name, "counter", help);
        for ((check, of), checked) in all.iter() {
            for (status, n) in [("error", checked.failed), ("success", checked.passed)] {
                if n > 0 {
                    let _ = writeln!(
                        out,
                        "{name}{{name=\"{check}\",status=\"{status}\",type=\"{of}\"}} {n}"
                    );
                }
            }
        }
        out
    }

    /// Events that were sent to watchers of a kind.
    pub fn watched(&self, group: &str, version: &str, kind: &str, events: u64) {
        let labels = format!("group=\"{group}\",kind=\"{kind}\",version=\"{version}\"");
        let others = || "group=\"\",kind=\"\",version=\"\"".to_string();
        *bounded(&mut self.watch_events.lock(), labels, others) += events;
    }

    pub fn store_took(&self, operation: &'static str, resource: &str, took: Duration) {
        let mut all = self.store.lock();
        let key = (operation, resource.to_string());
        bounded(&mut all, key, || (operation, String::new()))
            .get_or_insert_with(|| Histogram::new(&STORE_BOUNDS))
            .observe(took);
    }

    pub fn show(&self, source: Source) {
        self.others.lock().push(source);
    }

    pub fn others(&self) -> String {
        self.others.lock().iter().map(|source| source()).collect()
    }

    /// In Prometheus' text form.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let requests = self.requests.lock();
        head(
            &mut out,
            "apiserver_request_total",
            "counter",
            "Requests by what they asked for and the code of the answer.",
        );
        for (series, found) in requests.iter() {
            for (code, n) in &found.by_code {
                let _ = writeln!(
                    out,
                    "apiserver_request_total{{code=\"{code}\",{}}} {n}",
                    series.labels()
                );
            }
        }
        head(
            &mut out,
            "apiserver_request_duration_seconds",
            "histogram",
            "How long requests took, watches and streams left out.",
        );
        for (series, found) in requests.iter() {
            if let Some(took) = &found.took {
                took.write(&mut out, "apiserver_request_duration_seconds", &series.labels());
            }
        }
        head(
            &mut out,
            "apiserver_longrunning_requests",
            "gauge",
            "Watches and streams that are open.",
        );
        for (series, found) in requests.iter().filter(|(_, f)| f.running != 0) {
            let _ = writeln!(
                out,
                "apiserver_longrunning_requests{{{}}} {}",
                series.labels(),
                found.running
            );
        }
        drop(requests);
        head(
            &mut out,
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests that are being worked on.",
        );
        for (kind, gauge) in [("mutating", &self.mutating), ("readOnly", &self.read_only)] {
            let n = gauge.load(Ordering::Relaxed);
            let _ = writeln!(
                out,
                "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {n}"
            );
        }
        head(
            &mut out,
            "apiserver_flowcontrol_rejected_requests_total",
            "counter",
            "Requests that were answered 429.",
        );
        for (labels, n) in self.rejected.lock().iter() {
            let _ = writeln!(
                out,
                "apiserver_flowcontrol_rejected_requests_total{{{labels}}} {n}"
            );
        }
        head(
            &mut out,
            "apiserver_watch_events_total",
            "counter",
            "Events that were sent to watchers.",
        );
        for (labels, n) in self.watch_events.lock().iter() {
            let _ = writeln!(out, "apiserver_watch_events_total{{{labels}}} {n}");
        }
        head(
            &mut out,
            "etcd_request_duration_seconds",
            "histogram",
            "How long the store took.",
        );
        for ((operation, resource), took) in self.store.lock().iter() {
            let labels = format!("operation=\"{operation}\",type=\"{resource}\"");
            if let Some(took) = took {
                took.write(&mut out, "etcd_request_duration_seconds", &labels);
            }
        }
        head(
            &mut out,
            "knarr_in_process_requests_total",
            "counter",
            "Requests of components in this process.",
        );
        let _ = writeln!(
            out,
            "knarr_in_process_requests_total {}",
            self.in_process.load(Ordering::Relaxed)
        );
        head(
            &mut out,
            "knarr_component_requests_denied_total",
            "counter",
            "Requests of components in this process that their roles do not allow; none is expected.",
        );
        for (labels, count) in self.denied.lock().iter() {
            let _ = writeln!(out, "knarr_component_requests_denied_total{{{labels}}} {count}");
        }
        out
    }
}

/// What stands above a metric.
pub(crate) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[test]
    fn requests_are_counted_by_what_they_ask_for() {
        let metrics = Metrics::default();
        let of = |method: &Method, path: &str| RequestInfo::parse(method, path, false);
        let list = of(&Method::GET, "/api/v1/namespaces/a/pods");
        for millis in [1, 30, 90_000] {
            let took = Duration::from_millis(millis);
            metrics.finished(Series::of(&list, true, false), 200, Some(took));
        }
        let unknown = of(&Method::GET, "/apis/made.up/v1/things");
        metrics.finished(Series::of(&unknown, false, false), 404, None);
        let text = metrics.text();
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
            metrics.finished(Series::of(&list, true, false), 200, None);
            metrics.watched("example.com", "v1", &format!("Thing{n}"), 1);
            metrics.store_took("get", &format!("things{n}"), Duration::ZERO);
        }
        assert_eq!(metrics.requests.lock().len(), SERIES_MAX + 1);
        assert_eq!(metrics.watch_events.lock().len(), SERIES_MAX + 1);
        assert_eq!(metrics.store.lock().len(), SERIES_MAX + 1);
        let others = "component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"\",scope=\"\",subresource=\"\",verb=\"LIST\",version=\"\"";
        let line = format!("apiserver_request_total{{code=\"200\",{others}}} 100");
        assert!(metrics.text().lines().any(|l| l == line));
    }
}
