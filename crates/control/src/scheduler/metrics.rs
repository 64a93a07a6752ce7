//! What the scheduler counts, under kube-scheduler's names.

use std::sync::{Arc, Weak};

use knarr_scheduler::Scheduler;
use parking_lot::Mutex;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    TextEncoder, exponential_buckets,
};

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Scheduled,
    Unschedulable,
    Error,
}

impl Attempt {
    fn as_str(self) -> &'static str {
        match self {
            Attempt::Scheduled => "scheduled",
            Attempt::Unschedulable => "unschedulable",
            Attempt::Error => "error",
        }
    }
}

#[derive(Debug)]
struct Series {
    registry: Registry,
    attempts: IntCounterVec,
    attempt_seconds: HistogramVec,
    algorithm_seconds: Histogram,
    victims: Histogram,
    preemptions: IntCounter,
    pods: Histogram,
    sli_seconds: HistogramVec,
    pending: IntGaugeVec,
    unschedulable: IntGaugeVec,
    cache: IntGaugeVec,
    claims: IntCounterVec,
}

/// See the module. Clones count together; nothing is counted where the series could not be made.
#[derive(Clone, Debug)]
pub struct Metrics {
    series: Option<Arc<Series>>,
    /// The scheduler whose queue is counted at each scrape.
    scheduler: Arc<Mutex<Weak<Mutex<Scheduler>>>>,
}

impl Default for Metrics {
    fn default() -> Self {
        // The names are constants: that they are valid and different is shown by a test.
        let series = Series::new();
        if let Err(error) = &series {
            tracing::error!(%error, "the scheduler counts nothing");
        }
        Metrics {
            series: series.ok().map(Arc::new),
            scheduler: Arc::default(),
        }
    }
}

impl Series {
    fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let opts = |name: &str, help: &str| Opts::new(name, help).subsystem("scheduler");
        let histogram = |name: &str, help: &str, start: f64, count: usize| {
            let opts = HistogramOpts::new(name, help).subsystem("scheduler");
            exponential_buckets(start, 2.0, count).map(|buckets| opts.buckets(buckets))
        };
        let series = Series {
            attempts: IntCounterVec::new(
                opts(
                    "schedule_attempts_total",
                    "Attempts to place pods, by what came of them.",
                ),
                &["result", "profile"],
            )?,
            attempt_seconds: HistogramVec::new(
                histogram(
                    "scheduling_attempt_duration_seconds",
                    "How long an attempt took, binding included.",
                    0.001,
                    15,
                )?,
                &["result", "profile"],
            )?,
            algorithm_seconds: Histogram::with_opts(histogram(
                "scheduling_algorithm_duration_seconds",
                "How long a decision took.",
                0.001,
                15,
            )?)?,
            victims: Histogram::with_opts(histogram(
                "preemption_victims",
                "How many pods had to go for one.",
                1.0,
                7,
            )?)?,
            preemptions: IntCounter::with_opts(opts(
                "preemption_attempts_total",
                "Attempts to make room by preemption.",
            ))?,
            pods: Histogram::with_opts(histogram(
                "pod_scheduling_attempts",
                "How many attempts it took until a pod was placed.",
                1.0,
                5,
            )?)?,
            sli_seconds: HistogramVec::new(
                histogram(
                    "pod_scheduling_sli_duration_seconds",
                    "How long it took from when the pod was there until it was bound, by the number of attempts.",
                    0.01,
                    20,
                )?,
                &["attempts"],
            )?,
            pending: IntGaugeVec::new(
                opts("pending_pods", "Pods without a node, by the queue they are in."),
                &["queue"],
            )?,
            unschedulable: IntGaugeVec::new(
                opts(
                    "unschedulable_pods",
                    "Pods that fit nowhere, by each plugin that is against them.",
                ),
                &["plugin", "profile"],
            )?,
            cache: IntGaugeVec::new(opts("cache_size", "What the scheduler knows of."), &["type"])?,
            claims: IntCounterVec::new(
                opts(
                    "resourceclaim_creates_total",
                    "ResourceClaims created for extended resources, by what came of it.",
                ),
                &["status"],
            )?,
            registry,
        };
        let all: [Box<dyn prometheus::core::Collector>; 11] = [
            Box::new(series.attempts.clone()),
            Box::new(series.attempt_seconds.clone()),
            Box::new(series.algorithm_seconds.clone()),
            Box::new(series.victims.clone()),
            Box::new(series.preemptions.clone()),
            Box::new(series.pods.clone()),
            Box::new(series.sli_seconds.clone()),
            Box::new(series.pending.clone()),
            Box::new(series.unschedulable.clone()),
            Box::new(series.cache.clone()),
            Box::new(series.claims.clone()),
        ];
        for collector in all {
            series.registry.register(collector)?;
        }
        Ok(series)
    }
}

impl Metrics {
    /// The page, in Prometheus' text form.
    pub fn text(&self) -> String {
        let Some(series) = &self.series else {
            return String::new();
        };
        if let Some(scheduler) = self.scheduler.lock().upgrade() {
            series.observe(&scheduler.lock());
        }
        let encoded = TextEncoder::new().encode_to_string(&series.registry.gather());
        encoded.unwrap_or_else(|error| {
            tracing::error!(%error, "the scheduler's metrics cannot be written");
            String::new()
        })
    }

    pub(super) fn of(&self, scheduler: &Arc<Mutex<Scheduler>>) {
        *self.scheduler.lock() = Arc::downgrade(scheduler);
    }

    pub(super) fn decided(&self, seconds: f64) {
        if let Some(series) = &self.series {
            series.algorithm_seconds.observe(seconds);
        }
    }

    pub(super) fn attempted(&self, what: Attempt, profile: &str, seconds: f64) {
        if let Some(series) = &self.series {
            let labels = [what.as_str(), profile];
            series.attempts.with_label_values(&labels).inc();
            series.attempt_seconds.with_label_values(&labels).observe(seconds);
        }
    }

    /// A claim for extended resources was created, or could not be.
    pub(super) fn claim_created(&self, created: bool) {
        if let Some(series) = &self.series {
            let status = if created { "success" } else { "failure" };
            series.claims.with_label_values(&[status]).inc();
        }
    }

    pub(super) fn placed(&self, attempts: u32, seconds: f64) {
        if let Some(series) = &self.series {
            series.pods.observe(attempts.into());
            // As kube-scheduler: sixteen and more are one.
            let shown = if attempts >= 16 {
                "16+".to_string()
            } else {
                attempts.to_string()
            };
            series.sli_seconds.with_label_values(&[&shown]).observe(seconds);
        }
    }

    pub(super) fn preempted(&self, victims: usize) {
        if let Some(series) = &self.series {
            series.preemptions.inc();
            series.victims.observe(victims as f64);
        }
    }
}

impl Series {
    fn observe(&self, scheduler: &Scheduler) {
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let lengths = scheduler.queue_lengths();
        for (queue, pods) in [
            ("active", lengths.active),
            ("backoff", lengths.backoff),
            ("unschedulable", lengths.unschedulable),
            ("gated", scheduler.gated()),
        ] {
            self.pending.with_label_values(&[queue]).set(count(pods));
        }
        self.unschedulable.reset();
        for ((plugin, profile), pods) in scheduler.unschedulable_by() {
            let gauge = self.unschedulable.with_label_values(&[plugin, &*profile]);
            gauge.set(count(pods));
        }
        for (what, known) in [
            ("nodes", scheduler.cluster().len()),
            ("pods", scheduler.standing()),
            ("assumed_pods", scheduler.assumed()),
        ] {
            self.cache.with_label_values(&[what]).set(count(known));
        }
    }
}
