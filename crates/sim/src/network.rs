//! The network between a component and the API: delays, lost requests, answers lost after the commit, requests that
//! arrive long after their sender gave up (or died), partitions, watches that stall or break.
//!
//! A [`Network`] belongs to a component and outlives its incarnations; a [`ComponentApi`](crate::component_api::ComponentApi)
//! belongs to one incarnation.

use std::sync::Arc;
use std::time::Duration;

use knarr_client::{Error, Result, notified_until};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::random::Stream;

/// A proxy that got no answer sends a request again within this time.
const AGAIN_WITHIN_MILLIS: u64 = 10_000;

/// Error rates, per mille of the requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultRates {
    /// Rejected before anything was done.
    pub rejected: u32,
    /// Carried out, but the answer is lost.
    pub unanswered: u32,
    /// Carried out only seconds later, when the sender has long given up.
    pub late: u32,
    /// Carried out twice, if it is idempotent in HTTP (PUT, DELETE): a proxy got no answer.
    pub repeated: u32,
    pub slowest_millis: u64,
}

struct State {
    rates: FaultRates,
    cut: bool,
    stalled: bool,
    /// Requests arrive and are carried out, but all answers are lost.
    loses_answers: bool,
    /// Writes that were sent have not arrived.
    held: bool,
    /// Counts how often all connections broke.
    breaks: u64,
    chance: Stream,
}

pub(crate) struct Network {
    pub name: String,
    state: Mutex<State>,
    changed: Notify,
}

enum RequestFate {
    Normal,
    Rejected,
    Unanswered,
    Late(Duration),
}

impl Network {
    pub fn new(name: &str, chance: Stream) -> Self {
        Network {
            name: name.to_string(),
            state: Mutex::new(State {
                rates: FaultRates::default(),
                cut: false,
                stalled: false,
                loses_answers: false,
                held: false,
                breaks: 0,
                chance,
            }),
            changed: Notify::new(),
        }
    }

    pub fn set_fault_rates(&self, rates: FaultRates) {
        self.state.lock().rates = rates;
    }

    /// A partition; when it ends, watches continue where they were or have broken.
    pub fn set_cut(&self, cut: bool) {
        {
            let mut state = self.state.lock();
            state.cut = cut;
            if !cut && state.chance.per_mille(700) {
                state.breaks += 1;
            }
        }
        self.changed.notify_waiters();
    }

    /// Watches report nothing while requests go through: caches are stale.
    pub fn set_stalled(&self, stalled: bool) {
        self.state.lock().stalled = stalled;
        self.changed.notify_waiters();
    }

    /// A partition in one direction: requests arrive, answers are lost.
    pub fn set_loses_answers(&self, loses_answers: bool) {
        self.state.lock().loses_answers = loses_answers;
        self.changed.notify_waiters();
    }

    /// Writes arrive when this is over, as from a host that was paused or a network switch that kept them.
    pub fn set_held(&self, held: bool) {
        self.state.lock().held = held;
        self.changed.notify_waiters();
    }

    async fn arrives(&self) {
        notified_until(&self.changed, || (!self.state.lock().held).then_some(())).await;
    }

    pub fn break_watches(&self) {
        self.state.lock().breaks += 1;
        self.changed.notify_waiters();
    }

    /// How often all connections have broken.
    pub(crate) fn breaks(&self) -> u64 {
        self.state.lock().breaks
    }

    pub fn is_cut(&self) -> bool {
        self.state.lock().cut
    }

    fn delivers_answers(&self) -> bool {
        let state = self.state.lock();
        !state.cut && !state.loses_answers
    }

    fn draw(&self, write: bool) -> (Duration, Duration, RequestFate) {
        let mut state = self.state.lock();
        let rates = state.rates;
        let chance = &mut state.chance;
        // Most requests are quick, whatever the rates.
        let mut delay = || {
            if rates.slowest_millis == 0 || chance.per_mille(800) {
                chance.millis(0, 2)
            } else {
                chance.millis(0, rates.slowest_millis)
            }
        };
        let (there, back) = (delay(), delay());
        let fate = if chance.per_mille(rates.rejected) {
            RequestFate::Rejected
        } else if chance.per_mille(rates.unanswered) {
            RequestFate::Unanswered
        } else if write && chance.per_mille(rates.late) {
            RequestFate::Late(chance.millis(500, 20_000))
        } else {
            RequestFate::Normal
        };
        (there, back, fate)
    }

    /// The pause after which a request is sent again, if it is.
    pub(crate) fn draw_again(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        let repeated = state.rates.repeated;
        // Without such a rate nothing is drawn.
        (repeated > 0 && state.chance.per_mille(repeated))
            .then(|| state.chance.millis(0, AGAIN_WITHIN_MILLIS))
    }

    /// Carries one request, with the faults of the rates.
    pub(crate) async fn carry<T: Send + 'static>(
        self: &Arc<Self>,
        write: bool,
        stopped: &CancellationToken,
        request: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (there, back, fate) = self.draw(write);
        let unreachable = || Error::unavailable("dial tcp: connection refused");
        if self.is_cut() {
            sleep(there + Duration::from_millis(200)).await;
            return Err(unreachable());
        }
        let (travel, deadline) = match fate {
            RequestFate::Rejected => {
                sleep(there).await;
                return Err(unreachable());
            }
            RequestFate::Late(time) => (time, Duration::from_millis(500)),
            RequestFate::Normal | RequestFate::Unanswered => (there, Duration::from_secs(30)),
        };
        let answer = if write {
            // A task of its own: what is sent arrives, even if its sender dies.
            let (answered, answer) = oneshot::channel();
            let (stopped, network) = (stopped.clone(), self.clone());
            tokio::spawn(async move {
                sleep(travel).await;
                network.arrives().await;
                if stopped.is_cancelled() {
                    return;
                }
                // The requester may have died.
                let _ = answered.send(request.await);
            });
            match tokio::time::timeout(deadline, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) | Err(_) => return Err(Error::timeout("the request timed out")),
            }
        } else {
            sleep(travel).await;
            request.await
        };
        sleep(back).await;
        if matches!(fate, RequestFate::Unanswered) || !self.delivers_answers() {
            return Err(Error::timeout("the connection was lost before an answer came"));
        }
        answer
    }

    /// Whether requests, answers and watch events all arrive.
    pub fn is_well(&self) -> bool {
        let state = self.state.lock();
        !state.cut && !state.stalled && !state.loses_answers && !state.held
    }

    pub(crate) fn choose(&self, servers: usize) -> usize {
        let last = u64::try_from(servers.saturating_sub(1)).unwrap_or_default();
        usize::try_from(self.state.lock().chance.between(0, last)).unwrap_or_default()
    }

    pub(crate) fn lag(&self) -> Duration {
        let mut state = self.state.lock();
        let slowest = state.rates.slowest_millis / 4;
        if slowest > 0 && state.chance.per_mille(50) {
            state.chance.millis(0, slowest)
        } else {
            Duration::ZERO
        }
    }

    /// Waits while watches report nothing. `false`: the connection has broken in the meantime.
    pub(crate) async fn flows(&self, breaks: u64) -> bool {
        notified_until(&self.changed, || {
            let state = self.state.lock();
            let is_broken = state.breaks != breaks;
            let reports = !state.cut && !state.stalled && !state.loses_answers;
            (is_broken || reports).then_some(!is_broken)
        })
        .await
    }

    pub(crate) async fn broken(&self, breaks: u64) {
        notified_until(&self.changed, || (self.breaks() != breaks).then_some(())).await;
    }
}
