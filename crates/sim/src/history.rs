//! What happened, in order: hashed whole, the last of it kept to be shown.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::Write;
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use sha2::{Digest, Sha256};

/// Lines a report shows.
const LAST: usize = 120;

pub(crate) struct History {
    digest: Sha256,
    lines: u64,
    last: VecDeque<String>,
    /// Keep every line.
    whole: bool,
    /// Where this run keeps its files: another place in each run, and told as one.
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

    fn told_as_one<'a>(directory: &str, text: &'a str) -> Cow<'a, str> {
        match text.contains(directory) {
            true => text.replace(directory, "DIRECTORY").into(),
            false => text.into(),
        }
    }

    /// `content` counts for the hash only.
    pub fn add(&mut self, now: Timestamp, line: &str, content: &[u8]) {
        let line = format!("{now} {}", Self::told_as_one(&self.directory, line));
        self.digest.update(line.as_bytes());
        match std::str::from_utf8(content) {
            Ok(text) => self
                .digest
                .update(Self::told_as_one(&self.directory, text).as_bytes()),
            Err(_) => self.digest.update(content),
        }
        self.digest.update(b"\n");
        self.lines += 1;
        self.keep(line);
    }

    /// A line about the history, which is no part of what happened: it is shown, and counts for nothing.
    pub fn remark(&mut self, now: Timestamp, line: &str) {
        let line = format!("{now} {}", Self::told_as_one(&self.directory, line));
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

    pub fn told(&self) -> Vec<String> {
        self.last.iter().cloned().collect()
    }
}
