//! `--shrink`: reduces a broken history, prints its story and the command line that reproduces it.

use std::io;
use std::time::Duration;

use knarr_sim::{Limits, Simulation, shrink};

/// Enough for hundreds of steps; the time limit ends it sooner.
const MOST_RUNS: u32 = 5_000;

/// `flags` are those that made the history, each with a leading space. False: a rule is broken. True: every rule
/// held.
pub fn run(
    simulation: &Simulation,
    (seed, flags): (u64, &str),
    threads: usize,
    long: Duration,
    passed: impl Fn() -> Duration,
) -> io::Result<bool> {
    let limits = Limits {
        runs: MOST_RUNS,
        threads,
        go_on: &|| passed() < long,
        report: &|line| eprintln!("{:>4} s  {line}", passed().as_secs()),
    };
    let Some(shrunk) = shrink(simulation, &limits)? else {
        println!("seed {seed}: every rule held, so that there is nothing to make smaller");
        return Ok(true);
    };
    if let Some(story) = shrunk.report.story() {
        println!("{story}");
    }
    let ((steps, fewer), (nodes, kept)) = (shrunk.steps, shrunk.nodes);
    println!("{}", shrunk.report);
    println!(
        "{steps} steps on {nodes} nodes became {fewer} on {kept}, in {} runs{}",
        shrunk.runs,
        match shrunk.finished {
            true => "; nothing more can be left out",
            false => "; more time (--minutes) may make it smaller",
        }
    );
    println!(
        "again: ./dev sim --seed {seed}{flags}{} --story",
        shrunk.reduction
    );
    Ok(false)
}
