//! A termination that the node decides itself: node pressure, preemption, shutdown (SPEC T8, T9).

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::move_by;
use super::output::Output;

/// The shortest time after which an eviction is reported as overrun.
const LEAST_OVERRUN_SECONDS: i64 = 10;
const EXCEEDED_GRACE: &str = "Container runtime did not kill the pod within specified grace period.";

/// Why and how the node terminates a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eviction {
    /// `status.reason`
    pub reason: String,
    pub message: String,
    /// The upper bound of the pod's grace period; `None`: the pod's own grace period.
    pub grace_seconds: Option<i64>,
    /// The message of the condition DisruptionTarget; `None`: the pod does not get the condition.
    pub disruption: Option<String>,
}

/// The eviction of one pod: the first one that was requested counts.
#[derive(Clone, Debug, Default)]
pub(super) enum EvictionState {
    #[default]
    NotRequested,
    Requested {
        eviction: Eviction,
        since: Timestamp,
    },
    /// It took longer than its grace period, and the event was recorded.
    Overrun {
        eviction: Eviction,
    },
}

impl EvictionState {
    pub(super) fn request(&mut self, eviction: Eviction, now: Timestamp) {
        if matches!(self, EvictionState::NotRequested) {
            *self = EvictionState::Requested { eviction, since: now };
        }
    }

    pub(super) fn requested(&self) -> Option<&Eviction> {
        match self {
            EvictionState::NotRequested => None,
            EvictionState::Requested { eviction, .. } | EvictionState::Overrun { eviction } => Some(eviction),
        }
    }

    pub(super) fn grace_seconds(&self) -> Option<i64> {
        self.requested()?.grace_seconds
    }

    /// Records an event for an eviction that takes longer than one and a half times its grace period (T8). Called while
    /// processes run.
    pub(super) fn check_overrun(&mut self, pod_grace_seconds: Option<i64>, now: Timestamp, out: &mut Output) {
        let EvictionState::Requested { eviction, since } = self else {
            return;
        };
        let grace = eviction.grace_seconds.or(pod_grace_seconds).unwrap_or(0);
        let most = grace.saturating_add(grace / 2).max(LEAST_OVERRUN_SECONDS);
        let until = *since + SignedDuration::from_secs(most);
        if now < until {
            return out.wake_at(until);
        }
        out.record(None, true, "ExceededGracePeriod", EXCEEDED_GRACE.into());
        *self = EvictionState::Overrun {
            eviction: std::mem::take(eviction),
        };
    }

    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        if let EvictionState::Requested { since, .. } = self {
            move_by(since, by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Action;

    #[test]
    fn t8_an_overrun_is_recorded_once_after_one_and_a_half_grace_periods_and_ten_seconds() {
        for (grace_seconds, limit) in [(2, 10), (20, 30)] {
            let (now, mut out) = (Timestamp::UNIX_EPOCH, Output::default());
            let mut state = EvictionState::default();
            state.check_overrun(Some(1), now, &mut out);
            assert_eq!(out.take(), [], "nothing is requested");
            let eviction = Eviction {
                grace_seconds: Some(grace_seconds),
                ..Eviction::default()
            };
            state.request(eviction.clone(), now);
            state.request(Eviction::default(), now);
            assert_eq!(state.requested(), Some(&eviction), "the first one counts");
            let end = now + SignedDuration::from_secs(limit);
            state.check_overrun(Some(1), now, &mut out);
            assert_eq!(out.take(), [Action::SetTimer(end)]);
            state.check_overrun(Some(1), end, &mut out);
            assert_eq!(out.take().len(), 1);
            state.check_overrun(Some(1), end, &mut out);
            assert_eq!(out.take(), []);
            assert_eq!(state.grace_seconds(), Some(grace_seconds));
        }
    }
}
