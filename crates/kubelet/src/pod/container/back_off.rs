//! The waits of one container: after exits, after failed image pulls, and after starts that failed; and how far the
//! current back-off is reported. Each back-off is reported twice: first by an event, a while later in the status.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::backoff::{self, BASE, BackOff};
use crate::pod::clock_jump::move_by;

/// Wait before a failed start is retried: after the first failure, and after later ones.
const START_RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(1), SignedDuration::from_secs(12));

#[derive(Clone, Debug, Default)]
pub(in crate::pod) struct ContainerBackOff {
    /// After exits.
    crash: BackOff,
    /// After failed image pulls.
    pull: BackOff,
    /// The last image pull, if it failed.
    failed_pull: Option<FailedPull>,
    report: Report,
    /// `Some` if a start has failed since the container last ran.
    failed_starts: Option<FailedStarts>,
}

#[derive(Clone, Debug)]
struct FailedPull {
    at: Timestamp,
    why: String,
}

#[derive(Clone, Copy, Debug)]
struct FailedStarts {
    count: u32,
    /// Not started before this time.
    retry_at: Timestamp,
}

/// How far a back-off, identified by its end, is reported.
#[derive(Clone, Copy, Debug, Default)]
enum Report {
    #[default]
    None,
    /// By an event; the status changes to CrashLoopBackOff or ImagePullBackOff at `status_at`.
    Announced { until: Timestamp, status_at: Timestamp },
    /// The status has changed, too, or the container runs again.
    Done { until: Timestamp },
}

impl ContainerBackOff {
    /// The definition changed: each definition and each image has its own waits.
    pub(in crate::pod) fn reset(&mut self) {
        self.crash.reset();
        self.pulled();
        self.failed_starts = None;
    }

    pub(in crate::pod) fn reset_crash(&mut self) {
        self.crash.reset();
    }

    /// The container runs.
    pub(in crate::pod) fn begin_run(&mut self) {
        self.status_reported();
        self.failed_starts = None;
    }

    /// A run that ended at `ended` is followed by another one.
    pub(in crate::pod) fn restart(&mut self, ended: Timestamp, now: Timestamp, longest: SignedDuration) {
        self.crash.next(ended, now, longest);
    }

    /// The end of the back-off after an exit at `ended`; `None` if there is none.
    pub(in crate::pod) fn crash_until(&self, ended: Timestamp) -> Option<Timestamp> {
        self.crash.until(ended)
    }

    pub(in crate::pod) fn crash_delay(&self) -> SignedDuration {
        self.crash.delay()
    }

    /// A start failed. Returns when it is retried.
    pub(in crate::pod) fn start_failed(&mut self, now: Timestamp) -> Timestamp {
        let count = self.failed_starts.map_or(0, |failed| failed.count) + 1;
        let wait = match count {
            1 => START_RETRY.0,
            _ => START_RETRY.1,
        };
        let retry_at = now + wait;
        self.failed_starts = Some(FailedStarts { count, retry_at });
        retry_at
    }

    /// Not started before this time.
    pub(in crate::pod) fn retry_at(&self) -> Option<Timestamp> {
        self.failed_starts.map(|failed| failed.retry_at)
    }

    pub(in crate::pod) fn pulled(&mut self) {
        self.pull.reset();
        self.failed_pull = None;
    }

    pub(in crate::pod) fn pull_failed(&mut self, why: String, now: Timestamp) {
        self.pull.next(now, now, backoff::MAX);
        self.failed_pull = Some(FailedPull { at: now, why });
    }

    /// When the last pull failed, and the end of the back-off after it.
    pub(in crate::pod) fn pull_until(&self) -> Option<(Timestamp, Timestamp)> {
        let failed = self.failed_pull.as_ref()?;
        Some((failed.at, self.pull.until(failed.at)?))
    }

    /// Why the last pull failed.
    pub(in crate::pod) fn pull_error(&self) -> Option<&str> {
        self.failed_pull.as_ref().map(|failed| failed.why.as_str())
    }

    pub(in crate::pod) fn is_first_pull(&self) -> bool {
        self.pull.delay() <= BASE
    }

    /// The end of the back-off that was reported last.
    pub(in crate::pod) fn reported_until(&self) -> Option<Timestamp> {
        match self.report {
            Report::None => None,
            Report::Announced { until, .. } | Report::Done { until } => Some(until),
        }
    }

    /// The back-off is reported by an event, and is due in the status.
    pub(in crate::pod) fn announce(&mut self, until: Timestamp, status_at: Timestamp) {
        self.report = Report::Announced { until, status_at };
    }

    /// When the status changes; `None` once it did, and outside of back-off.
    pub(in crate::pod) fn status_at(&self) -> Option<Timestamp> {
        match self.report {
            Report::Announced { status_at, .. } => Some(status_at),
            Report::None | Report::Done { .. } => None,
        }
    }

    pub(in crate::pod) fn status_reported(&mut self) {
        if let Report::Announced { until, .. } = self.report {
            self.report = Report::Done { until };
        }
    }

    pub(in crate::pod) fn clock_jumped(&mut self, by: SignedDuration) {
        self.crash.clock_jumped(by);
        self.pull.clock_jumped(by);
        if let Some(failed) = &mut self.failed_pull {
            move_by(&mut failed.at, by);
        }
        if let Some(failed) = &mut self.failed_starts {
            move_by(&mut failed.retry_at, by);
        }
        match &mut self.report {
            Report::None => {}
            Report::Announced { until, status_at } => {
                move_by(until, by);
                move_by(status_at, by);
            }
            Report::Done { until } => move_by(until, by),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l5_a_start_that_fails_again_waits_longer_until_the_container_runs() {
        let (mut back_off, now) = (ContainerBackOff::default(), Timestamp::UNIX_EPOCH);
        let wait = |back_off: &mut ContainerBackOff| back_off.start_failed(now).duration_since(now).as_secs();
        assert_eq!(
            [wait(&mut back_off), wait(&mut back_off), wait(&mut back_off)],
            [1, 12, 12]
        );
        back_off.begin_run();
        assert_eq!(back_off.retry_at(), None);
        assert_eq!(wait(&mut back_off), 1);
    }

    #[test]
    fn l5_each_back_off_is_due_in_the_status_once() {
        let (mut back_off, now) = (ContainerBackOff::default(), Timestamp::UNIX_EPOCH);
        let until = now + SignedDuration::from_secs(10);
        back_off.announce(until, now);
        assert_eq!(
            (back_off.status_at(), back_off.reported_until()),
            (Some(now), Some(until))
        );
        back_off.begin_run();
        assert_eq!(
            (back_off.status_at(), back_off.reported_until()),
            (None, Some(until))
        );
    }
}
