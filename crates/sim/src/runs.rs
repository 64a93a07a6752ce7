//! Many histories in parallel: each runs on one thread, from its beginning to its end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::{Report, Simulation};

/// Runs the histories that `next` returns, until it returns none, on so many threads; `each` is called with every
/// report as it comes and returns whether to continue.
pub fn run_all(
    threads: usize,
    next: impl Iterator<Item = Simulation> + Send,
    each: impl Fn(Report) -> bool + Sync,
) -> io::Result<()> {
    let next = Mutex::new(next);
    let enough = AtomicBool::new(false);
    let work = || -> io::Result<()> {
        while !enough.load(Ordering::Relaxed) {
            let Some(simulation) = next.lock().next() else {
                return Ok(());
            };
            let report = simulation
                .run()
                .inspect_err(|_| enough.store(true, Ordering::Relaxed))?;
            if !each(report) {
                enough.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(done) => done,
            Err(_) => Err(io::Error::other("a history ended in a panic")),
        })
    })
}
