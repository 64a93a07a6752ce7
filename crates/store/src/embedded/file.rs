//! One file of the store: made whole or not at all, appended to by one thread, read from many.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::disk::{Disk, DiskFile};
use super::format::{FRAME_HEADER_BYTES, FileKind, HEADER_BYTES, Header, frame_header};
use crate::Error;

/// Whether there is no room for what was to be written.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// An error of the system, as the user sees it.
pub(super) fn failed(doing: &str, path: &Path, error: io::Error) -> Error {
    let message = format!("{doing} {}: {error}", path.display());
    match is_full(&error) {
        true => Error::NoSpace(message),
        false => Error::Io(Arc::new(io::Error::new(error.kind(), message))),
    }
}

pub(super) fn corrupt(path: &Path, why: String) -> Error {
    Error::Corrupt {
        path: path.display().to_string(),
        why,
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(disk: &Disk, dir: &Path) -> Result<(), Error> {
    disk.sync_dir(dir).map_err(|e| failed("cannot sync", dir, e))
}

/// A value's place, with its checksum: every read is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub file: u32,
    pub len: u32,
    pub offset: u64,
    pub crc: u32,
}

pub(super) struct DataFile {
    /// What locations call the file, as long as this process runs.
    pub id: u32,
    pub path: PathBuf,
    pub header: Header,
    pub file: Arc<DiskFile>,
    /// Up to where it is valid and durable.
    len: AtomicU64,
}

/// The name of a file in the data directory.
pub(super) fn file_name(kind: FileKind, number: u64) -> String {
    let extension = match kind {
        FileKind::Log => "log",
        FileKind::Base => "base",
    };
    format!("{number:010}.{extension}")
}

/// A salt no other file has.
pub(super) fn salt() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A file that is being written under a temporary name, which becomes a [`DataFile`] all at once.
pub(super) struct Draft<'a> {
    disk: &'a Disk,
    file: Arc<DiskFile>,
    temporary: PathBuf,
    path: PathBuf,
    pub header: Header,
    pub len: u64,
    finished: bool,
}

impl<'a> Draft<'a> {
    pub fn new(disk: &'a Disk, dir: &Path, header: Header) -> Result<Self, Error> {
        let name = file_name(header.kind, header.number);
        let (temporary, path) = (dir.join(format!("{name}.tmp")), dir.join(name));
        let file = disk
            .create(&temporary)
            .map_err(|e| failed("cannot create", &temporary, e))?;
        let mut draft = Draft {
            disk,
            file: Arc::new(file),
            temporary,
            path,
            header,
            len: 0,
            finished: false,
        };
        draft.append(&header.encode())?;
        Ok(draft)
    }

    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all_at(bytes, self.len);
        written.map_err(|e| failed("cannot write", &self.temporary, e))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    pub fn finish(mut self, id: u32) -> Result<DataFile, Error> {
        self.file
            .sync()
            .map_err(|e| failed("cannot sync", &self.temporary, e))?;
        self.disk
            .rename(&self.temporary, &self.path)
            .map_err(|e| failed("cannot create", &self.path, e))?;
        if let Some(dir) = self.path.parent()
            && let Err(error) = sync_dir(self.disk, dir)
        {
            self.finished = true;
            return Err(self.take_back(dir, error));
        }
        self.finished = true;
        let len = AtomicU64::new(self.len);
        Ok(DataFile {
            id,
            path: self.path.clone(),
            header: self.header,
            file: self.file.clone(),
            len,
        })
    }
}

impl Draft<'_> {
    /// Takes the name away again that could not be made durable. If that cannot be made durable either, a crash may
    /// bring the file back, and nothing may be written that it contradicts: [`Error::Unavailable`].
    fn take_back(&self, dir: &Path, error: Error) -> Error {
        let removed = self
            .disk
            .remove(&self.path)
            .and_then(|()| self.disk.sync_dir(dir));
        match removed {
            Ok(()) => error,
            Err(remove) => Error::Unavailable(format!(
                "{error}; then {} could not be removed: {remove}; restart to go on writing",
                self.path.display()
            )),
        }
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.finished
            && let Err(error) = self.disk.remove(&self.temporary)
        {
            // The next start removes it.
            tracing::warn!(file = %self.temporary.display(), %error, "cannot remove an unfinished file");
        }
    }
}

impl DataFile {
    /// `None` if the file is too short to have a header.
    pub fn open(disk: &Disk, path: PathBuf, kind: FileKind, id: u32) -> Result<Option<Self>, Error> {
        let file = disk.open(&path).map_err(|e| failed("cannot open", &path, e))?;
        let len = file.len().map_err(|e| failed("cannot read", &path, e))?;
        let mut bytes = [0; HEADER_BYTES];
        if len < HEADER_BYTES as u64 {
            return Ok(None);
        }
        file.read_exact_at(&mut bytes, 0)
            .map_err(|e| failed("cannot read", &path, e))?;
        let header = Header::decode(&bytes, kind).map_err(|why| corrupt(&path, why.to_string()))?;
        Ok(Some(DataFile {
            id,
            path,
            header,
            file: Arc::new(file),
            len: AtomicU64::new(len),
        }))
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    pub fn set_len(&self, len: u64) {
        self.len.store(len, Ordering::Release);
    }

    pub fn read_value(&self, location: Location, key: &[u8]) -> Result<Bytes, Error> {
        let mut value = vec![0; location.len as usize];
        let broken = |why: &str| {
            let key = key.escape_ascii();
            corrupt(
                &self.path,
                format!("the value of {key} at offset {} {why}", location.offset),
            )
        };
        match self.file.read_exact_at(&mut value, location.offset) {
            Ok(()) if crc32fast::hash(&value) == location.crc => Ok(value.into()),
            Ok(()) => Err(broken("does not match its checksum")),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(broken("is cut off")),
            Err(error) => Err(failed("cannot read", &self.path, error)),
        }
    }
}

/// What a file contains at some offset.
pub(super) enum Frame<'a> {
    /// A valid frame; its payload is at `place`.
    Good { place: u64, payload: &'a [u8] },
    /// The file ends here, or nothing but zeros follows.
    End,
    /// No good frame.
    Bad {
        place: u64,
        why: &'static str,
        torn: bool,
    },
}

/// Reads the frames of a file one after the other, with one bounded buffer.
pub(super) struct Frames<'a> {
    file: &'a DataFile,
    place: u64,
    buffer: Vec<u8>,
    /// Where in the file the buffer begins.
    begins: u64,
}

/// How much is read from a file at once, unless a frame is larger.
const READ_BYTES: usize = 1 << 20;

/// How much is read at once where zeros are expected.
const ZEROS_READ_BYTES: u64 = 64 << 10;

impl<'a> Frames<'a> {
    pub fn of(file: &'a DataFile) -> Self {
        Frames {
            file,
            place: HEADER_BYTES as u64,
            buffer: Vec::new(),
            begins: 0,
        }
    }

    /// `len` bytes at `place`; `None` if the file ends before.
    fn bytes(&mut self, place: u64, len: usize) -> Result<Option<&[u8]>, Error> {
        let held = place >= self.begins && place + len as u64 <= self.begins + self.buffer.len() as u64;
        if !held {
            if place + len as u64 > self.file.len() {
                return Ok(None);
            }
            let read = (self.file.len() - place).min(len.max(READ_BYTES) as u64);
            self.buffer.resize(read as usize, 0);
            self.begins = place;
            let outcome = self.file.file.read_exact_at(&mut self.buffer, place);
            outcome.map_err(|e| failed("cannot read", &self.file.path, e))?;
        }
        let start = (place - self.begins) as usize;
        Ok(Some(&self.buffer[start..start + len]))
    }

    fn header(&mut self, place: u64) -> Result<Option<(usize, u32)>, Error> {
        let salt = self.file.header.salt;
        let bytes = self
            .bytes(place, FRAME_HEADER_BYTES)?
            .and_then(|bytes| bytes.first_chunk());
        Ok(bytes.and_then(|bytes| frame_header(bytes, salt, place)))
    }

    pub fn next(&mut self) -> Result<Frame<'_>, Error> {
        let (place, end) = (self.place, self.file.len());
        if place == end || (self.begins_with_zeros(place)? && self.content_end(place)? == place) {
            return Ok(Frame::End);
        }
        let Some((len, crc)) = self.header(place)? else {
            let torn = !self.frame_follows(place)?;
            return Ok(Frame::Bad {
                place,
                why: "there is no valid frame header",
                torn,
            });
        };
        let payload = place + FRAME_HEADER_BYTES as u64;
        let next = payload + len as u64;
        if next > end {
            return Ok(Frame::Bad {
                place,
                why: "the frame is cut off",
                torn: true,
            });
        }
        let good = self
            .bytes(payload, len)?
            .is_some_and(|bytes| crc32fast::hash(bytes) == crc);
        if !good {
            // Only the last frame may never have reached the disk: one is durable before the next is begun.
            let torn = next == end || !self.frame_follows(next - 1)?;
            return Ok(Frame::Bad {
                place,
                why: "the frame does not match its checksum",
                torn,
            });
        }
        self.place = next;
        let bytes = self.bytes(payload, len)?.unwrap_or_default();
        Ok(Frame::Good {
            place: payload,
            payload: bytes,
        })
    }

    /// Whether there are only zeros where a frame would have its header.
    fn begins_with_zeros(&mut self, place: u64) -> Result<bool, Error> {
        let header = self.bytes(place, FRAME_HEADER_BYTES)?;
        Ok(header.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0)))
    }

    /// Where the zeros begin that the file ends with, but not before `place`.
    fn content_end(&self, place: u64) -> Result<u64, Error> {
        let mut end = self.file.len();
        let mut piece = vec![0; (end - place).min(ZEROS_READ_BYTES) as usize];
        while end > place {
            let len = (end - place).min(ZEROS_READ_BYTES);
            let piece = &mut piece[..len as usize];
            let outcome = self.file.file.read_exact_at(piece, end - len);
            outcome.map_err(|e| failed("cannot read", &self.file.path, e))?;
            if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
                return Ok(end - len + last as u64 + 1);
            }
            end -= len;
        }
        Ok(place)
    }

    /// Whether a frame begins somewhere after `place`. Then what is at `place` was durable once.
    fn frame_follows(&mut self, place: u64) -> Result<bool, Error> {
        // No frame begins in the zeros at the end.
        let end = self.content_end(place)?;
        if end - place > (super::format::MAX_FRAME_BYTES + FRAME_HEADER_BYTES) as u64 {
            return Ok(true);
        }
        for later in place + 1..end {
            let Some((len, crc)) = self.header(later)? else {
                continue;
            };
            let payload = later + FRAME_HEADER_BYTES as u64;
            match self.bytes(payload, len)? {
                None => return Ok(true),
                Some(bytes) if len > 0 && crc32fast::hash(bytes) == crc => return Ok(true),
                Some(_) => {}
            }
        }
        Ok(false)
    }
}
