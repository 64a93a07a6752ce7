//! The stop of one container: how far it is, and when TERM and KILL are sent.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::grace::MINIMUM_SECONDS;
use crate::pod::clock_jump::move_by;
use crate::probe;

/// Why one container is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pod) enum StopReason {
    /// The pod terminates.
    Pod,
    /// Its definition or resources changed.
    Changed,
    /// Its sandbox is lost or not in use any more.
    Sandbox,
    PostStart,
    Probe(probe::Kind),
    /// `RestartAllContainers`: without a grace period.
    All,
}

/// The state of stopping one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::pod) struct ContainerStop {
    reason: StopReason,
    began: Timestamp,
    grace_seconds: i64,
    stage: Stage,
    /// Its preStop hook has not finished, whether the stop still waits for it or not.
    hook_runs: bool,
}

/// How far the stop of a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pod) enum Stage {
    /// The preStop hook runs.
    PreStop,
    /// The hook is done; TERM waits for the endpoint barrier, and a sidecar's for the containers before it.
    BeforeTerm,
    /// TERM was sent, KILL follows at `kill_at`.
    Term { kill_at: Timestamp },
    /// The runtime's stop failed; it is retried.
    RetryAt(Timestamp),
}

impl ContainerStop {
    pub(in crate::pod) fn new(
        reason: StopReason,
        grace_seconds: i64,
        has_hook: bool,
        now: Timestamp,
    ) -> Self {
        ContainerStop {
            reason,
            began: now,
            grace_seconds,
            stage: match has_hook {
                true => Stage::PreStop,
                false => Stage::BeforeTerm,
            },
            hook_runs: has_hook,
        }
    }

    /// Whether the container is restarted without back-off once it has stopped.
    pub(in crate::pod) fn is_for_restart(&self) -> bool {
        matches!(self.reason, StopReason::Probe(_) | StopReason::Changed)
    }

    pub(in crate::pod) fn stage(&self) -> Stage {
        self.stage
    }

    /// The stop no longer waits for the hook; the hook may run on while the container does.
    pub(in crate::pod) fn stop_waiting_for_hook(&mut self) {
        self.stage = Stage::BeforeTerm;
    }

    /// The runtime's stop failed.
    pub(in crate::pod) fn retry_at(&mut self, at: Timestamp) {
        self.stage = Stage::RetryAt(at);
    }

    /// The full grace period starts again.
    pub(in crate::pod) fn begin_again(&mut self, now: Timestamp) {
        self.began = now;
    }

    pub(in crate::pod) fn hook_runs(&self) -> bool {
        self.hook_runs
    }

    pub(in crate::pod) fn deadline(&self) -> Timestamp {
        self.began + SignedDuration::from_secs(self.grace_seconds)
    }

    /// The seconds left until the deadline, rounded up.
    fn left(&self, now: Timestamp) -> i64 {
        let left = self.deadline().duration_since(now);
        left.as_secs() + i64::from(left.subsec_nanos() > 0)
    }

    /// TERM is sent now. Returns the seconds until KILL.
    pub(in crate::pod) fn send_term(&mut self, now: Timestamp) -> i64 {
        let seconds = self.left(now).max(MINIMUM_SECONDS);
        self.stage = Stage::Term {
            kill_at: now + SignedDuration::from_secs(seconds),
        };
        seconds
    }

    /// The preStop hook has finished. Returns whether the stop waited for it.
    pub(in crate::pod) fn pre_stop_done(&mut self) -> bool {
        self.hook_runs = false;
        let waited = self.stage == Stage::PreStop;
        if waited {
            self.stage = Stage::BeforeTerm;
        }
        waited
    }

    /// A shorter grace period takes effect at once; a longer one does not (T3). Returns the seconds until KILL if TERM was
    /// sent with more.
    pub(in crate::pod) fn shorten(&mut self, grace_seconds: i64, now: Timestamp) -> Option<i64> {
        if grace_seconds >= self.grace_seconds {
            return None;
        }
        self.grace_seconds = grace_seconds;
        let seconds = self.left(now).max(1);
        let sooner = now + SignedDuration::from_secs(seconds);
        match &mut self.stage {
            Stage::Term { kill_at } if sooner < *kill_at => {
                *kill_at = sooner;
                Some(seconds)
            }
            _ => None,
        }
    }

    pub(in crate::pod) fn clock_jumped(&mut self, by: SignedDuration) {
        move_by(&mut self.began, by);
        if let Stage::Term { kill_at: at } | Stage::RetryAt(at) = &mut self.stage {
            move_by(at, by);
        }
    }
}
