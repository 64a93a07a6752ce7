//! The seats of one priority level. A request that finds none free waits in the queue of its flow; free seats
//! are given to the queues in turn, so that a flow with many requests does not delay the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::Error;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lending::{self, Bounds, DemandObserver, LevelDemand};

/// `Retry-After` of a rejected request.
const RETRY_SECONDS: i32 = 1;

/// How many requests execute at once, and how many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub seats: usize,
    /// The most requests that wait in one queue.
    pub queue: usize,
    /// The most requests that wait in all queues.
    pub waiting: usize,
}

/// See [`PriorityLevel::seats`].
pub(super) struct Seats {
    pub bounds: Bounds,
    pub current: usize,
}

/// Why a request was rejected; the reasons are those of `apiserver_flowcontrol_rejected_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RejectReason {
    /// All seats are taken, and the level has no queues.
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
}

impl RejectReason {
    pub fn reason(self) -> &'static str {
        match self {
            RejectReason::ConcurrencyLimit => "concurrency-limit",
            RejectReason::QueueFull => "queue-full",
            RejectReason::TimeOut => "time-out",
        }
    }
}

impl From<RejectReason> for Error {
    fn from(_: RejectReason) -> Self {
        Error::too_many_requests("too many requests, please try again later", RETRY_SECONDS)
    }
}

/// A priority level. See the module.
pub(crate) struct PriorityLevel {
    pub name: String,
    pub uid: String,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    /// `None`: exempt. The seats are the current ones, with those lent and borrowed.
    limits: Option<Limits>,
    bounds: Bounds,
    demand: DemandObserver,
    smoothed: f64,
    used: usize,
    waiting: usize,
    queues: HashMap<String, VecDeque<oneshot::Sender<Seat>>>,
    /// Flows in whose queue a request waits, the next first.
    next_queues: VecDeque<String>,
}

/// A seat, until it is dropped.
pub(crate) struct Seat(Option<Arc<PriorityLevel>>);

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(level) = self.0.take() {
            level.release();
            level.dispatch();
        }
    }
}

/// A request in a queue. Dropped also when the client closes its connection.
struct QueuedRequest {
    level: Arc<PriorityLevel>,
    queue: String,
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut state = self.level.state.lock();
        state.remove_cancelled(&self.queue);
        state.record_demand(self.level.started);
    }
}

impl State {
    /// Records the demand after it changed.
    fn record_demand(&mut self, started: Instant) {
        self.demand.set(self.used + self.waiting, started.elapsed());
    }

    /// Removes the requests of a queue that do not wait any more.
    fn remove_cancelled(&mut self, queue: &str) {
        let Some(waiting) = self.queues.get_mut(queue) else {
            return;
        };
        let before = waiting.len();
        waiting.retain(|one| !one.is_closed());
        self.waiting -= before - waiting.len();
        if waiting.is_empty() {
            self.queues.remove(queue);
            self.next_queues.retain(|next| next != queue);
        }
    }

    /// Takes the next request from the queues, if there is a seat for it, and counts that seat as used.
    fn next(&mut self) -> Option<oneshot::Sender<Seat>> {
        if self.limits.is_some_and(|limits| self.used >= limits.seats) {
            return None;
        }
        let queue = self.next_queues.pop_front()?;
        let waiting = self.queues.get_mut(&queue)?;
        let one = waiting.pop_front();
        if waiting.is_empty() {
            self.queues.remove(&queue);
        } else {
            self.next_queues.push_back(queue);
        }
        if one.is_some() {
            self.waiting -= 1;
            self.used += 1;
        }
        one
    }
}

impl PriorityLevel {
    pub fn new(name: &str, uid: &str) -> Self {
        PriorityLevel {
            name: name.into(),
            uid: uid.into(),
            started: Instant::now(),
            state: Mutex::new(State {
                limits: None,
                bounds: Bounds::default(),
                demand: DemandObserver::new(Duration::ZERO),
                smoothed: 0.0,
                used: 0,
                waiting: 0,
                queues: HashMap::new(),
                next_queues: VecDeque::new(),
            }),
        }
    }

    #[cfg(test)]
    pub fn limits(&self) -> Option<Limits> {
        self.state.lock().limits
    }

    /// Sets the configuration. Seats that are lent or borrowed stay so until the next adjustment, unless the level's
    /// configured seats changed.
    pub(super) fn set(self: &Arc<Self>, mut limits: Option<Limits>, bounds: Bounds) {
        {
            let mut state = self.state.lock();
            if let (Some(new), Some(old)) = (&mut limits, &state.limits)
                && state.bounds == bounds
            {
                new.seats = old.seats;
            }
            (state.limits, state.bounds) = (limits, bounds);
        }
        self.dispatch();
    }

    /// The current and the configured seats.
    pub(super) fn seats(&self) -> Seats {
        let state = self.state.lock();
        Seats {
            bounds: state.bounds,
            current: state.limits.map_or(state.bounds.nominal, |limits| limits.seats),
        }
    }

    pub fn is_exempt(&self) -> bool {
        self.state.lock().limits.is_none()
    }

    /// The demand since the last adjustment.
    pub(super) fn take_demand(&self) -> LevelDemand {
        let mut state = self.state.lock();
        let demand = state.demand.take(self.started.elapsed());
        if let Some(demand) = &demand {
            state.smoothed = lending::smoothed(state.smoothed, demand);
        }
        LevelDemand {
            bounds: state.bounds,
            highest: demand.map_or(state.used + state.waiting, |d| d.highest),
            smoothed: state.smoothed,
        }
    }

    /// Sets the current seats. A request that has a seat beyond them keeps it until it is done.
    pub fn set_seats(self: &Arc<Self>, seats: usize) {
        if let Some(limits) = &mut self.state.lock().limits {
            limits.seats = seats;
        }
        self.dispatch();
    }

    fn release(&self) {
        let mut state = self.state.lock();
        state.used -= 1;
        state.record_demand(self.started);
    }

    fn dispatch(self: &Arc<Self>) {
        loop {
            // Not under the lock: a seat whose request is cancelled is returned at once.
            let next = self.state.lock().next();
            let Some(next) = next else { return };
            if let Err(mut seat) = next.send(Seat(Some(self.clone()))) {
                seat.0 = None;
                self.release();
            }
        }
    }

    /// Acquires a seat; rejects the request if it gets none within `wait_limit`.
    pub async fn acquire(self: &Arc<Self>, queue: &str, wait_limit: Duration) -> Result<Seat, RejectReason> {
        let receiver = {
            let mut state = self.state.lock();
            let Some(limits) = state.limits else {
                state.used += 1;
                state.record_demand(self.started);
                return Ok(Seat(Some(self.clone())));
            };
            if state.used < limits.seats && state.waiting == 0 {
                state.used += 1;
                state.record_demand(self.started);
                return Ok(Seat(Some(self.clone())));
            }
            if limits.waiting == 0 {
                return Err(RejectReason::ConcurrencyLimit);
            }
            if state.waiting >= limits.waiting
                || state.queues.get(queue).is_some_and(|r| r.len() >= limits.queue)
            {
                return Err(RejectReason::QueueFull);
            }
            let (seat, receiver) = oneshot::channel();
            state.waiting += 1;
            let waiting = state.queues.entry(queue.to_string()).or_default();
            waiting.push_back(seat);
            if waiting.len() == 1 {
                state.next_queues.push_back(queue.to_string());
            }
            state.record_demand(self.started);
            receiver
        };
        // Dropped after the receiver, which is then seen to be closed.
        let _queued = QueuedRequest {
            level: self.clone(),
            queue: queue.to_string(),
        };
        match tokio::time::timeout(wait_limit, receiver).await {
            Ok(Ok(seat)) => Ok(seat),
            _ => Err(RejectReason::TimeOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT_LIMIT: Duration = Duration::from_secs(15);
    const LIMITS: Limits = Limits {
        seats: 1,
        queue: 3,
        waiting: 5,
    };

    fn level() -> Arc<PriorityLevel> {
        let level = Arc::new(PriorityLevel::new("l", "u"));
        level.set(Some(LIMITS), Bounds::default());
        level
    }

    /// Queues a request that sends when it has its seat.
    async fn queue_request(
        level: &Arc<PriorityLevel>,
        queue: &'static str,
        sender: &tokio::sync::mpsc::UnboundedSender<(&'static str, Result<Seat, RejectReason>)>,
    ) -> tokio::task::JoinHandle<()> {
        let before = level.state.lock().waiting;
        let (level, sender) = (level.clone(), sender.clone());
        let task = tokio::spawn({
            let level = level.clone();
            async move {
                let seat = level.acquire(queue, WAIT_LIMIT).await;
                sender.send((queue, seat)).unwrap();
            }
        });
        while level.state.lock().waiting == before {
            tokio::task::yield_now().await;
        }
        task
    }

    #[tokio::test(start_paused = true)]
    async fn seats_are_given_to_the_queues_in_turn() {
        let level = level();
        let first = level.acquire("a", WAIT_LIMIT).await.unwrap();
        let (sender, mut seated) = tokio::sync::mpsc::unbounded_channel();
        for queue in ["a", "a", "a", "b"] {
            queue_request(&level, queue, &sender).await;
        }
        let rejected = level.acquire("a", WAIT_LIMIT).await.err();
        assert_eq!(rejected, Some(RejectReason::QueueFull));
        drop(first);
        let mut order = Vec::new();
        for _ in 0..4 {
            let (queue, seat) = seated.recv().await.unwrap();
            order.push(queue);
            drop(seat.unwrap());
        }
        assert_eq!(order, ["a", "b", "a", "a"]);
        let state = level.state.lock();
        assert_eq!(
            (
                state.used,
                state.waiting,
                state.queues.len(),
                state.next_queues.len()
            ),
            (0, 0, 0, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_times_out_or_is_cancelled_is_removed_from_its_queue() {
        let level = level();
        let first = level.acquire("a", WAIT_LIMIT).await.unwrap();
        let (sender, mut seated) = tokio::sync::mpsc::unbounded_channel();
        let cancelled = queue_request(&level, "a", &sender).await;
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
        assert_eq!(level.state.lock().waiting, 0);
        queue_request(&level, "b", &sender).await;
        let (_, rejected) = seated.recv().await.unwrap();
        assert_eq!(rejected.as_ref().err(), Some(&RejectReason::TimeOut));
        let rejected = Error::from(rejected.err().unwrap());
        assert_eq!(rejected.code(), 429);
        let details = rejected.status().details.as_ref().unwrap();
        assert_eq!(details.retry_after_seconds, Some(RETRY_SECONDS));
        drop(first);
        let state = level.state.lock();
        assert_eq!(
            (
                state.used,
                state.waiting,
                state.queues.len(),
                state.next_queues.len()
            ),
            (0, 0, 0, 0)
        );
    }

    #[tokio::test]
    async fn a_level_without_queues_rejects_at_once() {
        let level = level();
        let none = Limits {
            queue: 0,
            waiting: 0,
            ..LIMITS
        };
        level.set(Some(none), Bounds::default());
        let _first = level.acquire("a", WAIT_LIMIT).await.unwrap();
        let rejected = level.acquire("b", WAIT_LIMIT).await.err();
        assert_eq!(rejected, Some(RejectReason::ConcurrencyLimit));
    }

    #[tokio::test(start_paused = true)]
    async fn more_seats_are_handed_out_at_once_and_an_exempt_level_has_enough() {
        let level = level();
        let _first = level.acquire("a", WAIT_LIMIT).await.unwrap();
        let (sender, mut seated) = tokio::sync::mpsc::unbounded_channel();
        queue_request(&level, "a", &sender).await;
        queue_request(&level, "b", &sender).await;
        level.set_seats(2);
        // Configured as before: the current seats stay.
        level.set(Some(LIMITS), Bounds::default());
        let (queue, _second) = seated.recv().await.unwrap();
        assert_eq!(queue, "a");
        level.set(None, Bounds::default());
        let (queue, _third) = seated.recv().await.unwrap();
        assert_eq!(queue, "b");
        let _fourth = level.acquire("c", WAIT_LIMIT).await.unwrap();
        assert_eq!(level.state.lock().used, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_demand_counts_waiting_requests() {
        let level = level();
        let first = level.acquire("a", WAIT_LIMIT).await.unwrap();
        let (sender, mut seated) = tokio::sync::mpsc::unbounded_channel();
        queue_request(&level, "a", &sender).await;
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(first);
        drop(seated.recv().await.unwrap().1);
        tokio::time::advance(Duration::from_secs(5)).await;
        let demand = level.take_demand();
        // Two for half of the time.
        assert_eq!((demand.highest, demand.smoothed), (2, 2.0));
        tokio::time::advance(Duration::from_secs(10)).await;
        let demand = level.take_demand();
        assert_eq!(demand.highest, 0);
        assert!(
            1.9 < demand.smoothed && demand.smoothed < 2.0,
            "{}",
            demand.smoothed
        );
    }
}
