//! Opening a data directory: from files to an index.
//!
//! The files are one base (none at first) and the logs after it. Only the last log may end in the middle of a frame: that is
//! the group of transactions that was being written when the process died, and nobody was told it had succeeded. It is
//! cut off. Anything else that does not fit is reported and nothing is changed: the directory then needs a person.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::State;
use super::file::{
    DataFile, Disk, Draft, Frame, Frames, Location, corrupt, failed, file_name, salt, sync_dir,
};
use super::format::{Decoder, FileKind, HEADER_BYTES, Header, Record, Span};
use crate::index::Version;
use crate::{Error, Revision};

/// Holds the directory against other processes until it is dropped.
pub(super) struct DirLock {
    file: File,
    path: PathBuf,
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing alone would not do while a child process that is just being started still has the file open.
        if let Err(error) = self.file.unlock() {
            tracing::warn!(file = %self.path.display(), %error, "cannot unlock");
        }
    }
}

/// Makes the directory if it is missing, and takes it.
pub(super) fn lock(dir: &Path) -> Result<DirLock, Error> {
    if !dir.exists() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|e| failed("cannot create", dir, e))?;
        // What is durable in a directory is worth nothing if the directory itself is not.
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent)?;
        }
    }
    let path = dir.join("LOCK");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path);
    let file = file.map_err(|e| failed("cannot open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(DirLock { file, path }),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Locked {
            path: dir.display().to_string(),
        }),
        Err(fs::TryLockError::Error(e)) => Err(failed("cannot lock", &path, e)),
    }
}

/// What a directory holds.
#[derive(Default)]
struct Listing {
    bases: BTreeMap<u64, PathBuf>,
    logs: BTreeMap<u64, PathBuf>,
    unfinished: Vec<PathBuf>,
}

fn list(dir: &Path) -> Result<Listing, Error> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(dir).map_err(|e| failed("cannot read", dir, e))? {
        let path = entry.map_err(|e| failed("cannot read", dir, e))?.path();
        let (stem, extension) = (path.file_stem(), path.extension());
        let number = stem
            .and_then(|stem| stem.to_str())
            .and_then(|stem| stem.parse::<u64>().ok());
        match (number, extension.and_then(|extension| extension.to_str())) {
            (Some(number), Some("base")) => drop(listing.bases.insert(number, path)),
            (Some(number), Some("log")) => drop(listing.logs.insert(number, path)),
            (_, Some("tmp")) => listing.unfinished.push(path),
            _ => {}
        }
    }
    Ok(listing)
}

/// The index, and the log to append to.
pub(super) struct Loaded {
    pub state: State,
    pub log: Arc<DataFile>,
}

pub(super) fn load(dir: &Path, disk: &dyn Disk) -> Result<Loaded, Error> {
    let Listing {
        bases,
        mut logs,
        mut unfinished,
    } = list(dir)?;
    let mut state = State::new();
    let mut covered = 0;
    for (number, path) in bases.into_iter().rev() {
        if state.files.is_empty() {
            covered = number;
            load_base(&mut state, path)?;
        } else {
            unfinished.push(path);
        }
    }
    // A base replaces logs; a crash may have come between its creation and their removal.
    let later = logs.split_off(&(covered + 1));
    unfinished.extend(logs.into_values());

    let newest = later.keys().next_back().copied().unwrap_or(covered);
    let mut log = None;
    for (expected, (number, path)) in (covered + 1..).zip(later) {
        if number != expected {
            let missing = dir.join(file_name(FileKind::Log, expected));
            return Err(corrupt(
                &missing,
                "the file is missing, though later ones are there".into(),
            ));
        }
        log = load_log(&mut state, path, number, number == newest, disk)?;
    }
    for path in unfinished {
        fs::remove_file(&path).map_err(|e| failed("cannot remove", &path, e))?;
    }
    let log = match log {
        Some(log) => log,
        None => {
            let (number, begins) = (
                newest.max(covered + 1),
                (state.index.oldest(), state.index.revision()),
            );
            let log = create_log(dir, disk, state.next_id(), number, begins)?;
            state.add(log)
        }
    };
    sync_dir(dir)?;
    Ok(Loaded { state, log })
}

/// An empty log for what comes after `revision`.
pub(super) fn create_log(
    dir: &Path,
    disk: &dyn Disk,
    id: u32,
    number: u64,
    (oldest, revision): (Revision, Revision),
) -> Result<DataFile, Error> {
    let header = Header {
        kind: FileKind::Log,
        number,
        salt: salt(),
        oldest,
        revision,
    };
    Draft::new(disk, dir, header)?.finish(id)
}

fn location(file: &DataFile, place: u64, payload: &[u8], span: Span) -> Location {
    let value = &payload[span.start..span.start + span.len];
    Location {
        file: file.id,
        len: span.len as u32,
        offset: place + span.start as u64,
        crc: crc32fast::hash(value),
    }
}

fn check_number(file: &DataFile, number: u64) -> Result<(), Error> {
    match file.header.number {
        found if found == number => Ok(()),
        found => Err(corrupt(&file.path, format!("it calls itself number {found}"))),
    }
}

/// Calls `each` with every version in a base and where its value lies; stops at the first that `each` refuses.
pub(super) fn read_base(
    file: &DataFile,
    mut each: impl FnMut(Bytes, Version<Location>) -> Result<(), String>,
) -> Result<(), Error> {
    let mut frames = Frames::of(file);
    let (mut versions, mut ended) = (0, false);
    loop {
        let (place, payload) = match frames.next()? {
            Frame::Good { place, payload } => (place, payload),
            Frame::End if ended => return Ok(()),
            Frame::End => {
                return Err(corrupt(
                    &file.path,
                    format!("it ends early, at offset {}", file.len()),
                ));
            }
            Frame::Bad { place, why, .. } => {
                return Err(corrupt(&file.path, format!("{why} at offset {place}")));
            }
        };
        let mut decoder = Decoder::new(payload);
        let mut one = || -> Result<bool, String> {
            match decoder.record()? {
                None => return Ok(false),
                Some(Record::Version {
                    key,
                    numbers: [mod_revision, create_revision, version],
                    value,
                }) => {
                    versions += 1;
                    let value = value.map(|span| location(file, place, payload, span));
                    each(
                        key,
                        Version {
                            mod_revision,
                            create_revision,
                            version,
                            value,
                        },
                    )?;
                }
                Some(Record::End { versions: written }) if written == versions => ended = true,
                Some(other) => return Err(format!("there is a record that does not belong: {other:?}")),
            }
            Ok(true)
        };
        while one().map_err(|why| corrupt(&file.path, format!("{why} (frame at offset {place})")))? {}
    }
}

fn load_base(state: &mut State, path: PathBuf) -> Result<(), Error> {
    let number = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .and_then(|stem| stem.parse().ok());
    let file = DataFile::open(path.clone(), FileKind::Base, state.next_id())?;
    let file = file.ok_or_else(|| corrupt(&path, "it is shorter than its header".into()))?;
    check_number(&file, number.unwrap_or(0))?;
    let Header { oldest, revision, .. } = file.header;
    read_base(&file, |key, version| {
        if version.mod_revision > revision {
            return Err(format!(
                "there is a version of revision {}, after {revision}",
                version.mod_revision
            ));
        }
        state.place(key, version);
        Ok(())
    })?;
    state.index.begin(oldest, revision);
    state.add(file);
    Ok(())
}

/// The log, if it can be appended to; `None` if there was nothing in it yet and it has to be made again.
fn load_log(
    state: &mut State,
    path: PathBuf,
    number: u64,
    last: bool,
    disk: &dyn Disk,
) -> Result<Option<Arc<DataFile>>, Error> {
    let Some(file) = DataFile::open(path.clone(), FileKind::Log, state.next_id())? else {
        if !last {
            return Err(corrupt(&path, "it is shorter than its header".into()));
        }
        return Ok(None);
    };
    check_number(&file, number)?;
    if file.header.revision != state.index.revision() {
        let (begins, ends) = (file.header.revision, state.index.revision());
        return Err(corrupt(
            &path,
            format!("it begins after revision {begins}, what is before it ends at {ends}"),
        ));
    }
    state.index.compact(file.header.oldest);
    state.forget(usize::MAX);
    let mut frames = Frames::of(&file);
    let mut good = HEADER_BYTES as u64;
    loop {
        match frames.next()? {
            Frame::Good { place, payload } => {
                let applied = apply(state, &file, place, payload);
                applied.map_err(|why| corrupt(&path, format!("{why} (frame at offset {place})")))?;
                good = place + payload.len() as u64;
            }
            Frame::End => break,
            Frame::Bad {
                place,
                torn: true,
                why,
            } if last => {
                let lost_bytes = file.len() - place;
                tracing::warn!(
                    file = %path.display(), offset = place, lost_bytes, why,
                    "the last write was not finished when the process ended, nobody was told it had succeeded; it is cut off"
                );
                break;
            }
            Frame::Bad { place, why, .. } => {
                return Err(corrupt(
                    &path,
                    format!("{why} at offset {place}, and there is more after it"),
                ));
            }
        }
    }
    if good < file.len() {
        disk.cut(&file.file, good)
            .map_err(|e| failed("cannot cut", &path, e))?;
        disk.sync(&file.file)
            .map_err(|e| failed("cannot sync", &path, e))?;
        file.set_len(good);
    }
    Ok(Some(state.add(file)))
}

fn apply(state: &mut State, file: &DataFile, place: u64, payload: &[u8]) -> Result<(), String> {
    let mut decoder = Decoder::new(payload);
    let mut revision = decoder.u64()?;
    if revision != state.index.revision() + 1 {
        return Err(format!("revision {revision} follows {}", state.index.revision()));
    }
    while let Some(record) = decoder.record()? {
        match record {
            Record::Txn(ops) => {
                for (key, span) in ops {
                    let value = span.map(|span| location(file, place, payload, span));
                    state.write(key, revision, value);
                }
                revision += 1;
            }
            Record::Compaction(oldest) => {
                state.index.compact(oldest);
                state.forget(usize::MAX);
            }
            other => return Err(format!("there is a record that does not belong: {other:?}")),
        }
    }
    Ok(())
}
