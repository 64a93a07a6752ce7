//! Runs the garbage collector: all caches feed its graph; its decisions are checked by live reads and then carried out.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::registry;
use knarr_client::custom_kinds::KindChange;
use knarr_client::workqueue::Queue;
use knarr_client::{Api, Component, Error, Store};
use knarr_controllers::action::{Failure, Verb};
use knarr_controllers::garbagecollector::{Graph, ObjectWrite, OwnerKey, Work, action, is_absent, kinds};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tracing::{Instrument, debug, debug_span, warn};

use crate::executor::Executor;
use crate::metrics::Reconciled;
use crate::runner::Base;

/// The service account it acts as.
pub const ACCOUNT: &str = "generic-garbage-collector";
/// Its name in events and metrics.
const NAME: &str = "garbage-collector-controller";
/// The name of kube-controller-manager's queue of objects that may have to be deleted.
const QUEUE: &str = "garbage_collector_attempt_to_delete";
/// Concurrent workers (kube-controller-manager: 20).
const WORKERS: usize = 20;
/// How long the start waits for the objects of one custom kind (kube-controller-manager: 30 s for all).
const CUSTOM_SYNC: Duration = Duration::from_secs(30);

struct Collector {
    api: Arc<dyn Api>,
    executor: Executor,
    graph: Arc<Mutex<Graph>>,
    /// The queue of uids.
    queue: Arc<Queue<String>>,
}

/// Feeds the graph with the store's changes.
fn enqueue_changes(store: &Arc<Store>, graph: &Arc<Mutex<Graph>>, queue: &Arc<Queue<String>>) {
    let (graph, queue) = (graph.clone(), queue.clone());
    store.add_event_handler(move |change| {
        let uids = match change.after() {
            Some(object) => graph.lock().put(object),
            None => graph.lock().remove(change.object().uid()),
        };
        uids.into_iter().for_each(|uid| queue.add(uid));
    });
}

/// Runs until dropped.
pub async fn run(base: Base) {
    let (api, events) = base.acting_as(&Component::Controller(ACCOUNT), NAME);
    let collector = Arc::new(Collector {
        executor: Executor::new(api.clone(), events),
        api,
        graph: Arc::default(),
        queue: Arc::new(Queue::named(QUEUE, &base.metrics.queues)),
    });
    for kind in kinds() {
        enqueue_changes(&base.caches.store(kind), &collector.graph, &collector.queue);
    }
    let (graph, queue) = (collector.graph.clone(), collector.queue.clone());
    base.caches.add_custom_kind_handler(move |change| match change {
        KindChange::Added(store) => {
            let uids = graph.lock().add_kind(store.kind());
            uids.into_iter().for_each(|uid| queue.add(uid));
            enqueue_changes(store, &graph, &queue);
        }
        KindChange::Removed(kind) => {
            let uids = graph.lock().remove_kind(kind);
            uids.into_iter().for_each(|uid| queue.add(uid));
        }
    });
    for kind in kinds() {
        base.caches.store(kind).synced().await;
    }
    // Foreground deletion and orphaning need the dependents of custom kinds, too. A kind that is
    // removed meanwhile has none.
    for kind in base.caches.custom_kinds() {
        if let Some(store) = base.caches.existing(&kind)
            && timeout(CUSTOM_SYNC, store.synced()).await.is_err()
        {
            warn!(
                kind = kind.plural(),
                "its objects cannot be listed; collecting garbage without them"
            );
        }
    }
    debug!("garbage collector started");
    let metrics = base.metrics;
    let _running = metrics.running(NAME, WORKERS);
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (collector, metrics) = (collector.clone(), metrics.clone());
        workers.spawn(async move {
            while let Some(uid) = collector.queue.get().await {
                let begun = Instant::now();
                let span = debug_span!("reconcile", controller = NAME, key = %uid);
                let busy = metrics.busy(NAME);
                let done = collector.process(&uid).instrument(span).await;
                drop(busy);
                let result = done.unwrap_or_else(|failure| {
                    collector.report(&failure);
                    Reconciled::Error
                });
                metrics.reconciled(NAME, result, begun.elapsed());
                match result {
                    Reconciled::Success => collector.queue.forget(&uid),
                    Reconciled::RequeueAfter | Reconciled::Error => {
                        collector.queue.add_rate_limited(uid.clone());
                    }
                }
                collector.queue.done(&uid);
            }
        });
    }
    while let Some(result) = workers.join_next().await {
        if let Err(error) = result {
            warn!(%error, "a garbage collection worker panicked");
        }
    }
}

impl Collector {
    async fn process(&self, uid: &str) -> Result<Reconciled, Box<Failure>> {
        let mut there = BTreeSet::new();
        loop {
            // A statement of its own: the graph is not locked during requests.
            let work = self.graph.lock().decide(uid, &there);
            match work {
                Work::Nothing => return Ok(Reconciled::Success),
                Work::Requeue => return Ok(Reconciled::RequeueAfter),
                Work::GetOwner(owner) => {
                    let is_there = self.is_live(&owner).await?;
                    self.graph.lock().record_owner(&owner.uid, is_there);
                    if is_there {
                        there.insert(owner.uid);
                    }
                }
                Work::GetDefinition { name, owner } => {
                    let is_defined = self.is_defined(&name).await?;
                    self.graph.lock().record_owner(&owner, is_defined);
                    if is_defined {
                        // Its objects are read once it is served again.
                        there.insert(owner);
                    }
                }
                Work::Write(writes) => {
                    for write in writes {
                        self.carry_out(&write).await?;
                    }
                    return Ok(Reconciled::Success);
                }
            }
        }
    }

    async fn is_live(&self, owner: &OwnerKey) -> Result<bool, Box<Failure>> {
        let read = self.api.get(&owner.kind, &owner.key.namespace, &owner.key.name);
        let response = read.await;
        owner
            .exists(response.as_deref().map_err(Error::clone))
            .map_err(|error| failure(&owner.kind, &owner.key.name, error))
    }

    async fn is_defined(&self, name: &str) -> Result<bool, Box<Failure>> {
        let kind = &registry::CUSTOM_RESOURCE_DEFINITION;
        match self.api.get(kind, "", name).await {
            Ok(_) => Ok(true),
            Err(error) if is_absent(&error, name) => Ok(false),
            Err(error) => Err(failure(kind, name, error)),
        }
    }

    async fn carry_out(&self, write: &ObjectWrite) -> Result<(), Box<Failure>> {
        let live = match self
            .api
            .get(&write.kind, &write.key.namespace, &write.key.name)
            .await
        {
            Ok(live) => live,
            Err(error) if is_absent(&error, &write.key.name) => return Ok(()),
            Err(error) => return Err(failure(&write.kind, &write.key.name, error)),
        };
        let Some(action) = action(write, &live) else {
            return Ok(());
        };
        match self.executor.run(vec![action]).await.failure {
            // It was deleted meanwhile.
            Some(failure) if failure.error.is_not_found() => Ok(()),
            Some(failure) => Err(Box::new(failure)),
            None => Ok(()),
        }
    }

    fn report(&self, failure: &Failure) {
        let Failure {
            kind, name, error, ..
        } = failure;
        if error.is_conflict() {
            debug!(kind = kind.plural(), name, %error, "again");
        } else {
            warn!(kind = kind.plural(), name, %error, "garbage collection failed");
        }
    }
}

fn failure(kind: &knarr_client::Kind, name: &str, error: Error) -> Box<Failure> {
    Box::new(Failure {
        verb: Verb::Require,
        kind: kind.clone(),
        name: name.to_string(),
        error,
    })
}
