//! Which pod next (SPEC P3): by priority, then by age; what did not fit waits until something happens that could help
//! it, and then for its back-off; nothing that does not fit stands in the way of what comes behind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::ObjectKey;
use knarr_api::k8s_openapi;

use crate::pod_info::PodInfo;

/// Wait after the first failed attempt; doubled with each further one.
pub const INITIAL_BACKOFF: SignedDuration = SignedDuration::from_secs(1);
/// The longest such wait.
pub const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// After this long a pod is tried again though nothing is known to have helped.
pub const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(5 * 60);

/// Where a pod is.
enum Place {
    Active(Turn),
    Backoff(Timestamp),
    /// Since then, refused by these plugins (empty: by nothing known, so anything may help).
    Unschedulable {
        since: Timestamp,
        by: BTreeSet<&'static str>,
    },
    /// Handed out, not yet placed nor given back. An event of that time counts when it comes back.
    InFlight,
}

/// Higher priority first, then who has waited longest.
type Turn = (Reverse<i32>, u64);

struct Waiting {
    pod: PodInfo,
    /// Its number in the order of arrival, which is its age.
    arrival: u64,
    attempts: u32,
    place: Place,
}

/// See the module.
#[derive(Default)]
pub struct Queue {
    pods: BTreeMap<ObjectKey, Waiting>,
    active: BTreeMap<Turn, ObjectKey>,
    backoff: BTreeSet<(Timestamp, ObjectKey)>,
    arrivals: u64,
}

fn turn(pod: &PodInfo, arrival: u64) -> Turn {
    (Reverse(pod.priority), arrival)
}

fn backoff(attempts: u32) -> SignedDuration {
    let doublings = attempts.saturating_sub(1).min(16);
    (INITIAL_BACKOFF * (1 << doublings)).min(MAX_BACKOFF)
}

impl Queue {
    /// Pods that wait in any way.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&PodInfo> {
        self.pods.get(key).map(|w| &w.pod)
    }

    /// A pod that wants a node, new or changed. A change that could matter makes it be tried again.
    pub fn put(&mut self, pod: PodInfo, changed: bool, now: Timestamp) {
        let key = pod.key();
        match self.pods.get_mut(&key) {
            Some(known) if known.pod.uid() == pod.uid() => {
                let was = turn(&known.pod, known.arrival);
                known.pod = pod;
                let turn = turn(&known.pod, known.arrival);
                if let Place::Active(at) = &mut known.place {
                    *at = turn;
                    self.active.remove(&was);
                    self.active.insert(turn, key);
                } else if changed && matches!(known.place, Place::Unschedulable { .. }) {
                    self.wake(&key, now);
                }
            }
            _ => {
                self.remove(&key);
                self.arrivals += 1;
                let arrival = self.arrivals;
                let turn = turn(&pod, arrival);
                self.active.insert(turn, key.clone());
                let waiting = Waiting {
                    pod,
                    arrival,
                    attempts: 0,
                    place: Place::Active(turn),
                };
                self.pods.insert(key, waiting);
            }
        }
    }

    /// It wants no node any more.
    pub fn remove(&mut self, key: &ObjectKey) {
        if let Some(waiting) = self.pods.remove(key) {
            self.unlink(key, &waiting.place);
        }
    }

    fn unlink(&mut self, key: &ObjectKey, place: &Place) {
        match place {
            Place::Active(turn) => {
                self.active.remove(turn);
            }
            Place::Backoff(until) => {
                self.backoff.remove(&(*until, key.clone()));
            }
            Place::Unschedulable { .. } | Place::InFlight => {}
        }
    }

    fn set(&mut self, key: &ObjectKey, place: Place) {
        let Some(waiting) = self.pods.get_mut(key) else {
            return;
        };
        match &place {
            Place::Active(turn) => {
                self.active.insert(*turn, key.clone());
            }
            Place::Backoff(until) => {
                self.backoff.insert((*until, key.clone()));
            }
            Place::Unschedulable { .. } | Place::InFlight => {}
        }
        let old = std::mem::replace(&mut waiting.place, place);
        self.unlink(key, &old);
    }

    fn activate(&mut self, key: &ObjectKey) {
        if let Some(waiting) = self.pods.get(key) {
            let turn = turn(&waiting.pod, waiting.arrival);
            self.set(key, Place::Active(turn));
        }
    }

    /// Something may have helped this unschedulable pod: it is tried again, after what is left of its back-off.
    fn wake(&mut self, key: &ObjectKey, now: Timestamp) {
        let Some(waiting) = self.pods.get(key) else {
            return;
        };
        let Place::Unschedulable { since, .. } = &waiting.place else {
            return;
        };
        match since.checked_add(backoff(waiting.attempts)) {
            Ok(until) if until > now => self.set(key, Place::Backoff(until)),
            _ => self.activate(key),
        }
    }

    /// Hands out the next pod, if one is due.
    pub fn pop(&mut self, now: Timestamp) -> Option<PodInfo> {
        while let Some((until, key)) = self.backoff.first().cloned() {
            if until > now {
                break;
            }
            self.activate(&key);
        }
        let (_, key) = self.active.first_key_value()?;
        let key = key.clone();
        self.set(&key, Place::InFlight);
        let waiting = self.pods.get_mut(&key)?;
        waiting.attempts = waiting.attempts.saturating_add(1);
        Some(waiting.pod.clone())
    }

    /// No node would have it; these plugins were against it.
    pub fn park(&mut self, key: &ObjectKey, by: BTreeSet<&'static str>, now: Timestamp) {
        self.set(key, Place::Unschedulable { since: now, by });
    }

    /// The attempt failed for a reason that has nothing to do with the pod: again after its back-off.
    pub fn retry(&mut self, key: &ObjectKey, now: Timestamp) {
        let Some(waiting) = self.pods.get(key) else {
            return;
        };
        let until = now.checked_add(backoff(waiting.attempts)).unwrap_or(now);
        self.set(key, Place::Backoff(until));
    }

    /// Something happened: `helps` says for a parked pod and the plugins that were against it whether it could.
    pub fn wake_where(&mut self, now: Timestamp, helps: impl Fn(&PodInfo, &BTreeSet<&'static str>) -> bool) {
        let helped: Vec<ObjectKey> = self
            .pods
            .iter()
            .filter_map(|(key, waiting)| match &waiting.place {
                Place::Unschedulable { by, .. } if by.is_empty() || helps(&waiting.pod, by) => {
                    Some(key.clone())
                }
                _ => None,
            })
            .collect();
        for key in helped {
            self.wake(&key, now);
        }
    }

    /// Tries again what has waited for [`LONGEST_WAIT`].
    pub fn wake_forgotten(&mut self, now: Timestamp) {
        let due: Vec<ObjectKey> = self
            .pods
            .iter()
            .filter(|(_, waiting)| match &waiting.place {
                Place::Unschedulable { since, .. } => now.duration_since(*since) >= LONGEST_WAIT,
                _ => false,
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.wake(&key, now);
        }
    }

    /// When the next back-off ends.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.backoff.first().map(|(until, _)| *until)
    }
}
