//! Runs the HorizontalPodAutoscaler controller: reads scales and metrics, writes scales, statuses and events.
//!
//! Decisions are made in [`knarr_controllers::podautoscaling`]. An autoscaler is reconciled when it is created or its spec
//! changes, and then every sync period, as by kube-controller-manager's horizontal-pod-autoscaler-controller.

mod metrics;
mod readings;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v1::{Scale, ScaleSpec};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::{k8s_openapi, registry};
use knarr_apimachinery::Error;
use knarr_apimachinery::labels::Selector;
use knarr_client::workqueue::Queue;
use knarr_client::{Api, Component, EventRecorder, EventType, Kind, Object, ObjectKey, Shared, TypedApi};
use knarr_controllers::View;
use knarr_controllers::podautoscaling::{
    Decision, History, Needs, Reading, Reconciliation, Report, Settings, controlling,
};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{Instrument, debug, debug_span, warn};

pub use self::metrics::Metrics;
use self::readings::Readings;
use crate::runner::Base;
use crate::view::CacheView;

/// The account of kube-controller-manager's controller.
pub const ACCOUNT: &str = "horizontal-pod-autoscaler";
const NAME: &str = "horizontal-pod-autoscaler";
/// kube-controller-manager's `--concurrent-horizontal-pod-autoscaler-syncs`.
const WORKERS: usize = 5;
/// How often the update of a scale is retried after a conflict.
const CONFLICTS_MAX: usize = 5;
/// After a write of the status that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Why there is no scale of a target.
#[derive(Debug, thiserror::Error)]
enum ScaleError {
    #[error("invalid API version in scale target reference: unexpected GroupVersion string: {0}")]
    InvalidApiVersion(String),
    #[error(
        "unable to determine resource for scale target reference: no matches for kind {kind:?} in group {group:?}"
    )]
    NoKindMatch { kind: String, group: String },
    #[error(transparent)]
    Api(#[from] Error),
}

/// What is remembered between two reconciliations.
#[derive(Default)]
struct Memory {
    histories: HashMap<ObjectKey, History>,
    /// The selectors of the targets, as far as they are known.
    selectors: BTreeMap<ObjectKey, Selector>,
}

struct Autoscaling {
    settings: Settings,
    queue: Arc<Queue<ObjectKey>>,
    view: CacheView,
    api: Arc<dyn Api>,
    events: EventRecorder,
    clock: Arc<dyn knarr_client::Clock>,
    memory: Mutex<Memory>,
    metrics: Metrics,
}

/// Runs until dropped.
pub async fn run(base: Base, settings: Settings, metrics: Metrics) {
    let autoscalers = base.caches.store(&registry::HORIZONTAL_POD_AUTOSCALER);
    let queue = Arc::new(Queue::named("horizontalpodautoscaler", &base.metrics.queues));
    let _running = base.metrics.running(NAME, WORKERS);
    let added = queue.clone();
    autoscalers.add_event_handler(move |change| {
        let spec = |o: Option<&Arc<Object>>| {
            o.and_then(|o| o.to_typed::<HorizontalPodAutoscaler>())
                .map(|h| h.spec)
        };
        // A change of the status alone, which is this controller's, waits for the next sync.
        if spec(change.before()) != spec(change.after()) {
            added.add(ObjectKey::of(change.object()));
        }
    });
    let read = [
        &registry::POD,
        &registry::HORIZONTAL_POD_AUTOSCALER,
        &registry::API_SERVICE,
    ];
    let stores = read.map(|kind| base.caches.store(kind));
    for store in &stores {
        store.synced().await;
    }
    let (api, events) = base.acting_as(&Component::Controller(ACCOUNT), NAME);
    let autoscaling = Arc::new(Autoscaling {
        settings,
        queue,
        view: CacheView(base.caches),
        api,
        events,
        clock: base.clock,
        memory: Mutex::default(),
        metrics,
    });
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let autoscaling = autoscaling.clone();
        workers.spawn(async move {
            while let Some(key) = autoscaling.queue.get().await {
                let span = debug_span!("reconcile", controller = NAME, %key);
                let wait = autoscaling.sync(&key).instrument(span).await;
                autoscaling.queue.done(&key);
                if let Some(wait) = wait {
                    autoscaling.queue.add_after(key, wait);
                }
            }
        });
    }
    while let Some(result) = workers.join_next().await {
        if let Err(error) = result {
            // A panic is a bug; the other workers continue.
            warn!(controller = NAME, %error, "a worker panicked");
        }
    }
}

impl Autoscaling {
    fn view(&self) -> &dyn View {
        &self.view
    }

    /// Reconciles an autoscaler; returns when to do so again, unless it was deleted.
    async fn sync(&self, key: &ObjectKey) -> Option<Duration> {
        let found = self
            .view()
            .get_as::<HorizontalPodAutoscaler>(&key.namespace, &key.name);
        let Some(hpa) = found.filter(|h| h.metadata.deletion_timestamp.is_none()) else {
            let mut memory = self.memory.lock();
            memory.histories.remove(key);
            memory.selectors.remove(key);
            self.metrics.forget(key);
            return None;
        };
        self.metrics
            .known(self.view().list(&registry::HORIZONTAL_POD_AUTOSCALER, "").len());
        let began = Instant::now();
        // Only one worker has a key at a time.
        let mut history = self.memory.lock().histories.remove(key).unwrap_or_default();
        let report = self.reconcile(key, &hpa, &mut history).await;
        self.memory.lock().histories.insert(key.clone(), history);
        self.metrics.reconciled(key, &report, began.elapsed());
        self.publish(&hpa, report).await
    }

    async fn reconcile(
        &self,
        key: &ObjectKey,
        hpa: &HorizontalPodAutoscaler,
        history: &mut History,
    ) -> Report {
        let now = self.clock.now();
        let mut reconciliation = Reconciliation::new(hpa, &self.settings, history, now);
        let target = &hpa.spec.scale_target_ref;
        let read = async {
            let kind = self.kind_of(target.api_version.as_deref().unwrap_or_default(), &target.kind)?;
            let scale = self.api.scale(&kind, &key.namespace, &target.name).await?;
            Ok::<_, ScaleError>((kind, scale))
        };
        let (kind, scale) = match read.await {
            Ok(read) => read,
            Err(error) => return reconciliation.scale_failed(&error.to_string()),
        };
        // Computing takes no time compared with reading.
        let mut took: Vec<Duration> = Vec::new();
        let decision = match reconciliation.start(&scale) {
            Needs::Nothing => reconciliation.decision(),
            Needs::Metrics => {
                let Some(selector) = reconciliation.selector(&scale) else {
                    return reconciliation.finish(Ok(()));
                };
                let pods = self.pods(&key.namespace, &selector);
                let pods: Vec<&Pod> = pods.iter().map(|pod| &**pod).collect();
                let others = {
                    let mut memory = self.memory.lock();
                    memory.selectors.insert(key.clone(), selector.clone());
                    controlling(&key.namespace, &pods, &memory.selectors)
                };
                if !reconciliation.is_alone(&scale, &others) {
                    return reconciliation.finish(Ok(()));
                }
                let text = scale.status.as_ref().and_then(|s| s.selector.clone());
                let text = text.unwrap_or_default();
                let mut readings: Vec<Reading> = Vec::new();
                for metric in hpa.spec.metrics.iter().flatten() {
                    let began = Instant::now();
                    readings.push(self.readings().of(metric, &key.namespace, &text).await);
                    took.push(began.elapsed());
                }
                reconciliation.decide(&pods, &readings)
            }
        };
        let written = match decision {
            Decision::Rescale(replicas) => self.rescale(&kind, scale, replicas).await,
            Decision::Keep | Decision::Failed => Ok(()),
        };
        let report = reconciliation.finish(written);
        for (computation, took) in report.computations.iter().zip(took) {
            self.metrics.computed(computation, took);
        }
        report
    }

    fn readings(&self) -> Readings<'_> {
        Readings {
            api: &*self.api,
            view: &self.view,
        }
    }

    fn pods(&self, namespace: &str, selector: &Selector) -> Vec<Shared<Pod>> {
        let pods = self.view().list_as::<Pod>(namespace).into_iter();
        pods.filter(|pod| selector.matches(pod.metadata.labels.as_ref()))
            .collect()
    }

    /// The kind of a scale target: of this version if it is served, else of another of the group.
    fn kind_of(&self, api_version: &str, kind: &str) -> Result<Kind, ScaleError> {
        let (group, version) = match api_version.split_once('/') {
            Some((_, version)) if version.is_empty() || version.contains('/') => {
                return Err(ScaleError::InvalidApiVersion(api_version.to_string()));
            }
            Some(parts) => parts,
            None => ("", api_version),
        };
        let of_group = |k: &&Kind| k.group() == group && k.kind() == kind;
        let custom = self.view.custom_kinds();
        let all = || registry::ALL.iter().copied().chain(&custom);
        let exact = all().filter(of_group).find(|k| k.version() == version);
        let found = exact.or_else(|| all().find(of_group)).cloned();
        found.ok_or_else(|| ScaleError::NoKindMatch {
            kind: kind.to_string(),
            group: group.to_string(),
        })
    }

    /// Writes the number of replicas; after a conflict again from a new scale.
    async fn rescale(&self, kind: &Kind, mut scale: Scale, replicas: i32) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            let (namespace, name) = (scale.metadata.namespace.clone(), scale.metadata.name.clone());
            scale.spec = Some(ScaleSpec {
                replicas: Some(replicas),
            });
            match self.api.update_scale(kind, scale).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() && tries < CONFLICTS_MAX => {
                    tries += 1;
                    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
                    scale = self.api.scale(kind, &namespace, &name).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes status and events; when to reconcile again.
    async fn publish(&self, hpa: &Shared<HorizontalPodAutoscaler>, report: Report) -> Option<Duration> {
        let about = knarr_client::events::reference(hpa.object());
        for event in report.events {
            let type_ = match event.warning {
                true => EventType::Warning,
                false => EventType::Normal,
            };
            self.events.event(&about, type_, event.reason, event.message);
        }
        if let Some(error) = report.error {
            debug!(
                namespace = hpa.object().namespace(),
                name = hpa.object().name(),
                error,
                "not scaled"
            );
        }
        if hpa.status.as_ref() == Some(&report.status) {
            return Some(self.settings.sync_period);
        }
        let mut new = (**hpa).clone();
        new.status = Some(report.status);
        match self.api.update_status_as(new).await {
            Ok(_) => Some(self.settings.sync_period),
            Err(error) if error.is_not_found() => None,
            Err(error) => {
                // The next reconciliation writes the status of that time.
                let (namespace, name) = (hpa.object().namespace(), hpa.object().name());
                match error.is_conflict() {
                    true => debug!(namespace, name, %error, "the autoscaler has changed"),
                    false => warn!(namespace, name, %error, "cannot write an autoscaler's status"),
                }
                Some(RETRY)
            }
        }
    }
}
