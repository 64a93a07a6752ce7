//! Continuous new connections to a node port, none of which may fail during an update.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use knarr_nemesis::fleet::{Fleet, Host};

use super::{NODE_PORT, get};
use crate::Outcome;

/// Threads for each address.
const THREADS: usize = 2;
/// Between two connections of a thread: some hundred per second are enough to coincide with each change.
const PAUSE: Duration = Duration::from_millis(2);
/// How many are made after a change, so that late effects are found, too.
const AFTER: usize = 200;
/// How many failures are shown.
const SHOWN: usize = 20;

/// What the threads count.
#[derive(Default)]
struct Counters {
    stop: AtomicBool,
    made: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

/// Threads that connect until this is dropped.
struct Load {
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn begin(at: &[&Host]) -> Self {
        let counters = Arc::<Counters>::default();
        let begin = Instant::now();
        let targets = at.iter().cycle().take(THREADS * at.len());
        let threads = targets.map(|host| {
            let (name, address, counters) = (host.name.clone(), host.address, counters.clone());
            std::thread::spawn(move || connect(&name, address, &counters, begin))
        });
        Load {
            threads: threads.collect(),
            counters,
        }
    }

    fn made(&self) -> usize {
        self.counters.made.load(Ordering::Relaxed)
    }
}

fn connect(name: &str, address: Ipv4Addr, counters: &Counters, begin: Instant) {
    while !counters.stop.load(Ordering::Relaxed) {
        let since = begin.elapsed();
        match get(address, NODE_PORT) {
            Ok(_) => drop(counters.made.fetch_add(1, Ordering::Relaxed)),
            Err(e) => {
                let failure = format!("{since:.3?} to {:.3?}, node port of {name}: {e}", begin.elapsed());
                counters
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
        self.counters.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // If a thread panicked, the test fails because connections are missing.
            drop(thread.join());
        }
    }
}

/// Makes a change while clients connect to the node ports of these nodes; no connection may fail.
pub fn under_load(fleet: &Fleet, what: &str, at: &[&Host], change: impl FnOnce() -> Outcome) -> Outcome {
    let begin = Instant::now();
    let load = Load::begin(at);
    fleet.eventually("connections before a change", || load.made() >= AFTER)?;
    let begun = begin.elapsed();
    let changed = change();
    let done = begin.elapsed();
    let made = load.made();
    fleet.eventually("connections after a change", || load.made() >= made + AFTER)?;
    let counters = load.counters.clone();
    drop(load);
    changed.map_err(|e| format!("{what}: {}", e.message().unwrap_or("")))?;
    let failed = counters.failed.lock().unwrap_or_else(|e| e.into_inner());
    if failed.is_empty() {
        return Ok(());
    }
    let shown: Vec<&str> = failed.iter().take(SHOWN).map(String::as_str).collect();
    let made = counters.made.load(Ordering::Relaxed);
    Err(format!(
        "{what}, from {begun:.3?} to {done:.3?}: {} of {} connections failed:\n  {}",
        failed.len(),
        made + failed.len(),
        shown.join("\n  ")
    )
    .into())
}

/// Fails with all outcomes that failed.
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
