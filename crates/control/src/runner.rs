//! Runs one [`Controller`]: changes enqueue keys, workers reconcile keys and carry the actions out.
//!
//! A key is done only when the caches contain what was written for it, so that a controller never decides twice on the
//! same outdated state: no pod is created twice because the first was not in the cache yet. This takes the place of
//! client-go's ControllerExpectations.

use std::sync::{Arc, Weak};
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_client::custom_kinds::KindChange;
use knarr_client::workqueue::Queue;
use knarr_client::{Api, Caches, Clock, Component, EventRecorder, Identities, Kind, ObjectKey, Store};
use knarr_controllers::action::{Failure, Verb};
use knarr_controllers::{Context, Controller, ObjectChange};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, debug, debug_span, warn};

use crate::executor::{Executor, Outcome, Written, is_namespace_terminating};
use crate::metrics::{ControllerMetrics, Reconciled, SyncAction, job_of, queue_name};
use crate::view::CacheView;

/// How long a key waits for the caches to contain its own writes (ExpectationsTimeout of ControllerExpectations).
const EXPECTATIONS_TIMEOUT: Duration = Duration::from_secs(300);
/// The requeue time after an error that leaves open whether the write was made: by then the caches show it.
const UNKNOWN_RESULT_REQUEUE: Duration = Duration::from_secs(1);
/// Concurrent workers of one controller (kube-controller-manager's usual number).
const WORKERS: usize = 5;

/// What all controllers share.
#[derive(Clone)]
pub struct Base {
    pub identities: Arc<dyn Identities>,
    pub caches: Arc<Caches>,
    pub events: EventRecorder,
    pub clock: Arc<dyn Clock>,
    pub metrics: ControllerMetrics,
}

impl Base {
    /// The API as this component's user, and a recorder whose events that user writes; `name` is their reporting
    /// controller.
    pub fn acting_as(&self, component: &Component, name: &str) -> (Arc<dyn Api>, EventRecorder) {
        let api = self.identities.of(component);
        (api.clone(), self.events.acting_as(api, name))
    }
}

struct Runner {
    controller: Arc<dyn Controller>,
    queue: Arc<Queue<ObjectKey>>,
    view: CacheView,
    executor: Executor,
    clock: Arc<dyn Clock>,
    metrics: ControllerMetrics,
}

/// Enqueues keys for the store's changes. The store holds the handler and the caches hold the store: a strong reference
/// back would be a cycle.
fn enqueue_changes(
    store: &Arc<Store>,
    caches: &Weak<Caches>,
    controller: &Arc<dyn Controller>,
    queue: &Arc<Queue<ObjectKey>>,
    metrics: &ControllerMetrics,
    started: Timestamp,
) {
    let kind = store.kind().clone();
    let (caches, controller, queue) = (caches.clone(), controller.clone(), queue.clone());
    let metrics = metrics.workloads.clone();
    store.add_event_handler(move |change| {
        let Some(caches) = caches.upgrade() else { return };
        let changed = ObjectChange {
            kind: &kind,
            old: change.before().map(|o| &**o),
            new: change.after().map(|o| &**o),
        };
        metrics.observe(controller.name(), &changed, started);
        for key in controller.keys(&CacheView(caches), changed) {
            queue.add(key);
        }
    });
}

/// Runs the controller until dropped.
pub async fn run(base: Base, controller: Box<dyn Controller>) {
    let controller: Arc<dyn Controller> = controller.into();
    let name = controller.name();
    let queue = Arc::new(Queue::named(queue_name(controller.queue()), &base.metrics.queues));
    let (metrics, started) = (base.metrics.clone(), base.clock.now());
    for kind in controller.watches() {
        enqueue_changes(
            &base.caches.store(kind),
            &Arc::downgrade(&base.caches),
            &controller,
            &queue,
            &metrics,
            started,
        );
    }
    if controller.watches_custom_kinds() {
        let (caches, controller, queue) = (Arc::downgrade(&base.caches), controller.clone(), queue.clone());
        let metrics = metrics.clone();
        base.caches.add_custom_kind_handler(move |change| {
            if let KindChange::Added(store) = change {
                enqueue_changes(store, &caches, &controller, &queue, &metrics, started);
            }
        });
    }
    for kind in controller.watches() {
        base.caches.store(kind).synced().await;
    }
    debug!(controller = name, "started");
    let _running = metrics.running(name, WORKERS);
    let account = Component::Controller(controller.account());
    let (api, events) = base.acting_as(&account, controller.name());
    let runner = Arc::new(Runner {
        controller,
        queue,
        view: CacheView(base.caches),
        executor: Executor::new(api, events),
        clock: base.clock,
        metrics,
    });
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let runner = runner.clone();
        workers.spawn(async move {
            while let Some(key) = runner.queue.get().await {
                let span = debug_span!("reconcile", controller = name, %key);
                runner.process(&key).instrument(span).await;
                runner.queue.done(&key);
            }
        });
    }
    while let Some(result) = workers.join_next().await {
        if let Err(error) = result {
            // A panic is a bug in one controller; the others and its other workers continue.
            warn!(controller = runner.controller.name(), %error, "a worker panicked");
        }
    }
}

/// Waits until the caches of the watched kinds contain what was written. False if they do not in time.
pub(crate) async fn contain_writes(view: &CacheView, watched: &[&'static Kind], written: &[Written]) -> bool {
    let all_shown = async {
        for written in written {
            match written {
                Written::Revision(kind, revision) if watched.contains(&kind) => {
                    view.0.store(kind).wait_for(*revision).await;
                }
                Written::Deleted { kind, key, uid } if watched.contains(&kind) => {
                    let store = view.0.store(kind);
                    store
                        .wait_until(|store| {
                            store
                                .get(&key.namespace, &key.name)
                                .is_none_or(|o| o.uid() != uid || o.metadata().deletion_timestamp.is_some())
                        })
                        .await;
                }
                Written::Revision(..) | Written::Deleted { .. } => {}
            }
        }
    };
    timeout(EXPECTATIONS_TIMEOUT, all_shown).await.is_ok()
}

impl Runner {
    async fn process(&self, key: &ObjectKey) {
        let controller = self.controller.name();
        let _busy = self.metrics.busy(controller);
        let begun = Instant::now();
        let outcome = self.decide_and_do(key, None).await;
        let result = match (&outcome.failure, outcome.requeue_after) {
            (Some(_), _) => Reconciled::Error,
            (None, Some(_)) => Reconciled::RequeueAfter,
            (None, None) => Reconciled::Success,
        };
        self.metrics.reconciled(controller, result, begun.elapsed());
        let Some(failure) = outcome.failure else {
            self.queue.forget(key);
            if let Some(wait) = outcome.requeue_after {
                self.queue.add_after(key.clone(), wait);
            }
            return;
        };
        if is_namespace_terminating(&failure.error) {
            // The object is about to be deleted: nothing more is done for it.
            self.queue.forget(key);
            return;
        }
        self.report(key, &failure);
        // The object's status should report it; whether that succeeds or not, the key is retried.
        if let Some(again) = self.decide_and_do(key, Some(&failure)).await.failure {
            self.report(key, &again);
        }
        if failure.verb == Verb::Create && failure.error.code() >= 500 {
            self.queue.add_after(key.clone(), UNKNOWN_RESULT_REQUEUE);
        } else {
            self.queue.add_rate_limited(key.clone());
        }
    }

    async fn decide_and_do(&self, key: &ObjectKey, failure: Option<&Failure>) -> Outcome {
        let now: Timestamp = self.clock.now();
        let begun = Instant::now();
        // What is done after a failure belongs to the sync that failed.
        let job = failure
            .is_none()
            .then(|| job_of(self.controller.name(), &self.view, &key.namespace, &key.name))
            .flatten();
        let actions = self.controller.reconcile(&Context {
            view: &self.view,
            key,
            now,
            failure,
        });
        let synced = job.map(|job| {
            let action = SyncAction::of(&job, &actions);
            (job, action)
        });
        let outcome = self.executor.run(actions).await;
        if let Some((job, action)) = synced {
            let failed = outcome.failure.is_some();
            let workloads = &self.metrics.workloads;
            workloads.synced(&job, action, failed, begun.elapsed());
        }
        self.catch_up(key, &outcome.written).await;
        outcome
    }

    async fn catch_up(&self, key: &ObjectKey, written: &[Written]) {
        if !contain_writes(&self.view, &self.controller.watches(), written).await {
            warn!(controller = self.controller.name(), %key, "the caches do not show what was written");
        }
    }

    fn report(&self, key: &ObjectKey, failure: &Failure) {
        let Failure {
            verb,
            kind,
            name,
            error,
        } = failure;
        let controller = self.controller.name();
        // Another client was faster: the caches show it soon.
        if error.is_conflict() || error.is_not_found() {
            debug!(controller, %key, ?verb, kind = kind.plural(), name, %error, "again");
        } else {
            warn!(controller, %key, ?verb, kind = kind.plural(), name, %error, "failed");
        }
    }
}
