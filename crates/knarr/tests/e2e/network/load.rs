//! New connections to a node port, all the time: what an update must not refuse.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{NODE_PORT, get};
use crate::Outcome;
use knarr_nemesis::fleet::{Fleet, Machine};

/// Of each address.
const THREADS: usize = 2;
/// Between two connections of a thread: some hundred a second are enough to meet each change.
const PAUSE: Duration = Duration::from_millis(2);
/// So many are made after a change is over: one that is too late is met, too.
const AFTER: usize = 200;
/// Failures that are shown.
const SHOWN: usize = 20;

/// What the threads have done.
#[derive(Default)]
struct Counted {
    ended: AtomicBool,
    made: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

/// Threads that connect until it is dropped.
struct Load {
    counted: Arc<Counted>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn begin(at: &[&Machine]) -> Self {
        let counted = Arc::<Counted>::default();
        let begin = Instant::now();
        let targets = at.iter().cycle().take(THREADS * at.len());
        let threads = targets.map(|machine| {
            let (name, address, counted) = (machine.name.clone(), machine.address, counted.clone());
            std::thread::spawn(move || connect(&name, address, &counted, begin))
        });
        Load {
            threads: threads.collect(),
            counted,
        }
    }

    fn made(&self) -> usize {
        self.counted.made.load(Ordering::Relaxed)
    }
}

fn connect(name: &str, address: Ipv4Addr, counted: &Counted, begin: Instant) {
    while !counted.ended.load(Ordering::Relaxed) {
        let since = begin.elapsed();
        match get(address, NODE_PORT) {
            Ok(_) => drop(counted.made.fetch_add(1, Ordering::Relaxed)),
            Err(e) => {
                let failure = format!("{since:.3?} to {:.3?}, node port of {name}: {e}", begin.elapsed());
                counted
                    .failed
                    .lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .push(failure);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.counted.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has failed the test by its silence.
            drop(thread.join());
        }
    }
}

/// Does something while node ports of these nodes are connected to; not one connection may fail.
pub fn under_load(fleet: &Fleet, what: &str, at: &[&Machine], change: impl FnOnce() -> Outcome) -> Outcome {
    let begin = Instant::now();
    let load = Load::begin(at);
    fleet.waits("connections before a change", || load.made() >= AFTER)?;
    let begun = begin.elapsed();
    let changed = change();
    let done = begin.elapsed();
    let made = load.made();
    fleet.waits("connections after a change", || load.made() >= made + AFTER)?;
    let counted = load.counted.clone();
    drop(load);
    changed.map_err(|e| format!("{what}: {}", e.message().unwrap_or("")))?;
    let failed = counted.failed.lock().unwrap_or_else(|e| e.into_inner());
    if failed.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = failed.iter().take(SHOWN).map(String::as_str).collect();
    let made = counted.made.load(Ordering::Relaxed);
    Err(format!(
        "{what}, from {begun:.3?} to {done:.3?}: {} of {} connections failed:\n  {}",
        failed.len(),
        made + failed.len(),
        shown.join("\n  ")
    )
    .into())
}

/// Goes through all, and fails with all that failed.
pub fn every(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let failed: Vec<String> = outcomes
        .into_iter()
        .filter_map(Result::err)
        .map(|e| e.message().unwrap_or("failed").to_string())
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("\n").into()),
    }
}
