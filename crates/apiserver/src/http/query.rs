//! The query string, and the options that requests have in it.
//!
//! Of an option that is given several times the first counts, everywhere, as in Go. A query that cannot be decoded is rejected ([`Query::check`]);
//! Go drops the pairs that it cannot decode, and kube-apiserver ignores them.

use knarr_apimachinery::Error;
use knarr_apimachinery::field::{Cause, ErrorList, FieldError, Path, quoted};

use crate::pipeline::decode::FieldValidation;
use crate::pipeline::read::{ListQuery, invalid_options};
use crate::watch::WatchQuery;

/// Decoded pairs, in order.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pairs: Vec<(String, String)>,
    /// The first pair that cannot be decoded.
    invalid: Option<String>,
}

impl Query {
    pub fn parse(text: &str) -> Self {
        let mut query = Query::default();
        for pair in text.split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decoded(key), decoded(value)) {
                (Some(key), Some(value)) => query.pairs.push((key, value)),
                _ => query.invalid = query.invalid.take().or_else(|| Some(pair.to_string())),
            }
        }
        query
    }

    /// # Errors
    /// 400 if a part of it cannot be decoded.
    pub fn check(&self) -> Result<(), Error> {
        match &self.invalid {
            None => Ok(()),
            Some(pair) => Err(Error::bad_request(format!(
                "the query of the request URL cannot be decoded: {pair:?}"
            ))),
        }
    }

    /// The first value; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.pairs
            .iter()
            .find(|(k, _)| k == name)
            .map_or("", |(_, v)| v.as_str())
    }

    pub fn has(&self, name: &str) -> bool {
        self.pairs.iter().any(|(k, _)| k == name)
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs
            .iter()
            .filter(move |(k, _)| k == name)
            .map(|(_, v)| v.as_str())
    }

    /// As Kubernetes parses booleans: present means true, unless the value is `false` or `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.has(name) && !matches!(self.get(name).to_ascii_lowercase().as_str(), "false" | "0")
    }

    pub fn int(&self, name: &str) -> Result<Option<i64>, Error> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse::<i64>().map(Some).map_err(|error| {
                use std::num::IntErrorKind::{NegOverflow, PosOverflow};
                let why = match error.kind() {
                    PosOverflow | NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                Error::bad_request(format!("strconv.ParseInt: parsing {text:?}: {why}"))
            }),
        }
    }

    pub fn list(&self) -> Result<ListQuery, Error> {
        // It is used by watches only, but must be a number everywhere.
        self.int("timeoutSeconds")?;
        Ok(ListQuery {
            label_selector: self.get("labelSelector").to_string(),
            field_selector: self.get("fieldSelector").to_string(),
            resource_version: self.get("resourceVersion").to_string(),
            resource_version_match: self.get("resourceVersionMatch").to_string(),
            limit: self.int("limit")?.unwrap_or(0),
            continue_token: self.get("continue").to_string(),
            sends_initial_events: self.has("sendInitialEvents"),
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
        let mut errors = ErrorList::new();
        let dry_run = check_dry_run(&self.all("dryRun").collect::<Vec<_>>(), &mut errors);
        if let Some(error) = bad_manager(self.get("fieldManager")) {
            errors.push(error);
        }
        let validation = match self.get("fieldValidation") {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.not_supported(
                    &Path::new("fieldValidation"),
                    other,
                    &["", "Ignore", "Warn", "Strict"],
                );
                FieldValidation::Warn
            }
        };
        if errors.is_empty() {
            Ok(WriteOptions { dry_run, validation })
        } else {
            Err(invalid_options(kind, &errors))
        }
    }
}

/// A key or value without its escapes: `+` is a space, and semicolons are errors and no separators, as in Go.
fn decoded(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let escapes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'%');
    for (at, _) in escapes {
        let digits = bytes.get(at + 1..at + 3)?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
    }
    if bytes.contains(&b';') {
        return None;
    }
    let text = text.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// The options of a write.
pub struct WriteOptions {
    pub dry_run: bool,
    pub validation: FieldValidation,
}

/// `All` is the only dry run there is.
pub fn check_dry_run(values: &[&str], errors: &mut ErrorList) -> bool {
    let wrong: Vec<&str> = values.iter().copied().filter(|v| *v != "All").collect();
    if !wrong.is_empty() {
        let shown = serde_json::Value::from(values.to_vec());
        errors.push(FieldError {
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
    let error = |cause, value: Option<String>, detail: String| {
        Some(FieldError {
            cause,
            field: "fieldManager".into(),
            value,
            detail,
        })
    };
    if name.len() > MANAGER_MAX_BYTES {
        return error(
            Cause::TooLong,
            None,
            format!("may not be more than {MANAGER_MAX_BYTES} bytes"),
        );
    }
    let (at, bad) = name.char_indices().find(|(_, c)| c.is_control())?;
    error(
        Cause::Invalid,
        Some(quoted(name)),
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
    fn a1_queries_that_cannot_be_decoded_are_rejected() {
        for (text, fine) in [
            ("a=b&&c", true),
            ("a=%25zz", true),
            ("fieldSelector=metadata.name%3Da%5C%2Cb", true),
            ("a=%", false),
            ("a=%f", false),
            ("a=%zz", false),
            ("a=%ff", false),
            ("%c3=x", false),
            ("a=b;c=d", false),
        ] {
            assert_eq!(Query::parse(text).check().is_ok(), fine, "{text}");
        }
    }

    #[test]
    fn a1_of_an_option_that_is_given_twice_the_first_counts_everywhere() {
        let query = Query::parse("labelSelector=a&labelSelector=b&watch=false&watch=true&limit=1&limit=2");
        let list = query.list().unwrap();
        assert_eq!((list.label_selector.as_str(), list.limit), ("a", 1));
        assert_eq!(query.watch().unwrap().list.label_selector, "a");
        assert!(!query.flag("watch"));
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
