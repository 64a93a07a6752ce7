//! Preemptors whose victims are evicted: each is tried again once the watch of pods has shown the evictions. With its
//! victims still in the way it would preempt other pods (SPEC P5).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_client::Shared;
use parking_lot::Mutex;

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Evictions(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// The newest revision of a pod that the watch has shown.
    seen: u64,
    /// Preemptors with the revisions of their last evictions.
    evicted: Vec<(u64, Shared<Pod>)>,
}

impl Evictions {
    /// The pod's victims are evicted, the last at this revision.
    pub fn add(&self, pod: Shared<Pod>, revision: u64) {
        self.0.lock().evicted.push((revision, pod));
    }

    /// The scheduler has applied the change of a pod at this revision.
    pub fn seen(&self, revision: u64) {
        let mut state = self.0.lock();
        state.seen = state.seen.max(revision);
    }

    /// Takes the preemptors whose evictions were shown, in the order in which they were added. `synced` is the revision
    /// up to which the cache of pods is complete: after a new list it may be later than that of any change.
    pub fn take_seen(&self, synced: Option<u64>) -> Vec<Shared<Pod>> {
        let mut state = self.0.lock();
        let seen = state.seen.max(synced.unwrap_or(0));
        let shown = state.evicted.extract_if(.., |(revision, _)| *revision <= seen);
        shown.map(|(_, pod)| pod).collect()
    }
}

#[cfg(test)]
mod tests {
    use knarr_api::{Object, registry};

    use super::*;

    #[test]
    fn p5_a_preemptor_is_tried_again_once_its_evictions_were_shown() {
        let pod = |name: &str| {
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.into());
            let object = Object::from_typed(&registry::POD, Box::new(pod));
            Shared::<Pod>::new(Arc::new(object)).unwrap()
        };
        let evictions = Evictions::default();
        // Its victim was deleted before it was evicted.
        evictions.add(pod("none"), 0);
        evictions.add(pod("late"), 9);
        evictions.add(pod("first"), 5);
        evictions.add(pod("second"), 5);
        // (the change that is applied, the revision of the cache, who is tried again)
        let table: [(u64, Option<u64>, &[&str]); 5] = [
            (4, None, &["none"]),
            (5, Some(4), &["first", "second"]),
            (3, Some(8), &[]),
            (8, Some(9), &["late"]),
            (12, Some(12), &[]),
        ];
        for (revision, synced, expected) in table {
            evictions.seen(revision);
            let taken = evictions.take_seen(synced);
            let names: Vec<&str> = taken.iter().map(|pod| pod.object().name()).collect();
            assert_eq!(names, expected, "{revision}");
        }
    }
}
