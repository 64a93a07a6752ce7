//! The metrics of the scheduler, with kube-scheduler's names.

use std::sync::{Arc, Weak};

use knarr_client::metrics::{Registry, count, doubling};
use knarr_scheduler::Scheduler;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts};

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

/// See the module. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    attempts: IntCounterVec,
    attempt_seconds: HistogramVec,
    algorithm_seconds: Histogram,
    victims: Histogram,
    preemptions: IntCounter,
    cross_node_preemptions: IntCounter,
    pods: Histogram,
    sli_seconds: HistogramVec,
    claims: IntCounterVec,
    extension_point_seconds: HistogramVec,
    queue: Queue,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let queue = Queue::new();
        registry.register(queue.clone());
        Metrics {
            attempts: registry.counters(
                "scheduler_schedule_attempts_total",
                "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an \
                 internal scheduler problem.",
                &["result", "profile"],
            ),
            attempt_seconds: registry.histograms(
                "scheduler_scheduling_attempt_duration_seconds",
                "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                &["result", "profile"],
                &doubling(0.001, 15),
            ),
            algorithm_seconds: registry.histogram(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Scheduling algorithm latency in seconds",
                &doubling(0.001, 15),
            ),
            victims: registry.histogram(
                "scheduler_preemption_victims",
                "Number of selected preemption victims",
                &doubling(1.0, 7),
            ),
            preemptions: registry.counter(
                "scheduler_preemption_attempts_total",
                "Total preemption attempts in the cluster till now",
            ),
            cross_node_preemptions: registry.counter(
                "knarr_scheduler_cross_node_preemptions_total",
                "Preemptions with victims on other nodes than the preemptor's.",
            ),
            pods: registry.histogram(
                "scheduler_pod_scheduling_attempts",
                "Number of attempts to successfully schedule a pod.",
                &doubling(1.0, 5),
            ),
            sli_seconds: registry.histograms(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling \
                 attempts.",
                &["attempts"],
                &doubling(0.01, 20),
            ),
            claims: registry.counters(
                "scheduler_resourceclaim_creates_total",
                "ResourceClaims created for extended resources, by the result.",
                &["status"],
            ),
            extension_point_seconds: registry.histograms(
                "scheduler_framework_extension_point_duration_seconds",
                "Latency for running all plugins of a specific extension point.",
                &["extension_point", "status", "profile"],
                &doubling(0.0001, 12),
            ),
            queue,
        }
    }

    pub(super) fn of(&self, scheduler: &Arc<Mutex<Scheduler>>) {
        *self.queue.scheduler.lock() = Arc::downgrade(scheduler);
    }

    pub(super) fn decided(&self, seconds: f64) {
        self.algorithm_seconds.observe(seconds);
    }

    pub(super) fn attempted(&self, what: Attempt, profile: &str, seconds: f64) {
        let labels = [what.as_str(), profile];
        self.attempts.with_label_values(&labels).inc();
        self.attempt_seconds.with_label_values(&labels).observe(seconds);
    }

    /// All plugins of an extension point have run, such as Bind.
    pub(super) fn extension_point(&self, name: &str, succeeded: bool, profile: &str, seconds: f64) {
        let status = if succeeded { "Success" } else { "Error" };
        self.extension_point_seconds
            .with_label_values(&[name, status, profile])
            .observe(seconds);
    }

    /// A claim for extended resources was created, or could not be.
    pub(super) fn claim_created(&self, created: bool) {
        let status = if created { "success" } else { "failure" };
        self.claims.with_label_values(&[status]).inc();
    }

    pub(super) fn placed(&self, attempts: u32, seconds: f64) {
        self.pods.observe(attempts.into());
        // As kube-scheduler: sixteen and more are one.
        let shown = if attempts >= 16 {
            "16+".to_string()
        } else {
            attempts.to_string()
        };
        self.sli_seconds
            .with_label_values(&[shown.as_str()])
            .observe(seconds);
    }

    pub(super) fn preempted(&self, victims: usize) {
        self.preemptions.inc();
        self.victims.observe(victims as f64);
    }

    pub(super) fn preempted_across_nodes(&self) {
        self.cross_node_preemptions.inc();
    }
}

/// What the scheduler's queue and snapshot contain, counted when it is read.
#[derive(Clone, Debug)]
struct Queue {
    scheduler: Arc<Mutex<Weak<Mutex<Scheduler>>>>,
    pending: IntGaugeVec,
    incoming: IntCounterVec,
    unschedulable: IntGaugeVec,
    cache: IntGaugeVec,
}

impl Queue {
    fn new() -> Self {
        let gauges =
            |name: &str, help: &str, labels: &[&str]| match IntGaugeVec::new(Opts::new(name, help), labels) {
                Ok(gauges) => gauges,
                Err(error) => panic!("an invalid metric: {error}"),
            };
        let incoming = Opts::new(
            "scheduler_queue_incoming_pods_total",
            "Number of pods added to scheduling queues by event and queue type.",
        );
        let incoming = match IntCounterVec::new(incoming, &["queue", "event"]) {
            Ok(incoming) => incoming,
            Err(error) => panic!("an invalid metric: {error}"),
        };
        Queue {
            scheduler: Arc::default(),
            incoming,
            pending: gauges(
                "scheduler_pending_pods",
                "Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means number of pods in backoffQ; \
                 'unschedulable' means number of pods in unschedulablePods that the scheduler attempted to schedule and failed; 'gated' is the \
                 number of unschedulable pods that the scheduler never attempted to schedule because they are gated.",
                &["queue"],
            ),
            unschedulable: gauges(
                "scheduler_unschedulable_pods",
                "The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to \
                 not schedule and so this metric have meaning only when broken down by plugin.",
                &["plugin", "profile"],
            ),
            cache: gauges(
                "scheduler_cache_size",
                "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
                &["type"],
            ),
        }
    }

    fn all(&self) -> [&dyn Collector; 4] {
        [&self.pending, &self.incoming, &self.unschedulable, &self.cache]
    }

    fn update(&self, scheduler: &Scheduler) {
        let lengths = scheduler.queue_lengths();
        for (queue, pods) in [
            ("active", lengths.active),
            ("backoff", lengths.backoff),
            ("unschedulable", lengths.unschedulable),
            ("gated", scheduler.gated()),
        ] {
            self.pending.with_label_values(&[queue]).set(count(pods));
        }
        self.incoming.reset();
        for ((event, queue), pods) in scheduler.incoming_pods() {
            self.incoming.with_label_values(&[*queue, *event]).inc_by(*pods);
        }
        self.unschedulable.reset();
        for ((plugin, profile), pods) in scheduler.unschedulable_by() {
            let gauge = self.unschedulable.with_label_values(&[plugin, &*profile]);
            gauge.set(count(pods));
        }
        for (what, known) in [
            ("nodes", scheduler.cluster().len()),
            ("pods", scheduler.assigned()),
            ("assumed_pods", scheduler.assumed()),
        ] {
            self.cache.with_label_values(&[what]).set(count(known));
        }
    }
}

impl Collector for Queue {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let scheduler = self.scheduler.lock().upgrade();
        if let Some(scheduler) = scheduler {
            self.update(&scheduler.lock());
        }
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}
