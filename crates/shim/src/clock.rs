//! The two clocks: wall time for what is reported, monotonic time for what is waited for.

use std::time::Duration;

use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// A moment on the monotonic clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        Instant(Duration::new(
            unsigned(time.tv_sec),
            u32::try_from(time.tv_nsec).unwrap_or(0),
        ))
    }

    pub fn after(self, wait: Duration) -> Self {
        Instant(self.0.saturating_add(wait))
    }

    /// How long until this moment; zero if it has passed.
    pub fn until(self, now: Instant) -> Duration {
        self.0.saturating_sub(now.0)
    }
}

/// A moment of wall time, since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WallTime {
    pub seconds: i64,
    pub nanos: i32,
}

impl WallTime {
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Realtime);
        WallTime {
            seconds: time.tv_sec,
            nanos: i32::try_from(time.tv_nsec).unwrap_or(0),
        }
    }

    pub fn to_message(self) -> MessageField<Timestamp> {
        MessageField::some(Timestamp {
            seconds: self.seconds,
            nanos: self.nanos,
            ..Timestamp::default()
        })
    }

    /// As in RFC 3339, to the second, in UTC.
    pub fn rfc3339(self) -> String {
        let days = self.seconds.div_euclid(86_400);
        let second = self.seconds.rem_euclid(86_400);
        let (year, month, day) = civil(days);
        format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

/// Year, month and day of a number of days since 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date
/// algorithms").
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn unsigned(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_gregorian_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_795_200, "2026-11-27T16:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            let time = WallTime { seconds, nanos: 0 };
            assert_eq!(time.rfc3339(), text);
        }
    }
}
