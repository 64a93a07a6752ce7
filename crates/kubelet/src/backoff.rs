//! Exponential back-off: 10 s, 20 s, 40 s … 300 s, reset after a long run without failure (SPEC L5).

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use crate::pod::clock_jump::move_by;

/// The first wait.
pub const BASE: SignedDuration = SignedDuration::from_secs(10);
/// The longest wait.
pub const MAX: SignedDuration = SignedDuration::from_secs(300);
/// The back-off is reset if the last failure is this long ago: twice [`MAX`], as in client-go's `flowcontrol.Backoff`.
pub const RESET_AFTER: SignedDuration = SignedDuration::from_secs(600);

/// The back-off of one container or one image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackOff {
    entry: Option<(SignedDuration, Timestamp)>,
}

impl BackOff {
    /// The wall clock was set this much forward.
    pub fn clock_jumped(&mut self, by: SignedDuration) {
        if let Some((_, updated)) = &mut self.entry {
            move_by(updated, by);
        }
    }

    /// The end of the wait after a failure at `failed_at`; `None` if the next attempt may begin at once.
    pub fn until(&self, failed_at: Timestamp) -> Option<Timestamp> {
        let (delay, updated) = self.entry?;
        (failed_at.duration_since(updated) <= RESET_AFTER).then(|| failed_at + delay)
    }

    /// An attempt begins after a failure at `failed_at`: the next wait is longer, up to `longest`.
    pub fn next(&mut self, failed_at: Timestamp, now: Timestamp, longest: SignedDuration) {
        let delay = match self.entry {
            Some((delay, updated)) if failed_at.duration_since(updated) <= RESET_AFTER => {
                (delay * 2).min(longest)
            }
            _ => BASE.min(longest),
        };
        self.entry = Some((delay, now));
    }

    /// The current wait.
    pub fn delay(&self) -> SignedDuration {
        self.entry.map_or(SignedDuration::ZERO, |(delay, _)| delay)
    }

    pub fn reset(&mut self) {
        self.entry = None;
    }
}

/// As Go prints durations of whole seconds: `10s`, `1m20s`, `5m0s`.
pub fn go_seconds(duration: SignedDuration) -> String {
    let seconds = duration.as_secs();
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (h, m) {
        (0, 0) => format!("{s}s"),
        (0, _) => format!("{m}m{s}s"),
        _ => format!("{h}h{m}m{s}s"),
    }
}

/// As Go prints a duration rounded to milliseconds: `35ms`, `1.204s`, `1m2.5s`.
pub fn go_millis(duration: SignedDuration) -> String {
    let millis = duration.as_millis();
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let fraction = match millis % 1000 {
        0 => String::new(),
        f => format!(".{f:03}").trim_end_matches('0').to_string(),
    };
    let seconds = millis / 1000;
    match seconds / 60 {
        0 => format!("{seconds}{fraction}s"),
        minutes => format!("{minutes}m{}{fraction}s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    #[test]
    fn l5_waits_double_from_nothing_over_10_s_to_300_s() {
        let (mut b, mut now, mut waits) = (BackOff::default(), 0, Vec::new());
        for _ in 0..8 {
            let wait = b
                .until(at(now))
                .map_or(0, |u| u.duration_since(at(now)).as_secs());
            waits.push(wait);
            b.next(at(now), at(now + wait), MAX);
            now += wait;
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        let short = SignedDuration::from_secs(3);
        b.next(at(now), at(now), short);
        assert_eq!(b.delay(), short, "as configured");
    }

    #[test]
    fn l5_ten_minutes_of_clean_running_reset_the_waits() {
        let mut b = BackOff::default();
        b.next(at(0), at(0), MAX);
        b.next(at(10), at(20), MAX);
        assert_eq!(b.until(at(620)), Some(at(640)));
        assert_eq!(b.until(at(621)), None);
        b.next(at(621), at(621), MAX);
        assert_eq!(b.delay(), BASE);
    }

    #[test]
    fn durations_print_as_in_go() {
        for (seconds, want) in [(10, "10s"), (80, "1m20s"), (300, "5m0s"), (3600, "1h0m0s")] {
            assert_eq!(go_seconds(SignedDuration::from_secs(seconds)), want);
        }
        for (millis, want) in [
            (35, "35ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1204, "1.204s"),
            (2000, "2s"),
            (62_500, "1m2.5s"),
        ] {
            assert_eq!(go_millis(SignedDuration::from_millis(millis)), want);
        }
    }
}
