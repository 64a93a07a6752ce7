//! Cron schedules: five fields or a descriptor, in a time zone.

use k8s_openapi::jiff::tz::TimeZone;
use k8s_openapi::jiff::{SignedDuration, Timestamp, Zoned};
use knarr_api::k8s_openapi;
use knarr_apimachinery::duration;

/// A schedule without a time within this many days has none (31 February).
const HORIZON_DAYS: i64 = 5 * 366;

/// One field: a bit for each value, and whether it is `*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    bits: u64,
    any: bool,
}

impl Field {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|v| v < 64 && self.bits >> v & 1 == 1)
    }
}

#[derive(Clone, Debug)]
enum When {
    /// Minute, hour, day of month, month, day of week.
    Fields([Field; 5]),
    Every(SignedDuration),
}

/// A schedule in its time zone.
#[derive(Clone, Debug)]
pub struct Schedule {
    when: When,
    zone: TimeZone,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const RANGES: [(u32, u32, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &MONTHS),
    (0, 6, &DAYS),
];

/// Why a schedule is rejected, with the messages of Kubernetes' cron parser.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("failed to parse duration {0}")]
    Duration(String),
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    #[error("expected exactly 5 fields, found {}: [{}]", .0.len(), .0.join(" "))]
    Fields(Vec<String>),
    #[error("failed to parse {range} in {text}")]
    Range { range: String, text: String },
}

impl Schedule {
    pub fn parse(text: &str, zone: TimeZone) -> Result<Self, ScheduleError> {
        let text = text.trim();
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        if let Some(duration) = fields.strip_prefix("@every ") {
            let every = duration::parse(duration).ok_or_else(|| ScheduleError::Duration(text.to_string()))?;
            // In whole_seconds seconds, at least one.
            let every = SignedDuration::from_secs(every.as_secs().max(1));
            return Ok(Schedule {
                when: When::Every(every),
                zone,
            });
        }
        if fields.starts_with('@') {
            return Err(ScheduleError::Descriptor(text.to_string()));
        }
        let parts: Vec<&str> = fields.split_whitespace().collect();
        if parts.len() != RANGES.len() {
            let parts = parts.into_iter().map(str::to_string);
            return Err(ScheduleError::Fields(parts.collect()));
        }
        let mut parsed = [Field::default(); 5];
        for ((field, part), (min, max, names)) in parsed.iter_mut().zip(parts).zip(RANGES) {
            for range in part.split(',').filter(|r| !r.is_empty()) {
                add(field, range, min, max, names).ok_or_else(|| ScheduleError::Range {
                    range: range.to_string(),
                    text: text.to_string(),
                })?;
            }
        }
        Ok(Schedule {
            when: When::Fields(parsed),
            zone,
        })
    }

    /// The first time after `time`; `None` if there is none.
    pub fn next(&self, time: Timestamp) -> Option<Timestamp> {
        let whole_seconds = Timestamp::from_second(time.as_second()).ok()?;
        let fields = match &self.when {
            When::Every(every) => return whole_seconds.checked_add(*every).ok(),
            When::Fields(fields) => fields,
        };
        let end = whole_seconds
            .checked_add(SignedDuration::from_hours(24 * HORIZON_DAYS))
            .ok()?;
        let after = whole_seconds
            .as_second()
            .div_euclid(60)
            .checked_add(1)?
            .checked_mul(60)?;
        let mut at = Timestamp::from_second(after).ok()?;
        // From the coarsest field to the finest; each step skips what cannot match.
        while at <= end {
            let local = at.to_zoned(self.zone.clone());
            at = match self.step(fields, &local)? {
                None => return Some(at),
                Some(next) if next > at => next,
                // Where clocks are set back the local day begins again: continue by the hour.
                Some(_) => at.checked_add(SignedDuration::from_hours(1)).ok()?,
            };
        }
        None
    }

    /// The next candidate, or `None` if this time matches. Local hours that are skipped have no times, those that occur twice have two.
    fn step(
        &self,
        [minute, hour, day, month, weekday]: &[Field; 5],
        local: &Zoned,
    ) -> Option<Option<Timestamp>> {
        let date = local.date();
        let start =
            |date: k8s_openapi::jiff::civil::Date| Some(date.to_zoned(self.zone.clone()).ok()?.timestamp());
        if !month.has(date.month()) {
            let next = date.last_of_month().tomorrow().ok()?;
            return Some(Some(start(next)?));
        }
        let by_day = day.has(date.day());
        let by_weekday = weekday.has(date.weekday().to_sunday_zero_offset());
        // Where neither of the two is `*`, one match is enough.
        let matches = if day.any || weekday.any {
            by_day && by_weekday
        } else {
            by_day || by_weekday
        };
        if !matches {
            return Some(Some(start(date.tomorrow().ok()?)?));
        }
        let at = local.timestamp();
        if !hour.has(local.hour()) {
            let rest = 60 - i64::from(local.minute());
            return Some(Some(at.checked_add(SignedDuration::from_mins(rest)).ok()?));
        }
        if !minute.has(local.minute()) {
            return Some(Some(at.checked_add(SignedDuration::from_mins(1)).ok()?));
        }
        Some(None)
    }
}

/// One part of a list: `5`, `1-5`, `*/15`, `mon-fri`, `10/20`.
fn add(field: &mut Field, range: &str, min: u32, max: u32, names: &[&str]) -> Option<()> {
    let (ends, step) = match range.split_once('/') {
        Some((ends, step)) => {
            // A step that is too large counts as the largest one: validation accepts it.
            let step = step.parse::<i64>().ok().filter(|s| *s > 0)?;
            (ends, Some(u32::try_from(step).unwrap_or(u32::MAX)))
        }
        None => (range, None),
    };
    let value = |text: &str| {
        let lower = text.to_lowercase();
        let named = names
            .iter()
            .position(|n| *n == lower)
            .and_then(|n| u32::try_from(n).ok());
        named.map(|n| n + min).or_else(|| text.parse().ok())
    };
    let (first, last) = match ends.split_once('-') {
        // As robfig/cron, what follows a star is ignored: `*-1` is `*`.
        _ if matches!(ends.split('-').next(), Some("*" | "?")) => {
            field.any |= step.is_none_or(|s| s == 1);
            (min, max)
        }
        Some((first, last)) => (value(first)?, value(last)?),
        None if step.is_some() => (value(ends)?, max),
        None => (value(ends)?, value(ends)?),
    };
    if first < min || last > max || first > last {
        return None;
    }
    for n in (first..=last).step_by(usize::try_from(step.unwrap_or(1)).ok()?) {
        field.bits |= 1 << n;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_the_times_of_cron() {
        let zone = |name: &str| match name {
            "UTC" => TimeZone::UTC,
            // Clocks are set forward on 29 March 2026 at 2:00 and back on 25 October 2026 at 3:00.
            _ => TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap(),
        };
        let table = [
            ("* * * * *", "UTC", "2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"),
            (
                "*/15 * * * *",
                "UTC",
                "2026-01-01T00:15:00Z",
                "2026-01-01T00:30:00Z",
            ),
            ("@hourly", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
            (
                "*-1/99999999999 * * * *",
                "UTC",
                "2026-01-01T00:15:00Z",
                "2026-01-01T01:00:00Z",
            ),
            (
                "30 6-16/4 * * 1-5",
                "UTC",
                "2026-01-02T14:30:00Z",
                "2026-01-05T06:30:00Z",
            ),
            (
                "0 0 29 feb *",
                "UTC",
                "2026-01-01T00:00:00Z",
                "2028-02-29T00:00:00Z",
            ),
            (
                "0 0 13 * fri",
                "UTC",
                "2026-01-01T00:00:00Z",
                "2026-01-02T00:00:00Z",
            ),
            (
                "0 0 13 * *",
                "UTC",
                "2026-01-01T00:00:00Z",
                "2026-01-13T00:00:00Z",
            ),
            (
                "@every 1h30m",
                "UTC",
                "2026-01-01T00:00:00Z",
                "2026-01-01T01:30:00Z",
            ),
            ("0 9 * * *", "CET", "2026-01-01T09:00:00Z", "2026-01-02T08:00:00Z"),
            ("0 9 * * *", "CET", "2026-07-01T09:00:00Z", "2026-07-02T07:00:00Z"),
            (
                "30 2 * * *",
                "CET",
                "2026-03-28T12:00:00Z",
                "2026-03-30T00:30:00Z",
            ),
            (
                "30 2 * * *",
                "CET",
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:30:00Z",
            ),
        ];
        for (text, of, after, expected) in table {
            let schedule = Schedule::parse(text, zone(of)).unwrap();
            let next = schedule.next(after.parse().unwrap());
            assert_eq!(next, Some(expected.parse().unwrap()), "{text} {of} {after}");
        }
        let never = Schedule::parse("59 23 31 2 *", TimeZone::UTC).unwrap();
        assert_eq!(never.next("2026-01-01T00:00:00Z".parse().unwrap()), None);
        for wrong in [
            "",
            "* * * *",
            "60 * * * *",
            "* * * * 7",
            "@often",
            "@every soon",
            "5-1 * * * *",
            "*/0 * * * *",
        ] {
            assert!(Schedule::parse(wrong, TimeZone::UTC).is_err(), "{wrong}");
        }
    }
}
