//! A probe as a state machine: when to ask, and what the answers come to (SPEC L8).

use k8s_openapi::api::core::v1::Probe as Spec;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    /// As events begin.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Success,
    /// Good, but with something to tell (event `ProbeWarning`).
    Warning(String),
    /// With what was heard.
    Failure(String),
    /// It could not be asked: no action.
    Unknown(String),
}

/// One probe of one run of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    pub kind: Kind,
    pub spec: Spec,
    /// When it is due; none while it is being asked, or has nothing more to ask.
    pub next_at: Option<Timestamp>,
    pub asking: bool,
    /// When it was asked last.
    pub asked_at: Option<Timestamp>,
    /// What the answers have come to: none before the first result.
    pub result: Option<bool>,
    run_of: Option<bool>,
    run_length: i32,
}

impl Probe {
    /// Of a container that started at `started_at`.
    pub fn new(kind: Kind, spec: &Spec, started_at: Timestamp) -> Self {
        let delay = SignedDuration::from_secs(i64::from(spec.initial_delay_seconds.unwrap_or(0)));
        Probe {
            kind,
            spec: spec.clone(),
            next_at: Some(started_at + delay),
            asking: false,
            asked_at: None,
            result: None,
            run_of: None,
            run_length: 0,
        }
    }

    /// A container that starts again is asked on the beat of the run before it, which `last` belongs to, as soon as its
    /// delay is over.
    pub fn on_the_beat_of(mut self, last: Timestamp) -> Self {
        if let Some(at) = self.next_at {
            let period = self.period().as_secs();
            let since = at.duration_since(last);
            let whole = since.as_secs() + i64::from(since.subsec_nanos() > 0);
            let beats = (whole.max(0) + period - 1) / period;
            self.next_at = Some(last + SignedDuration::from_secs(beats * period));
        }
        self
    }

    pub fn period(&self) -> SignedDuration {
        SignedDuration::from_secs(i64::from(self.spec.period_seconds.unwrap_or(10).max(1)))
    }

    pub fn timeout_seconds(&self) -> i64 {
        i64::from(self.spec.timeout_seconds.unwrap_or(1).max(1))
    }

    /// Whether it is to be asked now. The one who gets `true` asks.
    pub fn due(&mut self, now: Timestamp) -> bool {
        let due = !self.asking && self.next_at.is_some_and(|at| at <= now);
        if due {
            self.asking = true;
            self.asked_at = Some(now);
            // The next one counts from this one's turn; a slow answer does not shift the beat.
            self.next_at = Some(now + self.period());
        }
        due
    }

    /// Takes an answer. `Some` when the result changed by it.
    pub fn answer(&mut self, answer: &Answer) -> Option<bool> {
        self.asking = false;
        let good = match answer {
            Answer::Unknown(_) => return None,
            Answer::Success | Answer::Warning(_) => true,
            Answer::Failure(_) => false,
        };
        if self.run_of == Some(good) {
            self.run_length = self.run_length.saturating_add(1);
        } else {
            (self.run_of, self.run_length) = (Some(good), 1);
        }
        let threshold = if good {
            self.spec.success_threshold.unwrap_or(1)
        } else {
            self.spec.failure_threshold.unwrap_or(3)
        };
        if self.run_length < threshold || self.result == Some(good) {
            return None;
        }
        self.result = Some(good);
        if self.kind == Kind::Startup && good {
            self.next_at = None;
        }
        Some(good)
    }

    /// A result known from before (the kubelet's restart does not flap readiness).
    pub fn remember(&mut self, result: bool) {
        self.result = Some(result);
        if self.kind == Kind::Startup && result {
            self.next_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn probe(kind: Kind, success: i32, failure: i32) -> Probe {
        let spec = Spec {
            initial_delay_seconds: Some(3),
            period_seconds: Some(2),
            success_threshold: Some(success),
            failure_threshold: Some(failure),
            ..Spec::default()
        };
        Probe::new(kind, &spec, at(0))
    }

    #[test]
    fn l8_a_new_run_is_asked_on_the_beat_of_the_one_before() {
        // Asked every 2 s, for the first time 3 s after the start at 0.
        for (last, first) in [(-1, 3), (-2, 4), (-3, 3), (-4, 4), (-101, 3)] {
            let probe = probe(Kind::Liveness, 1, 1).on_the_beat_of(at(last));
            assert_eq!(probe.next_at, Some(at(first)), "{last}");
        }
    }

    #[test]
    fn l8_the_first_ask_waits_for_the_delay_and_the_next_for_the_period() {
        let mut p = probe(Kind::Readiness, 1, 3);
        assert!(!p.due(at(2)));
        assert!(p.due(at(3)));
        assert!(!p.due(at(9)), "one at a time");
        p.answer(&Answer::Success);
        assert!(p.due(at(9)));
    }

    #[test]
    fn l8_thresholds_count_answers_in_a_row_and_unknown_counts_nothing() {
        let mut p = probe(Kind::Readiness, 2, 3);
        let fail = Answer::Failure(String::new());
        let unknown = Answer::Unknown(String::new());
        let script = [
            (&Answer::Success, None),
            (&fail, None),
            (&Answer::Success, None),
            (&unknown, None),
            (&Answer::Success, Some(true)),
            (&fail, None),
            (&fail, None),
            (&unknown, None),
            (&fail, Some(false)),
            (&fail, None),
        ];
        for (i, (answer, want)) in script.into_iter().enumerate() {
            assert_eq!(p.answer(answer), want, "answer {i}");
        }
    }

    #[test]
    fn l8_a_startup_probe_that_succeeded_asks_no_more() {
        let mut p = probe(Kind::Startup, 1, 3);
        assert!(p.due(at(3)));
        assert_eq!(p.answer(&Answer::Success), Some(true));
        assert!(!p.due(at(1000)));
    }
}
