//! The pods' tasks, one each: starts them, forwards their events, and terminates what no pod accounts for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use knarr_api::quantity::{Notation, Quantity};
use knarr_api::{Object, k8s_openapi};
use knarr_client::{Clock, Store};
use knarr_kubelet::admission::{self, Rejection};
use knarr_kubelet::pod::Event;
use knarr_kubelet::runtime::{Container, Sandbox};
use knarr_kubelet::static_pods::mirrored;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::worker::{self, Msg, Origin, Worker};
use super::{Shared, preemption, resources, shutdown, static_pods, status};
use crate::teardown::remove_sandbox;

/// An orphan's grace period.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// How long a new pod waits for a read of the node before it is rejected by what is known.
const NODE_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a static pod waits for the API to receive the last status of the one before it.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// What the runtime holds, by pod.
pub(super) struct RuntimeSnapshot {
    pub since: Timestamp,
    pub pods: BTreeMap<String, (Vec<Sandbox>, Vec<Container>)>,
}

/// What the runtime was found to hold of a pod, and since when that is so.
pub(super) type RunningPod = (Timestamp, Vec<Sandbox>, Vec<Container>);

impl RuntimeSnapshot {
    /// What is there of a pod; it is handed out once.
    fn take(&mut self, uid: &str) -> Option<RunningPod> {
        self.pods.remove(uid).map(|(s, c)| (self.since, s, c))
    }
}

pub(super) async fn list_runtime(shared: &Shared) -> crate::runtime::Result<RuntimeSnapshot> {
    let since = shared.clock.now();
    let sandboxes = shared.runtime.sandboxes().await?;
    let containers = shared.runtime.containers().await?;
    let mut pods: BTreeMap<String, (Vec<Sandbox>, Vec<Container>)> = BTreeMap::new();
    for sandbox in sandboxes {
        pods.entry(sandbox.pod.uid.clone()).or_default().0.push(sandbox);
    }
    for container in containers {
        pods.entry(container.pod.uid.clone())
            .or_default()
            .1
            .push(container);
    }
    Ok(RuntimeSnapshot { since, pods })
}

pub(super) struct Workers {
    pub shared: Arc<Shared>,
    pub by_uid: BTreeMap<String, Worker>,
    pub cancel: CancellationToken,
    /// Admitted by this node.
    pub admitted: BTreeSet<String>,
    /// New pods for which the node's object is being read again, by uid.
    pub rereading: BTreeSet<String>,
    /// Receives their uids when that is done.
    pub rereads: mpsc::UnboundedSender<String>,
    /// Being terminated.
    pub orphans: Arc<Mutex<BTreeSet<String>>>,
    /// The static pods that have a worker, by uid; true once their file was removed.
    pub statics: BTreeMap<String, (core::Pod, bool)>,
    /// Terminated static pods whose successors wait, by uid: since when.
    pub unreported: BTreeMap<String, Instant>,
    /// Critical pods that are not admitted yet, by uid.
    pub waiting: BTreeMap<String, preemption::WaitingPod>,
}

impl Workers {
    /// Starts the wanted static pods and terminates the others. One whose file has changed waits for the one before it
    /// to terminate: both have one name. Returns whether one waits so.
    pub(super) fn run_statics(
        &mut self,
        wanted: BTreeMap<String, core::Pod>,
        snapshot: &mut RuntimeSnapshot,
    ) -> bool {
        self.forget_removed_static_pods(&wanted);
        let by_uid = &self.by_uid;
        self.statics
            .retain(|uid, _| by_uid.get(uid).is_some_and(|worker| !worker.is_finished()));
        let statics = &self.statics;
        self.unreported.retain(|uid, _| statics.contains_key(uid));
        let mut waits = false;
        let now = self.shared.clock.now();
        for (uid, (pod, ended)) in &mut self.statics {
            if !*ended
                && !wanted.contains_key(uid)
                && let Some(worker) = self.by_uid.get(uid)
            {
                *ended = true;
                let ending = static_pods::marked_for_deletion(pod, now);
                worker.send(Msg::Event(Event::Updated(Arc::new(ending))));
            }
        }
        for (uid, pod) in wanted {
            let name = |p: &core::Pod| (p.metadata.namespace.clone(), p.metadata.name.clone());
            let mut others = self.statics.iter();
            let before = others.find(|(_, (other, _))| name(other) == name(&pod));
            if let Some((before, (_, ended))) = before {
                if *ended {
                    waits = true;
                    let before = before.clone();
                    self.stop_waiting_for_the_api(&before);
                }
                continue;
            }
            let begins = match snapshot.pods.contains_key(&uid) {
                true => pod.clone(),
                false => static_pods::with_memory(&self.shared, &pod),
            };
            self.admit_or_wait(uid.clone(), Arc::new(begins), Origin::File, snapshot);
            self.statics.insert(uid, (pod, false));
        }
        *self.shared.static_uids.lock() = self.statics.keys().cloned().collect();
        waits
    }

    /// A static pod's successor does not wait for an API that does not answer: the mirror of the successor then
    /// replaces the terminated one's.
    fn stop_waiting_for_the_api(&mut self, uid: &str) {
        let Some(worker) = self.by_uid.get(uid).filter(|worker| worker.has_ended()) else {
            return;
        };
        let since = self
            .unreported
            .entry(uid.to_string())
            .or_insert_with(Instant::now);
        if since.elapsed() >= REPORT_TIMEOUT {
            worker.send(Msg::Forget);
        }
    }

    /// A mirror is not run; its deletion is reverted as long as its static pod exists.
    fn mirror_changed(&self, mirror: &core::Pod, gone: bool) {
        let name = |p: &core::Pod| (p.metadata.namespace.clone(), p.metadata.name.clone());
        let stands_for = self
            .statics
            .iter()
            .find(|(_, (pod, ended))| !*ended && name(pod) == name(mirror));
        match stands_for.and_then(|(uid, _)| self.by_uid.get(uid)) {
            Some(worker) if gone || mirror.metadata.deletion_timestamp.is_some() => {
                worker.send(Msg::MirrorGone);
            }
            Some(_) => {}
            None if gone || self.statics.values().any(|(pod, _)| name(pod) == name(mirror)) => {}
            None => {
                let (shared, mirror) = (self.shared.clone(), mirror.clone());
                tokio::spawn(async move {
                    if let Err(error) = status::delete_at_once(&shared, &mirror).await {
                        warn!(%error, "cannot delete the mirror of a removed static pod");
                    }
                });
            }
        }
    }

    pub(super) fn changed(
        &mut self,
        old: Option<&Object>,
        new: Option<Arc<Object>>,
        snapshot: &mut RuntimeSnapshot,
    ) {
        let gone = old.filter(|old| new.as_ref().is_none_or(|new| new.uid() != old.uid()));
        if let Some(mirror) = gone.and_then(|old| old.to_typed::<core::Pod>())
            && mirrored(&mirror).is_some()
        {
            self.mirror_changed(&mirror, true);
        }
        if let Some(old) = gone {
            self.waiting.remove(old.uid());
            if let Some(worker) = self.by_uid.get(old.uid()) {
                worker.send(Msg::Event(Event::Removed));
            }
        }
        let Some(pod) = new.and_then(|new| new.to_typed::<core::Pod>()) else {
            return;
        };
        if mirrored(&pod).is_some() {
            return self.mirror_changed(&pod, false);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match self.by_uid.get(&uid) {
            Some(worker) => worker.send(Msg::Event(Event::Updated(Arc::new(pod)))),
            None if self.rereading.contains(&uid) => {}
            None => self.admit_or_wait(uid, Arc::new(pod), Origin::Api, snapshot),
        }
    }

    /// A pod that is new here gets its worker. One that the runtime has already is not subject to admission.
    pub(super) fn admit_or_wait(
        &mut self,
        uid: String,
        pod: Arc<core::Pod>,
        origin: Origin,
        snapshot: &mut RuntimeSnapshot,
    ) {
        if self.is_waiting(&uid, &pod) {
            return;
        }
        let found = snapshot.take(&uid);
        let admitted = self.admit_new(&pod, &found);
        let of_labels = admitted.as_ref().is_err_and(Rejection::is_of_labels_or_taints);
        if of_labels && matches!(origin, Origin::Api) {
            // The scheduler may have seen a newer node: as in kubelet's `predicateAdmitHandler`, a rejection for the
            // node's labels is decided on its current object.
            self.rereading.insert(uid.clone());
            let (shared, rereads) = (self.shared.clone(), self.rereads.clone());
            tokio::spawn(async move {
                match timeout(NODE_READ_TIMEOUT, shared.own_node.read(&*shared.api)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => debug!(%error, "cannot read the node before a pod is rejected"),
                    Err(_) => debug!("reading the node before a pod is rejected takes too long"),
                }
                // The receiver is dropped only with the whole kubelet.
                let _ = rereads.send(uid);
            });
            return;
        }
        self.begin(uid, pod, origin, found, admitted);
    }

    /// The node's current object is known: the pod is admitted or rejected.
    pub(super) fn node_reread(&mut self, uid: &str, snapshot: &mut RuntimeSnapshot) {
        self.rereading.remove(uid);
        let there = self.shared.pods.list("").into_iter().find(|pod| pod.uid() == uid);
        let Some(pod) = there.and_then(|object| object.to_typed::<core::Pod>()) else {
            return;
        };
        let found = snapshot.take(uid);
        let admitted = self.admit_new(&pod, &found);
        self.begin(uid.to_string(), Arc::new(pod), Origin::Api, found, admitted);
    }

    /// What runs already is not subject to admission.
    fn admit_new(&self, pod: &core::Pod, found: &Option<RunningPod>) -> Result<Vec<core::Pod>, Rejection> {
        match found {
            Some(_) => Ok(Vec::new()),
            None => self.admit(pod),
        }
    }

    /// Starts a pod's worker, once its victims have terminated.
    fn begin(
        &mut self,
        uid: String,
        pod: Arc<core::Pod>,
        origin: Origin,
        found: Option<RunningPod>,
        admitted: Result<Vec<core::Pod>, Rejection>,
    ) {
        let admitted = match admitted {
            Ok(victims) if !victims.is_empty() => return self.preempt(uid, pod, origin, &victims),
            Ok(_) => {
                self.admitted.insert(uid.clone());
                Ok(())
            }
            Err(rejection) => Err(rejection),
        };
        let (shared, cancel) = (self.shared.clone(), self.cancel.clone());
        let worker = Worker::start(shared, pod, found, admitted, origin, cancel);
        self.by_uid.insert(uid, worker);
    }

    /// Whether the node admits a new pod next to those it has admitted; returns the victims that have to terminate
    /// before.
    fn admit(&self, pod: &core::Pod) -> Result<Vec<core::Pod>, Rejection> {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if !matches!(phase, None | Some("Pending")) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(Vec::new());
        }
        let best_effort = resources::qos(pod) == resources::Qos::BestEffort;
        knarr_kubelet::eviction::admit(pod, best_effort, &self.shared.pressures())?;
        let sysctls = &self.shared.config.configuration.allowed_unsafe_sysctls;
        knarr_kubelet::sysctl::admit(pod, sysctls)?;
        let counts = |other: &core::Pod| {
            let phase = other.status.as_ref().and_then(|s| s.phase.as_deref());
            let uid = other.metadata.uid.as_deref().unwrap_or("");
            let taken = self.admitted.contains(uid) || phase == Some("Running");
            taken && !matches!(phase, Some("Succeeded" | "Failed"))
        };
        let known = node_and_others(&self.shared, &self.shared.granted.lock(), pod, counts);
        let victims = match known {
            Some((node, others)) => {
                let others: Vec<&core::Pod> = others.iter().collect();
                let victims = admission::admit_before(pod, &node, &others)?;
                victims.into_iter().cloned().collect()
            }
            None => Vec::new(),
        };
        knarr_kubelet::app_armor::admit(pod, || self.shared.config.machine.has_app_armor())?;
        match self.shared.is_shutting_down() {
            true => Err(knarr_kubelet::shutdown::rejection()),
            false => Ok(victims),
        }
    }

    /// Pods of which something is left here.
    pub(super) fn active_pods(&self) -> Vec<core::Pod> {
        let objects = self.shared.pods.list("");
        let of_api = objects.iter().filter_map(|o| o.to_typed::<core::Pod>());
        let of_files = self.statics.values().map(|(pod, _)| pod.clone());
        let all = of_api.filter(|pod| mirrored(pod).is_none()).chain(of_files);
        all.filter(|pod| !self.has_ended(pod.metadata.uid.as_deref().unwrap_or("")))
            .collect()
    }

    /// All pods of the node are known: what was kept for others is free.
    pub(super) fn release_orphaned_resources(&self) {
        let is_new = |uid: &str| self.waiting.contains_key(uid) || self.rereading.contains(uid);
        let is_there = |uid: &str| is_new(uid) || !self.has_ended(uid);
        self.shared.containers.retain_pods(is_there);
        let gone = self.shared.dra.pods().into_iter();
        let gone = gone.filter(|uid| !is_new(uid) && !self.by_uid.contains_key(uid));
        for uid in gone {
            let shared = self.shared.clone();
            tokio::spawn(async move {
                worker::retry_until_done("unprepare the claims of a deleted pod", || {
                    shared.dra.unprepare(&uid)
                })
                .await;
                shared.dra.forget(&uid);
            });
        }
    }

    /// Whether only the pod's status remains to be reported.
    pub(super) fn has_ended(&self, uid: &str) -> bool {
        let worker = self.by_uid.get(uid);
        worker.is_none_or(|worker| worker.is_finished() || worker.has_ended())
    }

    /// Whether a pod's object does not show yet that it has terminated.
    pub(super) fn is_unreported(&self, uid: &str) -> bool {
        let objects = self.shared.pods.list("");
        let object = objects.iter().find(|o| o.uid() == uid);
        object
            .and_then(|o| o.to_typed::<core::Pod>())
            .is_some_and(|pod| !shutdown::is_terminated(&pod))
    }

    pub(super) fn send(&self, uid: &str, event: Event) {
        // A deleted pod needs no event.
        if let Some(worker) = self.by_uid.get(uid) {
            worker.send(Msg::Event(event));
        }
    }

    pub(super) fn exited(&self, id: &str) {
        if let Some(owner) = self.shared.owners.lock().get(id) {
            // A worker that has exited has nothing to check.
            let _ = owner.send(Msg::CheckExit { id: id.into() });
        }
    }

    pub(super) fn observed(&mut self, now: &RuntimeSnapshot, pods: &Store) {
        for (uid, worker) in &self.by_uid {
            let (sandboxes, containers) = now.pods.get(uid).cloned().unwrap_or_default();
            worker.send(Msg::Observed {
                since: now.since,
                sandboxes,
                containers,
            });
        }
        for (uid, (sandboxes, containers)) in &now.pods {
            let known = self.by_uid.contains_key(uid) || pods.list("").iter().any(|p| p.uid() == uid);
            if known || !self.orphans.lock().insert(uid.clone()) {
                continue;
            }
            info!(uid, "terminating orphaned containers");
            let (shared, orphans, uid) = (self.shared.clone(), self.orphans.clone(), uid.clone());
            let (sandboxes, containers) = (sandboxes.clone(), containers.clone());
            tokio::spawn(async move {
                terminate_orphan(&shared, &uid, &sandboxes, &containers).await;
                orphans.lock().remove(&uid);
            });
        }
    }
}

pub(crate) type AllocatedPods = BTreeMap<String, Arc<core::Pod>>;

/// Whether the node has enough for a pod's resized requests next to what the others are allocated. If so, it is
/// allocated at once: of two resizes that do not fit together one succeeds.
pub(super) fn admit_resize(shared: &Shared, pod: &Arc<core::Pod>) -> Result<(), Rejection> {
    let mut granted = shared.granted.lock();
    if let Some(allocated) = pod.metadata.uid.as_ref().and_then(|uid| granted.get(uid)) {
        shared.containers.admit_resize(allocated, pod)?;
    }
    let counts = |other: &core::Pod| {
        let phase = other.status.as_ref().and_then(|s| s.phase.as_deref());
        !matches!(phase, Some("Failed" | "Succeeded"))
    };
    if let Some((node, others)) = node_and_others(shared, &granted, pod, counts) {
        admission::admit(pod, &node, &others.iter().collect::<Vec<_>>())?;
    }
    granted.insert(pod.metadata.uid.clone().unwrap_or_default(), pod.clone());
    Ok(())
}

/// The node and its other pods that count. `None` until its object has `allocatable`: until then no pod is bound to it.
fn node_and_others(
    shared: &Shared,
    granted: &AllocatedPods,
    pod: &core::Pod,
    counts: impl Fn(&core::Pod) -> bool,
) -> Option<(Arc<core::Node>, Vec<core::Pod>)> {
    let has_allocatable =
        |node: &Arc<core::Node>| node.status.as_ref().is_some_and(|s| s.allocatable.is_some());
    let mut node = shared.own_node.known().filter(has_allocatable)?;
    let least = shared
        .devices
        .with(|devices| devices.least_allocatable(pod.metadata.uid.as_deref().unwrap_or("")));
    if !least.is_empty() {
        raise_allocatable(Arc::make_mut(&mut node), &least);
    }
    let objects = shared.pods.list("");
    let others: Vec<core::Pod> = objects
        .iter()
        .filter_map(|o| o.to_typed::<core::Pod>())
        .filter(|other| other.metadata.uid != pod.metadata.uid && counts(other))
        .map(|mut other| {
            let uid = other.metadata.uid.as_deref().unwrap_or("");
            if let Some(granted) = granted.get(uid) {
                other.spec.clone_from(&granted.spec);
            }
            other
        })
        .collect();
    Some((node, others))
}

/// A pod with devices from before this kubelet started is admitted even if their plugin has not registered again.
fn raise_allocatable(node: &mut core::Node, least: &BTreeMap<String, usize>) {
    let status = node.status.get_or_insert_default();
    let allocatable = status.allocatable.get_or_insert_default();
    for (resource, count) in least {
        let least = i64::try_from(*count).unwrap_or(i64::MAX);
        let known = allocatable.get(resource).and_then(|q| Quantity::of(q).ok());
        if known.is_none_or(|known| known.value() < least) {
            let raised = Quantity::from_value(least, Notation::DecimalSi);
            allocatable.insert(resource.clone(), raised.to_wire());
        }
    }
}

/// Terminates what no pod in the API accounts for. What cannot be terminated is retried after the next relist; its
/// volumes stay until then, for its processes may use them. Once nothing runs no relist finds it again, so they are
/// torn down here.
async fn terminate_orphan(shared: &Shared, uid: &str, sandboxes: &[Sandbox], containers: &[Container]) {
    let runtime = &shared.runtime;
    let stops = containers.iter().map(|c| async move {
        let stopped = runtime.stop_container(&c.id, ORPHAN_GRACE).await;
        if let Err(error) = &stopped {
            warn!(container = c.id, %error, "cannot stop an orphaned container");
        }
        // If not, it terminates with its sandbox below.
        stopped.is_ok() || sandboxes.iter().any(|s| s.id == c.sandbox_id)
    });
    let ended = futures::future::join_all(stops).await;
    if !ended.into_iter().all(|ended| ended) {
        return;
    }
    for sandbox in sandboxes {
        if let Err(error) = remove_sandbox(runtime.as_ref(), &sandbox.id).await {
            warn!(sandbox = sandbox.id, %error, "cannot stop an orphaned sandbox");
            return;
        }
    }
    worker::retry_until_done("tear down the volumes of a deleted pod", || {
        shared.volumes.teardown(uid)
    })
    .await;
}
