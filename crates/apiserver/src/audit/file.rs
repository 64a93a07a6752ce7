//! The audit log's file: one line per event; rotated when it is large, and old backups are removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

/// Path and limits of the log file; 0 means no limit.
#[derive(Clone, Debug)]
pub struct LogFile {
    pub path: PathBuf,
    /// The file is rotated before it grows beyond this.
    pub max_bytes: u64,
    /// Backups older than this are removed.
    pub max_age: Duration,
    /// More backups than this are removed, oldest first.
    pub max_backups: usize,
}

/// The open log file.
pub struct Writer {
    settings: LogFile,
    file: File,
    bytes: u64,
}

impl Writer {
    pub fn open(settings: LogFile) -> io::Result<Self> {
        if let Some(directory) = settings.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = open(&settings.path)?;
        Ok(Writer {
            bytes: file.metadata()?.len(),
            file,
            settings,
        })
    }

    /// Appends lines, each with its line break.
    pub fn write(&mut self, lines: &str, now: Timestamp) -> io::Result<()> {
        let length = lines.len() as u64;
        let limit = self.settings.max_bytes;
        if limit > 0 && self.bytes > 0 && self.bytes + length > limit {
            self.rotate(now)?;
        }
        self.file.write_all(lines.as_bytes())?;
        self.bytes += length;
        Ok(())
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        let path = &self.settings.path;
        let mut aside = backup(path, now, 0);
        let mut n = 0;
        while aside.exists() {
            n += 1;
            aside = backup(path, now, n);
        }
        fs::rename(path, aside)?;
        self.file = open(path)?;
        self.bytes = 0;
        self.clean(now)
    }

    fn clean(&self, now: Timestamp) -> io::Result<()> {
        let (stem, extension) = parts(&self.settings.path);
        let directory = self.settings.path.parent().unwrap_or(Path::new("."));
        let mut backups: Vec<(String, PathBuf)> = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let when = name
                .strip_prefix(&format!("{stem}-"))
                .and_then(|rest| rest.strip_suffix(&extension));
            if let Some(when) = when.filter(|w| w.starts_with(|c: char| c.is_ascii_digit())) {
                backups.push((when.to_string(), entry.path()));
            }
        }
        // Names contain the time, newest first.
        backups.sort_by(|a, b| b.0.cmp(&a.0));
        let oldest =
            now - k8s_openapi::jiff::SignedDuration::try_from(self.settings.max_age).unwrap_or_default();
        let oldest = stamp(oldest);
        for (i, (when, path)) in backups.into_iter().enumerate() {
            let many = self.settings.max_backups > 0 && i >= self.settings.max_backups;
            let old = !self.settings.max_age.is_zero() && when < oldest;
            if many || old {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

/// The file name's stem, and its extension with the dot.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = text(path.extension());
    let dot = if extension.is_empty() { "" } else { "." };
    (text(path.file_stem()), format!("{dot}{extension}"))
}

fn stamp(t: Timestamp) -> String {
    t.strftime("%Y-%m-%dT%H-%M-%S.%3f").to_string()
}

/// `audit-2030-01-01T00-00-00.000.log`.
fn backup(path: &Path, now: Timestamp, n: u32) -> PathBuf {
    let (stem, extension) = parts(path);
    let again = if n == 0 { String::new() } else { format!("-{n}") };
    path.with_file_name(format!("{stem}-{}{again}{extension}", stamp(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_large_file_is_rotated_and_old_backups_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let mut log = Writer::open(LogFile {
            path: path.clone(),
            max_bytes: 10,
            max_age: Duration::from_secs(60),
            max_backups: 2,
        })
        .unwrap();
        let at = |s: i64| Timestamp::from_second(1_800_000_000 + s).unwrap();
        for second in 0..5 {
            log.write("12345678\n", at(second)).unwrap();
        }
        let names = files(directory.path());
        assert_eq!(names.len(), 3, "{names:?}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "12345678\n");
        // Two backups of the same moment have different names.
        log.write("12345678\n", at(4)).unwrap();
        log.write("12345678\n", at(4)).unwrap();
        assert_eq!(files(directory.path()).len(), 3);
        log.write("12345678\n", at(100)).unwrap();
        let names = files(directory.path());
        assert_eq!(names.len(), 2, "those older than a minute are gone: {names:?}");
        // Lines are appended to an existing file.
        drop(log);
        let settings = LogFile {
            path: path.clone(),
            max_bytes: 0,
            max_age: Duration::ZERO,
            max_backups: 0,
        };
        Writer::open(settings).unwrap().write("x\n", at(101)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "12345678\nx\n");
    }
}
