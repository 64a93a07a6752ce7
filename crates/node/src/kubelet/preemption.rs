//! Critical pods that wait for their victims to terminate: they are admitted once those have terminated, not before, so
//! that the node is never overcommitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_client::events::EventType;
use knarr_kubelet::pod::Event;
use knarr_kubelet::preemption;
use tracing::info;

use super::bound_pods::SharedPod;
use super::inbox::Msg;
use super::runtime_snapshot::RuntimeSnapshot;
use super::status::Origin;
use super::waiting_pod::WaitingPod;
use super::workers::Workers;

impl Workers {
    /// Whether this pod waits for its victims. Then it is admitted later as it is now, unless it is being deleted: that
    /// needs no resources.
    pub(super) fn is_waiting(&mut self, uid: &PodUid, pod: &Arc<core::Pod>) -> bool {
        if pod.metadata.deletion_timestamp.is_some() {
            self.waiting.remove(uid);
            return false;
        }
        match self.waiting.get_mut(uid) {
            Some(waiting) => {
                waiting.pod = pod.clone();
                true
            }
            None => false,
        }
    }

    /// Drops static pods whose files were removed.
    pub(super) fn forget_removed_static_pods(&mut self, desired: &BTreeMap<PodUid, Arc<core::Pod>>) {
        self.waiting
            .retain(|uid, waiting| matches!(waiting.origin, Origin::Api) || desired.contains_key(uid));
    }

    /// Evicts the victims, and has the pod wait for that.
    pub(super) fn preempt(
        &mut self,
        uid: PodUid,
        pod: Arc<core::Pod>,
        origin: Origin,
        victims: &[SharedPod],
    ) {
        for victim in victims {
            let name = pod.metadata.name.as_deref();
            info!(
                pod = name,
                victim = victim.metadata.name,
                "making room for a critical pod"
            );
            let (warning, reason) = (EventType::Warning, preemption::REASON);
            let events = &self.context.events;
            events.of_pod(victim, warning, reason, preemption::MESSAGE);
        }
        let victims = victims.iter().filter_map(|v| v.metadata.uid.as_deref());
        let victims = victims.map(|uid| (uid.into(), false)).collect();
        self.waiting.insert(uid, WaitingPod { pod, origin, victims });
        self.notify_victims();
    }

    /// Victims without a worker yet are evicted when they have one.
    fn notify_victims(&mut self) {
        let victims = self.waiting.values_mut().flat_map(|w| w.victims.iter_mut());
        for (uid, notified) in victims.filter(|(_, notified)| !**notified) {
            if let Some(worker) = self.by_uid.get(uid) {
                worker.send(Msg::Event(Event::Evict(preemption::eviction())));
                *notified = true;
            }
        }
    }

    /// Admits pods whose victims have terminated; if there is still not enough, further victims are evicted.
    pub(super) fn retry_waiting(&mut self, snapshot: &mut RuntimeSnapshot) {
        if self.waiting.is_empty() {
            return;
        }
        self.notify_victims();
        let victims_terminated =
            |waiting: &WaitingPod| !waiting.victims.keys().any(|uid| self.is_unreported(uid));
        let ready: Vec<PodUid> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| victims_terminated(waiting))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ready {
            if let Some(WaitingPod { pod, origin, .. }) = self.waiting.remove(&uid) {
                self.admit_or_wait(uid, pod, origin, snapshot);
            }
        }
    }
}
