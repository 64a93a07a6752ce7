//! Histories of the whole cluster (SPEC S9): a fixed list of seeds. `./dev sim` runs others, and shows one line by line.

#![allow(clippy::unwrap_used)]

use knarr_sim::{Mutation, Pace, Report, Simulation, run_all};
use parking_lot::Mutex;

const SEEDS: u64 = 20;
/// In how many histories a deliberate mistake has to be seen, at most.
const MUTATED_SEEDS: u64 = 30;
/// Findings that are not mended yet, by seed and rule.
const OPEN: &[(u64, &str)] = &[];

/// Hours take a debug build minutes: they are for `./dev sim`.
fn dense(seed: u64) -> Simulation {
    Simulation::new(seed).pace(Pace::Dense)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[test]
fn s9_the_same_seed_gives_the_same_history() {
    // The second has mounts that fail, and tell where.
    for seed in [1, 107] {
        let run = || dense(seed).whole_trace().run().unwrap();
        let (first, second) = (run(), run());
        let differ = first.trace.iter().zip(&second.trace).position(|(a, b)| a != b);
        if let Some(at) = differ {
            let from = at.saturating_sub(5);
            let show = |r: &Report| r.trace[from..r.trace.len().min(at + 5)].join("\n");
            panic!("seed {seed} differs:\n{}\n\n{}", show(&first), show(&second));
        }
        assert_eq!(first.digest, second.digest, "seed {seed}");
    }
}

#[test]
fn s9_every_rule_holds_in_every_history() {
    let broken = Mutex::new(Vec::new());
    run_all(threads(), (0..SEEDS).map(dense), |report| {
        if let Some(violation) = &report.violation {
            eprintln!(
                "{}\n{report}\nall of it: ./dev sim --seed {} --pace dense --trace\n",
                report.trace.join("\n"),
                report.seed
            );
            broken.lock().push((report.seed, violation.rule));
        }
        true
    })
    .unwrap();
    let mut broken = broken.into_inner();
    broken.sort_unstable();
    // One that holds again must be taken off.
    assert_eq!(broken, OPEN, "broken seeds, and those known to be");
}

/// A rule that no longer sees its mistake is no rule.
#[test]
fn s9_mistakes_made_on_purpose_are_seen() {
    for mutation in Mutation::ALL {
        // One mistake may break several rules, and which is seen first is the history's.
        let mut found = Vec::new();
        for seed in 0..MUTATED_SEEDS {
            let report = dense(seed).mutation(mutation).run().unwrap();
            found.extend(report.violation.map(|v| v.rule));
            if found.contains(&mutation.rule()) {
                break;
            }
        }
        assert!(
            found.contains(&mutation.rule()),
            "{mutation}: {}: {found:?}",
            mutation.what()
        );
    }
}
