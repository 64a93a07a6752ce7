//! The state of the pod's volumes: set up before its sandbox, torn down once it has terminated.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::Action;
use super::clock_jump::move_by;
use super::output::Output;

/// Waits between attempts to set volumes up: 0.5 s, doubled up to about two minutes.
const RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_millis(500), SignedDuration::from_secs(122));
/// Wait before a volume is tried again that another component or the user has to provide first.
const EXTERNAL_RETRY: SignedDuration = SignedDuration::from_secs(12);

#[derive(Clone, Debug)]
pub(super) struct Volumes {
    state: State,
    /// The wait before the next attempt to set them up.
    wait: SignedDuration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Pending { not_before: Option<Timestamp> },
    SettingUp,
    Ready,
    TearingDown,
    TornDown,
}

impl Default for Volumes {
    fn default() -> Self {
        Volumes {
            state: State::Pending { not_before: None },
            wait: RETRY.0,
        }
    }
}

impl Volumes {
    /// Begins to set them up when it is time. Returns whether they are ready.
    pub(super) fn set_up(&mut self, now: Timestamp, out: &mut Output) -> bool {
        match self.state {
            State::Pending { not_before: Some(at) } if at > now => out.wake_at(at),
            State::Pending { .. } => {
                self.state = State::SettingUp;
                out.push(Action::SetUpVolumes);
            }
            State::SettingUp | State::Ready | State::TearingDown | State::TornDown => {}
        }
        self.state == State::Ready
    }

    pub(super) fn is_setting_up(&self) -> bool {
        self.state == State::SettingUp
    }

    pub(super) fn is_torn_down(&self) -> bool {
        self.state == State::TornDown
    }

    /// [`super::Event::VolumesReady`].
    pub(super) fn ready(&mut self) {
        if self.is_setting_up() {
            self.state = State::Ready;
        }
    }

    /// The attempt has failed. Returns whether one was in flight.
    pub(super) fn failed(&mut self, is_external: bool, now: Timestamp) -> bool {
        if !self.is_setting_up() {
            return false;
        }
        let least = match is_external {
            true => EXTERNAL_RETRY,
            false => SignedDuration::ZERO,
        };
        self.state = State::Pending {
            not_before: Some(now + self.wait.max(least)),
        };
        self.wait = (self.wait * 2).min(RETRY.1);
        true
    }

    /// Begins to tear them down, unless an attempt to set them up is in flight.
    pub(super) fn tear_down(&mut self, out: &mut Output) {
        if matches!(self.state, State::Ready | State::Pending { .. }) {
            self.state = State::TearingDown;
            out.push(Action::TearDownVolumes);
        }
    }

    /// [`super::Event::VolumesTornDown`].
    pub(super) fn torn_down(&mut self) {
        self.state = State::TornDown;
    }

    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        if let State::Pending { not_before: Some(at) } = &mut self.state {
            move_by(at, by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waits_between_attempts_double_and_those_for_other_components_are_long() {
        let (mut volumes, mut out) = (Volumes::default(), Output::default());
        let mut now = Timestamp::UNIX_EPOCH;
        for (is_external, wait) in [(false, 500), (true, 12_000), (false, 2_000)] {
            assert!(!volumes.set_up(now, &mut out));
            assert_eq!(out.take(), [Action::SetUpVolumes]);
            assert!(volumes.failed(is_external, now));
            assert!(!volumes.failed(is_external, now), "no attempt is in flight");
            assert!(!volumes.set_up(now, &mut out));
            let again = now + SignedDuration::from_millis(wait);
            assert_eq!(out.take(), [Action::SetTimer(again)]);
            now = again;
        }
        volumes.set_up(now, &mut out);
        volumes.tear_down(&mut out);
        assert_eq!(
            out.take(),
            [Action::SetUpVolumes],
            "not while they are being set up"
        );
        volumes.ready();
        volumes.tear_down(&mut out);
        assert_eq!(out.take(), [Action::TearDownVolumes]);
    }
}
