//! Environment files: one container of a pod writes them, another one's environment is read from them (`fileKeyRef`,
//! KEP 3721).
//!
//! The format is a strict subset of a shell's: `NAME='value'`, the value literally between single quotes, also over several
//! lines; blank lines and `#` comments. Anything else is an error with its line. The file is read only up to the key: an
//! error after it has no effect.

/// The most bytes of a line without its end.
pub const LINE_BYTES: usize = 64 * 1024 - 1;

/// The most bytes of a file that are read. A program takes 128 KiB for one variable and a few MiB for all of them; a
/// container must not fill the node's memory through its file.
pub const FILE_BYTES: usize = 4 << 20;

/// Why an environment file is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("invalid environment variable format at line {0}: missing '='")]
    NoEquals(usize),
    #[error("invalid environment variable format at line {0}: empty variable name")]
    NoName(usize),
    #[error("invalid environment variable format at line {0}: whitespace before '=' is not allowed")]
    BlankBeforeEquals(usize),
    #[error("invalid environment variable format at line {0}: value must be enclosed in single quotes")]
    Unquoted(usize),
    #[error("invalid environment variable format at line {0}: unexpected content after closing quote")]
    AfterQuote(usize),
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
    #[error("line {0} is longer than {LINE_BYTES} bytes")]
    LongLine(usize),
    #[error("the key is not among the first {FILE_BYTES} bytes")]
    LongFile,
}

/// The value of `key`; empty if the file does not have the key: the two cases are not distinguished.
/// `file` has at most the first [`FILE_BYTES`] of the file; `cut` says that the file is longer.
pub fn value(file: &[u8], cut: bool, key: &str) -> Result<Vec<u8>, FormatError> {
    let file = file.get(..FILE_BYTES).unwrap_or(file);
    // If the file was cut, an error at its end is not an error of the file.
    let at_end = |error| if cut { FormatError::LongFile } else { error };
    let mut lines = Lines {
        rest: file,
        number: 0,
    };
    while let Some(line) = lines.next()? {
        let number = lines.number;
        let last = |error| {
            if lines.rest.is_empty() {
                at_end(error)
            } else {
                error
            }
        };
        let line = without_blanks(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, assigned) = split_at(line, b'=').ok_or(last(FormatError::NoEquals(number)))?;
        match name {
            _ if name.iter().all(|b| is_blank(*b)) => return Err(FormatError::NoName(number)),
            [.., end] if is_blank(*end) => return Err(FormatError::BlankBeforeEquals(number)),
            _ => {}
        }
        let is_key = name == key.as_bytes();
        if assigned.first().copied().is_some_and(is_blank) {
            // A shell would read this as an empty value followed by another word.
            if is_key {
                return Ok(Vec::new());
            }
            continue;
        }
        let Some(mut quoted) = assigned.strip_prefix(b"'") else {
            return Err(last(FormatError::Unquoted(number)));
        };
        let mut value = Vec::new();
        let after = loop {
            if let Some((end, after)) = split_at(quoted, b'\'') {
                value.extend_from_slice(end);
                break without_blanks(after);
            }
            value.extend_from_slice(quoted);
            value.push(b'\n');
            quoted = lines.next()?.ok_or(at_end(FormatError::Unclosed(number)))?;
        };
        if !after.is_empty() && !after.starts_with(b"#") {
            return Err(FormatError::AfterQuote(lines.number));
        }
        if is_key {
            return Ok(value);
        }
    }
    if cut {
        Err(FormatError::LongFile)
    } else {
        Ok(Vec::new())
    }
}

struct Lines<'a> {
    rest: &'a [u8],
    /// The number of the last returned line, from 1.
    number: usize,
}

impl<'a> Lines<'a> {
    /// The next line, without its end (a carriage return before it belongs to that).
    fn next(&mut self) -> Result<Option<&'a [u8]>, FormatError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let (line, rest) = split_at(self.rest, b'\n').unwrap_or((self.rest, &[]));
        if line.len() > LINE_BYTES {
            return Err(FormatError::LongLine(self.number));
        }
        self.rest = rest;
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}

fn split_at(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let found = text.iter().position(|b| *b == at)?;
    Some((text.get(..found)?, text.get(found + 1..)?))
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn without_blanks(text: &[u8]) -> &[u8] {
    let from = text.iter().position(|b| !is_blank(*b)).unwrap_or(text.len());
    text.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_an_environment_file_is_read_as_a_strict_shell_does() {
        for (file, want) in [
            ("K='v'", Ok("v")),
            ("  \tA='1'\n\n # no\n\tK='v' \t# said\nrubbish", Ok("v")),
            ("K='first'\nK='second'\n", Ok("first")),
            ("K=''", Ok("")),
            ("A='1'\n", Ok("")),
            ("", Ok("")),
            ("K= 'v'\n", Ok("")),
            ("A= 'x' y\nK='v'", Ok("v")),
            ("K='a\n\n  b#\"$x\\'", Ok("a\n\n  b#\"$x\\")),
            ("K='a\r\nb'\r\n", Ok("a\nb")),
            ("A='\nK=1'\nK='v'", Ok("v")),
            ("K='a=b'#x", Ok("a=b")),
            ("export K='v'\nK='w'", Ok("w")),
            ("A B", Err(FormatError::NoEquals(1))),
            ("A='1'\n='v'", Err(FormatError::NoName(2))),
            (" ='v'", Err(FormatError::NoName(1))),
            ("K ='v'", Err(FormatError::BlankBeforeEquals(1))),
            ("A\t='v'\nK='v'", Err(FormatError::BlankBeforeEquals(1))),
            ("K=v", Err(FormatError::Unquoted(1))),
            ("K=\"v\"", Err(FormatError::Unquoted(1))),
            ("K=", Err(FormatError::Unquoted(1))),
            ("K='v' w", Err(FormatError::AfterQuote(1))),
            ("K='v''w'", Err(FormatError::AfterQuote(1))),
            ("A='1\n2'x\nK='v'", Err(FormatError::AfterQuote(2))),
            ("#\nK='v\nA=", Err(FormatError::Unclosed(2))),
        ] {
            let got = value(file.as_bytes(), false, "K");
            assert_eq!(got, want.map(|v: &str| v.as_bytes().to_vec()), "{file:?}");
        }
    }

    #[test]
    fn l4_too_long_lines_and_files_are_reported_and_a_cut_is_no_format_error() {
        let line = |bytes: usize| format!("K='{}'\n", "x".repeat(bytes - 4)).into_bytes();
        assert_eq!(
            value(&line(LINE_BYTES), false, "K").map(|v| v.len()),
            Ok(LINE_BYTES - 4)
        );
        assert_eq!(
            value(&line(LINE_BYTES + 1), false, "K"),
            Err(FormatError::LongLine(1))
        );
        for (start, want) in [
            ("K='v'\nA", Ok(b"v".to_vec())),
            ("A='1'\n", Err(FormatError::LongFile)),
            ("A", Err(FormatError::LongFile)),
            ("A=", Err(FormatError::LongFile)),
            ("A='x", Err(FormatError::LongFile)),
            ("A\nK='v'", Err(FormatError::NoEquals(1))),
        ] {
            assert_eq!(value(start.as_bytes(), true, "K"), want, "{start}");
        }
    }
}
