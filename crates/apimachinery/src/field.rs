//! Field paths and validation errors, with the messages of apimachinery `util/validation/field`.

use std::fmt::{self, Display, Write};

/// The longest path that is kept in place. Most fields of a pod are within 60 bytes
/// (`spec.template.spec.containers[0].livenessProbe.httpGet.path`); with its length the path has 96 bytes.
const IN_PLACE_BYTES: usize = 94;
/// Decimal digits of the largest index.
const INDEX_DIGITS: usize = 20;

/// A path into an object: `spec.containers[0].ports[1].name`, `metadata.labels[a/b]`.
///
/// Validation makes hundreds of paths for each object and shows one only where it finds an error. So a path is copied, and memory is
/// allocated for long ones only.
#[derive(Clone)]
pub struct Path(Text);

#[derive(Clone)]
enum Text {
    InPlace { len: u8, bytes: [u8; IN_PLACE_BYTES] },
    Allocated(String),
}

impl Text {
    fn concat(parts: &[&str]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut bytes = [0; IN_PLACE_BYTES];
        match (bytes.get_mut(..len), u8::try_from(len)) {
            (Some(mut rest), Ok(len)) => {
                for part in parts {
                    let (part_bytes, behind) = rest.split_at_mut(part.len());
                    part_bytes.copy_from_slice(part.as_bytes());
                    rest = behind;
                }
                Text::InPlace { len, bytes }
            }
            _ => Text::Allocated(parts.concat()),
        }
    }
}

impl Path {
    pub fn new(root: &str) -> Self {
        Path(Text::concat(&[root]))
    }

    pub fn child(&self, name: &str) -> Self {
        match self.as_str() {
            "" => Path(Text::concat(&[name])),
            parent => Path(Text::concat(&[parent, ".", name])),
        }
    }

    pub fn index(&self, i: usize) -> Self {
        let mut digits = [b'0'; INDEX_DIGITS];
        let mut first = INDEX_DIGITS;
        let mut rest = i;
        for (at, digit) in digits.iter_mut().enumerate().rev() {
            // A remainder of ten fits.
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            first = at;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.key(std::str::from_utf8(&digits[first..]).unwrap_or_default())
    }

    pub fn key(&self, key: &str) -> Self {
        Path(Text::concat(&[self.as_str(), "[", key, "]"]))
    }

    pub fn as_str(&self) -> &str {
        match &self.0 {
            // They were copied from whole strings.
            Text::InPlace { len, bytes } => {
                std::str::from_utf8(&bytes[..usize::from(*len)]).unwrap_or_default()
            }
            Text::Allocated(text) => text,
        }
    }
}

impl Default for Path {
    fn default() -> Self {
        Path::new("")
    }
}

impl PartialEq for Path {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}
impl Eq for Path {}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Path").field(&self.as_str()).finish()
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_str() {
            "" => f.write_str("<nil>"),
            path => f.write_str(path),
        }
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

    /// One error for each message of a check, such as those of [`crate::names`].
    pub fn all_invalid(&mut self, field: &Path, value: impl Shown + Copy, details: Vec<String>) {
        for detail in details {
            self.invalid(field, value, detail);
        }
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
    use super::{IN_PLACE_BYTES, Path, Text, quoted};

    #[test]
    fn paths_are_written_as_kubernetes_writes_them_whatever_their_length() {
        let name = Path::new("spec").child("containers").index(0).child("name");
        assert_eq!(name.as_str(), "spec.containers[0].name");
        assert_eq!(Path::new("metadata").key("a/b").to_string(), "metadata[a/b]");
        assert_eq!(Path::default().to_string(), "<nil>");
        assert_eq!(Path::new("").child("spec"), Path::new("spec"));
        assert_eq!(Path::new("a").index(1_234_567_890).as_str(), "a[1234567890]");
        assert_eq!(
            Path::new("a").index(usize::MAX).as_str(),
            format!("a[{}]", usize::MAX)
        );
        for len in [IN_PLACE_BYTES - 1, IN_PLACE_BYTES, IN_PLACE_BYTES + 1, 1000] {
            let root = "ü".repeat(len / 2) + &"x".repeat(len % 2);
            let path = Path::new(&root);
            assert_eq!((path.as_str(), root.len()), (root.as_str(), len));
            assert_eq!(matches!(path.0, Text::InPlace { .. }), len <= IN_PLACE_BYTES);
            assert_eq!(path.child("a").index(3).as_str(), format!("{root}.a[3]"));
        }
    }

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
