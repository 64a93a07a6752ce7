//! A disk in memory that distinguishes what is durable from what is only in the page cache.
//!
//! A power cut keeps any subset of the writes that were not synced, by sectors, torn and in any order, and any subset
//! of the directory operations that were not synced. A failed fsync leaves pages clean, whether they were written or
//! not. Everything that is left to chance follows from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::TryLockError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

/// What a disk writes whole or not at all.
const SECTOR_BYTES: u64 = 512;

/// SplitMix64.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A defect in the order of the engine's operations, injected between the engine and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    SkipDirectorySync,
    AcknowledgeBeforeSync,
    RenameBeforeSync,
    RetryFailedSync,
    ForgetCut,
    /// A rewrite of what the page cache has already is left out, and so is an fsync after it.
    TrustPageCache,
}

#[derive(Clone)]
enum Pending {
    Write { place: u64, bytes: Vec<u8> },
    Cut(u64),
}

#[derive(Clone, Default)]
struct Inode {
    /// What a read sees.
    cached: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Clone)]
enum NameOp {
    Link(PathBuf, Node),
    Rename(PathBuf, PathBuf, Node),
    Remove(PathBuf),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Node {
    Dir,
    File(usize),
}

type Names = BTreeMap<PathBuf, Node>;

#[derive(Clone)]
struct State {
    inodes: Vec<Inode>,
    names: Names,
    durable_names: Names,
    pending_names: Vec<NameOp>,
    locked: BTreeSet<usize>,
    random: Random,
    room: Option<u64>,
    failing_syncs: u32,
    failing_dir_syncs: u32,
    cuts_fail: bool,
    syncs: u64,
    defect: Option<Defect>,
    /// Operations until the process is killed.
    left: Option<u64>,
}

type Observer = Arc<dyn Fn(&SimulatedDisk) + Send + Sync>;

pub struct SimulatedDisk {
    state: Mutex<State>,
    observer: Mutex<Option<Observer>>,
}

pub struct SimulatedFile {
    disk: Arc<SimulatedDisk>,
    inode: usize,
}

fn overwrite(content: &mut Vec<u8>, place: u64, bytes: &[u8]) {
    let (start, end) = (place as usize, place as usize + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(bytes);
}

fn apply_name(names: &mut Names, op: &NameOp) {
    match op {
        NameOp::Link(path, node) => drop(names.insert(path.clone(), *node)),
        NameOp::Rename(from, to, node) => {
            names.remove(from);
            names.insert(to.clone(), *node);
        }
        NameOp::Remove(path) => drop(names.remove(path)),
    }
}

impl NameOp {
    fn dir(&self) -> Option<&Path> {
        match self {
            NameOp::Link(path, _) | NameOp::Rename(_, path, _) | NameOp::Remove(path) => path.parent(),
        }
    }
}

impl Inode {
    /// What may be on the disk after the pending operations were on their way to it.
    fn landed(&self, random: &mut Random) -> Vec<u8> {
        let mut content = self.durable.clone();
        // From nothing to everything, most often something in between.
        let keep = random.below(5);
        for pending in &self.pending {
            match pending {
                Pending::Cut(len) if random.below(4) < keep => content.resize(*len as usize, 0),
                Pending::Cut(_) => {}
                Pending::Write { place, bytes } => {
                    let (mut at, end) = (*place, place + bytes.len() as u64);
                    while at < end {
                        let next = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
                        if random.below(4) < keep {
                            let mut sector = bytes[(at - place) as usize..(next - place) as usize].to_vec();
                            // Only in the tail: a sector that is overwritten has the old bytes or the new ones.
                            if at >= self.durable.len() as u64 && keep < 4 && random.one_in(16) {
                                let bit = random.below(sector.len() as u64 * 8) as usize;
                                sector[bit / 8] ^= 1 << (bit % 8);
                            }
                            overwrite(&mut content, at, &sector);
                        }
                        at = next;
                    }
                    // The length can be ahead of the content.
                    if random.below(8) < keep && content.len() < end as usize {
                        content.resize(end as usize, 0);
                    }
                }
            }
        }
        content
    }
}

impl SimulatedDisk {
    pub fn new(seed: u64) -> Arc<Self> {
        let root = Names::from([(PathBuf::from("/"), Node::Dir)]);
        Arc::new(SimulatedDisk {
            state: Mutex::new(State {
                inodes: Vec::new(),
                names: root.clone(),
                durable_names: root,
                pending_names: Vec::new(),
                locked: BTreeSet::new(),
                random: Random(seed),
                room: None,
                failing_syncs: 0,
                failing_dir_syncs: 0,
                cuts_fail: false,
                syncs: 0,
                defect: None,
                left: None,
            }),
            observer: Mutex::new(None),
        })
    }

    /// Called before every operation that changes something.
    pub fn observe(&self, observer: Option<Observer>) {
        *self.observer.lock() = observer;
    }

    pub fn make(&self, defect: Defect) {
        self.state.lock().defect = Some(defect);
    }

    /// Bytes that can still be written; `None` is no limit.
    pub fn set_room(&self, room: Option<u64>) {
        self.state.lock().room = room;
    }

    pub fn room(&self) -> Option<u64> {
        self.state.lock().room
    }

    pub fn fail_syncs(&self, syncs: u32) {
        self.state.lock().failing_syncs = syncs;
    }

    pub fn fail_dir_syncs(&self, syncs: u32) {
        self.state.lock().failing_dir_syncs = syncs;
    }

    pub fn fail_cuts(&self, fail: bool) {
        self.state.lock().cuts_fail = fail;
    }

    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// The process is killed after so many operations; `None`: it runs again, the page cache is as it was.
    pub fn kill_after(&self, operations: Option<u64>) {
        let mut state = self.state.lock();
        state.left = operations;
        state.locked.clear();
    }

    pub fn is_killed(&self) -> bool {
        self.state.lock().left == Some(0)
    }

    /// Another disk, as this one may be after a power cut now.
    pub fn after_power_cut(&self, seed: u64) -> Arc<Self> {
        let mut state = self.state.lock().clone();
        let mut random = Random(seed);
        for inode in &mut state.inodes {
            inode.durable = inode.landed(&mut random);
            inode.cached.clone_from(&inode.durable);
            inode.pending.clear();
        }
        let keep = random.below(5);
        // In order, as with a journal of metadata, or any of them.
        let ordered = random.one_in(2);
        for op in &state.pending_names {
            if random.below(4) < keep {
                apply_name(&mut state.durable_names, op);
            } else if ordered {
                break;
            }
        }
        let names = state.durable_names.clone();
        state.durable_names.retain(|path, _| {
            path.ancestors()
                .skip(1)
                .all(|ancestor| names.get(ancestor) == Some(&Node::Dir))
        });
        state.names.clone_from(&state.durable_names);
        state.pending_names.clear();
        state.locked.clear();
        (state.room, state.failing_syncs, state.failing_dir_syncs) = (None, 0, 0);
        (state.cuts_fail, state.left, state.random) = (false, None, random);
        Arc::new(SimulatedDisk {
            state: Mutex::new(state),
            observer: Mutex::new(None),
        })
    }

    /// What is about to be changed: an error if the process is not there any more.
    fn step(&self) -> io::Result<()> {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer(self);
        }
        match &mut self.state.lock().left {
            Some(0) => Err(io::Error::other("the process was killed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn name(&self, op: NameOp) {
        let mut state = self.state.lock();
        apply_name(&mut state.names, &op);
        state.pending_names.push(op);
    }

    pub fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.step()?;
        if self.exists(dir) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.name(NameOp::Link(dir.to_path_buf(), Node::Dir));
        Ok(())
    }

    pub fn exists(&self, path: &Path) -> bool {
        self.state.lock().names.contains_key(path)
    }

    pub fn list(&self, dir: &Path) -> Vec<PathBuf> {
        let state = self.state.lock();
        let inside = state.names.keys().filter(|path| path.parent() == Some(dir));
        inside.cloned().collect()
    }

    /// The bytes of all files that have a name.
    pub fn bytes(&self) -> u64 {
        let state = self.state.lock();
        let bytes = state.names.values().map(|node| match node {
            Node::Dir => 0,
            Node::File(inode) => state.inodes[*inode].cached.len() as u64,
        });
        bytes.sum()
    }

    pub fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.step()?;
        let mut state = self.state.lock();
        if state.defect == Some(Defect::SkipDirectorySync) {
            return Ok(());
        }
        if state.failing_dir_syncs > 0 {
            state.failing_dir_syncs -= 1;
            return Err(io::Error::other("the disk was removed"));
        }
        let pending = std::mem::take(&mut state.pending_names);
        let (synced, rest) = pending.into_iter().partition(|op| op.dir() == Some(dir));
        state.pending_names = rest;
        let synced: Vec<NameOp> = synced;
        for op in &synced {
            apply_name(&mut state.durable_names, op);
        }
        Ok(())
    }

    fn file(self: &Arc<Self>, inode: usize) -> SimulatedFile {
        SimulatedFile {
            disk: self.clone(),
            inode,
        }
    }

    pub fn create(self: &Arc<Self>, path: &Path) -> io::Result<SimulatedFile> {
        self.step()?;
        if let Ok(file) = self.open(path) {
            file.cut(0)?;
            return Ok(file);
        }
        let inode = {
            let mut state = self.state.lock();
            state.inodes.push(Inode::default());
            state.inodes.len() - 1
        };
        self.name(NameOp::Link(path.to_path_buf(), Node::File(inode)));
        Ok(self.file(inode))
    }

    pub fn open(self: &Arc<Self>, path: &Path) -> io::Result<SimulatedFile> {
        match self.state.lock().names.get(path) {
            Some(Node::File(inode)) => Ok(self.file(*inode)),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub fn open_lock(self: &Arc<Self>, path: &Path) -> io::Result<SimulatedFile> {
        self.open(path).or_else(|_| self.create(path))
    }

    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        let node = self.state.lock().names.get(from).copied();
        let node = node.ok_or(io::ErrorKind::NotFound)?;
        self.name(NameOp::Rename(from.to_path_buf(), to.to_path_buf(), node));
        Ok(())
    }

    pub fn remove(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        if !self.exists(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.name(NameOp::Remove(path.to_path_buf()));
        Ok(())
    }
}

impl SimulatedFile {
    pub fn len(&self) -> u64 {
        self.disk.state.lock().inodes[self.inode].cached.len() as u64
    }

    pub fn read_exact_at(&self, bytes: &mut [u8], place: u64) -> io::Result<()> {
        let state = self.disk.state.lock();
        let cached = &state.inodes[self.inode].cached;
        let found = cached.get(place as usize..place as usize + bytes.len());
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    pub fn write_all_at(&self, bytes: &[u8], place: u64) -> io::Result<()> {
        self.disk.step()?;
        let mut state = self.disk.state.lock();
        let room = state.room.unwrap_or(u64::MAX).min(bytes.len() as u64);
        if let Some(left) = &mut state.room {
            *left -= room;
        }
        let (written, all) = (&bytes[..room as usize], bytes.len());
        let skip = state.defect == Some(Defect::TrustPageCache);
        let inode = &mut state.inodes[self.inode];
        let start = place as usize;
        if !(skip && inode.cached.get(start..start + written.len()) == Some(written)) {
            overwrite(&mut inode.cached, place, written);
            inode.pending.push(Pending::Write {
                place,
                bytes: written.to_vec(),
            });
        }
        if written.len() < all {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub fn sync(&self) -> io::Result<()> {
        self.disk.step()?;
        let mut state = self.disk.state.lock();
        let state = &mut *state;
        state.syncs += 1;
        let inode = &mut state.inodes[self.inode];
        if state.failing_syncs > 0 {
            state.failing_syncs -= 1;
            // Some of it is on the disk, and no page is dirty any more, though reads see them still. The length is
            // metadata: the journal has it yet to write.
            inode.durable = inode.landed(&mut state.random);
            inode.pending.retain(|pending| matches!(pending, Pending::Cut(_)));
            if state.defect == Some(Defect::RetryFailedSync) {
                return Ok(());
            }
            return Err(io::Error::other("the disk was removed"));
        }
        match state.defect {
            Some(Defect::AcknowledgeBeforeSync) => {}
            Some(Defect::RenameBeforeSync)
                if state.names.iter().any(|(path, node)| {
                    *node == Node::File(self.inode) && path.extension().is_some_and(|e| e == "tmp")
                }) => {}
            _ => {
                let pending = std::mem::take(&mut inode.pending);
                for pending in pending {
                    match pending {
                        Pending::Write { place, bytes } => overwrite(&mut inode.durable, place, &bytes),
                        Pending::Cut(len) => inode.durable.resize(len as usize, 0),
                    }
                }
                inode.durable.resize(inode.cached.len(), 0);
            }
        }
        Ok(())
    }

    pub fn cut(&self, len: u64) -> io::Result<()> {
        self.disk.step()?;
        let mut state = self.disk.state.lock();
        if state.cuts_fail {
            return Err(io::Error::other("the disk was removed"));
        }
        if state.defect == Some(Defect::ForgetCut) {
            return Ok(());
        }
        let inode = &mut state.inodes[self.inode];
        let freed = (inode.cached.len() as u64).saturating_sub(len);
        inode.cached.resize(len as usize, 0);
        inode.pending.push(Pending::Cut(len));
        if let Some(left) = &mut state.room {
            *left += freed;
        }
        Ok(())
    }

    pub fn try_lock(&self) -> Result<(), TryLockError> {
        match self.disk.state.lock().locked.insert(self.inode) {
            true => Ok(()),
            false => Err(TryLockError::WouldBlock),
        }
    }

    pub fn unlock(&self) -> io::Result<()> {
        self.disk.state.lock().locked.remove(&self.inode);
        Ok(())
    }
}
