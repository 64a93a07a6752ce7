//! Runs one [`Controller`]: changes become keys, keys are decided on, the actions carried out.
//!
//! A key is done only when the caches contain what was written for it, so that a controller never decides twice on the
//! same outdated snapshot: no pod is created twice because the first was not seen yet.

use std::sync::{Arc, Weak};
use std::time::Duration;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_client::custom_kinds::KindChange;
use knarr_client::workqueue::Queue;
use knarr_client::{Api, Caches, Clock, Component, EventRecorder, Identities, Kind, ObjectKey, Store};
use knarr_controllers::action::{Failure, Verb};
use knarr_controllers::{Changed, Context, Controller};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::executor::{Executor, Outcome, Written, is_namespace_terminating};
use crate::view::CacheView;

/// How long a key waits for the caches to show its own writes, as long as client-go's expectations.
const CATCH_UP: Duration = Duration::from_secs(300);
/// After an answer that leaves open whether the write was made: until then the caches know.
const UNSURE: Duration = Duration::from_secs(1);
/// Keys of one controller worked on at the same time (kube-controller-manager's usual number).
const WORKERS: usize = 5;

/// What all drivers share.
#[derive(Clone)]
pub struct Base {
    pub identities: Arc<dyn Identities>,
    pub caches: Arc<Caches>,
    pub events: EventRecorder,
    pub clock: Arc<dyn Clock>,
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
}

/// Makes keys of the store's changes. The store holds the handler and the caches hold the store: a strong reference
/// back would keep all alive.
fn feed(
    store: &Arc<Store>,
    caches: &Weak<Caches>,
    controller: &Arc<dyn Controller>,
    queue: &Arc<Queue<ObjectKey>>,
) {
    let kind = store.kind().clone();
    let (caches, controller, queue) = (caches.clone(), controller.clone(), queue.clone());
    store.subscribe(move |change| {
        let Some(caches) = caches.upgrade() else { return };
        let changed = Changed {
            kind: &kind,
            old: change.before().map(|o| &**o),
            new: change.after().map(|o| &**o),
        };
        for key in controller.keys(&CacheView(caches), changed) {
            queue.add(key);
        }
    });
}

/// Runs the controller until dropped.
pub async fn run(base: Base, controller: Box<dyn Controller>) {
    let controller: Arc<dyn Controller> = controller.into();
    let queue = Arc::new(Queue::default());
    for kind in controller.watches() {
        feed(
            &base.caches.store(kind),
            &Arc::downgrade(&base.caches),
            &controller,
            &queue,
        );
    }
    if controller.watches_custom_kinds() {
        let (caches, controller, queue) = (Arc::downgrade(&base.caches), controller.clone(), queue.clone());
        base.caches.follow_custom_kinds(move |change| {
            if let KindChange::Came(store) = change {
                feed(store, &caches, &controller, &queue);
            }
        });
    }
    for kind in controller.watches() {
        base.caches.store(kind).synced().await;
    }
    debug!(controller = controller.name(), "started");
    let account = Component::Controller(controller.account());
    let (api, events) = base.acting_as(&account, controller.name());
    let runner = Arc::new(Runner {
        controller,
        queue,
        view: CacheView(base.caches),
        executor: Executor::new(api, events),
        clock: base.clock,
    });
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let runner = runner.clone();
        workers.spawn(async move {
            while let Some(key) = runner.queue.get().await {
                runner.process(&key).await;
                runner.queue.done(&key);
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            // A panic is a bug in one controller; the others and its other workers go on.
            warn!(controller = runner.controller.name(), %error, "a worker died");
        }
    }
}

/// Waits until the caches of the kinds that are watched show what was written. False if they do not in time.
pub(crate) async fn shown(view: &CacheView, watched: &[&'static Kind], written: &[Written]) -> bool {
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
    timeout(CATCH_UP, all_shown).await.is_ok()
}

impl Runner {
    async fn process(&self, key: &ObjectKey) {
        let outcome = self.decide_and_do(key, None).await;
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
            self.queue.add_after(key.clone(), UNSURE);
        } else {
            self.queue.add_rate_limited(key.clone());
        }
    }

    async fn decide_and_do(&self, key: &ObjectKey, failure: Option<&Failure>) -> Outcome {
        let now: Timestamp = self.clock.now();
        let actions = self.controller.reconcile(&Context {
            view: &self.view,
            key,
            now,
            failure,
        });
        let outcome = self.executor.run(actions).await;
        self.catch_up(key, &outcome.written).await;
        outcome
    }

    async fn catch_up(&self, key: &ObjectKey, written: &[Written]) {
        if !shown(&self.view, &self.controller.watches(), written).await {
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
        // Another client was faster: the caches will have it in a moment.
        if error.is_conflict() || error.is_not_found() {
            debug!(controller, %key, ?verb, kind = kind.plural(), name, %error, "again");
        } else {
            warn!(controller, %key, ?verb, kind = kind.plural(), name, %error, "failed");
        }
    }
}
