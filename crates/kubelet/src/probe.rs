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
    is_held: bool,
    /// What the answers have come to: none before the first result.
    pub result: Option<bool>,
    run_of: Option<bool>,
    run_length: i32,
}

impl Probe {
    /// Of a container that started at `started_at`, in a pod whose ticks began at `since` (kubelet's prober: when the pod's
    /// sandbox was about to be created). Readiness is asked as soon as its delay is over; liveness and startup wait for the
    /// first tick then, whatever run of the container it is.
    pub fn new(kind: Kind, spec: &Spec, started_at: Timestamp, since: Timestamp) -> Self {
        let delay = SignedDuration::from_secs(i64::from(spec.initial_delay_seconds.unwrap_or(0)));
        let mut probe = Probe {
            kind,
            spec: spec.clone(),
            next_at: None,
            asking: false,
            is_held: false,
            result: None,
            run_of: None,
            run_length: 0,
        };
        let first = started_at + delay;
        probe.next_at = Some(match kind {
            Kind::Readiness => first,
            Kind::Startup | Kind::Liveness => probe.tick(since + probe.period(), first),
        });
        probe
    }

    /// The first tick at or after `not_before`, when there is one at `tick` and none before that.
    fn tick(&self, tick: Timestamp, not_before: Timestamp) -> Timestamp {
        let wait = not_before.duration_since(tick);
        let period = self.period().as_secs();
        let whole = wait.as_secs() + i64::from(wait.subsec_nanos() > 0);
        let periods = (whole.max(0) + period - 1) / period;
        tick + SignedDuration::from_secs(periods.saturating_mul(period))
    }

    /// Whether another probe or the container's end keeps it from being asked. Ticks meanwhile are not made up for; readiness
    /// is asked at once when it may be.
    pub fn hold(&mut self, is_held: bool, now: Timestamp) {
        if self.is_held && !is_held && self.kind != Kind::Readiness {
            self.next_at = self.next_at.map(|at| match at <= now {
                true => self.tick(at + self.period(), now),
                false => at,
            });
        }
        self.is_held = is_held;
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
            // The next one counts from this one's turn; a slow answer does not shift the ticks.
            self.next_at = self.next_at.map(|at| self.tick(at + self.period(), now));
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
        Probe::new(kind, &spec, at(0), at(-1))
    }

    #[test]
    fn l8_liveness_and_startup_wait_for_a_tick_of_the_pod_and_readiness_does_not() {
        // Ticks every 2 s since -1: 1, 3, 5 …
        let new = |kind, delay, started_at| {
            let spec = Spec {
                initial_delay_seconds: Some(delay),
                period_seconds: Some(2),
                ..Spec::default()
            };
            Probe::new(kind, &spec, at(started_at), at(-1)).next_at
        };
        for (delay, started_at, tick) in [
            (0, -1, 1),
            (0, 0, 1),
            (0, 1, 1),
            (0, 2, 3),
            (3, 0, 3),
            (4, 0, 5),
            (0, 100, 101),
        ] {
            for kind in [Kind::Liveness, Kind::Startup] {
                assert_eq!(
                    new(kind, delay, started_at),
                    Some(at(tick)),
                    "{delay} {started_at}"
                );
            }
            let soon = at(started_at + i64::from(delay));
            assert_eq!(new(Kind::Readiness, delay, started_at), Some(soon));
        }
    }

    #[test]
    fn l8_ticks_of_a_probe_that_is_held_back_are_not_made_up_for() {
        let mut liveness = Probe::new(Kind::Liveness, &Spec::default(), at(0), at(0));
        let mut readiness = Probe::new(Kind::Readiness, &Spec::default(), at(0), at(0));
        for probe in [&mut liveness, &mut readiness] {
            probe.hold(true, at(1));
            probe.hold(true, at(9));
            probe.hold(false, at(25));
        }
        assert!(readiness.due(at(25)));
        assert!(!liveness.due(at(29)));
        assert!(liveness.due(at(31)));
        assert_eq!(liveness.next_at, Some(at(40)), "late or not");
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
