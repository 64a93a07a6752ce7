//! Histories of the engine's own code on a simulated disk, with a crash at every point: what was acknowledged or read
//! before exists afterwards, and a transaction exists as a whole or not at all.
//!
//! All on one thread and from a seed. Before every operation that changes the disk, the observer takes the disk as a
//! power cut would leave it, opens that and compares it with the model.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, oneshot};

use super::DIR;
use crate::embedded::disk::Disk;
use crate::embedded::disk::simulated::{Defect, Random, SimulatedDisk};
use crate::embedded::rewrite::{self, RewriteLimits};
use crate::embedded::writer::{Request, Writer};
use crate::embedded::{Shared, State, load, read_pair};
use crate::hub::Hub;
use crate::{Compare, Error, KeyRange, KeyValue, Op, Range, Revision, Txn, TxnResult};

type Pairs = BTreeMap<Bytes, KeyValue>;

/// What the store has to hold.
struct Model {
    /// What there is at each revision, from 1 on.
    states: Vec<Pairs>,
    oldest: Revision,
    /// What the group makes of it that is being written, or of which it is not known whether it was.
    in_flight: Vec<Pairs>,
    in_flight_oldest: Revision,
    random: Random,
    /// Power cuts tried.
    cuts: u64,
    violation: Option<String>,
}

impl Model {
    fn revision(&self) -> Revision {
        self.states.len() as Revision
    }

    fn at(&self, revision: Revision) -> &Pairs {
        let i = revision as usize - 1;
        self.states
            .get(i)
            .unwrap_or_else(|| &self.in_flight[i - self.states.len()])
    }

    fn newest(&self) -> &Pairs {
        self.in_flight
            .last()
            .or(self.states.last())
            .expect("there is a revision 1")
    }

    /// What is wrong with a store that was opened.
    fn check(&self, state: &State) -> Result<(), String> {
        let (revision, oldest) = (state.index.revision(), state.index.oldest());
        let most = self.revision() + self.in_flight.len() as Revision;
        if !(self.revision()..=most).contains(&revision) {
            let acknowledged = self.revision();
            return Err(format!("revision {revision}, not {acknowledged} to {most}"));
        }
        if oldest != self.oldest && oldest != self.in_flight_oldest {
            return Err(format!("the oldest revision is {oldest}, not {}", self.oldest));
        }
        for at in [oldest, oldest.midpoint(revision), revision] {
            let range = Range {
                keys: KeyRange::prefix(""),
                at: Some(at),
                ..Range::default()
            };
            let found = state.index.range(&range).map_err(|e| e.to_string())?;
            let pairs = found
                .entries
                .iter()
                .map(|(key, version)| read_pair(&state.files, key, version).map(|pair| (key.clone(), pair)));
            let pairs: Pairs = pairs.collect::<Result<_, Error>>().map_err(|e| e.to_string())?;
            if pairs != *self.at(at) {
                return Err(format!("at {at} there is {pairs:?}, not {:?}", self.at(at)));
            }
        }
        let (changes, _) = state
            .index
            .changes_since(&KeyRange::prefix(""), oldest.max(2), usize::MAX)
            .map_err(|e| e.to_string())?;
        let received: Vec<(Revision, Bytes)> = changes
            .into_iter()
            .map(|change| (change.now.mod_revision, change.key))
            .collect();
        let mut expected = Vec::new();
        for at in oldest.max(2)..=revision {
            let (before, now) = (self.at(at - 1), self.at(at));
            let mut keys: Vec<&Bytes> = before.keys().chain(now.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            let changed = keys.into_iter().filter(|key| before.get(*key) != now.get(*key));
            expected.extend(changed.map(|key| (at, key.clone())));
        }
        let mut sorted = received;
        sorted.sort_unstable();
        if sorted != expected {
            return Err(format!("changes are {sorted:?}, not {expected:?}"));
        }
        Ok(())
    }

    /// Takes what was found for what there is.
    fn settle(&mut self, state: &State) -> Result<(), String> {
        self.check(state)?;
        let kept = state.index.revision() as usize - self.states.len();
        self.states.extend(self.in_flight.drain(..).take(kept));
        self.oldest = state.index.oldest();
        self.in_flight_oldest = self.oldest;
        Ok(())
    }
}

fn opened(disk: &Arc<SimulatedDisk>) -> Result<load::Loaded, Error> {
    let disk = Disk::Simulated(disk.clone());
    let _lock = load::lock(&disk, Path::new(DIR))?;
    load::load(Path::new(DIR), &disk)
}

/// Opens what a power cut leaves, sometimes with another power cut while it is opened.
fn cut_power(disk: &SimulatedDisk, model: &mut Model) -> Result<(), String> {
    model.cuts += 1;
    let mut image = disk.after_power_cut(model.random.below(u64::MAX));
    if model.random.one_in(4) {
        image.kill_after(Some(model.random.below(8)));
        // Whether that was enough to open it is all the same.
        drop(opened(&image));
        image = image.after_power_cut(model.random.below(u64::MAX));
    }
    let loaded = opened(&image).map_err(|e| format!("it does not open: {e}"))?;
    model.check(&loaded.state)
}

struct History {
    disk: Arc<SimulatedDisk>,
    model: Arc<Mutex<Model>>,
    random: Random,
}

impl History {
    fn draw_txn(&mut self, pairs: &Pairs, revision: Revision) -> (Txn, Option<Pairs>) {
        let mut now = pairs.clone();
        let (mut ops, mut compares) = (Vec::new(), Vec::new());
        let mut changed = false;
        for k in 0..6u8 {
            if !self.random.one_in(3) {
                continue;
            }
            let key = Bytes::from(format!("k{k}"));
            if self.random.one_in(4) {
                let is = pairs.get(&key).map_or(0, |pair| pair.mod_revision);
                compares.push(Compare::ModRevision { key: key.clone(), is });
            }
            if self.random.one_in(4) {
                changed |= now.remove(&key).is_some();
                ops.push(Op::Delete { key });
                continue;
            }
            let len = [10, 600, 1500][self.random.below(3) as usize];
            let value = Bytes::from(vec![self.random.below(256) as u8; len]);
            let before = pairs.get(&key);
            let pair = KeyValue {
                key: key.clone(),
                value: value.clone(),
                create_revision: before.map_or(revision, |pair| pair.create_revision),
                mod_revision: revision,
                version: before.map_or(1, |pair| pair.version + 1),
            };
            now.insert(key.clone(), pair);
            changed = true;
            ops.push(Op::Put { key, value });
        }
        (Txn { compares, ops }, changed.then_some(now))
    }

    /// One group of several writers, and what they are answered.
    fn group(&mut self, writer: &mut Writer, broken: &mut bool) -> Result<(), String> {
        let (mut requests, mut txns, mut compactions) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..=self.random.below(3) {
            let (pairs, revision) = {
                let model = self.model.lock();
                let revision = model.revision() + model.in_flight.len() as Revision;
                (model.newest().clone(), revision)
            };
            if self.random.one_in(6) {
                let oldest = revision.saturating_sub(self.random.below(5)).max(1);
                let (to, answer) = oneshot::channel();
                requests.push(Request::Compact(oldest, to));
                compactions.push(answer);
                let mut model = self.model.lock();
                if !*broken {
                    model.in_flight_oldest = model.in_flight_oldest.max(oldest);
                }
                continue;
            }
            let (txn, now) = self.draw_txn(&pairs, revision + 1);
            let (to, answer) = oneshot::channel();
            requests.push(Request::Txn(txn, to));
            let expected = revision + Revision::from(now.is_some());
            txns.push((answer, expected));
            if !*broken {
                self.model.lock().in_flight.extend(now);
            }
        }
        writer.commit(&mut requests.into_iter());
        let mut failure = None;
        for (mut answer, expected) in txns {
            match answer.try_recv().map_err(|e| format!("no answer: {e}"))? {
                // A store that is only read still answers what needs no write.
                Ok(TxnResult::Committed { revision } | TxnResult::Failed { revision, .. })
                    if *broken && revision == self.model.lock().revision() => {}
                Ok(TxnResult::Committed { revision }) if revision == expected && !*broken => {}
                Ok(other) => return Err(format!("{other:?} instead of revision {expected}")),
                Err(error) => failure = Some(error),
            }
        }
        for mut answer in compactions {
            if let Err(error) = answer.try_recv().map_err(|e| format!("no answer: {e}"))? {
                failure = Some(error);
            }
        }
        let mut model = self.model.lock();
        let model = &mut *model;
        match failure {
            _ if *broken => {}
            None => {
                model.states.append(&mut model.in_flight);
                model.oldest = model.in_flight_oldest;
            }
            // There is no client to answer.
            Some(_) if self.disk.is_killed() => {}
            Some(Error::NoSpace(_) | Error::Io(_)) => {
                model.in_flight.clear();
                model.in_flight_oldest = model.oldest;
            }
            Some(Error::Unavailable(_)) => *broken = true,
            Some(other) => return Err(format!("not an error of a disk: {other}")),
        }
        Ok(())
    }

    fn fault(&mut self) {
        match self.random.below(24) {
            0 => self.disk.fail_syncs(1 + self.random.below(2) as u32),
            1 => self.disk.set_room(Some(self.random.below(4000))),
            2 => self.disk.fail_cuts(true),
            3 => self.disk.fail_dir_syncs(1 + self.random.below(2) as u32),
            4..8 => self.heal(),
            _ => {}
        }
    }

    fn heal(&self) {
        self.disk.fail_syncs(0);
        self.disk.fail_dir_syncs(0);
        self.disk.set_room(None);
        self.disk.fail_cuts(false);
    }

    /// From one opening to the process' end.
    fn life(&mut self) -> Result<(), String> {
        self.heal();
        let killed = self.random.one_in(2);
        self.disk.kill_after(killed.then(|| self.random.below(80)));
        let loaded = match opened(&self.disk) {
            Ok(loaded) => loaded,
            Err(_) if self.disk.is_killed() => return Ok(()),
            Err(error) => return Err(format!("it does not open again: {error}")),
        };
        self.model.lock().settle(&loaded.state)?;
        let shared = Arc::new(Shared {
            dir: DIR.into(),
            hub: Hub::new(loaded.state.index.revision()),
            state: RwLock::new(loaded.state),
            limits: RewriteLimits {
                waste_bytes: 3000,
                keys: 2,
                frame_bytes: 1000,
                log_bytes: 3000,
            },
        });
        let disk = Disk::Simulated(self.disk.clone());
        let (_requests, receiver) = mpsc::channel(1);
        let mut writer = Writer::new(shared.clone(), disk.clone(), loaded.log, receiver);
        let mut broken = false;
        for _ in 0..16 {
            self.fault();
            self.group(&mut writer, &mut broken)?;
            while writer.has_forgettable() {
                if writer.forget()
                    && let Some(plan) = writer.plan_rewrite()
                {
                    let stop = AtomicBool::new(self.random.one_in(8));
                    // Its errors are only logged, as in the thread: all data is in the older files.
                    drop(rewrite::run(&shared, &disk, &plan, &stop));
                }
            }
            broken |= writer.is_broken();
            if self.disk.is_killed() {
                break;
            }
            // A reader sees what was acknowledged, no more and no less.
            let model = self.model.lock();
            let state = shared.state.read();
            if state.index.revision() != model.revision() {
                return Err(format!("readers see revision {}", state.index.revision()));
            }
            model.check(&state)?;
        }
        Ok(())
    }
}

/// Power cuts that were tried, or what is wrong.
fn history(seed: u64, defect: Option<Defect>) -> Result<u64, String> {
    let disk = SimulatedDisk::new(seed);
    if let Some(defect) = defect {
        disk.make(defect);
    }
    let mut random = Random(seed ^ 0x5eed);
    let model = Arc::new(Mutex::new(Model {
        states: vec![Pairs::new()],
        oldest: 1,
        in_flight: Vec::new(),
        in_flight_oldest: 1,
        random: Random(random.below(u64::MAX)),
        cuts: 0,
        violation: None,
    }));
    let observed = model.clone();
    let observer = Arc::new(move |disk: &SimulatedDisk| {
        let mut model = observed.lock();
        if model.violation.is_none()
            && model.random.one_in(2)
            && let Err(violation) = cut_power(disk, &mut model)
        {
            model.violation = Some(format!("after a power cut: {violation}"));
        }
    });
    let mut history = History { disk, model, random };
    for _ in 0..4 {
        history.disk.observe(Some(observer.clone()));
        let outcome = history.life();
        history.disk.observe(None);
        if let Some(violation) = history.model.lock().violation.take() {
            return Err(violation);
        }
        outcome?;
        if history.random.one_in(2) {
            history.disk = history.disk.after_power_cut(history.random.below(u64::MAX));
        }
    }
    let cuts = history.model.lock().cuts;
    Ok(cuts)
}

/// How many histories to run: `KNARR_STORE_SEEDS` for more of them, from `KNARR_STORE_SEED` on.
fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

#[test]
fn what_was_acknowledged_survives_power_cuts_kills_and_failing_disks() {
    let first = from_environment("KNARR_STORE_SEED", 1);
    let seeds = from_environment("KNARR_STORE_SEEDS", 300);
    let mut cuts = 0;
    for seed in first..first + seeds {
        cuts += history(seed, None).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
    }
    println!("seeds {first}..{}: {cuts} power cuts", first + seeds);
    assert!(cuts > seeds * 20, "only {cuts} power cuts");
}

#[test]
fn every_defect_in_the_order_of_operations_is_found() {
    const SEEDS: u64 = 200;
    for defect in [
        Defect::SkipDirectorySync,
        Defect::AcknowledgeBeforeSync,
        Defect::RenameBeforeSync,
        Defect::RetryFailedSync,
        Defect::ForgetCut,
        Defect::TrustPageCache,
    ] {
        let found = (1..=SEEDS).find_map(|seed| {
            // A debug assertion of the engine finds it as well.
            let outcome = catch_unwind(AssertUnwindSafe(|| history(seed, Some(defect))));
            match outcome {
                Ok(Ok(_)) => None,
                Ok(Err(violation)) => Some((seed, violation)),
                Err(_) => Some((seed, "a panic".into())),
            }
        });
        let (seed, violation) = found.unwrap_or_else(|| panic!("{defect:?} is not found in {SEEDS} seeds"));
        let violation: String = violation.chars().take(120).collect();
        println!("{defect:?}: seed {seed}: {violation}");
    }
}
