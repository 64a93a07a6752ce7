//! The query string, and the options that requests have in it.

use std::borrow::Cow;

use knarr_api::Error;
use knarr_api::field::{Cause, Errors, FieldError, Path};

use crate::pipeline::decode::FieldValidation;
use crate::pipeline::read::{ListQuery, invalid_options};
use crate::watch::WatchQuery;

/// Decoded pairs, in order.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: &str) -> Self {
        let decode = |s: &str| {
            let s: Cow<'_, str> = if s.contains('+') {
                s.replace('+', " ").into()
            } else {
                s.into()
            };
            percent_encoding::percent_decode_str(&s)
                .decode_utf8_lossy()
                .into_owned()
        };
        let pairs = text.split('&').filter(|p| !p.is_empty());
        Query(
            pairs
                .map(|p| p.split_once('=').unwrap_or((p, "")))
                .map(|(k, v)| (decode(k), decode(v)))
                .collect(),
        )
    }

    /// The first value; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.0
            .iter()
            .find(|(k, _)| k == name)
            .map_or("", |(_, v)| v.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(k, _)| k == name)
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// As Kubernetes reads booleans: present counts, unless it says false.
    pub fn flag(&self, name: &str) -> bool {
        self.has(name) && !matches!(self.get(name).to_ascii_lowercase().as_str(), "false" | "0")
    }

    pub fn int(&self, name: &str) -> Result<Option<i64>, Error> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Error::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            }),
        }
    }

    pub fn list(&self) -> Result<ListQuery, Error> {
        Ok(ListQuery {
            label_selector: self.get("labelSelector").to_string(),
            field_selector: self.get("fieldSelector").to_string(),
            resource_version: self.get("resourceVersion").to_string(),
            resource_version_match: self.get("resourceVersionMatch").to_string(),
            limit: self.int("limit")?.unwrap_or(0),
            continue_token: self.get("continue").to_string(),
        })
    }

    pub fn watch(&self) -> Result<WatchQuery, Error> {
        Ok(WatchQuery {
            list: self.list()?,
            timeout_seconds: self.int("timeoutSeconds")?.and_then(|s| u64::try_from(s).ok()),
            bookmarks: self.flag("allowWatchBookmarks"),
            send_initial_events: self
                .has("sendInitialEvents")
                .then(|| self.flag("sendInitialEvents")),
        })
    }

    /// `dryRun`, `fieldManager` and `fieldValidation` of a write; `kind` names its options for errors.
    pub fn write(&self, kind: &str) -> Result<WriteOptions, Error> {
        let mut mistakes = Errors::new();
        let dry_run = check_dry_run(&self.all("dryRun").collect::<Vec<_>>(), &mut mistakes);
        if let Some(mistake) = bad_manager(self.get("fieldManager")) {
            mistakes.push(mistake);
        }
        let validation = match self.get("fieldValidation") {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                mistakes.not_supported(
                    &Path::new("fieldValidation"),
                    other,
                    &["", "Ignore", "Warn", "Strict"],
                );
                FieldValidation::Warn
            }
        };
        if mistakes.is_empty() {
            Ok(WriteOptions { dry_run, validation })
        } else {
            Err(invalid_options(kind, &mistakes))
        }
    }
}

/// What a write's query says.
pub struct WriteOptions {
    pub dry_run: bool,
    pub validation: FieldValidation,
}

/// `All` is the only dry run there is.
pub fn check_dry_run(values: &[&str], mistakes: &mut Errors) -> bool {
    let wrong: Vec<&str> = values.iter().copied().filter(|v| *v != "All").collect();
    if !wrong.is_empty() {
        let shown = serde_json::Value::from(values.to_vec());
        mistakes.push(FieldError {
            cause: Cause::NotSupported,
            field: "dryRun".into(),
            value: Some(shown.to_string()),
            detail: "supported values: \"All\"".into(),
        });
    }
    !values.is_empty()
}

/// Longest name of a field manager.
const MANAGER_MAX_BYTES: usize = 128;

fn bad_manager(name: &str) -> Option<FieldError> {
    let mistake = |cause, value: Option<String>, detail: String| {
        Some(FieldError {
            cause,
            field: "fieldManager".into(),
            value,
            detail,
        })
    };
    if name.len() > MANAGER_MAX_BYTES {
        return mistake(
            Cause::TooLong,
            None,
            format!("may not be more than {MANAGER_MAX_BYTES} bytes"),
        );
    }
    let (at, bad) = name.char_indices().find(|(_, c)| c.is_control())?;
    let shown: String = name
        .chars()
        .map(|c| {
            if c.is_control() {
                format!("\\x{:02x}", c as u32)
            } else {
                c.to_string()
            }
        })
        .collect();
    mistake(
        Cause::Invalid,
        Some(format!("\"{shown}\"")),
        format!("invalid character U+{:04X} (at position {at})", bad as u32),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let q = Query::parse("labelSelector=a%3Db,c+in+(d)&watch=bogus&limit=5&x&dryRun=All");
        assert_eq!(q.get("labelSelector"), "a=b,c in (d)");
        assert!(q.flag("watch") && q.has("x") && !q.flag("nope"));
        assert_eq!(q.list().unwrap().limit, 5);
        assert!(q.write("CreateOptions").unwrap().dry_run);
        assert_eq!(Query::parse("timeoutSeconds=x").watch().unwrap_err().code(), 400);
        assert_eq!(
            Query::parse("dryRun=Some")
                .write("CreateOptions")
                .err()
                .map(|e| e.code()),
            Some(422)
        );
    }

    #[test]
    fn a_field_manager_has_no_control_characters() {
        let error = Query::parse("fieldManager=a%00b")
            .write("CreateOptions")
            .err()
            .unwrap();
        assert_eq!(
            error.message(),
            "CreateOptions.meta.k8s.io \"\" is invalid: fieldManager: Invalid value: \"a\\x00b\": invalid character U+0000 (at position 1)"
        );
    }
}
