//! Which pod next (SPEC P3): by priority, then by age; what did not fit waits until something happens that could help
//! it, and then for its back-off; nothing that does not fit stands in the way of what comes behind.
//!
//! A pod that room was made for (it is nominated) sits no back-off out while nobody else is due: what it waits for was
//! done on its behalf. kube-scheduler v1.36 does so with every pod that could not be placed; with many of them that is
//! an attempt of each for every pod that goes anywhere, without end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
#[derive(Debug)]
enum Place {
    Active(Turn),
    Backoff {
        until: Timestamp,
        /// Whether the last attempt told nothing about the pod.
        after_error: bool,
    },
    /// Since then, refused by these plugins (empty: by nothing known, so anything may help).
    Unschedulable {
        since: Timestamp,
        by: BTreeSet<&'static str>,
    },
    /// Handed out, not yet placed nor given back.
    InFlight,
}

/// Higher priority first, then who has waited longest.
type Turn = (Reverse<i32>, u64);

#[derive(Debug)]
struct Waiting {
    pod: Arc<PodInfo>,
    /// Its number in the order of arrival, which is its age.
    arrival: u64,
    since: Timestamp,
    attempts: u32,
    nominated: bool,
    place: Place,
}

impl Waiting {
    fn turn(&self) -> Turn {
        turn(&self.pod, self.arrival)
    }

    /// Its turn while nobody is due, if its back-off is one that ends then.
    fn early_turn(&self) -> Option<Turn> {
        let may = self.nominated
            && matches!(
                self.place,
                Place::Backoff {
                    after_error: false,
                    ..
                }
            );
        may.then(|| self.turn())
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Queue {
    pods: BTreeMap<ObjectKey, Waiting>,
    active: BTreeMap<Turn, ObjectKey>,
    backoff: BTreeSet<(Timestamp, ObjectKey)>,
    /// Of those, who need not wait for the end of it while nobody is active.
    early: BTreeMap<Turn, ObjectKey>,
    /// Unschedulable pods, longest waiting first.
    parked: BTreeSet<(Timestamp, ObjectKey)>,
    /// The same by each plugin that was against them; under [`NOBODY`] those that nothing known was against.
    parked_by: BTreeMap<&'static str, BTreeSet<ObjectKey>>,
    arrivals: u64,
    backoffs: Backoffs,
}

/// Under this name are pods that any event may help.
const NOBODY: &str = "";

/// How long a pod waits after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoffs {
    pub initial: SignedDuration,
    pub max: SignedDuration,
}

impl Default for Backoffs {
    fn default() -> Self {
        Backoffs {
            initial: INITIAL_BACKOFF,
            max: MAX_BACKOFF,
        }
    }
}

/// How many pods wait where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
}

fn turn(pod: &PodInfo, arrival: u64) -> Turn {
    (Reverse(pod.priority()), arrival)
}

impl Backoffs {
    fn after(&self, attempts: u32) -> SignedDuration {
        let doublings = attempts.saturating_sub(1).min(16);
        (self.initial * (1 << doublings)).min(self.max)
    }
}

/// Under which names a pod is parked.
fn names(by: &BTreeSet<&'static str>) -> impl Iterator<Item = &'static str> {
    let nobody = by.is_empty().then_some(NOBODY);
    by.iter().copied().chain(nobody)
}

impl Queue {
    pub fn with_backoffs(backoffs: Backoffs) -> Self {
        Queue {
            backoffs,
            ..Queue::default()
        }
    }

    pub fn lengths(&self) -> Lengths {
        Lengths {
            active: self.active.len(),
            backoff: self.backoff.len(),
            unschedulable: self.parked.len(),
        }
    }

    /// How often the pod was handed out.
    pub fn attempts(&self, key: &ObjectKey) -> u32 {
        self.pods.get(key).map_or(0, |w| w.attempts)
    }

    /// Since when the pod waits.
    pub fn since(&self, key: &ObjectKey) -> Option<Timestamp> {
        self.pods.get(key).map(|w| w.since)
    }

    /// Pods that were refused, with each plugin that was against them.
    pub fn parked(&self) -> impl Iterator<Item = (&'static str, &Arc<PodInfo>)> {
        self.parked_by.iter().flat_map(|(plugin, keys)| {
            let pods = keys.iter().filter_map(|key| self.get(key));
            pods.map(|pod| (*plugin, pod))
        })
    }

    /// Pods that wait in any way.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<PodInfo>> {
        self.pods.get(key).map(|w| &w.pod)
    }

    /// A pod that wants a node, new or changed. A change that could matter makes it be tried again.
    pub fn put(&mut self, pod: Arc<PodInfo>, changed: bool, now: Timestamp) {
        let key = pod.key();
        match self.pods.get_mut(&key) {
            Some(known) if known.pod.uid() == pod.uid() => {
                let was = known.turn();
                let was_early = known.early_turn();
                known.pod = pod;
                let turn = known.turn();
                if let Some(was_early) = was_early {
                    self.early.remove(&was_early);
                    self.early.insert(turn, key.clone());
                }
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
                    since: now,
                    attempts: 0,
                    nominated: false,
                    place: Place::Active(turn),
                };
                self.pods.insert(key, waiting);
            }
        }
    }

    /// It wants no node any more.
    pub fn remove(&mut self, key: &ObjectKey) {
        if let Some(waiting) = self.pods.remove(key) {
            if let Some(early) = waiting.early_turn() {
                self.early.remove(&early);
            }
            self.unlink(key, &waiting.place);
        }
    }

    /// Whether room was made for the pod.
    pub fn set_nominated(&mut self, key: &ObjectKey, nominated: bool) {
        let Some(waiting) = self.pods.get_mut(key) else {
            return;
        };
        if let Some(early) = waiting.early_turn() {
            self.early.remove(&early);
        }
        waiting.nominated = nominated;
        if let Some(early) = waiting.early_turn() {
            self.early.insert(early, key.clone());
        }
    }

    fn unlink(&mut self, key: &ObjectKey, place: &Place) {
        match place {
            Place::Active(turn) => {
                self.active.remove(turn);
            }
            Place::Backoff { until, .. } => {
                self.backoff.remove(&(*until, key.clone()));
            }
            Place::Unschedulable { since, by } => {
                self.parked.remove(&(*since, key.clone()));
                for plugin in names(by) {
                    if let Some(parked) = self.parked_by.get_mut(plugin) {
                        parked.remove(key);
                    }
                }
            }
            Place::InFlight => {}
        }
    }

    fn set(&mut self, key: &ObjectKey, place: Place) {
        let Some(waiting) = self.pods.get_mut(key) else {
            return;
        };
        if let Some(early) = waiting.early_turn() {
            self.early.remove(&early);
        }
        let old = std::mem::replace(&mut waiting.place, Place::InFlight);
        self.unlink(key, &old);
        match &place {
            Place::Active(turn) => {
                self.active.insert(*turn, key.clone());
            }
            Place::Backoff { until, .. } => {
                self.backoff.insert((*until, key.clone()));
            }
            Place::Unschedulable { since, by } => {
                self.parked.insert((*since, key.clone()));
                for plugin in names(by) {
                    self.parked_by.entry(plugin).or_default().insert(key.clone());
                }
            }
            Place::InFlight => {}
        }
        if let Some(waiting) = self.pods.get_mut(key) {
            waiting.place = place;
            if let Some(early) = waiting.early_turn() {
                self.early.insert(early, key.clone());
            }
        }
    }

    fn activate(&mut self, key: &ObjectKey) {
        if let Some(waiting) = self.pods.get(key) {
            let turn = waiting.turn();
            self.set(key, Place::Active(turn));
        }
    }

    /// Something may have helped this unschedulable pod: it is tried again, after what is left of its back-off.
    fn wake(&mut self, key: &ObjectKey, now: Timestamp) {
        let Some(waiting) = self.pods.get(key) else {
            return;
        };
        let Place::Unschedulable { since, by } = &waiting.place else {
            return;
        };
        let after_error = by.is_empty();
        match since.checked_add(self.backoffs.after(waiting.attempts)) {
            Ok(until) if until > now => self.set(key, Place::Backoff { until, after_error }),
            _ => self.activate(key),
        }
    }

    /// Hands out the next pod, if one is due.
    pub fn pop(&mut self, now: Timestamp) -> Option<Arc<PodInfo>> {
        while let Some((until, key)) = self.backoff.first().cloned() {
            if until > now {
                break;
            }
            self.activate(&key);
        }
        let next = self.active.first_key_value();
        let (_, key) = next.or_else(|| self.early.first_key_value())?;
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

    /// It was handed out too early: as [`Queue::park`], and that was no attempt.
    pub fn not_tried(&mut self, key: &ObjectKey, by: BTreeSet<&'static str>, now: Timestamp) {
        if let Some(waiting) = self.pods.get_mut(key) {
            waiting.attempts = waiting.attempts.saturating_sub(1);
        }
        self.park(key, by, now);
    }

    /// The attempt failed for a reason that has nothing to do with the pod: again after its back-off.
    pub fn retry(&mut self, key: &ObjectKey, now: Timestamp) {
        let Some(waiting) = self.pods.get(key) else {
            return;
        };
        let until = now
            .checked_add(self.backoffs.after(waiting.attempts))
            .unwrap_or(now);
        let after_error = true;
        self.set(key, Place::Backoff { until, after_error });
    }

    /// Whether pods wait that one of these plugins was against (or nothing known).
    pub fn awaits(&self, plugins: &[&str]) -> bool {
        let waits = |plugin: &str| self.parked_by.get(plugin).is_some_and(|p| !p.is_empty());
        waits(NOBODY) || plugins.iter().any(|p| waits(p))
    }

    /// Something happened: `helps` says for a plugin and a parked pod that it was against whether it could.
    pub fn wake_where(&mut self, now: Timestamp, helps: impl Fn(&'static str, &PodInfo) -> bool) {
        let mut helped: BTreeSet<ObjectKey> = BTreeSet::new();
        for (plugin, parked) in &self.parked_by {
            let waiting = parked.iter().filter_map(|key| Some((key, self.pods.get(key)?)));
            let of = waiting.filter(|(key, waiting)| {
                !helped.contains(*key) && (*plugin == NOBODY || helps(plugin, &waiting.pod))
            });
            let of: Vec<ObjectKey> = of.map(|(key, _)| key.clone()).collect();
            helped.extend(of);
        }
        for key in helped {
            self.wake(&key, now);
        }
    }

    /// Tries this pod again, if it waits for something to help it.
    pub fn wake_pod(&mut self, key: &ObjectKey, now: Timestamp) {
        self.wake(key, now);
    }

    /// Tries again what has waited for [`LONGEST_WAIT`].
    pub fn wake_forgotten(&mut self, now: Timestamp) {
        while let Some((since, key)) = self.parked.first().cloned() {
            if now.duration_since(since) < LONGEST_WAIT {
                break;
            }
            self.wake(&key, now);
        }
    }

    /// When the next back-off ends.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.backoff.first().map(|(until, _)| *until)
    }
}
