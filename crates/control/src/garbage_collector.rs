//! Runs the garbage collector: every cache feeds its graph; what it decides is checked against the API, then done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::custom_kinds::KindChange;
use knarr_client::workqueue::Queue;
use knarr_client::{Api, Component, Error, Store};
use knarr_controllers::action::{Failure, Verb};
use knarr_controllers::garbagecollector::{Asked, Graph, Todo, Work, action, kinds};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::executor::Executor;
use crate::runner::Base;

/// The service account it acts as.
pub const ACCOUNT: &str = "generic-garbage-collector";
/// Objects worked on at the same time (kube-controller-manager: 20).
const WORKERS: usize = 20;
/// How long the start waits for the objects of one custom kind (kube-controller-manager: 30 s for all).
const CUSTOM_SYNC: Duration = Duration::from_secs(30);

struct Collector {
    api: Arc<dyn Api>,
    executor: Executor,
    graph: Arc<Mutex<Graph>>,
    /// Of uids.
    queue: Arc<Queue<String>>,
}

/// Feeds the graph with the store's changes.
fn feed(store: &Arc<Store>, graph: &Arc<Mutex<Graph>>, queue: &Arc<Queue<String>>) {
    let (graph, queue) = (graph.clone(), queue.clone());
    store.subscribe(move |change| {
        let uids = match change.after() {
            Some(object) => graph.lock().put(object),
            None => graph.lock().remove(change.object().uid()),
        };
        uids.into_iter().for_each(|uid| queue.add(uid));
    });
}

/// Runs until dropped.
pub async fn run(base: Base) {
    let (api, events) = base.acting_as(&Component::Controller(ACCOUNT), "garbage-collector-controller");
    let collector = Arc::new(Collector {
        executor: Executor::new(api.clone(), events),
        api,
        graph: Arc::default(),
        queue: Arc::default(),
    });
    for kind in kinds() {
        feed(&base.caches.store(kind), &collector.graph, &collector.queue);
    }
    let (graph, queue) = (collector.graph.clone(), collector.queue.clone());
    base.caches.follow_custom_kinds(move |change| match change {
        KindChange::Came(store) => {
            let uids = graph.lock().know(store.kind());
            uids.into_iter().for_each(|uid| queue.add(uid));
            feed(store, &graph, &queue);
        }
        KindChange::Gone(kind) => graph.lock().forget(kind),
    });
    for kind in kinds() {
        base.caches.store(kind).synced().await;
    }
    // An owner that waits for its dependents, or orphans them, must know those of custom kinds, too. A kind that is
    // removed meanwhile has none.
    for kind in base.caches.custom_kinds() {
        if let Some(store) = base.caches.existing(&kind)
            && timeout(CUSTOM_SYNC, store.synced()).await.is_err()
        {
            warn!(
                kind = kind.plural(),
                "its objects cannot be listed; collecting without them"
            );
        }
    }
    debug!("garbage collector started");
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let collector = collector.clone();
        workers.spawn(async move {
            while let Some(uid) = collector.queue.get().await {
                match collector.process(&uid).await {
                    Ok(()) => collector.queue.forget(&uid),
                    Err(failure) => {
                        collector.report(&failure);
                        collector.queue.add_rate_limited(uid.clone());
                    }
                }
                collector.queue.done(&uid);
            }
        });
    }
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            warn!(%error, "a garbage collection worker died");
        }
    }
}

impl Collector {
    async fn process(&self, uid: &str) -> Result<(), Box<Failure>> {
        let mut there = BTreeSet::new();
        loop {
            // A statement of its own: the graph is not locked during requests.
            let work = self.graph.lock().look(uid, &there);
            match work {
                Work::Nothing => return Ok(()),
                Work::Ask(asked) => {
                    let is_there = self.ask(&asked).await?;
                    self.graph.lock().answered(&asked.uid, is_there);
                    if is_there {
                        there.insert(asked.uid);
                    }
                }
                Work::Do(todo) => {
                    for todo in todo {
                        self.carry_out(&todo).await?;
                    }
                    return Ok(());
                }
            }
        }
    }

    async fn ask(&self, asked: &Asked) -> Result<bool, Box<Failure>> {
        match self
            .api
            .get(&asked.kind, &asked.key.namespace, &asked.key.name)
            .await
        {
            Ok(live) => Ok(live.uid() == asked.uid),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(failure(&asked.kind, &asked.key.name, error)),
        }
    }

    async fn carry_out(&self, todo: &Todo) -> Result<(), Box<Failure>> {
        let live = match self
            .api
            .get(&todo.kind, &todo.key.namespace, &todo.key.name)
            .await
        {
            Ok(live) => live,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(failure(&todo.kind, &todo.key.name, error)),
        };
        let Some(action) = action(todo, &live) else {
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
