//! The kubelet's main loop (upstream: `syncLoop`): takes changes of pods from the API, from manifests, the runtime, eviction
//! and shutdown, and passes each to the worker of its pod.
//!
//! It never waits for a pod. Until the API's first list of pods has arrived, none that runs is taken for an orphan.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use knarr_api::Object;
use knarr_apimachinery::ids::PodUid;
use knarr_client::Clock;
use knarr_kubelet::pod::Event;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::bound_pods::BoundPods;
use super::manifests::ManifestDirectory;
use super::pod_runtime::PodRuntime;
use super::runtime_events::StreamEvent;
use super::runtime_snapshot::RuntimeSnapshot;
use super::shutdown::{Runner, ShutdownRequest};
use super::workers::Workers;
use crate::runtime::RuntimeEvent;

/// Relist period while the runtime reports exits by itself; else [`RELIST_BLIND`].
const RELIST: Duration = Duration::from_secs(10);
const RELIST_BLIND: Duration = Duration::from_secs(1);
/// Poll interval of whether a static pod that waits for the one before it may start.
const SUCCESSOR_POLL: Duration = Duration::from_millis(200);

/// A pod's object before and after a change.
pub(super) type PodChange = (Option<Arc<Object>>, Option<Arc<Object>>);

/// What the loop receives.
pub(super) struct Inputs {
    pub changes: mpsc::UnboundedReceiver<PodChange>,
    /// New pods for which the node's object was read again.
    pub rereads: mpsc::UnboundedReceiver<PodUid>,
    /// For pods, by uid.
    pub pod_events: mpsc::UnboundedReceiver<(PodUid, Event)>,
    pub shutdown_requests: mpsc::UnboundedReceiver<ShutdownRequest>,
    pub runtime_events: mpsc::UnboundedReceiver<StreamEvent>,
}

/// See the module.
pub(super) struct SyncLoop {
    workers: Workers,
    manifests: Option<ManifestDirectory>,
    shutdown: Runner,
    pods: BoundPods,
    runtime: Arc<PodRuntime>,
    clock: Arc<dyn Clock>,
    /// What the runtime had of pods that have not arrived from the API yet.
    snapshot: RuntimeSnapshot,
    /// The runtime reports exits by itself.
    listening: bool,
    /// All pods of this node are known.
    complete: bool,
    next_relist: Instant,
}

impl SyncLoop {
    /// Starts the static pods: before anything that runs could be taken for an orphan.
    pub fn new(
        workers: Workers,
        manifests: Option<ManifestDirectory>,
        shutdown: Runner,
        pods: BoundPods,
        runtime: Arc<PodRuntime>,
        clock: Arc<dyn Clock>,
        snapshot: RuntimeSnapshot,
    ) -> Self {
        let mut sync = SyncLoop {
            workers,
            manifests,
            shutdown,
            pods,
            runtime,
            clock,
            snapshot,
            listening: false,
            complete: false,
            next_relist: Instant::now() + RELIST_BLIND,
        };
        if let Some(manifests) = &mut sync.manifests {
            let desired = manifests.poll(sync.clock.now());
            sync.workers.run_statics(desired, &mut sync.snapshot);
        }
        sync
    }

    /// Never returns.
    pub async fn run(mut self, mut inputs: Inputs) {
        loop {
            tokio::select! {
                biased;
                Some((old, new)) = inputs.changes.recv() => {
                    self.workers.changed(old.as_ref(), new, &mut self.snapshot);
                }
                Some(uid) = inputs.rereads.recv() => self.workers.node_reread(&uid, &mut self.snapshot),
                Some((uid, event)) = inputs.pod_events.recv() => self.workers.send(&uid, event),
                // Which pods there are must be known before any of them is left out.
                Some(request) = inputs.shutdown_requests.recv(), if self.complete => {
                    self.shutdown.request(&self.workers, request);
                }
                () = self.shutdown.due() => self.shutdown.advance(&self.workers),
                Some(event) = inputs.runtime_events.recv() => self.runtime_event(event),
                () = manifests_changed(&mut self.manifests) => self.read_manifests(),
                () = sleep_until(self.next_relist) => self.relist(&inputs.changes).await,
            }
            self.workers.retry_waiting(&mut self.snapshot);
            self.workers.drop_finished();
        }
    }

    fn runtime_event(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Event(RuntimeEvent::Exited { id }) => self.runtime.note_exit(&id),
            // Events that were missed are found by a relist.
            StreamEvent::Event(RuntimeEvent::Resync) => self.next_relist = Instant::now(),
            StreamEvent::Begun | StreamEvent::Disconnected => {
                self.listening = matches!(event, StreamEvent::Begun);
                self.next_relist = Instant::now();
            }
        }
    }

    fn read_manifests(&mut self) {
        let Some(manifests) = &mut self.manifests else {
            return;
        };
        self.workers
            .run_statics(manifests.take_removed(), &mut self.snapshot);
        let desired = manifests.poll(self.clock.now());
        if self.workers.run_statics(desired, &mut self.snapshot) {
            manifests.poll_by(Instant::now() + SUCCESSOR_POLL);
        }
    }

    /// All pods are known once the API's list has arrived and none of its `changes` is left to be taken.
    async fn relist(&mut self, changes: &mpsc::UnboundedReceiver<PodChange>) {
        self.next_relist = Instant::now() + if self.listening { RELIST } else { RELIST_BLIND };
        // The first snapshot still has containers for pods that arrive with the first list.
        match RuntimeSnapshot::list(&**self.runtime, self.clock.now()).await {
            Ok(now) if self.complete => self.workers.observed(now),
            Ok(now) => self.snapshot = now,
            Err(error) => debug!(%error, "the container runtime does not answer"),
        }
        if !self.complete && self.pods.is_complete() && changes.is_empty() {
            self.complete = true;
            info!(
                pods = self.workers.by_uid.len(),
                "all pods of this node are known"
            );
            self.workers.release_orphaned_resources();
            self.next_relist = Instant::now();
        }
    }
}

/// Returns when the directory of static pods has to be read.
async fn manifests_changed(manifests: &mut Option<ManifestDirectory>) {
    match manifests {
        Some(manifests) => manifests.changed().await,
        None => pending().await,
    }
}
