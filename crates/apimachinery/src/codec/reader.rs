//! The lexer: tokens, the path of the current value, and errors worded as by Go's `encoding/json`.

use std::borrow::Cow;
use std::fmt;

use super::{DecodeError, StrictError};
use crate::descriptors::{FieldDescriptor, Place, Zero};

/// How deep a document may nest. Every level costs stack; real objects stay below 100.
pub const DEPTH_MAX: usize = 256;

/// An error and the path of its value. It is one pointer wide, because it is in every result.
#[derive(Debug)]
pub(super) struct Error(Box<ErrorDetails>);

#[derive(Debug)]
struct ErrorDetails {
    message: String,
    field: String,
    is_base64: bool,
}

impl Error {
    pub(super) fn new(message: impl Into<String>, field: String) -> Self {
        Error(Box::new(ErrorDetails {
            message: message.into(),
            field,
            is_base64: false,
        }))
    }

    pub(super) fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether it is serde's own error, about a value that a visitor does not accept.
    pub(super) fn is_rejection(&self) -> bool {
        self.0.field.is_empty() && self.0.message.starts_with("invalid type")
    }

    /// The same error, of a text that is not base64.
    pub(super) fn of_base64(mut self) -> Self {
        self.0.is_base64 = true;
        self
    }

    pub(super) fn into_decode_error(self) -> DecodeError {
        DecodeError {
            message: self.0.message,
            field: self.0.field,
            is_base64: self.0.is_base64,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}
impl std::error::Error for Error {}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Error::new(message.to_string(), String::new())
    }
}

/// A byte as Go's JSON decoder shows it.
fn quoted(byte: u8) -> String {
    match byte {
        b'"' => "'\"'".into(),
        0x07 => "'\\a'".into(),
        0x08 => "'\\b'".into(),
        0x0b => "'\\v'".into(),
        0x0c => "'\\f'".into(),
        b'\n' | b'\r' | b'\t' | b'\'' | b'\\' => format!("'{}'", char::from(byte).escape_default()),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        // Not printable by Go's rules.
        0x80..=0xa0 | 0xad => format!("'\\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

/// How many bytes of a string come before its end, its first escape or a control character, which is not allowed in it. Most bytes of a
/// document are in strings: eight are read at a time.
fn plain_bytes(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH_BITS: u64 = ONES << 7;
    const QUOTES: u64 = ONES * b'"' as u64;
    const BACKSLASHES: u64 = ONES * b'\\' as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    for (n, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The high bit of each byte of `word` that is less than `limit`. The bits of the bytes after the first such byte may be wrong.
        let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH_BITS;
        let found = below(word, 0x20) | below(word ^ QUOTES, 1) | below(word ^ BACKSLASHES, 1);
        if found != 0 {
            return 8 * n + found.trailing_zeros() as usize / 8;
        }
    }
    let is_plain = |byte: &&u8| !matches!(**byte, 0..=0x1f | b'"' | b'\\');
    8 * words.len() + rest.iter().take_while(is_plain).count()
}

/// One element of the path to a value.
#[derive(Debug)]
pub(super) enum PathElement<'de> {
    /// A field of a struct.
    Field(&'static str, Option<&'static FieldDescriptor>),
    /// A key of a map; Go's errors do not name it.
    Key(Cow<'de, str>),
    Index(usize),
}

/// The type of a value, from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
    /// There is no value: its type is asked for ([`Reader::ask`]).
    Asked,
}

impl Token {
    /// The name of the type in Go's errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Token::Null => "null",
            Token::Bool => "bool",
            Token::Number => "number",
            Token::String => "string",
            Token::Array => "array",
            Token::Object => "object",
            Token::Asked => "",
        }
    }
}

pub(super) struct Reader<'de> {
    input: &'de [u8],
    at: usize,
    depth: usize,
    pub(super) path: Vec<PathElement<'de>>,
    /// The struct that is being read, empty outside of any.
    pub(super) inside: &'static str,
    /// Where the next value is.
    pub(super) place: Place,
    pub(super) strict_errors: Vec<StrictError>,
    /// The next value is that of a time that is absent, and required in our type.
    pub(super) unset_time: bool,
    /// See [`Reader::ask`].
    is_asked: bool,
}

impl<'de> Reader<'de> {
    pub(super) fn new(input: &'de [u8], place: Place) -> Self {
        Reader {
            input,
            at: 0,
            depth: 0,
            path: Vec::new(),
            inside: "",
            place,
            strict_errors: Vec::new(),
            unset_time: false,
            is_asked: false,
        }
    }

    /// The Go type of the elements of the list or map that `visit` reads, for errors: a visitor does not say what it reads, so it
    /// is given an element that is not there, and the error about that is the type.
    pub(super) fn ask<T>(&mut self, visit: impl FnOnce(&mut Self) -> Result<T, Error>) -> String {
        let before = (self.input, self.is_asked);
        self.input = &[];
        self.is_asked = true;
        let answer = visit(self);
        (self.input, self.is_asked) = before;
        match answer {
            Ok(_) => "interface {}".into(),
            Err(e) => e.message().to_string(),
        }
    }

    /// The type of the value that is read, as an error, if it is asked for.
    pub(super) fn answer(&self, of: impl FnOnce() -> String) -> Result<(), Error> {
        match self.is_asked {
            true => Err(Error::new(of(), String::new())),
            false => Ok(()),
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// `spec.containers[0].image`: the current path and `last`.
    pub(super) fn path_to(&self, last: Option<&str>) -> String {
        let mut text = String::new();
        let name = |text: &mut String, name: &str| {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(name);
        };
        for step in &self.path {
            match step {
                PathElement::Field(field, _) => name(&mut text, field),
                PathElement::Key(key) => name(&mut text, key),
                PathElement::Index(i) => text.push_str(&format!("[{i}]")),
            }
        }
        if let Some(last) = last {
            name(&mut text, last);
        }
        text
    }

    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error::new(message, self.path_to(None))
    }

    /// The current value cannot be decoded as `expected`; `found` describes the value as Go does.
    pub(super) fn mismatch(&self, found: &str, expected: &str) -> Error {
        if self.is_asked {
            return Error::new(expected, String::new());
        }
        let fields: Vec<&str> = self
            .path
            .iter()
            .flat_map(|step| match step {
                PathElement::Field(name, field) => [field.and_then(|f| f.embedded.as_deref()), Some(*name)],
                _ => [None, None],
            })
            .flatten()
            .collect();
        self.error(if fields.is_empty() {
            format!("json: cannot unmarshal {found} into Go value of type {expected}")
        } else {
            format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {expected}",
                self.inside,
                fields.join(".")
            )
        })
    }

    fn unexpected(&self, doing: &str) -> Error {
        let Some(byte) = self.input.get(self.at) else {
            return Error::new("unexpected end of JSON input", String::new());
        };
        Error::new(
            format!("invalid character {} {doing}", quoted(*byte)),
            String::new(),
        )
    }

    /// The next byte that is not white space.
    pub(super) fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.input.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    pub(super) fn token(&mut self) -> Result<Token, Error> {
        match self.peek() {
            Some(b'n') => Ok(Token::Null),
            Some(b't' | b'f') => Ok(Token::Bool),
            Some(b'-' | b'0'..=b'9') => Ok(Token::Number),
            Some(b'"') => Ok(Token::String),
            Some(b'[') => Ok(Token::Array),
            Some(b'{') => Ok(Token::Object),
            None if self.is_asked => Ok(Token::Asked),
            _ => Err(self.unexpected("looking for beginning of value")),
        }
    }

    /// Nothing but white space may follow.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.unexpected("after top-level value")),
        }
    }

    fn literal(&mut self, name: &str) -> Result<(), Error> {
        for expected in name.bytes() {
            if self.input.get(self.at) != Some(&expected) {
                return Err(self.unexpected(&format!("in literal {name} (expecting '{}')", expected as char)));
            }
            self.at += 1;
        }
        Ok(())
    }

    pub(super) fn null(&mut self) -> Result<(), Error> {
        self.literal("null")
    }

    pub(super) fn bool(&mut self) -> Result<bool, Error> {
        let value = self.peek() == Some(b't');
        self.literal(if value { "true" } else { "false" })?;
        Ok(value)
    }

    fn digits(&mut self) -> Result<(), Error> {
        let start = self.at;
        while self.input.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.unexpected("in numeric literal"));
        }
        Ok(())
    }

    /// A number's text.
    pub(super) fn number(&mut self) -> Result<&'de str, Error> {
        let start = self.at;
        if self.input.get(self.at) == Some(&b'-') {
            self.at += 1;
        }
        if self.input.get(self.at) == Some(&b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.input.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.input.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.input.get(self.at), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        std::str::from_utf8(&self.input[start..self.at]).map_err(|_| self.error("invalid number"))
    }

    fn utf8(&self, bytes: &'de [u8]) -> Result<&'de str, Error> {
        std::str::from_utf8(bytes).map_err(|_| self.error("invalid UTF-8 in string"))
    }

    /// A string, borrowed where it has no escapes.
    pub(super) fn string(&mut self) -> Result<Cow<'de, str>, Error> {
        self.at += 1;
        let mut owned: Option<String> = None;
        let mut start = self.at;
        loop {
            self.at += plain_bytes(self.input.get(self.at..).unwrap_or_default());
            match self.input.get(self.at) {
                Some(b'"') => {
                    let rest = self.utf8(&self.input[start..self.at])?;
                    self.at += 1;
                    return Ok(match owned {
                        None => Cow::Borrowed(rest),
                        Some(mut text) => {
                            text.push_str(rest);
                            Cow::Owned(text)
                        }
                    });
                }
                Some(b'\\') => {
                    let before = self.utf8(&self.input[start..self.at])?;
                    let text = owned.get_or_insert_with(String::new);
                    text.push_str(before);
                    self.at += 1;
                    let escaped = self.escape()?;
                    owned.get_or_insert_with(String::new).push(escaped);
                    start = self.at;
                }
                Some(0..=0x1f) | None => return Err(self.unexpected("in string literal")),
                Some(_) => self.at += 1,
            }
        }
    }

    fn escape(&mut self) -> Result<char, Error> {
        let c = match self.input.get(self.at) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.unexpected("in string escape code")),
        };
        self.at += 1;
        Ok(c)
    }

    fn hex4(&mut self) -> Result<u32, Error> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self.input.get(self.at).and_then(|b| (*b as char).to_digit(16));
            let Some(digit) = digit else {
                return Err(self.unexpected("in \\u hexadecimal character escape"));
            };
            value = value * 16 + digit;
            self.at += 1;
        }
        Ok(value)
    }

    /// Half a surrogate pair becomes U+FFFD, as in Go.
    fn unicode_escape(&mut self) -> Result<char, Error> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.input[self.at..].starts_with(b"\\u") {
            let back = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    /// Enters an array or object: past the bracket, one level deeper.
    pub(super) fn enter(&mut self) -> Result<(), Error> {
        self.at += 1;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.error(format!("exceeded max depth of {DEPTH_MAX}")));
        }
        Ok(())
    }

    /// Whether another element follows in an array or object that closes with `close`; past the comma or bracket.
    pub(super) fn more(&mut self, first: &mut bool, close: u8) -> Result<bool, Error> {
        let (after, beginning) = if close == b'}' {
            (
                "after object key:value pair",
                "looking for beginning of object key string",
            )
        } else {
            ("after array element", "looking for beginning of value")
        };
        match self.peek() {
            Some(c) if c == close && *first => {}
            Some(c) if c == close => {}
            Some(b',') if !*first => {
                self.at += 1;
                // A comma before the bracket.
                if self.peek() == Some(close) {
                    return Err(self.unexpected(beginning));
                }
                return Ok(true);
            }
            Some(_) if *first => {
                *first = false;
                return Ok(true);
            }
            _ => return Err(self.unexpected(after)),
        }
        self.at += 1;
        self.depth -= 1;
        Ok(false)
    }

    /// An object's key, past the colon.
    pub(super) fn key(&mut self) -> Result<Cow<'de, str>, Error> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("looking for beginning of object key string"));
        }
        let key = self.string()?;
        if self.peek() != Some(b':') {
            return Err(self.unexpected("after object key"));
        }
        self.at += 1;
        Ok(key)
    }

    /// Skips a value.
    pub(super) fn skip(&mut self) -> Result<(), Error> {
        match self.token()? {
            Token::Null => self.null(),
            Token::Bool => self.bool().map(drop),
            Token::Number => self.number().map(drop),
            Token::String => self.string().map(drop),
            Token::Asked => self.answer(|| "interface {}".into()),
            Token::Array => {
                self.enter()?;
                let mut first = true;
                while self.more(&mut first, b']')? {
                    self.skip()?;
                }
                Ok(())
            }
            Token::Object => {
                self.enter()?;
                let mut first = true;
                while self.more(&mut first, b'}')? {
                    self.key()?;
                    self.skip()?;
                }
                Ok(())
            }
        }
    }

    /// Skips a value and returns its text.
    pub(super) fn raw(&mut self) -> Result<&'de str, Error> {
        self.peek();
        let start = self.at;
        self.skip()?;
        self.utf8(&self.input[start..self.at])
    }

    /// The form of the current value, if it is a zero value.
    pub(super) fn zero(&mut self) -> Option<Zero> {
        let here = self.peek()?;
        let closes = |reader: &Self, close: u8| {
            reader.input[reader.at + 1..]
                .iter()
                .find(|b| !matches!(b, b' ' | b'\t' | b'\n' | b'\r'))
                == Some(&close)
        };
        match here {
            b'"' if self.input.get(self.at + 1) == Some(&b'"') => Some(Zero::Text),
            b'f' => Some(Zero::False),
            b'0' => {
                (!matches!(self.input.get(self.at + 1), Some(b'.' | b'e' | b'E'))).then_some(Zero::Number)
            }
            b'[' if closes(self, b']') => Some(Zero::List),
            b'{' if closes(self, b'}') => Some(Zero::Map),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{plain_bytes, quoted};

    #[test]
    fn a_string_is_read_up_to_the_first_byte_that_is_not_plain() {
        let plain = b"0123456789 \x7f\x80\xff!#[]azAZ{}:,";
        for len in 0..plain.len() {
            assert_eq!(plain_bytes(&plain[..len]), len);
            for end in (0..=0x1f).chain([b'"', b'\\']) {
                // What follows the first such byte does not count.
                for after in [&b""[..], b"\"\"\"\"\"\"\"\"\"", b"abcdefghijk", &[0; 16]] {
                    let text = [&plain[..len], &[end], after].concat();
                    assert_eq!(plain_bytes(&text), len, "{}", text.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_not_json_are_shown_as_in_go() {
        for (byte, shown) in [
            (0x1f, r"'\x1f'"),
            (b'\n', r"'\n'"),
            (b'\'', r"'\''"),
            (b'"', "'\"'"),
            (b'x', "'x'"),
            (0x8b, r"'\u008b'"),
            (0xff, "'\u{ff}'"),
        ] {
            assert_eq!(quoted(byte), shown);
        }
    }
}
