//! The endpoint barrier (SPEC B7): an ending pod's processes are told to end only after the proxies were told to send
//! them no more new connections.
//!
//! The wait is bounded and inside the grace: it leaves every process its two seconds, so nothing ends later than it
//! would have had to anyway. Hooks do not wait. Pods that go without notice, or that nobody sends anything to, do not
//! wait either.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::{Action, Pod, Why};
use crate::grace::MINIMUM_SECONDS;

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Barrier {
    #[default]
    Open,
    Closed {
        until: Timestamp,
    },
}

/// The longest wait that a grace leaves room for.
fn longest(limit: SignedDuration, grace_seconds: i64) -> SignedDuration {
    let room = SignedDuration::from_secs(grace_seconds.saturating_sub(MINIMUM_SECONDS).max(0));
    limit.min(room)
}

impl Pod {
    /// The pod begins to end.
    pub(super) fn close_barrier(&mut self, now: Timestamp) {
        let Some(ending) = &self.ending else { return };
        let announced = matches!(ending.why, Why::Deleted | Why::Failed { .. });
        let runs = self.containers.iter().any(super::Container::has_processes);
        let wait = longest(self.node.endpoint_barrier, ending.grace_seconds);
        if wait.is_zero() || !announced || !runs || ending.resumed || self.ips().is_empty() {
            return;
        }
        self.barrier = Barrier::Closed { until: now + wait };
        self.out.push(Action::AwaitEndpoints);
    }

    /// A grace that shrinks takes the barrier's time away.
    pub(super) fn shorten_barrier(&mut self) {
        let Some(ending) = &self.ending else { return };
        if let Barrier::Closed { until } = &mut self.barrier {
            let latest = ending.began + longest(self.node.endpoint_barrier, ending.grace_seconds);
            *until = (*until).min(latest);
        }
    }

    /// No proxy sends anything new, or none ever did.
    pub(super) fn endpoints_dropped(&mut self, now: Timestamp) {
        if self.barrier != Barrier::Open {
            self.barrier = Barrier::Open;
            self.moment(now, "EndpointsDropped", None, None);
        }
    }

    /// Whether TERM is to wait; the pod is looked at again when the time is over.
    pub(super) fn barrier_holds(&mut self, now: Timestamp) -> bool {
        match self.barrier {
            Barrier::Open => false,
            Barrier::Closed { until } if now >= until => {
                self.barrier = Barrier::Open;
                self.moment(
                    now,
                    "EndpointsNotDropped",
                    None,
                    Some("waited long enough".into()),
                );
                false
            }
            Barrier::Closed { until } => {
                self.wake_at(until);
                true
            }
        }
    }
}
