//! The trace of a history, in order: all of it is hashed, the last lines are kept to be shown.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write;
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use sha2::{Digest, Sha256};

/// The lines that a report shows.
const LAST: usize = 120;
/// Enough for the time at the beginning of a line, with the space after it.
const TIME_LENGTH: usize = 32;

pub(crate) struct History {
    digest: Sha256,
    lines: u64,
    last: VecDeque<String>,
    /// Keep every line.
    whole: bool,
    /// The directory of this run's files: it differs in each run, and is replaced in the trace.
    directory: String,
}

impl History {
    pub fn new(whole: bool, directory: &Path) -> Self {
        History {
            digest: Sha256::new(),
            lines: 0,
            last: VecDeque::new(),
            whole,
            directory: directory.to_string_lossy().into_owned(),
        }
    }

    fn without_directory<'a>(directory: &str, text: &'a str) -> Cow<'a, str> {
        match text.contains(directory) {
            true => text.replace(directory, "DIRECTORY").into(),
            false => text.into(),
        }
    }

    fn line(&self, now: Timestamp, text: &str) -> String {
        let text = Self::without_directory(&self.directory, text);
        let mut line = String::with_capacity(TIME_LENGTH + text.len());
        // Writing to a String does not fail.
        let _ = write!(line, "{now} ");
        line.push_str(&text);
        line
    }

    /// `content` is a part of the hash only.
    pub fn add(&mut self, now: Timestamp, line: &str, content: &[u8]) {
        let line = self.line(now, line);
        self.digest.update(line.as_bytes());
        match std::str::from_utf8(content) {
            Ok(text) => self
                .digest
                .update(Self::without_directory(&self.directory, text).as_bytes()),
            Err(_) => self.digest.update(content),
        }
        self.digest.update(b"\n");
        self.lines += 1;
        self.keep(line);
    }

    /// A line about the history that is not an event of it: it is shown, but not hashed.
    pub fn remark(&mut self, now: Timestamp, line: &str) {
        let line = self.line(now, line);
        self.keep(line);
    }

    fn keep(&mut self, line: String) {
        if !self.whole && self.last.len() == LAST {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    pub fn lines(&self) -> u64 {
        self.lines
    }

    pub fn digest(&self) -> String {
        let mut text = String::new();
        for byte in self.digest.clone().finalize() {
            // Writing to a String does not fail.
            let _ = write!(text, "{byte:02x}");
        }
        text
    }

    pub fn last_lines(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }
}
