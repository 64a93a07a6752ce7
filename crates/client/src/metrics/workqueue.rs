//! The metrics of work queues, under client-go's names.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use tokio::time::Instant;

use super::Registry;

/// Upper bounds of durations, in seconds: component-base's, each ten times the one before.
const SECONDS: [f64; 10] = [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0];
const NAME: &[&str] = &["name"];

/// The metrics of all work queues of a component, by the queue's name.
#[derive(Clone, Debug)]
pub struct WorkqueueMetrics {
    adds: IntCounterVec,
    depth: IntGaugeVec,
    queue_seconds: HistogramVec,
    work_seconds: HistogramVec,
    retries: IntCounterVec,
    unfinished: Unfinished,
}

impl WorkqueueMetrics {
    pub fn new(registry: &Registry) -> Self {
        let unfinished = Unfinished::new();
        registry.register(unfinished.clone());
        WorkqueueMetrics {
            adds: registry.counters(
                "workqueue_adds_total",
                "Total number of adds handled by workqueue",
                NAME,
            ),
            depth: registry.gauges("workqueue_depth", "Current depth of workqueue", NAME),
            queue_seconds: registry.histograms(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
                NAME,
                &SECONDS,
            ),
            work_seconds: registry.histograms(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
                NAME,
                &SECONDS,
            ),
            retries: registry.counters(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue",
                NAME,
            ),
            unfinished,
        }
    }

    /// The series of a new queue. It replaces an earlier queue of this name.
    pub(crate) fn of(&self, name: &str) -> QueueMetrics {
        let name = &[name];
        let series = QueueMetrics {
            adds: self.adds.with_label_values(name),
            depth: self.depth.with_label_values(name),
            queue_seconds: self.queue_seconds.with_label_values(name),
            work_seconds: self.work_seconds.with_label_values(name),
            retries: self.retries.with_label_values(name),
            processing: Arc::default(),
        };
        series.depth.set(0);
        let processing = series.processing.clone();
        self.unfinished
            .queues
            .lock()
            .insert(name[0].to_string(), processing);
        series
    }
}

/// When the work on each key began that is not done.
type Processing = Arc<Mutex<Vec<Instant>>>;

/// The series of one queue.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    adds: IntCounter,
    depth: IntGauge,
    queue_seconds: Histogram,
    work_seconds: Histogram,
    retries: IntCounter,
    processing: Processing,
}

impl QueueMetrics {
    /// A key was added that was not waiting.
    pub fn added(&self) {
        self.adds.inc();
    }

    /// So many keys are ready.
    pub fn set_depth(&self, ready: usize) {
        self.depth.set(super::count(ready));
    }

    /// A worker begins with a key that was added then.
    pub fn begun(&self, added: Instant, now: Instant) {
        self.queue_seconds
            .observe(now.duration_since(added).as_secs_f64());
        self.processing.lock().push(now);
    }

    /// A worker is done with a key that it began with then.
    pub fn done(&self, begun: Instant) {
        self.work_seconds.observe(begun.elapsed().as_secs_f64());
        let mut processing = self.processing.lock();
        if let Some(at) = processing.iter().position(|one| *one == begun) {
            processing.swap_remove(at);
        }
    }

    /// A key was added rate-limited.
    pub fn retried(&self) {
        self.retries.inc();
    }
}

/// The work that is in progress, computed when it is read.
#[derive(Clone, Debug)]
struct Unfinished {
    sum: GaugeVec,
    longest: GaugeVec,
    queues: Arc<Mutex<BTreeMap<String, Processing>>>,
}

impl Unfinished {
    fn new() -> Self {
        let gauges = |name: &str, help: &str| match GaugeVec::new(Opts::new(name, help), NAME) {
            Ok(gauges) => gauges,
            Err(error) => panic!("an invalid metric: {error}"),
        };
        Unfinished {
            sum: gauges(
                "workqueue_unfinished_work_seconds",
                "How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values indicate stuck \
                 threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
            ),
            longest: gauges(
                "workqueue_longest_running_processor_seconds",
                "How many seconds has the longest running processor for workqueue been running.",
            ),
            queues: Arc::default(),
        }
    }
}

impl Collector for Unfinished {
    fn desc(&self) -> Vec<&Desc> {
        [self.sum.desc(), self.longest.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for (name, processing) in &*self.queues.lock() {
            let seconds = processing.lock();
            let seconds = seconds.iter().map(|begun| begun.elapsed().as_secs_f64());
            let (sum, longest) = seconds.fold((0.0, 0.0_f64), |(sum, longest), one| {
                (sum + one, longest.max(one))
            });
            self.sum.with_label_values(&[name]).set(sum);
            self.longest.with_label_values(&[name]).set(longest);
        }
        [self.sum.collect(), self.longest.collect()].concat()
    }
}
