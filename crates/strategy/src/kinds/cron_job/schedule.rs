//! Parses the five fields of a cron schedule. The error messages are those of robfig/cron, the library that Kubernetes
//! uses, since users see them.

use knarr_apimachinery::duration;

struct Field {
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MONTHS: &[&str] = &[
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// Minute, hour, day of month, month, day of week.
const FIELDS: [Field; 5] = [
    Field {
        min: 0,
        max: 59,
        names: &[],
    },
    Field {
        min: 0,
        max: 23,
        names: &[],
    },
    Field {
        min: 1,
        max: 31,
        names: &[],
    },
    Field {
        min: 1,
        max: 12,
        names: MONTHS,
    },
    Field {
        min: 0,
        max: 6,
        names: DAYS,
    },
];

/// Why a schedule is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScheduleError<'a> {
    #[error("empty spec string")]
    Empty,
    #[error("expected exactly {} fields, found {}: [{}]", FIELDS.len(), .0.len(), .0.join(" "))]
    Fields(Vec<&'a str>),
    #[error("failed to parse duration {text}: time: invalid duration {duration:?}")]
    Duration { text: &'a str, duration: &'a str },
    #[error("unrecognized descriptor: {0}")]
    Descriptor(&'a str),
    #[error("too many hyphens: {0}")]
    Hyphens(&'a str),
    #[error("too many slashes: {0}")]
    Slashes(&'a str),
    #[error("beginning of range ({start}) below minimum ({min}): {text}")]
    BelowMinimum { start: u32, min: u32, text: &'a str },
    #[error("end of range ({end}) above maximum ({max}): {text}")]
    AboveMaximum { end: u32, max: u32, text: &'a str },
    #[error("beginning of range ({start}) beyond end of range ({end}): {text}")]
    Backwards { start: u32, end: u32, text: &'a str },
    #[error("step of range should be a positive number: {0}")]
    Step(&'a str),
    #[error("negative number ({number}) not allowed: {text}")]
    Negative { number: i64, text: &'a str },
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: invalid syntax")]
    NotANumber(&'a str),
}

/// Checks a schedule: `*/5 0 1 jan-mar mon,fri`, `@daily`, `@every 1h30m`. A `TZ=` prefix is accepted here.
pub(super) fn check(spec: &str) -> Result<(), ScheduleError<'_>> {
    let mut rest = spec;
    if rest.starts_with("TZ=") || rest.starts_with("CRON_TZ=") {
        rest = rest.split_once(' ').map_or("", |(_, rest)| rest).trim();
    }
    if rest.is_empty() {
        return Err(ScheduleError::Empty);
    }
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return Err(ScheduleError::Fields(fields));
    }
    for (text, field) in fields.iter().zip(&FIELDS) {
        for range in text.split(',').filter(|range| !range.is_empty()) {
            check_range(range, field)?;
        }
    }
    Ok(())
}

fn descriptor(text: &str) -> Result<(), ScheduleError<'_>> {
    const KNOWN: &[&str] = &[
        "@yearly",
        "@annually",
        "@monthly",
        "@weekly",
        "@daily",
        "@midnight",
        "@hourly",
    ];
    if KNOWN.contains(&text) {
        return Ok(());
    }
    match text.strip_prefix("@every ") {
        Some(duration) if duration::parse(duration).is_some() => Ok(()),
        Some(duration) => Err(ScheduleError::Duration { text, duration }),
        None => Err(ScheduleError::Descriptor(text)),
    }
}

fn check_range<'a>(text: &'a str, field: &Field) -> Result<(), ScheduleError<'a>> {
    let parts: Vec<&str> = text.split('/').collect();
    let ends: Vec<&str> = parts[0].split('-').collect();
    let (start, mut end) = if matches!(ends[0], "*" | "?") {
        (field.min, field.max)
    } else {
        let start = number_or_name(ends[0], field)?;
        match ends.as_slice() {
            [_] => (start, start),
            [_, end] => (start, number_or_name(end, field)?),
            _ => return Err(ScheduleError::Hyphens(text)),
        }
    };
    let step = match parts.as_slice() {
        [_] => 1,
        [_, step] => {
            if ends.len() == 1 {
                end = field.max;
            }
            number(step)?
        }
        _ => return Err(ScheduleError::Slashes(text)),
    };
    let (min, max) = (field.min, field.max);
    if start < min {
        return Err(ScheduleError::BelowMinimum { start, min, text });
    }
    if end > max {
        return Err(ScheduleError::AboveMaximum { end, max, text });
    }
    if start > end {
        return Err(ScheduleError::Backwards { start, end, text });
    }
    if step == 0 {
        return Err(ScheduleError::Step(text));
    }
    Ok(())
}

fn number_or_name<'a>(text: &'a str, field: &Field) -> Result<u32, ScheduleError<'a>> {
    let lower = text.to_lowercase();
    match field
        .names
        .iter()
        .zip(field.min..)
        .find(|(name, _)| **name == lower)
    {
        Some((_, number)) => Ok(number),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, ScheduleError<'_>> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(ScheduleError::Negative { number, text }),
        Ok(number) => Ok(u32::try_from(number).unwrap_or(u32::MAX)),
        Err(_) => Err(ScheduleError::NotANumber(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn schedules_are_read_as_cron_does() {
        for valid in [
            "* * * * *",
            "*/5 0-23/2 1,15 jan-MAR mon",
            "0 0 ? * *",
            "@daily",
            "@every 1h30m",
            "@every 500ms",
            "TZ=UTC 0 0 * * *",
            "5/15 * * * *",
        ] {
            assert_eq!(check(valid), Ok(()), "{valid}");
        }
        for (invalid, detail) in [
            ("x", "expected exactly 5 fields, found 1: [x]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("*/1/2 * * * *", "too many slashes: */1/2"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            (
                "a * * * *",
                r#"failed to parse int from a: strconv.Atoi: parsing "a": invalid syntax"#,
            ),
            ("@sometimes", "unrecognized descriptor: @sometimes"),
            ("TZ=UTC", "empty spec string"),
        ] {
            assert_eq!(check(invalid).unwrap_err().to_string(), detail, "{invalid}");
        }
    }
}
