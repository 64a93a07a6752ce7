//! A probe as a state machine: when it is due, and what its results add up to (SPEC L8).

use k8s_openapi::api::core::v1::Probe as Spec;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::pod::clock_jump::move_by;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    /// The first word of events.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }
}

/// The result of one attempt of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    /// A success with a warning (event `ProbeWarning`).
    Warning(String),
    /// A failure, with the output.
    Failure(String),
    /// The probe could not be carried out: no action.
    Unknown(String),
}

/// One probe of one run of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    kind: Kind,
    spec: Spec,
    /// When it is due next; `None` once a startup probe has succeeded.
    next_at: Option<Timestamp>,
    in_flight: bool,
    is_held: bool,
    state: Option<bool>,
    last_result: Option<bool>,
    result_run: i32,
}

impl Probe {
    /// A probe of a container that started at `started_at`, in a pod whose probe ticks began at `since` (kubelet's prober:
    /// when the pod's sandbox was about to be created). Readiness is probed as soon as its delay is over; liveness and startup
    /// at the first tick after it, in every run of the container.
    pub fn new(kind: Kind, spec: &Spec, started_at: Timestamp, since: Timestamp) -> Self {
        let delay = SignedDuration::from_secs(i64::from(spec.initial_delay_seconds.unwrap_or(0)));
        let mut probe = Probe {
            kind,
            spec: spec.clone(),
            next_at: None,
            in_flight: false,
            is_held: false,
            state: None,
            last_result: None,
            result_run: 0,
        };
        let first = started_at + delay;
        probe.next_at = Some(match kind {
            Kind::Readiness => first,
            Kind::Startup | Kind::Liveness => probe.tick(since + probe.period(), first),
        });
        probe
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The state by the thresholds: `None` before one is reached.
    pub fn state(&self) -> Option<bool> {
        self.state
    }

    /// When it is due next, unless it is in flight.
    pub fn due_at(&self) -> Option<Timestamp> {
        self.next_at.filter(|_| !self.in_flight)
    }

    /// The wall clock was set this much forward.
    pub fn clock_jumped(&mut self, by: SignedDuration) {
        if let Some(at) = &mut self.next_at {
            move_by(at, by);
        }
    }

    /// The first tick at or after `not_before`; `tick` is the earliest.
    fn tick(&self, tick: Timestamp, not_before: Timestamp) -> Timestamp {
        let wait = not_before.duration_since(tick);
        let period = self.period().as_secs();
        let whole = wait.as_secs() + i64::from(wait.subsec_nanos() > 0);
        let periods = (whole.max(0) + period - 1) / period;
        tick + SignedDuration::from_secs(periods.saturating_mul(period))
    }

    /// Suspends the probe while another probe has to succeed first or the container is being stopped. Missed ticks are
    /// skipped; readiness is probed at once when it is resumed.
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

    /// Whether the probe is due; if so, it counts as in flight from now on.
    pub fn due(&mut self, now: Timestamp) -> bool {
        let due = !self.in_flight && self.next_at.is_some_and(|at| at <= now);
        if due {
            self.in_flight = true;
            // The next tick counts from this one; a slow probe does not shift the ticks.
            self.next_at = self.next_at.map(|at| self.tick(at + self.period(), now));
        }
        due
    }

    /// Applies a result. Returns the new state if it changed.
    pub fn record_result(&mut self, result: &ProbeResult) -> Option<bool> {
        self.in_flight = false;
        let good = match result {
            ProbeResult::Unknown(_) => return None,
            ProbeResult::Success | ProbeResult::Warning(_) => true,
            ProbeResult::Failure(_) => false,
        };
        if self.last_result == Some(good) {
            self.result_run = self.result_run.saturating_add(1);
        } else {
            (self.last_result, self.result_run) = (Some(good), 1);
        }
        let threshold = if good {
            self.spec.success_threshold.unwrap_or(1)
        } else {
            self.spec.failure_threshold.unwrap_or(3)
        };
        if self.result_run < threshold || self.state == Some(good) {
            return None;
        }
        self.state = Some(good);
        if self.kind == Kind::Startup && good {
            self.next_at = None;
        }
        Some(good)
    }

    /// It has succeeded by the reported status (a restart of the kubelet does not change readiness).
    pub fn remember_success(&mut self) {
        self.state = Some(true);
        if self.kind == Kind::Startup {
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
            Probe::new(kind, &spec, started_at, at(-1)).next_at
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
                    new(kind, delay, at(started_at)),
                    Some(at(tick)),
                    "{delay} {started_at}"
                );
            }
            let soon = at(started_at + i64::from(delay));
            assert_eq!(new(Kind::Readiness, delay, at(started_at)), Some(soon));
        }
        let between = at(3) + SignedDuration::from_millis(500);
        assert_eq!(
            new(Kind::Liveness, 0, between),
            Some(at(5)),
            "not half a second before"
        );
    }

    #[test]
    fn l8_missed_ticks_of_a_suspended_probe_are_skipped() {
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
        // The tick at which it is resumed is missed, too.
        for (resumed, tick) in [(9, 10), (10, 20), (11, 20)] {
            let mut liveness = Probe::new(Kind::Liveness, &Spec::default(), at(0), at(0));
            liveness.hold(true, at(1));
            liveness.hold(false, at(resumed));
            assert_eq!(liveness.due_at(), Some(at(tick)), "{resumed}");
        }
    }

    #[test]
    fn l8_the_first_probe_waits_for_the_delay_and_the_next_for_the_period() {
        let mut p = probe(Kind::Readiness, 1, 3);
        assert_eq!(p.due_at(), Some(at(3)));
        assert!(!p.due(at(2)));
        assert!(p.due(at(3)));
        assert_eq!(p.due_at(), None, "one at a time");
        assert!(!p.due(at(9)), "one at a time");
        p.record_result(&ProbeResult::Success);
        assert_eq!(p.due_at(), Some(at(5)));
        assert!(p.due(at(9)));
    }

    #[test]
    fn l8_thresholds_count_consecutive_results_and_unknown_does_not_count() {
        let mut p = probe(Kind::Readiness, 2, 3);
        let fail = ProbeResult::Failure(String::new());
        let unknown = ProbeResult::Unknown(String::new());
        let script = [
            (&ProbeResult::Success, None),
            (&fail, None),
            (&ProbeResult::Success, None),
            (&unknown, None),
            (&ProbeResult::Success, Some(true)),
            (&fail, None),
            (&fail, None),
            (&unknown, None),
            (&fail, Some(false)),
            (&fail, None),
        ];
        for (i, (result, want)) in script.into_iter().enumerate() {
            assert_eq!(p.record_result(result), want, "result {i}");
        }
    }

    #[test]
    fn l8_a_probe_that_an_earlier_kubelet_saw_succeed_is_due_unless_it_is_the_startup_probe() {
        for (kind, due_at) in [(Kind::Startup, None), (Kind::Readiness, Some(at(3)))] {
            let mut p = probe(kind, 1, 3);
            p.remember_success();
            assert_eq!((p.state(), p.due_at()), (Some(true), due_at), "{kind:?}");
        }
    }

    #[test]
    fn l8_a_startup_probe_that_succeeded_is_not_due_any_more() {
        let mut p = probe(Kind::Startup, 1, 3);
        assert!(p.due(at(3)));
        assert_eq!(p.record_result(&ProbeResult::Success), Some(true));
        assert!(!p.due(at(1000)));
    }
}
