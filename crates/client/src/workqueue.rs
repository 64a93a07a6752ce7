//! The work queue of a controller (client-go's workqueue): each key at most once, never processed by two workers at a time, failed
//! keys requeued with exponential back-off.
//!
//! It guarantees what client-go's does: a key that is added while it is processed is processed again after [`Queue::done`]; a key that
//! is added many times while it waits is processed once. Time is tokio's; the order is that of the additions, so the same additions
//! at the same times give the same order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use knarr_apimachinery::capacity::ShrinkSparse;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::metrics::workqueue::{QueueMetrics, WorkqueueMetrics};

/// How long a key waits after its nth failure: `base * 2^n`, at most `max`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub base: Duration,
    pub max: Duration,
}

/// client-go's numbers for controllers.
impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            base: Duration::from_millis(5),
            max: Duration::from_secs(1000),
        }
    }
}

impl Backoff {
    /// The wait after `failures` earlier failures.
    pub fn after(&self, failures: u32) -> Duration {
        2u32.checked_pow(failures)
            .and_then(|factor| self.base.checked_mul(factor))
            .map_or(self.max, |wait| wait.min(self.max))
    }
}

struct Inner<K> {
    ready: VecDeque<K>,
    /// Keys that wait in `ready` or have to be processed again after `done`, and when they were added.
    dirty: BTreeMap<K, Instant>,
    /// When the work on each key began.
    processing: BTreeMap<K, Instant>,
    /// By time, then in the order in which they were added.
    delayed: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    failures: BTreeMap<K, u32>,
    sequence: u64,
    shut_down: bool,
    /// A queue without a name has none.
    metrics: Option<QueueMetrics>,
}

impl<K: Ord + Clone> Inner<K> {
    fn add(&mut self, key: K) -> bool {
        if self.shut_down || self.dirty.contains_key(&key) {
            return false;
        }
        self.dirty.insert(key.clone(), Instant::now());
        let is_processed = self.processing.contains_key(&key);
        if let Some(metrics) = &self.metrics {
            metrics.added();
        }
        if is_processed {
            return false;
        }
        self.ready.push_back(key);
        self.count_ready();
        true
    }

    fn count_ready(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.set_depth(self.ready.len());
        }
    }

    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.delayed.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
    }
}

/// See the module.
///
/// # Examples
///
/// ```
/// use knarr_client::workqueue::Queue;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let queue = Queue::default();
/// queue.add("default/web");
/// queue.add("default/web");
/// assert_eq!(queue.len(), 1, "a key that waits is queued once");
///
/// let key = queue.get().await.expect("the queue is not shut down");
/// // It changes while a worker has it: no second worker gets it meanwhile.
/// queue.add("default/web");
/// assert!(queue.is_empty());
/// queue.done(&key);
/// assert_eq!(queue.get().await, Some("default/web"));
/// # }
/// ```
pub struct Queue<K> {
    inner: Mutex<Inner<K>>,
    wake: Notify,
    backoff: Backoff,
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        Self::with(Backoff::default(), None)
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// A queue whose metrics have this name.
    pub fn named(name: &str, metrics: &WorkqueueMetrics) -> Self {
        Self::with(Backoff::default(), Some(metrics.of(name)))
    }

    fn with(backoff: Backoff, metrics: Option<QueueMetrics>) -> Self {
        Queue {
            inner: Mutex::new(Inner {
                ready: VecDeque::new(),
                dirty: BTreeMap::new(),
                processing: BTreeMap::new(),
                delayed: BTreeMap::new(),
                due: BTreeMap::new(),
                failures: BTreeMap::new(),
                sequence: 0,
                shut_down: false,
                metrics,
            }),
            wake: Notify::new(),
            backoff,
        }
    }

    /// Adds a key, unless it is in the queue. One that a worker has is queued again when the worker is done with it.
    pub fn add(&self, key: K) {
        if self.inner.lock().add(key) {
            self.wake.notify_one();
        }
    }

    /// Adds a key after `wait`. Of several delays for one key the earliest counts.
    pub fn add_after(&self, key: K, wait: Duration) {
        if wait.is_zero() {
            return self.add(key);
        }
        {
            let mut inner = self.inner.lock();
            if inner.shut_down {
                return;
            }
            // A wait beyond the clock's range means for ever; a year has the same effect and does not overflow.
            const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);
            let at = Instant::now() + wait.min(FOREVER);
            match inner.due.get(&key) {
                Some((earlier, _)) if *earlier <= at => return,
                Some(later) => {
                    let later = *later;
                    inner.delayed.remove(&later);
                }
                None => {}
            }
            inner.sequence += 1;
            let slot = (at, inner.sequence);
            inner.due.insert(key.clone(), slot);
            inner.delayed.insert(slot, key);
        }
        self.wake.notify_one();
    }

    /// Adds a key after its back-off, which doubles until [`Queue::forget`].
    pub fn add_rate_limited(&self, key: K) {
        let wait = {
            let mut inner = self.inner.lock();
            let failures = inner.failures.entry(key.clone()).or_default();
            let wait = self.backoff.after(*failures);
            *failures = failures.saturating_add(1);
            if let Some(metrics) = &inner.metrics {
                metrics.retried();
            }
            wait
        };
        self.add_after(key, wait);
    }

    /// Resets the back-off of a key that was processed successfully.
    pub fn forget(&self, key: &K) {
        self.inner.lock().failures.remove(key);
    }

    /// The next key, which no other worker gets until [`Queue::done`]. `None` once the queue is shut down.
    pub async fn get(&self) -> Option<K> {
        loop {
            let woken = self.wake.notified();
            let next = {
                let mut inner = self.inner.lock();
                if inner.shut_down {
                    return None;
                }
                inner.promote(Instant::now());
                if let Some(key) = inner.ready.pop_front() {
                    inner.ready.shrink_sparse();
                    let begun = Instant::now();
                    let added = inner.dirty.remove(&key).unwrap_or(begun);
                    inner.processing.insert(key.clone(), begun);
                    inner.count_ready();
                    if let Some(metrics) = &inner.metrics {
                        metrics.begun(added, begun);
                    }
                    // One notification may be for several keys.
                    if !inner.ready.is_empty() || !inner.delayed.is_empty() {
                        self.wake.notify_one();
                    }
                    return Some(key);
                }
                inner.delayed.first_key_value().map(|((at, _), _)| *at)
            };
            match next {
                Some(at) => tokio::select! {
                    biased;
                    () = woken => {}
                    () = sleep_until(at) => {}
                },
                None => woken.await,
            }
        }
    }

    /// Marks the key as processed.
    pub fn done(&self, key: &K) {
        let mut inner = self.inner.lock();
        let begun = inner.processing.remove(key);
        if let (Some(begun), Some(metrics)) = (begun, &inner.metrics) {
            metrics.done(begun);
        }
        if inner.dirty.contains_key(key) && !inner.shut_down {
            inner.ready.push_back(key.clone());
            inner.count_ready();
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// Keys that are ready to be processed.
    pub fn len(&self) -> usize {
        self.inner.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes every [`Queue::get`] return `None` from now on.
    pub fn shut_down(&self) {
        self.inner.lock().shut_down = true;
        self.wake.notify_waiters();
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::timeout;

    async fn idle(queue: &Queue<&'static str>) -> bool {
        timeout(Duration::from_millis(1), queue.get()).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_twice_is_handed_out_once() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("b");
        queue.add("a");
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(queue.get().await, Some("b"));
        queue.done(&"a");
        queue.done(&"b");
        assert!(idle(&queue).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_it_is_worked_on_comes_back_after_done_and_not_before() {
        let queue = Queue::default();
        queue.add("a");
        assert_eq!(queue.get().await, Some("a"));
        queue.add("a");
        assert!(idle(&queue).await);
        queue.done(&"a");
        assert_eq!(queue.get().await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn after_many_keys_the_queue_keeps_no_room_for_them() {
        let queue = Queue::default();
        (0..10_000).for_each(|n| queue.add(n));
        assert!(queue.inner.lock().ready.capacity() >= 10_000);
        for n in 0..10_000 {
            assert_eq!(queue.get().await, Some(n));
            queue.done(&n);
        }
        let capacity = queue.inner.lock().ready.capacity();
        assert!(capacity < 100, "{capacity}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_delays_counts() {
        let queue = Queue::default();
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(9));
        queue.add_after("a", Duration::from_secs(2));
        queue.add_after("a", Duration::from_secs(5));
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(start.elapsed().as_secs(), 2);
        queue.done(&"a");
        assert!(timeout(Duration::from_secs(60), queue.get()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn back_off_doubles_to_its_maximum_and_starts_over_when_forgotten() {
        let queue = Queue::default();
        let mut waits = Vec::new();
        for _ in 0..20 {
            let start = Instant::now();
            queue.add_rate_limited("a");
            queue.get().await;
            queue.done(&"a");
            waits.push(start.elapsed().as_millis());
        }
        assert_eq!(waits[..4], [5, 10, 20, 40]);
        assert_eq!(waits[19], 1_000_000);
        queue.forget(&"a");
        let start = Instant::now();
        queue.add_rate_limited("a");
        queue.get().await;
        assert_eq!(start.elapsed().as_millis(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_named_queue_counts_under_client_gos_names() {
        let registry = crate::metrics::Registry::default();
        let queue = Queue::named("job", &WorkqueueMetrics::new(&registry));
        queue.add("a");
        queue.add("a");
        queue.add("b");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(queue.get().await, Some("a"));
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.add("a");
        let has = |lines: &[&str]| {
            let text = registry.text();
            for line in lines {
                assert!(text.lines().any(|found| found == *line), "{line} in\n{text}");
            }
        };
        has(&[
            "# HELP workqueue_adds_total [BETA] Total number of adds handled by workqueue",
            "workqueue_adds_total{name=\"job\"} 3",
            "workqueue_depth{name=\"job\"} 1",
            "workqueue_queue_duration_seconds_sum{name=\"job\"} 2",
            "workqueue_unfinished_work_seconds{name=\"job\"} 3",
            "workqueue_longest_running_processor_seconds{name=\"job\"} 3",
        ]);
        queue.done(&"a");
        queue.add_rate_limited("c");
        has(&[
            "workqueue_depth{name=\"job\"} 2",
            "workqueue_retries_total{name=\"job\"} 1",
            "workqueue_work_duration_seconds_bucket{name=\"job\",le=\"1\"} 0",
            "workqueue_work_duration_seconds_bucket{name=\"job\",le=\"10\"} 1",
            "workqueue_unfinished_work_seconds{name=\"job\"} 0",
        ]);
        let text = registry.text();
        let buckets = text.matches("workqueue_work_duration_seconds_bucket{").count();
        assert_eq!(buckets, 11, "component-base has ten, and +Inf");
    }

    #[tokio::test(start_paused = true)]
    async fn shutting_down_ends_every_waiting_worker() {
        let queue = std::sync::Arc::new(Queue::<&str>::default());
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.get().await })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.shut_down();
        for worker in workers {
            assert_eq!(worker.await.unwrap(), None);
        }
    }
}
