//! The metrics of reflectors, under client-go's names.

use std::time::Duration;

use knarr_api::Kind;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::{Registry, count};

/// Upper bounds of the durations of lists, in seconds: client-go's.
const LIST_SECONDS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Upper bounds of the durations of watches, in seconds: client-go's.
const WATCH_SECONDS: [f64; 13] = [
    0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];
/// A watch without events that ends sooner counts as short, as in client-go.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// The name of the reflectors of shared informers: client-go's is the place in the source that started them.
const NAME: &str = "SharedInformerFactory";
const LABELS: &[&str] = &["name", "resource_type"];

/// The metrics of the reflectors of one process.
#[derive(Clone, Debug)]
pub struct ReflectorMetrics {
    lists: IntCounterVec,
    list_seconds: HistogramVec,
    listed_items: IntGaugeVec,
    watches: IntCounterVec,
    short_watches: IntCounterVec,
    watch_seconds: HistogramVec,
    watched_objects: IntGaugeVec,
    last_resource_version: IntGaugeVec,
}

impl ReflectorMetrics {
    pub fn new(registry: &Registry) -> Self {
        let counters = |name: &str, help: &str| registry.counters(name, help, LABELS);
        let gauges = |name: &str, help: &str| registry.gauges(name, help, LABELS);
        ReflectorMetrics {
            lists: counters(
                "reflector_lists_total",
                "Total number of API lists done by the reflectors",
            ),
            list_seconds: registry.histograms(
                "reflector_list_duration_seconds",
                "How long an API list takes to return and decode for the reflectors",
                LABELS,
                &LIST_SECONDS,
            ),
            listed_items: gauges(
                "reflector_listed_items",
                "Number of items returned by an API list for the reflectors",
            ),
            watches: counters(
                "reflector_watches_total",
                "Total number of API watches done by the reflectors",
            ),
            short_watches: counters(
                "reflector_short_watches_total",
                "Total number of short API watches done by the reflectors",
            ),
            watch_seconds: registry.histograms(
                "reflector_watch_duration_seconds",
                "How long an API watch takes to return and decode for the reflectors",
                LABELS,
                &WATCH_SECONDS,
            ),
            watched_objects: gauges(
                "reflector_watched_objects",
                "Number of items returned by an API watch for the reflectors",
            ),
            last_resource_version: gauges(
                "reflector_last_resource_version",
                "Last resource version seen by the reflector",
            ),
        }
    }

    /// The series of the reflector of a kind.
    pub(crate) fn of(&self, kind: &Kind) -> KindMetrics {
        let resource_type = format!("*{}.{}", kind.version(), kind.kind());
        let labels = [NAME, resource_type.as_str()];
        KindMetrics {
            lists: self.lists.with_label_values(&labels),
            list_seconds: self.list_seconds.with_label_values(&labels),
            listed_items: self.listed_items.with_label_values(&labels),
            watches: self.watches.with_label_values(&labels),
            short_watches: self.short_watches.with_label_values(&labels),
            watch_seconds: self.watch_seconds.with_label_values(&labels),
            watched_objects: self.watched_objects.with_label_values(&labels),
            last_resource_version: self.last_resource_version.with_label_values(&labels),
        }
    }
}

/// The series of one reflector.
#[derive(Debug)]
pub(crate) struct KindMetrics {
    lists: IntCounter,
    list_seconds: Histogram,
    listed_items: IntGauge,
    watches: IntCounter,
    short_watches: IntCounter,
    watch_seconds: Histogram,
    watched_objects: IntGauge,
    last_resource_version: IntGauge,
}

impl KindMetrics {
    /// The initial list is complete.
    pub fn listed(&self, items: usize, took: Duration) {
        self.lists.inc();
        self.list_seconds.observe(took.as_secs_f64());
        self.listed_items.set(count(items));
    }

    /// A watch has ended.
    pub fn watched(&self, events: usize, took: Duration) {
        self.watches.inc();
        self.watch_seconds.observe(took.as_secs_f64());
        self.watched_objects.set(count(events));
        if events == 0 && took < SHORT_WATCH {
            self.short_watches.inc();
        }
    }

    /// All changes up to this revision have been applied.
    pub fn advanced(&self, revision: u64) {
        self.last_resource_version
            .set(i64::try_from(revision).unwrap_or(i64::MAX));
    }
}
