//! Reads a container's log for a user: from where, what of it, and on as it grows.
//!
//! Follows across rotation without losing a line: the renamed file is read to its end before the new one is opened. A
//! line in another format is skipped, with one warning.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use super::line::{self, Stream};
use super::options::Options;
use super::tail::start_of_last_lines;
use crate::untrusted_fs::{Dir, Links};
use crate::watch::{AddWatchFlags, Watch};

/// How much is read at a time, and what a piece of the answer holds at most but for its last line.
const READ_BYTES: usize = 64 * 1024;
/// The runtime splits lines at 16 KiB. Anything longer than this without a newline is no log.
const MAX_LINE_BYTES: usize = 1 << 20;
/// How long the runtime may go on writing to the old file after the new one is there.
const REOPEN_TIME: Duration = Duration::from_millis(100);

/// Events in a log's directory that may mean new lines.
const WATCHED: AddWatchFlags = AddWatchFlags::IN_MODIFY
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_CLOSE_WRITE);

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("failed to open log file {path:?}")]
    Open { path: PathBuf, source: io::Error },
    #[error("failed to read log file {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to watch the directory of log file {path:?}")]
    Watch { path: PathBuf, source: io::Error },
}

/// Why reading stops without an error.
enum Stop {
    /// All requested bytes were sent.
    Limit,
    /// The reader has disconnected.
    Left,
}

/// A log that has been opened; [`Log::send`] reads it.
pub struct Log {
    path: PathBuf,
    file: File,
    options: Options,
}

/// Opens the log at `path`, so that a missing one is reported before anything is sent.
pub async fn read(path: &Path, options: Options) -> Result<Log, LogError> {
    let file = open(path).await.map_err(|source| LogError::Open {
        path: path.to_path_buf(),
        source,
    })?;
    Ok(Log {
        path: path.to_path_buf(),
        file,
        options,
    })
}

/// A log is a regular file in its container's directory; nothing else is opened in its place.
async fn open(path: &Path) -> io::Result<File> {
    let path = path.to_path_buf();
    let opened = tokio::task::spawn_blocking(move || {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        Dir::open(directory)?.open_file(name, Links::Never)
    });
    Ok(File::from_std(opened.await.map_err(io::Error::other)??))
}

impl Log {
    /// Sends what was requested to `out`. Following ends when `exited` resolves (the container has exited) and
    /// everything it wrote is sent; `exited` is not awaited otherwise.
    pub async fn send(
        self,
        exited: impl Future<Output = ()>,
        out: mpsc::Sender<Bytes>,
    ) -> Result<(), LogError> {
        let Log {
            path,
            mut file,
            options,
        } = self;
        let failed = |source| LogError::Read {
            path: path.clone(),
            source,
        };
        // What is written while we read is for followers; others would chase a busy container for ever.
        let mut end = file.metadata().await.map_err(failed)?.len();
        if let Some(lines) = options.tail_lines {
            let mut std_file = file.into_std().await;
            let found = tokio::task::spawn_blocking(move || {
                let start = start_of_last_lines(&mut std_file, end, lines);
                (std_file, start)
            });
            let (std_file, start) = found.await.map_err(|e| failed(io::Error::other(e)))?;
            let start = start.map_err(failed)?;
            file = File::from_std(std_file);
            file.seek(SeekFrom::Start(start)).await.map_err(failed)?;
            end -= start;
        }
        let mut writer = Writer::new(&options, out);
        if !options.follow {
            let done = writer.pass(&mut file, end).await.map_err(failed)?;
            if done.is_none() {
                writer.finish().await;
            }
            return Ok(());
        }

        let directory = path.parent().unwrap_or(Path::new("/"));
        let watch = Watch::directory(directory, WATCHED).map_err(|source| LogError::Watch {
            path: path.clone(),
            source,
        })?;
        let mut exited = pin!(exited);
        let mut over = false;
        loop {
            if writer.pass(&mut file, u64::MAX).await.map_err(failed)?.is_some() {
                return Ok(());
            }
            if let Some(new) = reopened(&path, &file).await.map_err(failed)? {
                tokio::time::sleep(REOPEN_TIME).await;
                if writer.pass(&mut file, u64::MAX).await.map_err(failed)?.is_some() {
                    return Ok(());
                }
                writer.finish().await;
                file = new;
                continue;
            }
            if over {
                writer.finish().await;
                return Ok(());
            }
            tokio::select! {
                // What was written before the exit is read before the end is reported.
                () = &mut exited => over = true,
                changed = watch.changed() => {
                    changed.map_err(|source| LogError::Watch { path: path.clone(), source })?;
                }
                () = writer.left() => return Ok(()),
            }
        }
    }
}

/// The file that has the log's name now, if it is another than `file`.
async fn reopened(path: &Path, file: &File) -> io::Result<Option<File>> {
    let inode = file.metadata().await?.ino();
    match crate::host_fs::nonblocking::metadata(path).await {
        Ok(now) if now.ino() == inode => Ok(None),
        Ok(_) => match open(path).await {
            Ok(new) => Ok(Some(new)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        },
        // Renamed, and the runtime has not made the new one yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Turns the file's lines into what the user reads.
struct Writer<'a> {
    options: &'a Options,
    out: mpsc::Sender<Bytes>,
    /// Of the file, what is not a whole line yet.
    pending: BytesMut,
    /// The line that `pending` belongs to is too long and is skipped.
    skipping: bool,
    answer: BytesMut,
    remaining: u64,
    /// Whether the next text of stdout, of stderr, begins a line.
    line_start: [bool; 2],
    warned: bool,
}

impl<'a> Writer<'a> {
    fn new(options: &'a Options, out: mpsc::Sender<Bytes>) -> Self {
        Writer {
            options,
            out,
            pending: BytesMut::new(),
            skipping: false,
            answer: BytesMut::new(),
            remaining: options.limit_bytes.unwrap_or(u64::MAX),
            line_start: [true; 2],
            warned: false,
        }
    }

    /// Reads to the file's end, at most `limit` bytes, and sends all complete lines.
    async fn pass(&mut self, file: &mut File, mut limit: u64) -> io::Result<Option<Stop>> {
        loop {
            self.pending.reserve(READ_BYTES);
            let read = (&mut *file)
                .take(limit.min(READ_BYTES as u64))
                .read_buf(&mut self.pending)
                .await?;
            if read == 0 {
                return Ok(None);
            }
            limit -= read as u64;
            if let Some(stop) = self.take_lines().await {
                return Ok(Some(stop));
            }
        }
    }

    async fn take_lines(&mut self) -> Option<Stop> {
        while let Some(newline) = self.pending.iter().position(|b| *b == b'\n') {
            let line = self.pending.split_to(newline + 1).freeze();
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            self.take_line(&line);
            if self.remaining == 0 {
                self.flush().await;
                return Some(Stop::Limit);
            }
        }
        if self.pending.len() > MAX_LINE_BYTES {
            self.pending.clear();
            self.skipping = true;
        }
        self.flush().await
    }

    /// The file is over: what has no newline is a line too.
    async fn finish(&mut self) {
        let rest = self.pending.split().freeze();
        if !rest.is_empty() && !self.skipping {
            self.take_line(&rest);
        }
        self.skipping = false;
        self.flush().await;
    }

    fn take_line(&mut self, bytes: &[u8]) {
        let Some(line) = line::parse(bytes) else {
            if !std::mem::replace(&mut self.warned, true) {
                let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]);
                tracing::warn!(line = %shown, "skipped a log line that is not in CRI's format; further ones are not reported");
            }
            return;
        };
        let at_start = &mut self.line_start[usize::from(line.stream == Stream::Stderr)];
        let begins = std::mem::replace(at_start, !line.partial);
        if self.options.stream.is_some_and(|desired| desired != line.stream) {
            return;
        }
        if self
            .options
            .since
            .is_some_and(|since| line.time().is_none_or(|time| time < since))
        {
            return;
        }
        if self.options.timestamps && begins {
            let time = line.shown_time();
            self.add(time.as_bytes());
            self.add(b" ");
        }
        self.add(line.text);
    }

    fn add(&mut self, text: &[u8]) {
        let length = text
            .len()
            .min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        self.answer.extend_from_slice(&text[..length]);
        self.remaining -= length as u64;
    }

    async fn flush(&mut self) -> Option<Stop> {
        if self.answer.is_empty() {
            return None;
        }
        match self.out.send(self.answer.split().freeze()).await {
            Ok(()) => None,
            Err(_) => Some(Stop::Left),
        }
    }

    async fn left(&self) {
        self.out.closed().await;
    }
}

#[cfg(test)]
mod tests;
