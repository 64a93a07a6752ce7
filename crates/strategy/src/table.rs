//! Rows and columns of `kubectl get` (meta/v1 Table).
//!
//! A kind defines its [`Column`]s and its row ([`crate::Strategy`]); this module has the texts that cells share
//! (ages, lists cut short), [`crate::table_response`] the Table itself. Wide columns are always sent: the client leaves them out.

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, MicroTime, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use knarr_apimachinery::labels::Selector;
use serde::Serialize;

/// A column of a built-in kind.
pub type Column = ColumnOf<'static>;

/// A column's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnOf<'a> {
    pub name: &'a str,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub of: &'a str,
    /// `name` for the object's name, else empty.
    pub format: &'a str,
    /// 0 always shown, 1 with `-o wide`.
    pub priority: i32,
    /// Of columns of custom kinds.
    pub description: &'a str,
}

impl Column {
    const fn of(of: &'static str, name: &'static str) -> Self {
        Column {
            name,
            of,
            format: "",
            priority: 0,
            description: "",
        }
    }

    pub const fn string(name: &'static str) -> Self {
        Self::of("string", name)
    }

    pub const fn integer(name: &'static str) -> Self {
        Self::of("integer", name)
    }

    pub const fn boolean(name: &'static str) -> Self {
        Self::of("boolean", name)
    }

    /// A timestamp; the client turns it into an age.
    pub const fn date(name: &'static str) -> Self {
        Self::of("date", name)
    }

    /// Shown with `-o wide` only.
    pub const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    /// A cell that names an object (kubectl puts `kind/` in front when several kinds are shown).
    pub const fn names_object(mut self) -> Self {
        self.format = "name";
        self
    }
}

/// The object's name, first in almost every table.
pub const NAME: Column = Column::string("Name").names_object();
/// How long ago the object was created.
pub const AGE: Column = Column::string("Age");
pub const CONTAINERS: Column = Column::string("Containers").wide();
pub const IMAGES: Column = Column::string("Images").wide();
pub const SELECTOR: Column = Column::string("Selector").wide();

/// One cell: a JSON string, number, boolean or null.
pub type Cell = serde_json::Value;

/// The columns of a kind without columns of its own.
pub const NAME_AND_CREATED_AT: &[Column] = &[NAME, Column::date("Created At")];

/// The row for [`NAME_AND_CREATED_AT`].
pub fn name_and_created_at(meta: &ObjectMeta) -> Vec<Cell> {
    let created = meta.creation_timestamp.as_ref();
    vec![
        name(meta),
        created.map_or(Cell::Null, |t| {
            t.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()
        }),
    ]
}

/// The columns of some kinds without further ones.
pub const NAME_AND_AGE: &[Column] = &[NAME, AGE];

/// The row for [`NAME_AND_AGE`].
pub fn name_and_age(meta: &ObjectMeta, now: Timestamp) -> Vec<Cell> {
    vec![name(meta), created(meta, now)]
}

/// The cell of [`NAME`].
pub fn name(meta: &ObjectMeta) -> Cell {
    meta.name.clone().unwrap_or_default().into()
}

/// The cell of [`AGE`].
pub fn created(meta: &ObjectMeta, now: Timestamp) -> Cell {
    age(meta.creation_timestamp.as_ref(), now).into()
}

/// The text, or a placeholder such as `<none>` where there is none.
pub fn or<'a>(text: Option<&'a str>, placeholder: &'a str) -> &'a str {
    match text {
        None | Some("") => placeholder,
        Some(text) => text,
    }
}

/// Names and images of containers, each joined by commas: the cells of [`CONTAINERS`] and [`IMAGES`].
pub fn containers(containers: &[Container]) -> [Cell; 2] {
    let names: Vec<&str> = containers.iter().map(|c| c.name.as_str()).collect();
    let images: Vec<&str> = containers
        .iter()
        .map(|c| c.image.as_deref().unwrap_or(""))
        .collect();
    [names.join(",").into(), images.join(",").into()]
}

/// `a=b,c=d`, sorted; `<none>` for none.
pub fn labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    let mut pairs: Vec<String> = labels.into_iter().map(|(k, v)| format!("{k}={v}")).collect();
    pairs.sort_unstable();
    if pairs.is_empty() {
        "<none>".into()
    } else {
        pairs.join(",")
    }
}

/// A label selector in the query string's syntax, requirements sorted by key; `<none>` if it has none.
pub fn label_selector(selector: Option<&LabelSelector>) -> String {
    let text = selector.map(selector_text).unwrap_or_default();
    or(Some(&text), "<none>").to_string()
}

/// As [`label_selector`], empty if it has no requirement.
pub fn selector_text(selector: &LabelSelector) -> String {
    match Selector::from_label_selector(selector) {
        Ok(selector) => selector.to_string(),
        Err(_) => "<error>".into(),
    }
}

/// At the most `max` of `items`, with `… + 2 more...` for the rest.
pub fn cut_short(items: &[String], max: usize) -> String {
    if items.len() > max {
        format!("{} + {} more...", items[..max].join(","), items.len() - max)
    } else {
        items.join(",")
    }
}

/// `True`, `False` or `<unset>`.
pub fn yes_or_no(value: Option<bool>) -> &'static str {
    match value {
        Some(true) => "True",
        Some(false) => "False",
        None => "<unset>",
    }
}

/// How long ago, as `kubectl get` shows it; `<unknown>` for no time.
pub fn age(since: Option<&Time>, now: Timestamp) -> String {
    age_of(since.map(|t| t.0), now)
}

/// As [`age`], of a time with microseconds.
pub fn micro_age(since: Option<&MicroTime>, now: Timestamp) -> String {
    age_of(since.map(|t| t.0), now)
}

fn age_of(since: Option<Timestamp>, now: Timestamp) -> String {
    match since {
        None => "<unknown>".into(),
        // Go truncates the difference toward zero, and so do whole nanoseconds here.
        Some(t) => human_duration(((now.as_nanosecond() - t.as_nanosecond()) / 1_000_000_000) as i64),
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

/// A condition of a row, by which clients may hide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RowCondition {
    #[serde(rename = "type")]
    pub of: &'static str,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: &'static str,
}

#[cfg(test)]
mod tests;
