//! Gives back the pages of the program's own code that are not in use: most of them only a start needs, or the first
//! object of its kind.
//!
//! The kernel maps sixteen pages or more around each that is touched, and keeps them until memory is short: most of what
//! counts as this process' memory is code that ran once. What is given back stays in the page cache, where the next use
//! finds it at the price of a minor fault: some hundred of them, about a millisecond, each time.

use std::io;
use std::path::Path;
use std::time::Duration;

/// Most of what only a start needs has run by then.
const STARTED: Duration = Duration::from_secs(10);
const PERIOD: Duration = Duration::from_secs(60);

/// Gives back what is mapped, again and again, until dropped; what is in use comes back at once.
pub async fn give_back_what_is_not_used() {
    tokio::time::sleep(STARTED).await;
    loop {
        if let Err(e) = give_back() {
            return tracing::debug!(error = %e, "the pages of code that is not used stay mapped");
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn give_back() -> io::Result<()> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    code_of(&program, &maps).try_for_each(|(from, to)| give_back_code(from, to))
}

#[expect(unsafe_code, reason = "there is no safe call for it")]
fn give_back_code(from: usize, to: usize) -> io::Result<()> {
    // SAFETY: the range is a mapping of the program's file that can be executed and not written to: its pages are as
    // they are in the file, and a page that is touched again is read from there again.
    let done = unsafe { libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The address ranges of this program's code in a process' `maps`: what can be executed, never what was or can be
/// written, such as its relocated tables.
fn code_of<'a>(program: &'a Path, maps: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
    maps.lines().filter_map(move |line| {
        // from-to permissions offset device inode path
        let mut words = line.split_ascii_whitespace();
        let (range, permissions) = (words.next()?, words.next()?);
        let path = line.find('/').and_then(|at| line.get(at..))?;
        if permissions != "r-xp" || Path::new(path) != program {
            return None;
        }
        let (from, to) = range.split_once('-')?;
        let address = |hex| usize::from_str_radix(hex, 16).ok();
        Some((address(from)?, address(to)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 fe:00 10                         /opt/my program
2000-5000 r-xp 00001000 fe:00 10                         /opt/my program
5000-6000 r--p 00004000 fe:00 10                         /opt/my program
6000-7000 rw-p 00005000 fe:00 10                         /opt/my program
9000-a000 rw-p 00000000 00:00 0
b000-c000 r-xp 00000000 fe:00 11                         /usr/lib/libc.so.6
d000-e000 r-xp 00000000 00:00 0                          [vdso]
";

    #[test]
    fn only_code_of_the_program_itself_is_given_back() {
        let code: Vec<_> = code_of(Path::new("/opt/my program"), MAPS).collect();
        assert_eq!(code, [(0x2000, 0x5000)]);
        assert_eq!(code_of(Path::new("/opt/other"), MAPS).count(), 0);
    }

    #[test]
    fn code_that_was_given_back_still_runs() {
        let before = only_code_of_the_program_itself_is_given_back as fn();
        give_back().unwrap();
        before();
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(
            code_of(&program, &maps).count() > 0,
            "there was something to give back"
        );
    }
}
