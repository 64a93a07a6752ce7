//! Critical pods that wait until others have made room for them: they are taken once those have ended, not before, so
//! that the node is never promised to more pods than it has room for.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::{AnyObject, k8s_openapi};
use knarr_client::events::{EventType, reference_to};
use knarr_kubelet::pod::Event;
use knarr_kubelet::preemption;
use tracing::info;

use super::worker::Origin;
use super::{Picture, Workers, pod_kind};

pub(super) struct Waiting {
    pod: Arc<core::Pod>,
    origin: Origin,
    /// By uid; true once it was told to end.
    victims: BTreeMap<String, bool>,
}

impl Workers {
    /// Whether this pod waits for room. Then it is taken later as it is now, unless it is to end: that needs no room.
    pub(super) fn waits_for_room(&mut self, uid: &str, pod: &Arc<core::Pod>) -> bool {
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

    /// Static pods whose files are gone wait no more.
    pub(super) fn static_pods_wait_no_more(&mut self, wanted: &BTreeMap<String, core::Pod>) {
        self.waiting
            .retain(|uid, waiting| matches!(waiting.origin, Origin::Api) || wanted.contains_key(uid));
    }

    /// Ends the victims, and has the pod wait for that.
    pub(super) fn make_room(
        &mut self,
        uid: String,
        pod: Arc<core::Pod>,
        origin: Origin,
        victims: &[core::Pod],
    ) {
        for victim in victims {
            let name = pod.metadata.name.as_deref();
            info!(
                pod = name,
                victim = victim.metadata.name,
                "making room for a critical pod"
            );
            let about = reference_to(pod_kind(), victim as &dyn AnyObject);
            let (recorder, reason) = (&self.shared.recorder, preemption::REASON);
            recorder.event(
                &about,
                EventType::Warning,
                reason,
                preemption::MESSAGE.to_string(),
            );
        }
        let victims = victims.iter().filter_map(|v| v.metadata.uid.clone());
        let victims = victims.map(|uid| (uid, false)).collect();
        self.waiting.insert(uid, Waiting { pod, origin, victims });
        self.tell_victims();
    }

    /// Those that have no worker yet are told when they have one.
    fn tell_victims(&mut self) {
        let victims = self.waiting.values_mut().flat_map(|w| w.victims.iter_mut());
        for (uid, told) in victims.filter(|(_, told)| !**told) {
            if let Some(worker) = self.by_uid.get(uid) {
                worker.send(super::worker::Msg::Event(Event::Evict(preemption::eviction())));
                *told = true;
            }
        }
    }

    /// Takes those whose victims have ended; there may still be too little room, and others to end.
    pub(super) fn take_up_waiting(&mut self, picture: &mut Picture) {
        if self.waiting.is_empty() {
            return;
        }
        self.tell_victims();
        let has_room = |waiting: &Waiting| !waiting.victims.keys().any(|uid| self.is_untold(uid));
        let ready: Vec<String> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| has_room(waiting))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in ready {
            if let Some(Waiting { pod, origin, .. }) = self.waiting.remove(&uid) {
                self.take_up(uid, pod, origin, picture);
            }
        }
    }
}
