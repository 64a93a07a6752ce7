//! Frees disk space: writes what is still needed of the base and the finished logs into a new base, concurrently with
//! the writer, which continues with a new log.
//!
//! The new base counts from the moment it gets its name. Before that a crash leaves the old files, after that they
//! are removed, now or when the store is opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::disk::Disk;
use super::file::{DataFile, Draft, failed, salt, sync_dir};
use super::format::{Encoder, FileKind, Header, begin_frame, end_frame};
use super::load::read_base;
use super::{Files, Shared, read_pair};
use crate::Error;

/// When a rewrite starts, its step sizes and the log's; tests use smaller ones.
pub(super) struct RewriteLimits {
    /// Bytes that are not worth a rewrite.
    pub waste_bytes: u64,
    /// Keys read under one lock.
    pub keys: usize,
    /// A frame of a base is complete at this size.
    pub frame_bytes: usize,
    /// How many zeros are written after the end of a log at once: see [`super::writer`].
    pub log_bytes: usize,
}

pub(super) const LIMITS: RewriteLimits = RewriteLimits {
    waste_bytes: 4 << 20,
    keys: 256,
    frame_bytes: 1 << 20,
    log_bytes: 256 << 10,
};

pub(super) struct Rewrite {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// Which files are replaced.
pub(super) struct Plan {
    header: Header,
    old: Files,
}

impl Rewrite {
    /// The plan, if it is worthwhile: if it frees a third of the bytes or more. So the bytes rewritten stay in
    /// proportion to the bytes written, and the files to their content. Only the writer may call it: it creates the
    /// next log, which from then on is the only one that may be written to.
    pub fn plan(
        shared: &Shared,
        disk: &Disk,
        log: &DataFile,
    ) -> Result<Option<(Plan, Arc<DataFile>)>, Error> {
        let (old, oldest, revision, id) = {
            let mut state = shared.state.write();
            let waste = state.file_bytes().saturating_sub(state.live_bytes);
            if waste < shared.limits.waste_bytes + state.live_bytes / 2 {
                return Ok(None);
            }
            (
                state.files.clone(),
                state.index.oldest(),
                state.index.revision(),
                state.next_id(),
            )
        };
        let number = log.header.number;
        let header = Header {
            kind: FileKind::Log,
            number: number + 1,
            salt: salt(),
            oldest,
            revision,
        };
        let log = Draft::new(disk, &shared.dir, header)?.finish(id)?;
        let log = shared.state.write().add(log);
        let header = Header {
            kind: FileKind::Base,
            number,
            salt: salt(),
            oldest,
            revision,
        };
        Ok(Some((Plan { header, old }, log)))
    }

    pub fn start(plan: Plan, shared: Arc<Shared>, disk: Disk) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("knarr-rewrite".into());
        let thread = thread.spawn(move || match run(&shared, &disk, &plan, &stopped) {
            Ok(true) => tracing::debug!(base = plan.header.number, "reclaimed space"),
            Ok(false) => tracing::debug!("stopped reclaiming space"),
            Err(error) => tracing::warn!(%error, "cannot reclaim space; all data is in the older files"),
        });
        let thread = thread.map_err(|e| Error::Io(Arc::new(e)))?;
        Ok(Rewrite { stop, thread })
    }

    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Makes it end soon, wherever it is.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.join().is_err() {
            tracing::error!("the thread that reclaims space had panicked");
        }
    }
}

/// `false` if it was stopped.
pub(super) fn run(shared: &Shared, disk: &Disk, plan: &Plan, stop: &AtomicBool) -> Result<bool, Error> {
    let Some(draft) = write(shared, disk, plan, stop)? else {
        return Ok(false);
    };
    let id = shared.state.write().next_id();
    let base = draft.finish(id)?;
    let base = shared.state.write().add(base);
    // From here on a restart uses the new base. This process reads from the old files until it knows the new places.
    let mut moved = Vec::new();
    let relocate = |moved: &mut Vec<(bytes::Bytes, u64, super::Location)>| {
        let mut state = shared.state.write();
        for (key, mod_revision, location) in moved.drain(..) {
            // A version that was compacted meanwhile is not there any more.
            if let Some(value) = state.index.value_mut(&key, mod_revision) {
                *value = location;
            }
        }
    };
    read_base(&base, |key, version| {
        if let Some(location) = version.value {
            moved.push((key, version.mod_revision, location));
        }
        if moved.len() >= shared.limits.keys {
            relocate(&mut moved);
        }
        Ok(())
    })?;
    relocate(&mut moved);
    {
        let mut state = shared.state.write();
        let kept = state
            .files
            .iter()
            .filter(|file| plan.old.iter().all(|old| old.id != file.id));
        state.files = kept.cloned().collect();
    }
    for old in plan.old.iter() {
        disk.remove(&old.path)
            .map_err(|e| failed("cannot remove", &old.path, e))?;
    }
    sync_dir(disk, &shared.dir)?;
    Ok(true)
}

fn write<'a>(
    shared: &Shared,
    disk: &'a Disk,
    plan: &Plan,
    stop: &AtomicBool,
) -> Result<Option<Draft<'a>>, Error> {
    let mut draft = Draft::new(disk, &shared.dir, plan.header)?;
    let mut buffer = Vec::new();
    let mut frame = begin_frame(&mut buffer);
    let mut versions = 0;
    let mut last = None;
    loop {
        let walked = {
            let state = shared.state.read();
            state
                .index
                .walk(last.as_ref(), shared.limits.keys, plan.header.revision)
        };
        let done = walked.len() < shared.limits.keys;
        for (key, history) in walked {
            for version in &history {
                let pair = read_pair(&plan.old, &key, version)?;
                let numbers = [version.mod_revision, version.create_revision, version.version];
                let value = version.value.map(|_| &pair.value[..]);
                Encoder { buffer: &mut buffer }.version(&key, numbers, value);
                versions += 1;
                if buffer.len() >= shared.limits.frame_bytes {
                    end_frame(&mut buffer, frame, plan.header.salt, draft.len);
                    draft.append(&buffer)?;
                    buffer.clear();
                    frame = begin_frame(&mut buffer);
                }
            }
            last = Some(key);
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if done {
            break;
        }
    }
    Encoder { buffer: &mut buffer }.end(versions);
    end_frame(&mut buffer, frame, plan.header.salt, draft.len);
    draft.append(&buffer)?;
    Ok(Some(draft))
}
