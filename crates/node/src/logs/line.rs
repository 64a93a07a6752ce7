//! One line of CRI's log format.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A parsed line. `text` ends with a newline unless the line is partial: then the rest of it follows in the stream's
/// next line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    time: &'a str,
    pub stream: Stream,
    pub partial: bool,
    pub text: &'a [u8],
}

/// `bytes` is one line of the file with its newline. `None` if it is not of the format.
pub fn parse(bytes: &[u8]) -> Option<Line<'_>> {
    let (time, rest) = split(bytes)?;
    let (stream, rest) = split(rest)?;
    let (tags, text) = split(rest)?;
    let stream = match stream {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    // Tags are a list; the first is `F` for a full line or `P` for a partial one.
    let partial = tags.split(|b| *b == b':').next() == Some(b"P");
    let text = match partial {
        true => text.strip_suffix(b"\n").unwrap_or(text),
        false => text,
    };
    let time = std::str::from_utf8(time)
        .ok()
        .filter(|time| time.as_bytes().first().is_some_and(u8::is_ascii_digit))?;
    Some(Line {
        time,
        stream,
        partial,
        text,
    })
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().position(|b| *b == b' ')?;
    Some((&bytes[..space], &bytes[space + 1..]))
}

impl Line<'_> {
    pub fn time(&self) -> Option<Timestamp> {
        self.time.parse().ok()
    }

    /// The time as users see it: always nine digits after the point, in the zone it was written in.
    pub fn shown_time(&self) -> String {
        let zone = self
            .time
            .rfind(['Z', '+'])
            .or_else(|| self.time.rfind('-').filter(|at| *at > 10));
        let (clock, zone) = self.time.split_at(zone.unwrap_or(self.time.len()));
        let (seconds, fraction) = clock.split_once('.').unwrap_or((clock, ""));
        format!("{seconds}.{fraction:0<9}{zone}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_format_are_read() {
        for (bytes, stream, partial, text) in [
            (
                &b"2016-10-06T00:17:09.669794202Z stdout F log content 1\n"[..],
                Stream::Stdout,
                false,
                &b"log content 1\n"[..],
            ),
            (
                b"2016-10-06T00:17:09.669794202Z stderr P part\n",
                Stream::Stderr,
                true,
                b"part",
            ),
            (
                b"2016-10-06T00:17:09.669794202Z stdout F:other \n",
                Stream::Stdout,
                false,
                b"\n",
            ),
            (
                b"2016-10-06T00:17:09Z stdout P:x  two\n",
                Stream::Stdout,
                true,
                b" two",
            ),
            (
                b"2016-10-06T00:17:09Z stdout F cut",
                Stream::Stdout,
                false,
                b"cut",
            ),
        ] {
            let line = parse(bytes).unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(bytes)));
            assert_eq!((line.stream, line.partial, line.text), (stream, partial, text));
        }
    }

    #[test]
    fn other_lines_are_not() {
        for bytes in [
            &b""[..],
            b"\n",
            b"2016-10-06T00:17:09Z stdout\n",
            b"2016-10-06T00:17:09Z stdin F x\n",
            b"\xff stdout F x\n",
        ] {
            assert_eq!(parse(bytes), None, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn times_are_shown_with_nine_digits() {
        for (written, shown) in [
            ("2016-10-06T00:17:09.669794202Z", "2016-10-06T00:17:09.669794202Z"),
            ("2016-10-06T00:17:09.6Z", "2016-10-06T00:17:09.600000000Z"),
            ("2016-10-06T00:17:09Z", "2016-10-06T00:17:09.000000000Z"),
            (
                "2016-10-06T09:17:09.5+09:00",
                "2016-10-06T09:17:09.500000000+09:00",
            ),
            (
                "2016-10-05T19:17:09.5-05:00",
                "2016-10-05T19:17:09.500000000-05:00",
            ),
        ] {
            let bytes = format!("{written} stdout F x\n");
            let line = parse(bytes.as_bytes()).unwrap();
            assert_eq!(line.shown_time(), shown);
            assert_eq!(line.time(), Some(shown.parse().unwrap()));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_line_makes_it_panic(bytes: Vec<u8>, time in "[0-9TZ:.+-]{0,40}") {
            for bytes in [bytes, format!("{time} stdout F x").into_bytes()] {
                if let Some(line) = parse(&bytes) {
                    let _ = (line.time(), line.shown_time());
                }
            }
        }
    }
}
