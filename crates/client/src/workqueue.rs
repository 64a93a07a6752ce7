//! The queue of keys to look at: each key at most once, never handed to two workers at a time, failed ones
//! after an exponential back-off.
//!
//! Promises, as client-go's workqueue: a key added while a worker holds it is handed out again after
//! [`Queue::done`]; a key added many times while it waits is handed out once. Time is tokio's; the order is that
//! of the additions, so the same additions at the same times give the same order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

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
    /// What waits in `ready` or must be looked at again after `done`.
    dirty: BTreeSet<K>,
    processing: BTreeSet<K>,
    /// By time, then in the order they were added.
    delayed: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    failures: BTreeMap<K, u32>,
    sequence: u64,
    shut_down: bool,
}

impl<K: Ord + Clone> Inner<K> {
    fn add(&mut self, key: K) -> bool {
        if self.shut_down || !self.dirty.insert(key.clone()) || self.processing.contains(&key) {
            return false;
        }
        self.ready.push_back(key);
        true
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
        Self::new(Backoff::default())
    }
}

impl<K: Ord + Clone> Queue<K> {
    pub fn new(backoff: Backoff) -> Self {
        Queue {
            inner: Mutex::new(Inner {
                ready: VecDeque::new(),
                dirty: BTreeSet::new(),
                processing: BTreeSet::new(),
                delayed: BTreeMap::new(),
                due: BTreeMap::new(),
                failures: BTreeMap::new(),
                sequence: 0,
                shut_down: false,
            }),
            wake: Notify::new(),
            backoff,
        }
    }

    /// Have this key looked at.
    pub fn add(&self, key: K) {
        if self.inner.lock().add(key) {
            self.wake.notify_one();
        }
    }

    /// Have it looked at after `wait`. Of several delays for one key the earliest counts.
    pub fn add_after(&self, key: K, wait: Duration) {
        if wait.is_zero() {
            return self.add(key);
        }
        {
            let mut inner = self.inner.lock();
            if inner.shut_down {
                return;
            }
            // A wait past the clock's range is a wait for ever; a year is as good and can be added.
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

    /// Have it looked at after its back-off, which doubles until [`Queue::forget`].
    pub fn add_rate_limited(&self, key: K) {
        let wait = {
            let mut inner = self.inner.lock();
            let failures = inner.failures.entry(key.clone()).or_default();
            let wait = self.backoff.after(*failures);
            *failures = failures.saturating_add(1);
            wait
        };
        self.add_after(key, wait);
    }

    /// It went well: the next back-off is the first again.
    pub fn forget(&self, key: &K) {
        self.inner.lock().failures.remove(key);
    }

    /// How often it was added rate-limited since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.inner.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// The next key; it is this caller's until [`Queue::done`]. `None` once the queue is shut down.
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
                    inner.dirty.remove(&key);
                    inner.processing.insert(key.clone());
                    // One wake-up may have stood for several keys.
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

    /// The caller of [`Queue::get`] has finished with the key.
    pub fn done(&self, key: &K) {
        let mut inner = self.inner.lock();
        inner.processing.remove(key);
        if inner.dirty.contains(key) && !inner.shut_down {
            inner.ready.push_back(key.clone());
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// Keys that wait to be handed out now.
    pub fn len(&self) -> usize {
        self.inner.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every [`Queue::get`] answers `None` from now on.
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
        assert_eq!(queue.failures(&"a"), 0);
        let start = Instant::now();
        queue.add_rate_limited("a");
        queue.get().await;
        assert_eq!(start.elapsed().as_millis(), 5);
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
