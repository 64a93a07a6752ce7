//! Opening a data directory: from files to an index.
//!
//! The files are one base (none at first) and the logs after it. A log may end in zeros, which were to be overwritten. Only the last log
//! may end in the middle of a frame: that is the group of transactions that was being written when the process died, and none of them was
//! acknowledged. Both are cut off. What is read is made durable before any reader sees it. Any other inconsistency is an error and
//! nothing is changed: the directory then needs an administrator.

use std::collections::BTreeMap;
use std::fs::TryLockError;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::State;
use super::disk::{Disk, DiskFile};
use super::file::{DataFile, Draft, Frame, Frames, Location, corrupt, failed, file_name, salt, sync_dir};
use super::format::{Decoder, FileKind, FormatError, HEADER_BYTES, Header, Record, Span};
use crate::Error;
use crate::index::Version;

/// Holds the directory against other processes until it is dropped.
pub(super) struct DirLock {
    file: DiskFile,
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

/// Makes the directory and its missing parents.
fn create_dirs(disk: &Disk, dir: &Path) -> Result<(), Error> {
    let mut missing = Vec::new();
    for ancestor in dir.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        match disk.exists(ancestor) {
            Ok(true) => break,
            Ok(false) => missing.push(ancestor),
            Err(e) => return Err(failed("cannot create", dir, e)),
        }
    }
    for made in missing.into_iter().rev() {
        disk.create_dir(made)
            .map_err(|e| failed("cannot create", made, e))?;
    }
    Ok(())
}

/// Makes the directory durable in its parents: what is durable in it is worth nothing otherwise. The process that
/// created it may have died before that, so this is done before the first file is created and not with the directory.
fn sync_ancestors(disk: &Disk, dir: &Path) -> Result<(), Error> {
    for ancestor in dir.ancestors().skip(1) {
        let ancestor = match ancestor.as_os_str().is_empty() {
            true => Path::new("."),
            false => ancestor,
        };
        match disk.sync_dir(ancestor) {
            Ok(()) => {}
            // A process that may not read a directory has most likely not created what is in it; and some file systems
            // cannot sync directories.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported
                ) =>
            {
                tracing::warn!(dir = %ancestor.display(), %error, "cannot sync a directory above the store");
            }
            Err(error) => return Err(failed("cannot sync", ancestor, error)),
        }
    }
    Ok(())
}

/// Makes the directory if it is missing, and takes it.
pub(super) fn lock(disk: &Disk, dir: &Path) -> Result<DirLock, Error> {
    create_dirs(disk, dir)?;
    let path = dir.join("LOCK");
    let file = disk
        .open_lock(&path)
        .map_err(|e| failed("cannot open", &path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(DirLock { file, path }),
        Err(TryLockError::WouldBlock) => Err(Error::Locked {
            path: dir.display().to_string(),
        }),
        Err(TryLockError::Error(e)) => Err(failed("cannot lock", &path, e)),
    }
}

/// What a directory holds.
#[derive(Default)]
struct Listing {
    bases: BTreeMap<u64, PathBuf>,
    logs: BTreeMap<u64, PathBuf>,
    unfinished: Vec<PathBuf>,
}

fn list(disk: &Disk, dir: &Path) -> Result<Listing, Error> {
    let mut listing = Listing::default();
    for path in disk.list(dir).map_err(|e| failed("cannot read", dir, e))? {
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

pub(super) fn load(dir: &Path, disk: &Disk) -> Result<Loaded, Error> {
    let Listing {
        bases,
        mut logs,
        mut unfinished,
    } = list(disk, dir)?;
    if bases.is_empty() && logs.is_empty() {
        sync_ancestors(disk, dir)?;
    }
    let mut state = State::new();
    let mut covered = 0;
    for (number, path) in bases.into_iter().rev() {
        if state.files.is_empty() {
            covered = number;
            load_base(disk, &mut state, path)?;
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
        log = Some(load_log(&mut state, path, number, number == newest, disk)?);
    }
    // What replaces them has to be durable under its name before they go.
    sync_dir(disk, dir)?;
    for path in unfinished {
        disk.remove(&path)
            .map_err(|e| failed("cannot remove", &path, e))?;
    }
    let log = match log {
        Some(log) => log,
        None => {
            let header = Header {
                kind: FileKind::Log,
                number: newest.max(covered + 1),
                salt: salt(),
                oldest: state.index.oldest(),
                revision: state.index.revision(),
            };
            let log = Draft::new(disk, dir, header)?.finish(state.next_id())?;
            state.add(log)
        }
    };
    Ok(Loaded { state, log })
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

/// Calls `each` with every version in a base and where its value is; stops at the first error of `each`.
pub(super) fn read_base(
    file: &DataFile,
    mut each: impl FnMut(Bytes, Version<Location>) -> Result<(), FormatError>,
) -> Result<(), Error> {
    let mut frames = Frames::of(file);
    let (mut versions, mut is_complete) = (0, false);
    loop {
        let (place, payload) = match frames.next()? {
            Frame::Good { place, payload } => (place, payload),
            Frame::End if is_complete => return Ok(()),
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
        let mut one = || -> Result<bool, FormatError> {
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
                Some(Record::End { versions: written }) if written == versions => is_complete = true,
                Some(other) => return Err(FormatError::Misplaced(other)),
            }
            Ok(true)
        };
        while one().map_err(|why| corrupt(&file.path, format!("{why} (frame at offset {place})")))? {}
    }
}

fn load_base(disk: &Disk, state: &mut State, path: PathBuf) -> Result<(), Error> {
    let number = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .and_then(|stem| stem.parse().ok());
    let file = DataFile::open(disk, path.clone(), FileKind::Base, state.next_id())?;
    let file = file.ok_or_else(|| corrupt(&path, "it is shorter than its header".into()))?;
    check_number(&file, number.unwrap_or(0))?;
    let Header { oldest, revision, .. } = file.header;
    read_base(&file, |key, version| {
        if version.mod_revision > revision {
            return Err(FormatError::TooNew {
                found: version.mod_revision,
                newest: revision,
            });
        }
        state.place(key, version);
        Ok(())
    })?;
    state.index.begin(oldest, revision);
    state.add(file);
    Ok(())
}

/// Adds what is in the log; only the last one may end in the middle of a frame.
fn load_log(
    state: &mut State,
    path: PathBuf,
    number: u64,
    last: bool,
    disk: &Disk,
) -> Result<Arc<DataFile>, Error> {
    // It got its name when its header was durable, so no crash makes it shorter.
    let file = DataFile::open(disk, path.clone(), FileKind::Log, state.next_id())?
        .ok_or_else(|| corrupt(&path, "it is shorter than its header".into()))?;
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
    let mut last_frame = good;
    loop {
        match frames.next()? {
            Frame::Good { place, payload } => {
                let applied = apply(state, &file, place, payload);
                applied.map_err(|why| corrupt(&path, format!("{why} (frame at offset {place})")))?;
                last_frame = good;
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
                    "the last write was not finished when the process exited and was not acknowledged; it is cut off"
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
        file.file.cut(good).map_err(|e| failed("cannot cut", &path, e))?;
        file.set_len(good);
    }
    if last {
        make_durable(&file, last_frame)?;
    }
    Ok(state.add(file))
}

/// Makes the log durable as it was read. Its last frame may be in the page cache only: the process that wrote it may
/// have died before its fsync, or its fsync may have failed, after which the kernel takes the pages for clean. So it is
/// written again; a revision that a reader has seen must not be lost in a power cut.
fn make_durable(file: &DataFile, last_frame: u64) -> Result<(), Error> {
    let mut frame = vec![0; (file.len() - last_frame) as usize];
    let read = file.file.read_exact_at(&mut frame, last_frame);
    read.map_err(|e| failed("cannot read", &file.path, e))?;
    let written = file.file.write_all_at(&frame, last_frame);
    written.map_err(|e| failed("cannot write", &file.path, e))?;
    file.file.sync().map_err(|e| failed("cannot sync", &file.path, e))
}

fn apply(state: &mut State, file: &DataFile, place: u64, payload: &[u8]) -> Result<(), FormatError> {
    let mut decoder = Decoder::new(payload);
    let mut revision = decoder.u64()?;
    if revision != state.index.revision() + 1 {
        return Err(FormatError::Gap {
            found: revision,
            newest: state.index.revision(),
        });
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
            other => return Err(FormatError::Misplaced(other)),
        }
    }
    Ok(())
}
