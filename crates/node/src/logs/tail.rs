//! Finds where the last lines of a log file start, from its end: the cost depends on the tail, not on the file's size.

use std::io::{self, Read, Seek, SeekFrom};

use super::line::parse;

/// How much is read at a time, backwards.
const BLOCK_BYTES: u64 = 64 * 1024;

/// The offset at which the last `desired` lines before `end` begin. Parts of a partial line count as one.
pub fn start_of_last_lines<F: Read + Seek>(file: &mut F, end: u64, desired: u64) -> io::Result<u64> {
    if desired == 0 {
        return Ok(end);
    }
    let mut found = 0;
    // Of the line that `unread` ends in, what has been read.
    let mut rest: Vec<u8> = Vec::new();
    let mut unread = end;
    loop {
        let block = unread.min(BLOCK_BYTES);
        unread -= block;
        let mut bytes = vec![0; block as usize];
        file.seek(SeekFrom::Start(unread))?;
        file.read_exact(&mut bytes)?;
        bytes.append(&mut rest);

        // Lines that begin in these bytes, last first. The first one may begin earlier.
        let mut line_end = bytes.len();
        while line_end > 0 {
            let before = bytes[..line_end - 1].iter().rposition(|b| *b == b'\n');
            let line_start = match before {
                Some(newline) => newline + 1,
                None if unread == 0 => 0,
                None => break,
            };
            // A line in another format is not shown and does not count.
            if let Some(line) = parse(&bytes[line_start..line_end])
                && (!line.partial || found == 0)
            {
                if found == desired {
                    return Ok(unread + line_end as u64);
                }
                found += 1;
            }
            line_end = line_start;
        }
        if unread == 0 {
            return Ok(0);
        }
        bytes.truncate(line_end);
        rest = bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn tail(log: &str, desired: u64) -> String {
        let mut file = Cursor::new(log.as_bytes());
        let start = start_of_last_lines(&mut file, log.len() as u64, desired).unwrap();
        log[start as usize..].to_string()
    }

    fn line(tag: &str, text: &str) -> String {
        format!("2016-10-06T00:17:09.669794202Z stdout {tag} {text}\n")
    }

    #[test]
    fn l13_the_tail_is_the_last_lines_with_all_their_parts() {
        let (a, b1, b2, b3) = (line("F", "a"), line("P", "b1"), line("P", "b2"), line("F", "b3"));
        let (c, open) = (line("F", "c"), line("P", "open"));
        let log = [&*a, &b1, &b2, &b3, &c].concat();
        for (desired, expected) in [
            (0, String::new()),
            (1, c.clone()),
            (2, [&*b1, &b2, &b3, &c].concat()),
            (3, log.clone()),
            (99, log.clone()),
        ] {
            assert_eq!(tail(&log, desired), expected, "{desired}");
        }
        assert_eq!(tail(&[&*a, &b1, &open].concat(), 1), [&*b1, &open].concat());
        assert_eq!(tail("", 5), "");
    }

    #[test]
    fn lines_across_blocks_are_counted_once() {
        let lines: Vec<String> = (0..5000)
            .map(|n| line("F", &format!("{n} {}", "x".repeat(n % 97))))
            .collect();
        let log = lines.concat();
        assert!(log.len() as u64 > 4 * BLOCK_BYTES);
        for desired in [1, 10, 1000, 4999] {
            assert_eq!(
                tail(&log, desired as u64),
                lines[5000 - desired..].concat(),
                "{desired}"
            );
        }
        let long = line("F", &"x".repeat(3 * BLOCK_BYTES as usize));
        assert_eq!(tail(&format!("{}{long}", line("F", "a")), 1), long);
    }
}
