//! The scheduling queue (SPEC P3): by priority, then by age. A pod that did not fit waits for an event that may help
//! it, and then for its backoff; it never blocks the pods behind it.
//!
//! A nominated pod does not wait for its backoff to end while activeQ is empty: the preemption was done on its
//! behalf. kube-scheduler v1.36 pops every pod of the backoffQ so; with many unschedulable pods that is an endless
//! series of attempts, one of each whenever a pod is scheduled.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::ObjectKey;
use knarr_api::k8s_openapi;

use crate::event;
use crate::pod_info::PodInfo;

/// Backoff after the first failed attempt; doubled with each further one.
pub const INITIAL_BACKOFF: SignedDuration = SignedDuration::from_secs(1);
/// The longest backoff.
pub const MAX_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// After this long an unschedulable pod is tried again without an event (DefaultPodMaxInUnschedulablePodsDuration).
pub const MAX_IN_UNSCHEDULABLE_PODS: SignedDuration = SignedDuration::from_secs(5 * 60);

/// In which part of the queue a pod is.
#[derive(Debug)]
enum SubQueue {
    Active(SortKey),
    Backoff {
        until: Timestamp,
        /// Whether the last attempt ended with an error, not with a verdict.
        after_error: bool,
    },
    /// Since then, rejected by these plugins (empty: by none that is known, so any event may help).
    Unschedulable {
        since: Timestamp,
        plugins: BTreeSet<&'static str>,
    },
    /// Popped, and not yet scheduled nor returned to the queue.
    InFlight,
}

/// Higher priority first, then the longest waiting (QueueSort).
type SortKey = (Reverse<i32>, u64);

#[derive(Debug)]
struct QueuedPodInfo {
    pod: Arc<PodInfo>,
    /// Its number in the order of arrival.
    arrival: u64,
    since: Timestamp,
    attempts: u32,
    nominated: bool,
    sub_queue: SubQueue,
}

impl QueuedPodInfo {
    fn sort_key(&self) -> SortKey {
        sort_key(&self.pod, self.arrival)
    }

    /// Its sort key in `nominated_backoff`, if it belongs there.
    fn nominated_sort_key(&self) -> Option<SortKey> {
        let may = self.nominated
            && matches!(
                self.sub_queue,
                SubQueue::Backoff {
                    after_error: false,
                    ..
                }
            );
        may.then(|| self.sort_key())
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct SchedulingQueue {
    pods: BTreeMap<ObjectKey, QueuedPodInfo>,
    active_q: BTreeMap<SortKey, ObjectKey>,
    backoff_q: BTreeSet<(Timestamp, ObjectKey)>,
    /// Those of the backoffQ that are popped early while activeQ is empty.
    nominated_backoff: BTreeMap<SortKey, ObjectKey>,
    /// Unschedulable pods, the longest waiting first.
    unschedulable_pods: BTreeSet<(Timestamp, ObjectKey)>,
    /// The same by each plugin that rejected them, without those of [`QueueingHint::Defer`]; under [`NO_PLUGIN`] those
    /// that no known plugin rejected.
    unschedulable_by_plugin: BTreeMap<&'static str, BTreeSet<ObjectKey>>,
    arrivals: u64,
    backoffs: Backoffs,
    /// How many pods each event has added to each queue.
    incoming: BTreeMap<(&'static str, &'static str), u64>,
}

/// The queue of pods that are tried next.
const ACTIVE: &str = "active";
/// The queue of pods that wait for an event.
const UNSCHEDULABLE: &str = "unschedulable";
/// The event of a pod that was popped, which is in no queue.
const POPPED: &str = "";

/// The key of pods that any event may help.
const NO_PLUGIN: &str = "";

/// What an event does for an unschedulable pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueingHint {
    /// It does not help the pod.
    Skip,
    /// It may help the pod, which is requeued.
    Queue,
    /// It may help the pod, which must not be tried yet: it stays in unschedulablePods until
    /// [`SchedulingQueue::requeue_pod`], and no further event is compared with it.
    Defer,
}

/// The backoff after failed attempts.
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

/// How many pods are in each part of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLengths {
    pub active: usize,
    pub backoff: usize,
    pub unschedulable: usize,
}

fn sort_key(pod: &PodInfo, arrival: u64) -> SortKey {
    (Reverse(pod.priority()), arrival)
}

impl Backoffs {
    fn after(&self, attempts: u32) -> SignedDuration {
        let doublings = attempts.saturating_sub(1).min(16);
        (self.initial * (1 << doublings)).min(self.max)
    }
}

/// The keys of an unschedulable pod in `unschedulable_by_plugin`.
fn plugins_or_none(plugins: &BTreeSet<&'static str>) -> impl Iterator<Item = &'static str> {
    let no_plugin = plugins.is_empty().then_some(NO_PLUGIN);
    plugins.iter().copied().chain(no_plugin)
}

fn remove_from_plugins(
    by_plugin: &mut BTreeMap<&'static str, BTreeSet<ObjectKey>>,
    key: &ObjectKey,
    plugins: &BTreeSet<&'static str>,
) {
    for plugin in plugins_or_none(plugins) {
        if let Some(keys) = by_plugin.get_mut(plugin) {
            keys.remove(key);
        }
    }
}

impl SchedulingQueue {
    pub fn with_backoffs(backoffs: Backoffs) -> Self {
        SchedulingQueue {
            backoffs,
            ..SchedulingQueue::default()
        }
    }

    /// How many pods each event has added to each queue: by event and queue.
    pub fn incoming(&self) -> &BTreeMap<(&'static str, &'static str), u64> {
        &self.incoming
    }

    fn count(&mut self, event: &'static str, queue: &'static str) {
        *self.incoming.entry((event, queue)).or_default() += 1;
    }

    /// Counts a pod with scheduling gates, which kube-scheduler adds to unschedulablePods.
    pub fn count_gated(&mut self) {
        self.count(event::POD_ADD, UNSCHEDULABLE);
    }

    pub fn lengths(&self) -> QueueLengths {
        QueueLengths {
            active: self.active_q.len(),
            backoff: self.backoff_q.len(),
            unschedulable: self.unschedulable_pods.len(),
        }
    }

    /// How often the pod was popped.
    pub fn attempts(&self, key: &ObjectKey) -> u32 {
        self.pods.get(key).map_or(0, |w| w.attempts)
    }

    /// When the pod was added.
    pub fn since(&self, key: &ObjectKey) -> Option<Timestamp> {
        self.pods.get(key).map(|w| w.since)
    }

    /// The unschedulable pods, with each plugin that rejected them.
    pub fn unschedulable_pods(&self) -> impl Iterator<Item = (&'static str, &Arc<PodInfo>)> {
        self.pods.values().flat_map(|waiting| {
            let rejected_by = match &waiting.sub_queue {
                SubQueue::Unschedulable { plugins, .. } => Some(plugins),
                SubQueue::Active(_) | SubQueue::Backoff { .. } | SubQueue::InFlight => None,
            };
            let plugins = rejected_by.into_iter().flat_map(plugins_or_none);
            plugins.map(move |plugin| (plugin, &waiting.pod))
        })
    }

    /// All pods of the queue.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<PodInfo>> {
        self.pods.get(key).map(|w| &w.pod)
    }

    /// Adds or updates a pod without a node. An update that may matter has an `event`: it moves an unschedulable pod out
    /// of unschedulablePods.
    pub fn put(&mut self, pod: Arc<PodInfo>, event: Option<&'static str>, now: Timestamp) {
        let key = pod.key();
        match self.pods.get_mut(&key) {
            Some(known) if known.pod.uid() == pod.uid() => {
                let was = known.sort_key();
                let was_nominated = known.nominated_sort_key();
                known.pod = pod;
                let sort_key = known.sort_key();
                if let Some(was_nominated) = was_nominated {
                    self.nominated_backoff.remove(&was_nominated);
                    self.nominated_backoff.insert(sort_key, key.clone());
                }
                if let SubQueue::Active(at) = &mut known.sub_queue {
                    *at = sort_key;
                    self.active_q.remove(&was);
                    self.active_q.insert(sort_key, key);
                } else if let Some(event) = event
                    && matches!(known.sub_queue, SubQueue::Unschedulable { .. })
                {
                    self.requeue(&key, event, now);
                }
            }
            _ => {
                self.remove(&key);
                self.arrivals += 1;
                let arrival = self.arrivals;
                let sort_key = sort_key(&pod, arrival);
                self.active_q.insert(sort_key, key.clone());
                let waiting = QueuedPodInfo {
                    pod,
                    arrival,
                    since: now,
                    attempts: 0,
                    nominated: false,
                    sub_queue: SubQueue::Active(sort_key),
                };
                self.pods.insert(key, waiting);
                self.count(event.unwrap_or(event::POD_ADD), ACTIVE);
            }
        }
    }

    /// Removes a pod: it needs no node any more.
    pub fn remove(&mut self, key: &ObjectKey) {
        if let Some(waiting) = self.pods.remove(key) {
            if let Some(sort_key) = waiting.nominated_sort_key() {
                self.nominated_backoff.remove(&sort_key);
            }
            self.unlink(key, &waiting.sub_queue);
        }
    }

    /// Marks whether the pod is nominated to a node.
    pub fn set_nominated(&mut self, key: &ObjectKey, nominated: bool) {
        let Some(waiting) = self.pods.get_mut(key) else {
            return;
        };
        if let Some(sort_key) = waiting.nominated_sort_key() {
            self.nominated_backoff.remove(&sort_key);
        }
        waiting.nominated = nominated;
        if let Some(sort_key) = waiting.nominated_sort_key() {
            self.nominated_backoff.insert(sort_key, key.clone());
        }
    }

    fn unlink(&mut self, key: &ObjectKey, sub_queue: &SubQueue) {
        match sub_queue {
            SubQueue::Active(sort_key) => {
                self.active_q.remove(sort_key);
            }
            SubQueue::Backoff { until, .. } => {
                self.backoff_q.remove(&(*until, key.clone()));
            }
            SubQueue::Unschedulable { since, plugins } => {
                self.unschedulable_pods.remove(&(*since, key.clone()));
                remove_from_plugins(&mut self.unschedulable_by_plugin, key, plugins);
            }
            SubQueue::InFlight => {}
        }
    }

    /// Moves a pod to a queue, because of an event.
    fn set(&mut self, key: &ObjectKey, sub_queue: SubQueue, event: &'static str) {
        let Some(waiting) = self.pods.get_mut(key) else {
            return;
        };
        if let Some(sort_key) = waiting.nominated_sort_key() {
            self.nominated_backoff.remove(&sort_key);
        }
        let old = std::mem::replace(&mut waiting.sub_queue, SubQueue::InFlight);
        self.unlink(key, &old);
        match &sub_queue {
            SubQueue::Active(sort_key) => {
                self.count(event, ACTIVE);
                self.active_q.insert(*sort_key, key.clone());
            }
            SubQueue::Backoff { until, .. } => {
                self.count(event, "backoff");
                self.backoff_q.insert((*until, key.clone()));
            }
            SubQueue::Unschedulable { since, plugins } => {
                self.count(event, UNSCHEDULABLE);
                self.unschedulable_pods.insert((*since, key.clone()));
                for plugin in plugins_or_none(plugins) {
                    self.unschedulable_by_plugin
                        .entry(plugin)
                        .or_default()
                        .insert(key.clone());
                }
            }
            SubQueue::InFlight => {}
        }
        if let Some(waiting) = self.pods.get_mut(key) {
            waiting.sub_queue = sub_queue;
            if let Some(sort_key) = waiting.nominated_sort_key() {
                self.nominated_backoff.insert(sort_key, key.clone());
            }
        }
    }

    fn activate(&mut self, key: &ObjectKey, event: &'static str) {
        if let Some(waiting) = self.pods.get(key) {
            let sort_key = waiting.sort_key();
            self.set(key, SubQueue::Active(sort_key), event);
        }
    }

    /// Moves an unschedulable pod to activeQ, or to backoffQ for the rest of its backoff.
    fn requeue(&mut self, key: &ObjectKey, event: &'static str, now: Timestamp) {
        let Some(waiting) = self.pods.get(key) else {
            return;
        };
        let SubQueue::Unschedulable { since, plugins } = &waiting.sub_queue else {
            return;
        };
        let after_error = plugins.is_empty();
        match since.checked_add(self.backoffs.after(waiting.attempts)) {
            Ok(until) if until > now => self.set(key, SubQueue::Backoff { until, after_error }, event),
            _ => self.activate(key, event),
        }
    }

    /// Pops the next pod, if one is due.
    pub fn pop(&mut self, now: Timestamp) -> Option<Arc<PodInfo>> {
        while let Some((until, key)) = self.backoff_q.first().cloned() {
            if until > now {
                break;
            }
            self.activate(&key, event::BACKOFF_COMPLETE);
        }
        let key = match self.active_q.first_key_value() {
            Some((_, key)) => key.clone(),
            None => {
                let (_, key) = self.nominated_backoff.first_key_value()?;
                let key = key.clone();
                self.count(event::POP_FROM_BACKOFF_Q, ACTIVE);
                key
            }
        };
        self.set(&key, SubQueue::InFlight, POPPED);
        let waiting = self.pods.get_mut(&key)?;
        waiting.attempts = waiting.attempts.saturating_add(1);
        Some(waiting.pod.clone())
    }

    /// No node fits the pod; these plugins rejected nodes.
    pub fn add_unschedulable(&mut self, key: &ObjectKey, plugins: BTreeSet<&'static str>, now: Timestamp) {
        let sub_queue = SubQueue::Unschedulable { since: now, plugins };
        self.set(key, sub_queue, event::ATTEMPT_FAILURE);
    }

    /// It was popped too early: as [`SchedulingQueue::add_unschedulable`], without counting as an attempt.
    pub fn return_untried(&mut self, key: &ObjectKey, plugins: BTreeSet<&'static str>, now: Timestamp) {
        if let Some(waiting) = self.pods.get_mut(key) {
            waiting.attempts = waiting.attempts.saturating_sub(1);
        }
        self.add_unschedulable(key, plugins, now);
    }

    /// The attempt failed with an error that does not depend on the pod: it is tried again after its backoff.
    pub fn retry(&mut self, key: &ObjectKey, now: Timestamp) {
        let Some(waiting) = self.pods.get(key) else {
            return;
        };
        let until = now
            .checked_add(self.backoffs.after(waiting.attempts))
            .unwrap_or(now);
        let after_error = true;
        let sub_queue = SubQueue::Backoff { until, after_error };
        self.set(key, sub_queue, event::ATTEMPT_FAILURE);
    }

    /// Whether unschedulable pods are there that one of these plugins (or none that is known) rejected.
    pub fn any_unschedulable_by(&self, plugins: &[&str]) -> bool {
        let waits = |plugin: &str| {
            self.unschedulable_by_plugin
                .get(plugin)
                .is_some_and(|p| !p.is_empty())
        };
        waits(NO_PLUGIN) || plugins.iter().any(|p| waits(p))
    }

    /// After an event, requeues the unschedulable pods for which `helps` returns true, given a plugin that rejected them.
    /// `event`: its name for this plugin.
    pub fn requeue_where(
        &mut self,
        event: impl Fn(&'static str) -> &'static str,
        now: Timestamp,
        mut helps: impl FnMut(&'static str, &PodInfo) -> bool,
    ) {
        self.requeue_by_hint(event, now, |plugin, pod| match helps(plugin, pod) {
            true => QueueingHint::Queue,
            false => QueueingHint::Skip,
        });
    }

    /// The same by the hint of the first plugin that does not skip the pod.
    pub fn requeue_by_hint(
        &mut self,
        event: impl Fn(&'static str) -> &'static str,
        now: Timestamp,
        mut hint: impl FnMut(&'static str, &PodInfo) -> QueueingHint,
    ) {
        let mut helped: BTreeMap<ObjectKey, &'static str> = BTreeMap::new();
        let mut deferred: BTreeSet<ObjectKey> = BTreeSet::new();
        for (&plugin, keys) in &self.unschedulable_by_plugin {
            let mut event_of_plugin = None;
            for key in keys {
                if helped.contains_key(key) || deferred.contains(key) {
                    continue;
                }
                let Some(waiting) = self.pods.get(key) else {
                    continue;
                };
                let hint = match plugin {
                    NO_PLUGIN => QueueingHint::Queue,
                    _ => hint(plugin, &waiting.pod),
                };
                match hint {
                    QueueingHint::Skip => {}
                    QueueingHint::Queue => {
                        let event = *event_of_plugin.get_or_insert_with(|| event(plugin));
                        helped.insert(key.clone(), event);
                    }
                    QueueingHint::Defer => {
                        deferred.insert(key.clone());
                    }
                }
            }
        }
        for (key, event) in helped {
            self.requeue(&key, event, now);
        }
        for key in deferred {
            if let Some(waiting) = self.pods.get(&key)
                && let SubQueue::Unschedulable { plugins, .. } = &waiting.sub_queue
            {
                remove_from_plugins(&mut self.unschedulable_by_plugin, &key, plugins);
            }
        }
    }

    /// Requeues this pod, if it is unschedulable.
    pub fn requeue_pod(&mut self, key: &ObjectKey, event: &'static str, now: Timestamp) {
        self.requeue(key, event, now);
    }

    /// Requeues pods that have been unschedulable for [`MAX_IN_UNSCHEDULABLE_PODS`].
    pub fn flush_unschedulable_leftover(&mut self, now: Timestamp) {
        while let Some((since, key)) = self.unschedulable_pods.first().cloned() {
            if now.duration_since(since) < MAX_IN_UNSCHEDULABLE_PODS {
                break;
            }
            self.requeue(&key, event::UNSCHEDULABLE_TIMEOUT, now);
        }
    }

    /// When the next backoff ends.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.backoff_q.first().map(|(until, _)| *until)
    }
}
