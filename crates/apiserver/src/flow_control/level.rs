//! The seats of one priority level. Who finds none free waits in his flow's row; seats that become free go to the rows
//! in turn, so that whoever asks much holds up nobody else.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use knarr_api::Error;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::lending::{self, Borrower, Bounds, Observer};

/// When to come back.
const RETRY_SECONDS: i32 = 1;

/// How many are served at once, and how many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub seats: usize,
    /// In one row.
    pub row: usize,
    /// In all of them.
    pub waiting: usize,
}

/// See [`Level::seats`].
pub(super) struct Seats {
    pub bounds: Bounds,
    pub current: usize,
}

/// Why somebody got no seat; the texts are those of `apiserver_flowcontrol_rejected_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// All are taken, and nobody waits here.
    ConcurrencyLimit,
    QueueFull,
    TimeOut,
}

impl Refused {
    pub fn reason(self) -> &'static str {
        match self {
            Refused::ConcurrencyLimit => "concurrency-limit",
            Refused::QueueFull => "queue-full",
            Refused::TimeOut => "time-out",
        }
    }
}

impl From<Refused> for Error {
    fn from(_: Refused) -> Self {
        Error::too_many_requests("too many requests, please try again later", RETRY_SECONDS)
    }
}

/// See the module.
pub(crate) struct Level {
    pub name: String,
    pub uid: String,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    /// `None`: exempt. Of the seats those of the moment, lent and borrowed ones reckoned in.
    limits: Option<Limits>,
    bounds: Bounds,
    demand: Observer,
    smoothed: f64,
    used: usize,
    waiting: usize,
    rows: HashMap<String, VecDeque<oneshot::Sender<Seat>>>,
    /// Rows in which somebody waits, the next first.
    turns: VecDeque<String>,
}

/// A seat, until it is dropped.
pub(crate) struct Seat(Option<Arc<Level>>);

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(level) = self.0.take() {
            level.leave();
            level.hand_out();
        }
    }
}

/// Somebody who waits, also when his client goes away.
struct Waits {
    level: Arc<Level>,
    row: String,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut state = self.level.state.lock();
        state.forget_gone(&self.row);
        state.note(self.level.begun);
    }
}

impl State {
    /// What is asked for has changed.
    fn note(&mut self, begun: Instant) {
        self.demand.set(self.used + self.waiting, begun.elapsed());
    }

    /// Takes those out of a row who do not wait any more.
    fn forget_gone(&mut self, row: &str) {
        let Some(waiting) = self.rows.get_mut(row) else {
            return;
        };
        let before = waiting.len();
        waiting.retain(|one| !one.is_closed());
        self.waiting -= before - waiting.len();
        if waiting.is_empty() {
            self.rows.remove(row);
            self.turns.retain(|turn| turn != row);
        }
    }

    /// Who is next, if there is a seat for him, which he then has.
    fn next(&mut self) -> Option<oneshot::Sender<Seat>> {
        if self.limits.is_some_and(|limits| self.used >= limits.seats) {
            return None;
        }
        let row = self.turns.pop_front()?;
        let waiting = self.rows.get_mut(&row)?;
        let one = waiting.pop_front();
        if waiting.is_empty() {
            self.rows.remove(&row);
        } else {
            self.turns.push_back(row);
        }
        if one.is_some() {
            self.waiting -= 1;
            self.used += 1;
        }
        one
    }
}

impl Level {
    pub fn new(name: &str, uid: &str) -> Self {
        Level {
            name: name.into(),
            uid: uid.into(),
            begun: Instant::now(),
            state: Mutex::new(State {
                limits: None,
                bounds: Bounds::default(),
                demand: Observer::new(Duration::ZERO),
                smoothed: 0.0,
                used: 0,
                waiting: 0,
                rows: HashMap::new(),
                turns: VecDeque::new(),
            }),
        }
    }

    #[cfg(test)]
    pub fn limits(&self) -> Option<Limits> {
        self.state.lock().limits
    }

    /// From now on these hold. What is lent and borrowed at the moment is so until the next time, unless the level is
    /// now another.
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
        self.hand_out();
    }

    /// Those of the moment, and what it was configured to have.
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

    /// What was asked of it since the last time.
    pub(super) fn asked(&self) -> Borrower {
        let mut state = self.state.lock();
        let demand = state.demand.take(self.begun.elapsed());
        if let Some(demand) = &demand {
            state.smoothed = lending::smoothed(state.smoothed, demand);
        }
        Borrower {
            bounds: state.bounds,
            highest: demand.map_or(state.used + state.waiting, |d| d.highest),
            smoothed: state.smoothed,
        }
    }

    /// It has so many seats now. Who sits on one that it has no more keeps it until he goes.
    pub fn give(self: &Arc<Self>, seats: usize) {
        if let Some(limits) = &mut self.state.lock().limits {
            limits.seats = seats;
        }
        self.hand_out();
    }

    fn leave(&self) {
        let mut state = self.state.lock();
        state.used -= 1;
        state.note(self.begun);
    }

    fn hand_out(self: &Arc<Self>) {
        loop {
            // Not under the lock: a seat that nobody takes comes back at once.
            let next = self.state.lock().next();
            let Some(next) = next else { return };
            if let Err(mut seat) = next.send(Seat(Some(self.clone()))) {
                seat.0 = None;
                self.leave();
            }
        }
    }

    /// A seat, after `patience` at the latest if at all.
    pub async fn enter(self: &Arc<Self>, row: &str, patience: Duration) -> Result<Seat, Refused> {
        let given = {
            let mut state = self.state.lock();
            let Some(limits) = state.limits else {
                state.used += 1;
                state.note(self.begun);
                return Ok(Seat(Some(self.clone())));
            };
            if state.used < limits.seats && state.waiting == 0 {
                state.used += 1;
                state.note(self.begun);
                return Ok(Seat(Some(self.clone())));
            }
            if limits.waiting == 0 {
                return Err(Refused::ConcurrencyLimit);
            }
            if state.waiting >= limits.waiting || state.rows.get(row).is_some_and(|r| r.len() >= limits.row) {
                return Err(Refused::QueueFull);
            }
            let (seat, given) = oneshot::channel();
            state.waiting += 1;
            let waiting = state.rows.entry(row.to_string()).or_default();
            waiting.push_back(seat);
            if waiting.len() == 1 {
                state.turns.push_back(row.to_string());
            }
            state.note(self.begun);
            given
        };
        // Dropped after what it waits with, which then is seen to be gone.
        let _waits = Waits {
            level: self.clone(),
            row: row.to_string(),
        };
        match tokio::time::timeout(patience, given).await {
            Ok(Ok(seat)) => Ok(seat),
            _ => Err(Refused::TimeOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(15);
    const LIMITS: Limits = Limits {
        seats: 1,
        row: 3,
        waiting: 5,
    };

    fn level() -> Arc<Level> {
        let level = Arc::new(Level::new("l", "u"));
        level.set(Some(LIMITS), Bounds::default());
        level
    }

    /// Somebody who waits, and says so when he has his seat.
    async fn waits(
        level: &Arc<Level>,
        row: &'static str,
        told: &tokio::sync::mpsc::UnboundedSender<(&'static str, Result<Seat, Refused>)>,
    ) -> tokio::task::JoinHandle<()> {
        let before = level.state.lock().waiting;
        let (level, told) = (level.clone(), told.clone());
        let task = tokio::spawn({
            let level = level.clone();
            async move {
                let seat = level.enter(row, PATIENCE).await;
                told.send((row, seat)).unwrap();
            }
        });
        while level.state.lock().waiting == before {
            tokio::task::yield_now().await;
        }
        task
    }

    #[tokio::test(start_paused = true)]
    async fn seats_go_to_the_rows_in_turn() {
        let level = level();
        let first = level.enter("a", PATIENCE).await.unwrap();
        let (told, mut seated) = tokio::sync::mpsc::unbounded_channel();
        for row in ["a", "a", "a", "b"] {
            waits(&level, row, &told).await;
        }
        let refused = level.enter("a", PATIENCE).await.err();
        assert_eq!(refused, Some(Refused::QueueFull));
        drop(first);
        let mut order = Vec::new();
        for _ in 0..4 {
            let (row, seat) = seated.recv().await.unwrap();
            order.push(row);
            drop(seat.unwrap());
        }
        assert_eq!(order, ["a", "b", "a", "a"]);
        let state = level.state.lock();
        assert_eq!(
            (state.used, state.waiting, state.rows.len(), state.turns.len()),
            (0, 0, 0, 0)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_or_goes_away_leaves_no_trace() {
        let level = level();
        let first = level.enter("a", PATIENCE).await.unwrap();
        let (told, mut seated) = tokio::sync::mpsc::unbounded_channel();
        let gone = waits(&level, "a", &told).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(level.state.lock().waiting, 0);
        waits(&level, "b", &told).await;
        let (_, refused) = seated.recv().await.unwrap();
        assert_eq!(refused.as_ref().err(), Some(&Refused::TimeOut));
        let refused = Error::from(refused.err().unwrap());
        assert_eq!(refused.code(), 429);
        let details = refused.status().details.as_ref().unwrap();
        assert_eq!(details.retry_after_seconds, Some(RETRY_SECONDS));
        drop(first);
        let state = level.state.lock();
        assert_eq!(
            (state.used, state.waiting, state.rows.len(), state.turns.len()),
            (0, 0, 0, 0)
        );
    }

    #[tokio::test]
    async fn where_nobody_waits_one_is_refused_at_once() {
        let level = level();
        let none = Limits {
            row: 0,
            waiting: 0,
            ..LIMITS
        };
        level.set(Some(none), Bounds::default());
        let _first = level.enter("a", PATIENCE).await.unwrap();
        let refused = level.enter("b", PATIENCE).await.err();
        assert_eq!(refused, Some(Refused::ConcurrencyLimit));
    }

    #[tokio::test(start_paused = true)]
    async fn more_seats_are_handed_out_at_once_and_an_exempt_level_has_enough() {
        let level = level();
        let _first = level.enter("a", PATIENCE).await.unwrap();
        let (told, mut seated) = tokio::sync::mpsc::unbounded_channel();
        waits(&level, "a", &told).await;
        waits(&level, "b", &told).await;
        level.give(2);
        // Configured as before: what it has been given stays.
        level.set(Some(LIMITS), Bounds::default());
        let (row, _second) = seated.recv().await.unwrap();
        assert_eq!(row, "a");
        level.set(None, Bounds::default());
        let (row, _third) = seated.recv().await.unwrap();
        assert_eq!(row, "b");
        let _fourth = level.enter("c", PATIENCE).await.unwrap();
        assert_eq!(level.state.lock().used, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_asked_counts_those_who_wait() {
        let level = level();
        let first = level.enter("a", PATIENCE).await.unwrap();
        let (told, mut seated) = tokio::sync::mpsc::unbounded_channel();
        waits(&level, "a", &told).await;
        tokio::time::advance(Duration::from_secs(5)).await;
        drop(first);
        drop(seated.recv().await.unwrap().1);
        tokio::time::advance(Duration::from_secs(5)).await;
        let asked = level.asked();
        // Two for half of the time.
        assert_eq!((asked.highest, asked.smoothed), (2, 2.0));
        tokio::time::advance(Duration::from_secs(10)).await;
        let asked = level.asked();
        assert_eq!(asked.highest, 0);
        assert!(1.9 < asked.smoothed && asked.smoothed < 2.0, "{}", asked.smoothed);
    }
}
