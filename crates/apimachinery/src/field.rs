//! Field paths and validation errors, with the messages of apimachinery `util/validation/field`.

use std::fmt::{self, Display, Write};

/// A path into an object: `spec.containers[0].ports[1].name`, `metadata.labels[a/b]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    pub fn new(root: &str) -> Self {
        Path(root.to_string())
    }

    pub fn child(&self, name: &str) -> Self {
        match self.0.is_empty() {
            true => Path(name.to_string()),
            false => Path([&self.0, ".", name].concat()),
        }
    }

    pub fn index(&self, i: usize) -> Self {
        self.key(&i.to_string())
    }

    pub fn key(&self, key: &str) -> Self {
        Path([&self.0, "[", key, "]"].concat())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// The type of a field error (`field.ErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl Cause {
    /// The reason for `details.causes[].reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Cause::NotFound => "FieldValueNotFound",
            Cause::Required => "FieldValueRequired",
            Cause::Duplicate => "FieldValueDuplicate",
            Cause::Invalid => "FieldValueInvalid",
            Cause::NotSupported => "FieldValueNotSupported",
            Cause::Forbidden => "FieldValueForbidden",
            Cause::TooLong => "FieldValueTooLong",
            Cause::TooMany => "FieldValueTooMany",
            Cause::Internal => "InternalError",
            Cause::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Cause::NotFound => "Not found",
            Cause::Required => "Required value",
            Cause::Duplicate => "Duplicate value",
            Cause::Invalid => "Invalid value",
            Cause::NotSupported => "Unsupported value",
            Cause::Forbidden => "Forbidden",
            Cause::TooLong => "Too long",
            Cause::TooMany => "Too many",
            Cause::Internal => "Internal error",
            Cause::TypeInvalid => "Invalid value",
        }
    }
}

/// One error at one field (`field.Error`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    pub cause: Cause,
    pub field: String,
    /// The value found, rendered as Kubernetes renders it (strings quoted, numbers bare, structs as JSON).
    pub value: Option<String>,
    pub detail: String,
}

impl FieldError {
    /// The message of a cause: everything but the field (`ErrorBody`).
    pub fn error_body(&self) -> String {
        let mut s = self.cause.as_str().to_string();
        if let Some(v) = &self.value {
            let _ = write!(s, ": {v}");
        }
        if !self.detail.is_empty() {
            let _ = write!(s, ": {}", self.detail);
        }
        s
    }
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.error_body())
    }
}

/// A value as an error shows it.
pub trait Shown {
    fn shown(&self) -> String;
}

impl Shown for str {
    fn shown(&self) -> String {
        quoted(self)
    }
}
impl Shown for String {
    fn shown(&self) -> String {
        quoted(self)
    }
}

/// A string as Go's `%q` writes it, which differs from Rust's `{:?}` in what cannot be printed.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        let invisible = c.is_control()
            || (c.is_whitespace() && c != ' ')
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{f0000}'..);
        // Writing to a String cannot fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            '\u{7}' => out.write_str("\\a"),
            '\u{8}' => out.write_str("\\b"),
            '\u{c}' => out.write_str("\\f"),
            '\n' => out.write_str("\\n"),
            '\r' => out.write_str("\\r"),
            '\t' => out.write_str("\\t"),
            '\u{b}' => out.write_str("\\v"),
            c if c.is_ascii() && invisible => write!(out, "\\x{:02x}", c as u32),
            c if invisible && (c as u32) < 0x10000 => write!(out, "\\u{:04x}", c as u32),
            c if invisible => write!(out, "\\U{:08x}", c as u32),
            c => out.write_char(c),
        };
    }
    out.push('"');
    out
}
impl<T: Shown + ?Sized> Shown for &T {
    fn shown(&self) -> String {
        (**self).shown()
    }
}
macro_rules! shown_bare {
    ($($t:ty),*) => {$(impl Shown for $t { fn shown(&self) -> String { self.to_string() } })*};
}
shown_bare!(i32, i64, u16, u32, u64, usize, bool, f64);
impl Shown for serde_json::Value {
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// All errors found in one object (`field.ErrorList`); validation does not stop at the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorList(Vec<FieldError>);

impl ErrorList {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, error: FieldError) {
        self.0.push(error);
    }

    pub fn extend(&mut self, other: ErrorList) {
        self.0.extend(other.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.0.iter()
    }

    fn add(&mut self, cause: Cause, field: &Path, value: Option<String>, detail: impl Into<String>) {
        self.0.push(FieldError {
            cause,
            field: field.to_string(),
            value,
            detail: detail.into(),
        });
    }

    pub fn required(&mut self, field: &Path, detail: impl Into<String>) {
        self.add(Cause::Required, field, None, detail);
    }

    pub fn invalid(&mut self, field: &Path, value: impl Shown, detail: impl Into<String>) {
        self.add(Cause::Invalid, field, Some(value.shown()), detail);
    }

    pub fn type_invalid(&mut self, field: &Path, value: impl Shown, detail: impl Into<String>) {
        self.add(Cause::TypeInvalid, field, Some(value.shown()), detail);
    }

    pub fn duplicate(&mut self, field: &Path, value: impl Shown) {
        self.add(Cause::Duplicate, field, Some(value.shown()), "");
    }

    pub fn forbidden(&mut self, field: &Path, detail: impl Into<String>) {
        self.add(Cause::Forbidden, field, None, detail);
    }

    pub fn not_found(&mut self, field: &Path, value: impl Shown) {
        self.add(Cause::NotFound, field, Some(value.shown()), "");
    }

    /// `supported` values are listed sorted, as Kubernetes does.
    pub fn not_supported(&mut self, field: &Path, value: impl Shown, supported: &[&str]) {
        let mut sorted: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        sorted.sort_unstable();
        let detail = if sorted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", sorted.join(", "))
        };
        self.add(Cause::NotSupported, field, Some(value.shown()), detail);
    }

    /// `supported` values are listed as given, where Kubernetes does not sort them.
    pub fn not_supported_in_order(&mut self, field: &Path, value: impl Shown, supported: &[&str]) {
        let listed: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        self.add(
            Cause::NotSupported,
            field,
            Some(value.shown()),
            format!("supported values: {}", listed.join(", ")),
        );
    }

    /// A value that does not exist elsewhere; `detail` says where.
    pub fn not_found_because(&mut self, field: &Path, value: impl Shown, detail: impl Into<String>) {
        self.add(Cause::NotFound, field, Some(value.shown()), detail);
    }

    pub fn too_long(&mut self, field: &Path, max_bytes: usize) {
        self.add(
            Cause::TooLong,
            field,
            None,
            format!("may not be more than {max_bytes} bytes"),
        );
    }

    pub fn too_many(&mut self, field: &Path, found: usize, max: usize) {
        let items = if max == 1 { "item" } else { "items" };
        self.add(
            Cause::TooMany,
            field,
            Some(found.to_string()),
            format!("must have at most {max} {items}"),
        );
    }

    pub fn internal(&mut self, field: &Path, detail: impl Into<String>) {
        self.add(Cause::Internal, field, None, detail);
    }
}

impl IntoIterator for ErrorList {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// As in the message of an `Invalid` status: one error alone, several in brackets, equal ones once.
impl Display for ErrorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen: Vec<String> = Vec::new();
        for e in &self.0 {
            let text = e.to_string();
            if !seen.contains(&text) {
                seen.push(text);
            }
        }
        match seen.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

impl std::error::Error for ErrorList {}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn strings_are_quoted_as_go_quotes_them() {
        for (text, want) in [
            ("a b", r#""a b""#),
            ("it's \"x\" \\", r#""it's \"x\" \\""#),
            ("\t\n\u{0}\u{7f}", r#""\t\n\x00\x7f""#),
            ("é\u{301}😀", "\"é\u{301}😀\""),
            ("\u{200b}\u{a0}\u{100000}", r#""\u200b\u00a0\U00100000""#),
        ] {
            assert_eq!(quoted(text), want);
        }
    }
}
