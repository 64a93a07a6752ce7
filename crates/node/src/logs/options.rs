//! The log options of a request: `PodLogOptions` as query parameters.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::field::{ErrorList, Path};

use super::line::Stream;

/// Everything, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Follows the log until the container has exited.
    pub follow: bool,
    /// Of the run before this one.
    pub previous: bool,
    /// Nothing older.
    pub since: Option<Timestamp>,
    /// Prefixes each line with its time.
    pub timestamps: bool,
    /// Only this many lines from the end.
    pub tail_lines: Option<u64>,
    /// Only so many bytes.
    pub limit_bytes: Option<u64>,
    /// Only lines of this stream.
    pub stream: Option<Stream>,
}

impl Options {
    /// `sinceSeconds` is subtracted from `now`. Unknown parameters are ignored.
    pub fn from_query<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
        now: Timestamp,
    ) -> Result<Self, ErrorList> {
        let (mut options, mut errors) = (Options::default(), ErrorList::new());
        let mut since_seconds = None;
        for (name, value) in pairs {
            let at = Path::new(name);
            match name {
                "follow" => options.follow = is_on(value),
                "previous" => options.previous = is_on(value),
                "timestamps" => options.timestamps = is_on(value),
                // The form before tailLines, still sent by some.
                "tail" if value == "all" => options.tail_lines = None,
                "tailLines" | "tail" => {
                    options.tail_lines =
                        number(value, &at, 0, "must be greater than or equal to 0", &mut errors);
                }
                "limitBytes" => {
                    options.limit_bytes = number(value, &at, 1, "must be greater than 0", &mut errors);
                }
                "sinceSeconds" => {
                    since_seconds = number(value, &at, 1, "must be greater than 0", &mut errors);
                }
                "sinceTime" => match value.parse() {
                    Ok(time) => options.since = Some(time),
                    Err(_) => errors.invalid(&at, value, "must be a time such as 2016-10-06T00:17:09Z"),
                },
                "stream" => match value {
                    "All" | "" => options.stream = None,
                    "Stdout" => options.stream = Some(Stream::Stdout),
                    "Stderr" => options.stream = Some(Stream::Stderr),
                    _ => errors.not_supported(&at, value, &["All", "Stderr", "Stdout"]),
                },
                _ => {}
            }
        }
        if let Some(seconds) = since_seconds {
            if options.since.is_some() {
                let detail = "at most one of `sinceTime` or `sinceSeconds` may be specified";
                errors.forbidden(&Path::new(""), detail);
            }
            // A time before the epoch selects the whole log.
            let ago = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
            options.since = Some(now.checked_sub(ago).unwrap_or(Timestamp::MIN));
        }
        if options.stream.is_some() && options.tail_lines.is_some() {
            let detail = "`tailLines` and specific `stream` are mutually exclusive for now";
            errors.forbidden(&Path::new(""), detail);
        }
        if errors.is_empty() {
            Ok(options)
        } else {
            Err(errors)
        }
    }
}

/// As apimachinery reads booleans in queries: `?follow` is on.
fn is_on(value: &str) -> bool {
    !matches!(value, "false" | "0")
}

fn number(value: &str, at: &Path, least: i64, detail: &str, errors: &mut ErrorList) -> Option<u64> {
    match value.parse::<i64>() {
        Ok(number) if number >= least => u64::try_from(number).ok(),
        Ok(number) => {
            errors.invalid(at, number, detail);
            None
        }
        Err(_) => {
            errors.invalid(at, value, "must be a whole number");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &[(&str, &str)]) -> Result<Options, String> {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        Options::from_query(query.iter().copied(), now).map_err(|errors| errors.to_string())
    }

    #[test]
    fn l13_a_query_selects_a_part_of_the_log() {
        let all = Options::default();
        for (query, options) in [
            (&[][..], all.clone()),
            (
                &[("follow", "true"), ("container", "a")],
                Options {
                    follow: true,
                    ..all.clone()
                },
            ),
            (
                &[("follow", "false"), ("previous", "1")],
                Options {
                    previous: true,
                    ..all.clone()
                },
            ),
            (
                &[("tailLines", "0")],
                Options {
                    tail_lines: Some(0),
                    ..all.clone()
                },
            ),
            (&[("tail", "all")], all.clone()),
            (
                &[("stream", "Stderr")],
                Options {
                    stream: Some(Stream::Stderr),
                    ..all.clone()
                },
            ),
            (
                &[("sinceSeconds", "3600"), ("limitBytes", "5")],
                Options {
                    since: "2026-01-01T00:00:00Z".parse().ok(),
                    limit_bytes: Some(5),
                    ..all.clone()
                },
            ),
            (
                &[("sinceTime", "2026-01-01T09:00:00+09:00")],
                Options {
                    since: "2026-01-01T00:00:00Z".parse().ok(),
                    ..all.clone()
                },
            ),
        ] {
            assert_eq!(parse(query), Ok(options), "{query:?}");
        }
    }

    #[test]
    fn an_invalid_option_is_rejected_by_name() {
        for (query, error) in [
            (
                &[("tailLines", "-1")][..],
                "tailLines: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                &[("limitBytes", "0")],
                "limitBytes: Invalid value: 0: must be greater than 0",
            ),
            (
                &[("sinceSeconds", "x")],
                "sinceSeconds: Invalid value: \"x\": must be a whole number",
            ),
            (
                &[("sinceTime", "now")],
                "sinceTime: Invalid value: \"now\": must be a time such as 2016-10-06T00:17:09Z",
            ),
            (
                &[("stream", "Both")],
                "stream: Unsupported value: \"Both\": supported values: \"All\", \"Stderr\", \"Stdout\"",
            ),
            (
                &[("sinceSeconds", "1"), ("sinceTime", "2026-01-01T00:00:00Z")],
                "<nil>: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            (
                &[("stream", "Stdout"), ("tailLines", "1")],
                "<nil>: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now",
            ),
        ] {
            assert_eq!(parse(query), Err(error.to_string()));
        }
    }
}
