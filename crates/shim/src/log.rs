//! Messages for containerd's log: lines on standard error, which is the FIFO `log` of the bundle while the shim serves.
//!
//! The format is logrus' text format, because containerd copies the lines into its own log as they are. A line that
//! would block (the FIFO is full) is dropped.

use std::fmt::{Display, Write as _};
use std::io::Write as _;

use crate::clock::WallTime;

/// Something that an administrator may want to know of.
pub fn warn(what: impl Display, about: &str) {
    line("warning", &what, about);
}

/// Something that is lost.
pub fn error(what: impl Display, about: &str) {
    line("error", &what, about);
}

fn line(level: &str, what: &dyn Display, about: &str) {
    let mut text = format!(
        "time={:?} level={level} msg={:?}",
        WallTime::now().rfc3339(),
        what.to_string()
    );
    if !about.is_empty() {
        let _ = write!(text, " id={about:?}");
    }
    text.push_str(" runtime=knarr\n");
    let _ = std::io::stderr().write_all(text.as_bytes());
}
