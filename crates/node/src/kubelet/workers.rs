//! The pods' tasks, one each: starts them, forwards their events, and terminates what no pod accounts for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{Object, Shared, k8s_openapi};
use knarr_apimachinery::ids::PodUid;
use knarr_kubelet::admission::Rejection;
use knarr_kubelet::pod::Event;
use knarr_kubelet::runtime::{Container, Sandbox};
use knarr_kubelet::static_pods::mirrored_hash;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::bound_pods::{BoundPods, SharedPod};
use super::inbox::Msg;
use super::pod_object::delete_at_once;
use super::retry::retry_until_done;
use super::runtime_snapshot::{RunningPod, RuntimeSnapshot};
use super::static_pods;
use super::status::Origin;
use super::waiting_pod::WaitingPod;
use super::worker::{Worker, WorkerContext};
use crate::runtime::Runtime;
use crate::teardown::remove_sandbox;
use crate::volumes::Volumes;

/// An orphan's grace period.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// How long a new pod waits for a read of the node before it is rejected by what is known.
const NODE_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a static pod waits for the API to receive the last status of the one before it.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Workers {
    pub(super) context: Arc<WorkerContext>,
    pods: BoundPods,
    pub by_uid: BTreeMap<PodUid, Worker>,
    cancel: CancellationToken,
    /// Admitted by this node.
    admitted: BTreeSet<PodUid>,
    /// New pods for which the node's object is being read again, by uid.
    rereading: BTreeSet<PodUid>,
    /// Receives their uids when that is done.
    rereads: mpsc::UnboundedSender<PodUid>,
    /// Being terminated.
    orphans: Arc<Mutex<BTreeSet<PodUid>>>,
    /// The static pods that have a worker, by uid; true once their file was removed.
    statics: BTreeMap<PodUid, (Arc<core::Pod>, bool)>,
    /// Terminated static pods whose successors wait, by uid: since when.
    unreported: BTreeMap<PodUid, Instant>,
    /// Critical pods that are not admitted yet, by uid.
    pub waiting: BTreeMap<PodUid, WaitingPod>,
}

impl Workers {
    /// `rereads` receives the uids of pods to pass to [`Workers::node_reread`].
    pub fn new(
        context: Arc<WorkerContext>,
        pods: BoundPods,
        rereads: mpsc::UnboundedSender<PodUid>,
        cancel: CancellationToken,
    ) -> Self {
        Workers {
            context,
            pods,
            by_uid: BTreeMap::new(),
            cancel,
            admitted: BTreeSet::new(),
            rereading: BTreeSet::new(),
            rereads,
            orphans: Arc::default(),
            statics: BTreeMap::new(),
            unreported: BTreeMap::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Drops the workers that have finished.
    pub fn drop_finished(&mut self) {
        self.by_uid.retain(|_, worker| !worker.is_finished());
        let by_uid = &self.by_uid;
        self.admitted.retain(|uid| by_uid.contains_key(uid));
    }

    /// Starts the desired static pods and terminates the others. One whose file has changed waits for the one before it
    /// to terminate: both have one name. Returns whether one waits so.
    pub(super) fn run_statics(
        &mut self,
        desired: BTreeMap<PodUid, Arc<core::Pod>>,
        snapshot: &mut RuntimeSnapshot,
    ) -> bool {
        self.forget_removed_static_pods(&desired);
        let by_uid = &self.by_uid;
        self.statics
            .retain(|uid, _| by_uid.get(uid).is_some_and(|worker| !worker.is_finished()));
        let statics = &self.statics;
        self.unreported.retain(|uid, _| statics.contains_key(uid));
        let mut waits = false;
        let now = self.context.clock.now();
        for (uid, (pod, terminated)) in &mut self.statics {
            if !*terminated
                && !desired.contains_key(uid)
                && let Some(worker) = self.by_uid.get(uid)
            {
                *terminated = true;
                let ending = static_pods::marked_for_deletion(pod, now);
                worker.send(Msg::Event(Event::Updated(Arc::new(ending))));
            }
        }
        for (uid, pod) in desired {
            let name = |p: &core::Pod| (p.metadata.namespace.clone(), p.metadata.name.clone());
            let mut others = self.statics.iter();
            let before = others.find(|(_, (other, _))| name(other) == name(&pod));
            if let Some((before, (_, terminated))) = before {
                if *terminated {
                    waits = true;
                    let before = before.clone();
                    self.stop_waiting_for_the_api(&before);
                }
                continue;
            }
            let begins = match snapshot.pods.contains_key(&uid) {
                true => pod.clone(),
                false => Arc::new(self.context.terminated_static_pods.with_memory(&pod)),
            };
            self.admit_or_wait(uid.clone(), begins, Origin::File, snapshot);
            self.statics.insert(uid, (pod, false));
        }
        waits
    }

    /// A static pod's successor does not wait for an API that does not answer: the mirror of the successor then
    /// replaces the terminated one's.
    fn stop_waiting_for_the_api(&mut self, uid: &PodUid) {
        let Some(worker) = self.by_uid.get(uid).filter(|worker| worker.has_terminated()) else {
            return;
        };
        let since = self.unreported.entry(uid.clone()).or_insert_with(Instant::now);
        if since.elapsed() >= REPORT_TIMEOUT {
            worker.send(Msg::Forget);
        }
    }

    /// A mirror is not run; its deletion is reverted as long as its static pod exists.
    fn mirror_changed(&self, mirror: &Shared<core::Pod>, deleted: bool) {
        let name = |p: &core::Pod| (p.metadata.namespace.clone(), p.metadata.name.clone());
        let static_pod = self
            .statics
            .iter()
            .find(|(_, (pod, terminated))| !*terminated && name(pod) == name(mirror));
        match static_pod.and_then(|(uid, _)| self.by_uid.get(uid)) {
            Some(worker) if deleted || mirror.metadata.deletion_timestamp.is_some() => {
                worker.send(Msg::MirrorDeleted);
            }
            Some(_) => {}
            None if deleted || self.statics.values().any(|(pod, _)| name(pod) == name(mirror)) => {}
            None => {
                let (api, mirror) = (self.context.api.clone(), mirror.clone());
                crate::task::spawn(async move {
                    if let Err(error) = delete_at_once(&*api, &mirror).await {
                        warn!(%error, "cannot delete the mirror of a removed static pod");
                    }
                });
            }
        }
    }

    pub(super) fn changed(
        &mut self,
        old: Option<&Arc<Object>>,
        new: Option<Arc<Object>>,
        snapshot: &mut RuntimeSnapshot,
    ) {
        let deleted = old.filter(|old| new.as_ref().is_none_or(|new| new.uid() != old.uid()));
        if let Some(mirror) = deleted.and_then(|old| Shared::<core::Pod>::new(old.clone()).ok())
            && mirrored_hash(&mirror).is_some()
        {
            self.mirror_changed(&mirror, true);
        }
        if let Some(old) = deleted {
            self.waiting.remove(old.uid());
            if let Some(worker) = self.by_uid.get(old.uid()) {
                worker.send(Msg::Event(Event::Removed));
            }
        }
        let Some(pod) = new.and_then(|new| Shared::<core::Pod>::new(new).ok()) else {
            return;
        };
        if mirrored_hash(&pod).is_some() {
            return self.mirror_changed(&pod, false);
        }
        let uid = PodUid::of(&pod.metadata);
        match self.by_uid.get(&uid) {
            Some(worker) => worker.send(Msg::Event(Event::Updated(Arc::new((*pod).clone())))),
            None if self.rereading.contains(&uid) => {}
            None => self.admit_or_wait(uid, Arc::new((*pod).clone()), Origin::Api, snapshot),
        }
    }

    /// A pod that is new here gets its worker. One that the runtime has already is not subject to admission.
    pub(super) fn admit_or_wait(
        &mut self,
        uid: PodUid,
        pod: Arc<core::Pod>,
        origin: Origin,
        snapshot: &mut RuntimeSnapshot,
    ) {
        if self.is_waiting(&uid, &pod) {
            return;
        }
        let found = snapshot.take(&uid);
        let admitted = self.admit_new(&pod, &found);
        let of_labels = admitted.as_ref().is_err_and(Rejection::is_for_labels_or_taints);
        if of_labels && matches!(origin, Origin::Api) {
            // The scheduler may have seen a newer node: as in kubelet's `predicateAdmitHandler`, a rejection for the
            // node's labels is decided on its current object.
            self.rereading.insert(uid.clone());
            let (admission, rereads) = (self.context.admission.clone(), self.rereads.clone());
            crate::task::spawn(async move {
                match timeout(NODE_READ_TIMEOUT, admission.reread_node()).await {
                    Ok(Ok(())) => {}
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
    pub(super) fn node_reread(&mut self, uid: &PodUid, snapshot: &mut RuntimeSnapshot) {
        self.rereading.remove(uid);
        let Some(pod) = self.pods.with_uid(uid) else {
            return;
        };
        let found = snapshot.take(uid);
        let admitted = self.admit_new(&pod, &found);
        let pod = Arc::new((*pod).clone());
        self.begin(uid.clone(), pod, Origin::Api, found, admitted);
    }

    /// What runs already is not subject to admission.
    fn admit_new(&self, pod: &core::Pod, found: &Option<RunningPod>) -> Result<Vec<SharedPod>, Rejection> {
        match found {
            Some(_) => Ok(Vec::new()),
            None => self
                .context
                .admission
                .admit(pod, |uid| self.admitted.contains(uid)),
        }
    }

    /// Starts a pod's worker, once its victims have terminated.
    fn begin(
        &mut self,
        uid: PodUid,
        pod: Arc<core::Pod>,
        origin: Origin,
        found: Option<RunningPod>,
        admitted: Result<Vec<SharedPod>, Rejection>,
    ) {
        let admitted = match admitted {
            Ok(victims) if !victims.is_empty() => return self.preempt(uid, pod, origin, &victims),
            Ok(_) => {
                self.admitted.insert(uid.clone());
                Ok(())
            }
            Err(rejection) => Err(rejection),
        };
        let (context, cancel) = (self.context.clone(), self.cancel.clone());
        let worker = Worker::start(context, pod, found, admitted, origin, cancel);
        self.by_uid.insert(uid, worker);
    }

    /// Pods of which something is left here.
    pub(super) fn active_pods(&self) -> Vec<SharedPod> {
        let of_api = self.pods.list().into_iter().map(SharedPod::Bound);
        let of_files = self.statics.values().map(|(pod, _)| SharedPod::Own(pod.clone()));
        let all = of_api.filter(|pod| mirrored_hash(pod).is_none()).chain(of_files);
        all.filter(|pod| !self.has_terminated(pod.metadata.uid.as_deref().unwrap_or("")))
            .collect()
    }

    /// All pods of the node are known: what was kept for others is free.
    pub(super) fn release_orphaned_resources(&self) {
        let is_new = |uid: &str| self.waiting.contains_key(uid) || self.rereading.contains(uid);
        let is_there = |uid: &str| is_new(uid) || !self.has_terminated(uid);
        self.context.managers.containers.retain_pods(is_there);
        let deleted = self.context.managers.dra.pods().into_iter();
        let deleted = deleted.filter(|uid| !is_new(uid) && !self.by_uid.contains_key(uid.as_str()));
        for uid in deleted {
            let dra = self.context.managers.dra.clone();
            crate::task::spawn(async move {
                retry_until_done("unprepare the claims of a deleted pod", || dra.unprepare(&uid)).await;
                dra.forget(&uid);
            });
        }
    }

    /// Whether only the pod's status remains to be reported.
    pub(super) fn has_terminated(&self, uid: &str) -> bool {
        let worker = self.by_uid.get(uid);
        worker.is_none_or(|worker| worker.is_finished() || worker.has_terminated())
    }

    /// Whether a pod's object does not show yet that it has terminated.
    pub(super) fn is_unreported(&self, uid: &str) -> bool {
        self.pods.with_uid(uid).is_some_and(|pod| !is_terminal(&pod))
    }

    pub(super) fn send(&self, uid: &str, event: Event) {
        // A deleted pod needs no event.
        if let Some(worker) = self.by_uid.get(uid) {
            worker.send(Msg::Event(event));
        }
    }

    pub(super) fn observed(&mut self, mut now: RuntimeSnapshot) {
        for (uid, worker) in &self.by_uid {
            let (sandboxes, containers) = now.pods.remove(uid).unwrap_or_default();
            worker.send(Msg::Observed {
                since: now.since,
                sandboxes,
                containers,
            });
        }
        for (uid, (sandboxes, containers)) in now.pods {
            if self.pods.with_uid(&uid).is_some() || !self.orphans.lock().insert(uid.clone()) {
                continue;
            }
            info!(uid = uid.as_str(), "terminating orphaned containers");
            let (context, orphans) = (self.context.clone(), self.orphans.clone());
            crate::task::spawn(async move {
                terminate_orphan(
                    &**context.runtime,
                    &context.volumes,
                    &uid,
                    &sandboxes,
                    &containers,
                )
                .await;
                orphans.lock().remove(&uid);
            });
        }
    }
}

/// Terminates what no pod in the API accounts for. What cannot be terminated is retried after the next relist; its
/// volumes stay until then, for its processes may use them. Once nothing runs no relist finds it again, so they are
/// torn down here.
async fn terminate_orphan(
    runtime: &dyn Runtime,
    volumes: &Volumes,
    uid: &PodUid,
    sandboxes: &[Sandbox],
    containers: &[Container],
) {
    let stops = containers.iter().map(|c| async move {
        let stopped = runtime.stop_container(&c.id, ORPHAN_GRACE).await;
        if let Err(error) = &stopped {
            warn!(container = %c.id, %error, "cannot stop an orphaned container");
        }
        // If not, it terminates with its sandbox below.
        stopped.is_ok() || sandboxes.iter().any(|s| s.id == c.sandbox_id)
    });
    let terminated = futures::future::join_all(stops).await;
    if !terminated.into_iter().all(|terminated| terminated) {
        return;
    }
    for sandbox in sandboxes {
        if let Err(error) = remove_sandbox(runtime, &sandbox.id).await {
            warn!(sandbox = %sandbox.id, %error, "cannot stop an orphaned sandbox");
            return;
        }
    }
    retry_until_done("tear down the volumes of a deleted pod", || volumes.teardown(uid)).await;
}
