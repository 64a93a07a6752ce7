//! Files of variables that one container of a pod writes and another's environment is read from (`fileKeyRef`, KEP-3721).
//!
//! A strict part of what a shell reads: `NAME='value'`, the value between single quotes as it stands, over several lines
//! too; blank lines and `#` comments. Whatever else is a mistake, named with its line. Never more is looked at than up to
//! the key: what stands behind it cannot spoil it.

/// Most bytes of one line, its end not counted.
pub const LINE_BYTES: usize = 64 * 1024 - 1;

/// Most bytes of a file that are looked at. A program takes 128 KiB for one variable and a few MiB for all of them; a
/// container must not fill the node's memory with what it wrote.
pub const FILE_BYTES: usize = 4 << 20;

/// What is wrong with a file of variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
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

/// The value of `key`. Empty where the file has no such key, as where its value is empty: nobody tells them apart.
/// `file` is at most its first [`FILE_BYTES`]; `cut` says that there is more.
pub fn value(file: &[u8], cut: bool, key: &str) -> Result<Vec<u8>, Mistake> {
    let file = file.get(..FILE_BYTES).unwrap_or(file);
    // Where the file was cut, whatever its end looks like says nothing.
    let at_end = |mistake| if cut { Mistake::LongFile } else { mistake };
    let mut lines = Lines {
        rest: file,
        number: 0,
    };
    while let Some(line) = lines.next()? {
        let number = lines.number;
        let last = |mistake| {
            if lines.rest.is_empty() {
                at_end(mistake)
            } else {
                mistake
            }
        };
        let line = without_blanks(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let (name, assigned) = split_at(line, b'=').ok_or(last(Mistake::NoEquals(number)))?;
        match name {
            _ if name.iter().all(|b| is_blank(*b)) => return Err(Mistake::NoName(number)),
            [.., end] if is_blank(*end) => return Err(Mistake::BlankBeforeEquals(number)),
            _ => {}
        }
        let wanted = name == key.as_bytes();
        if assigned.first().copied().is_some_and(is_blank) {
            // To a shell this is an empty value, and what follows something else.
            if wanted {
                return Ok(Vec::new());
            }
            continue;
        }
        let Some(mut quoted) = assigned.strip_prefix(b"'") else {
            return Err(last(Mistake::Unquoted(number)));
        };
        let mut value = Vec::new();
        let after = loop {
            if let Some((end, after)) = split_at(quoted, b'\'') {
                value.extend_from_slice(end);
                break without_blanks(after);
            }
            value.extend_from_slice(quoted);
            value.push(b'\n');
            quoted = lines.next()?.ok_or(at_end(Mistake::Unclosed(number)))?;
        };
        if !after.is_empty() && !after.starts_with(b"#") {
            return Err(Mistake::AfterQuote(lines.number));
        }
        if wanted {
            return Ok(value);
        }
    }
    if cut {
        Err(Mistake::LongFile)
    } else {
        Ok(Vec::new())
    }
}

struct Lines<'a> {
    rest: &'a [u8],
    /// Of the line last given, from 1.
    number: usize,
}

impl<'a> Lines<'a> {
    /// The next line, without its end (a carriage return before it belongs to that).
    fn next(&mut self) -> Result<Option<&'a [u8]>, Mistake> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let (line, rest) = split_at(self.rest, b'\n').unwrap_or((self.rest, &[]));
        if line.len() > LINE_BYTES {
            return Err(Mistake::LongLine(self.number));
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
    fn l4_a_file_of_variables_is_read_as_a_strict_shell_reads_it() {
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
            ("A B", Err(Mistake::NoEquals(1))),
            ("A='1'\n='v'", Err(Mistake::NoName(2))),
            (" ='v'", Err(Mistake::NoName(1))),
            ("K ='v'", Err(Mistake::BlankBeforeEquals(1))),
            ("A\t='v'\nK='v'", Err(Mistake::BlankBeforeEquals(1))),
            ("K=v", Err(Mistake::Unquoted(1))),
            ("K=\"v\"", Err(Mistake::Unquoted(1))),
            ("K=", Err(Mistake::Unquoted(1))),
            ("K='v' w", Err(Mistake::AfterQuote(1))),
            ("K='v''w'", Err(Mistake::AfterQuote(1))),
            ("A='1\n2'x\nK='v'", Err(Mistake::AfterQuote(2))),
            ("#\nK='v\nA=", Err(Mistake::Unclosed(2))),
        ] {
            let got = value(file.as_bytes(), false, "K");
            assert_eq!(got, want.map(|v: &str| v.as_bytes().to_vec()), "{file:?}");
        }
    }

    #[test]
    fn l4_what_is_too_long_is_said_and_what_was_cut_off_is_not_blamed() {
        let line = |bytes: usize| format!("K='{}'\n", "x".repeat(bytes - 4)).into_bytes();
        assert_eq!(
            value(&line(LINE_BYTES), false, "K").map(|v| v.len()),
            Ok(LINE_BYTES - 4)
        );
        assert_eq!(
            value(&line(LINE_BYTES + 1), false, "K"),
            Err(Mistake::LongLine(1))
        );
        for (start, want) in [
            ("K='v'\nA", Ok(b"v".to_vec())),
            ("A='1'\n", Err(Mistake::LongFile)),
            ("A", Err(Mistake::LongFile)),
            ("A=", Err(Mistake::LongFile)),
            ("A='x", Err(Mistake::LongFile)),
            ("A\nK='v'", Err(Mistake::NoEquals(1))),
        ] {
            assert_eq!(value(start.as_bytes(), true, "K"), want, "{start}");
        }
    }
}
