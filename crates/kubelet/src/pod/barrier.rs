//! The endpoint barrier (SPEC B7): a terminating pod's processes get TERM only after the proxies have stopped sending
//! new connections to the pod, and the pod's processes have accepted those that were sent before.
//!
//! A connection is established when its handshake is complete; until a process accepts it, it waits in the accept queue of
//! the listening socket, and a process that closes that socket at TERM resets it. So the queues are read once no proxy sends
//! new connections, and again until they are empty. They are not read for a pod that no Service offered, nor in the host's
//! network, where other programs' sockets are; queues that cannot be read count as empty.
//!
//! The wait is bounded and part of the grace period, whatever the pod does with its queues: it leaves every process its two
//! seconds after TERM, so no process exits later than without the barrier. preStop hooks do not wait. Nor do pods that were
//! deleted without a grace period, or that have no address.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::move_by;
use super::{Action, Pod};
use crate::grace::MINIMUM_SECONDS;

/// Between two reads of the accept queues: within the default limit of a second there are at most fifty, each of less than a
/// millisecond.
const READ_AGAIN_AFTER: SignedDuration = SignedDuration::from_millis(20);

/// The state of the barrier: TERM waits unless it is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Barrier {
    #[default]
    Open,
    /// Proxies may send new connections to the pod.
    Closed { until: Timestamp },
    /// They do not any more, but connections may wait in the pod's accept queues.
    Draining {
        until: Timestamp,
        /// When the queues are read again; `None` while a read is in flight.
        next_read: Option<Timestamp>,
    },
}

/// The longest wait that a grace period has room for.
fn longest(limit: SignedDuration, grace_seconds: i64) -> SignedDuration {
    let room = SignedDuration::from_secs(grace_seconds.saturating_sub(MINIMUM_SECONDS).max(0));
    limit.min(room)
}

impl Barrier {
    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        match self {
            Barrier::Open => {}
            Barrier::Closed { until } => move_by(until, by),
            Barrier::Draining { until, next_read } => {
                move_by(until, by);
                if let Some(at) = next_read {
                    move_by(at, by);
                }
            }
        }
    }
}

impl Pod {
    /// Closes the barrier when the pod's termination begins, if there is something to wait for.
    pub(super) fn close_barrier(&mut self, now: Timestamp) {
        let Some(termination) = &self.termination else {
            return;
        };
        let runs = self.containers.iter().any(super::Container::has_processes);
        let wait = longest(self.node.endpoint_barrier, termination.grace_seconds());
        if wait.is_zero()
            || !termination.is_announced()
            || !runs
            || termination.is_resumed()
            || self.ips().is_empty()
        {
            return;
        }
        self.barrier = Barrier::Closed { until: now + wait };
        self.out.push(Action::AwaitEndpoints);
    }

    /// Shortens the barrier when the grace period gets shorter.
    pub(super) fn shorten_barrier(&mut self) {
        let Some(termination) = &self.termination else {
            return;
        };
        if let Barrier::Closed { until } | Barrier::Draining { until, .. } = &mut self.barrier {
            let wait = longest(self.node.endpoint_barrier, termination.grace_seconds());
            *until = (*until).min(termination.began() + wait);
        }
    }

    /// No proxy sends new connections to the pod any more. The barrier opens if none did before.
    pub(super) fn endpoints_dropped(&mut self, was_endpoint: bool, now: Timestamp) {
        let Barrier::Closed { until } = self.barrier else {
            return;
        };
        self.add_to_timeline(now, "EndpointsDropped", None, None);
        if was_endpoint && now < until {
            self.read_accept_queues(until);
        } else {
            self.barrier = Barrier::Open;
        }
    }

    /// Opens the barrier if no connection waits to be accepted.
    pub(super) fn accept_queues_read(&mut self, has_connections: bool, now: Timestamp) {
        let Barrier::Draining { next_read, .. } = &mut self.barrier else {
            return;
        };
        if has_connections {
            *next_read = Some(now + READ_AGAIN_AFTER);
        } else {
            self.barrier = Barrier::Open;
        }
    }

    /// Requests a read of the accept queues, or opens the barrier if the pod has no network namespace of its own (any more).
    fn read_accept_queues(&mut self, until: Timestamp) {
        let is_own = !self.object.host_network();
        self.barrier = match self.sandboxes.ready().filter(|_| is_own) {
            Some(sandbox) => {
                let sandbox = sandbox.clone();
                self.out.push(Action::ReadAcceptQueues { sandbox });
                Barrier::Draining {
                    until,
                    next_read: None,
                }
            }
            None => Barrier::Open,
        };
    }

    /// Whether TERM has to wait; if so, the timer is set to the end of the wait, or to the next read of the accept queues.
    pub(super) fn barrier_holds(&mut self, now: Timestamp) -> bool {
        let (until, next_read, unfinished) = match self.barrier {
            Barrier::Open => return false,
            Barrier::Closed { until } => (until, None, "EndpointsNotDropped"),
            Barrier::Draining { until, next_read } => (until, next_read, "ConnectionsNotAccepted"),
        };
        if now >= until {
            self.barrier = Barrier::Open;
            self.add_to_timeline(now, unfinished, None, Some("waited long enough".into()));
            return false;
        }
        match next_read {
            Some(at) if at > now => self.out.wake_at(at),
            Some(_) => self.read_accept_queues(until),
            None => {}
        }
        if self.barrier == Barrier::Open {
            return false;
        }
        self.out.wake_at(until);
        true
    }
}
