//! The endpoint barrier (SPEC B7): a terminating pod's processes get TERM only after the proxies have stopped sending
//! new connections to the pod.
//!
//! The wait is bounded and part of the grace period: it leaves every process its two seconds after TERM, so no process
//! exits later than without the barrier. preStop hooks do not wait. Nor do pods that were deleted without a grace period,
//! or that have no address.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::move_by;
use super::{Action, Pod};
use crate::grace::MINIMUM_SECONDS;

/// The state of the barrier: TERM waits while it is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Barrier {
    #[default]
    Open,
    Closed {
        until: Timestamp,
    },
}

/// The longest wait that a grace period has room for.
fn longest(limit: SignedDuration, grace_seconds: i64) -> SignedDuration {
    let room = SignedDuration::from_secs(grace_seconds.saturating_sub(MINIMUM_SECONDS).max(0));
    limit.min(room)
}

impl Barrier {
    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        if let Barrier::Closed { until } = self {
            move_by(until, by);
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
        if let Barrier::Closed { until } = &mut self.barrier {
            let wait = longest(self.node.endpoint_barrier, termination.grace_seconds());
            *until = (*until).min(termination.began() + wait);
        }
    }

    /// Opens the barrier: no proxy sends new connections to the pod.
    pub(super) fn endpoints_dropped(&mut self, now: Timestamp) {
        if self.barrier != Barrier::Open {
            self.barrier = Barrier::Open;
            self.add_to_timeline(now, "EndpointsDropped", None, None);
        }
    }

    /// Whether TERM has to wait; if so, the timer is set to the end of the wait.
    pub(super) fn barrier_holds(&mut self, now: Timestamp) -> bool {
        match self.barrier {
            Barrier::Open => false,
            Barrier::Closed { until } if now >= until => {
                self.barrier = Barrier::Open;
                let detail = Some("waited long enough".into());
                self.add_to_timeline(now, "EndpointsNotDropped", None, detail);
                false
            }
            Barrier::Closed { until } => {
                self.out.wake_at(until);
                true
            }
        }
    }
}
