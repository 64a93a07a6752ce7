//! Histories of the whole cluster (SPEC S9): by default some dozens of seeds.
//!
//! `KNARR_SIM_SEEDS=N` runs N of them, `KNARR_SIM_SEED=S` one, with all of its history printed.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};

use knarr_sim::{Report, Sabotage, Simulation};

const SEEDS: u64 = 40;

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value}: expected a number")),
    )
}

/// Runs them on as many threads as there are cores, each history on one.
fn run(seeds: std::ops::Range<u64>) -> Vec<Report> {
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        let work = || {
            let mut broken = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return broken;
                }
                let report = Simulation::new(seed).run().unwrap();
                if report.violation.is_some() {
                    eprintln!("{report}\n");
                    broken.push(report);
                }
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
    })
}

/// Findings that are not mended yet, by seed and rule.
const OPEN: &[(u64, &str)] = &[];

#[test]
fn s9_the_same_seed_gives_the_same_history() {
    for seed in [1, 2] {
        let first = Simulation::new(seed).whole_trace().run().unwrap();
        let second = Simulation::new(seed).whole_trace().run().unwrap();
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
    if let Some(seed) = number("KNARR_SIM_SEED") {
        let report = Simulation::new(seed).whole_trace().run().unwrap();
        println!("{report}");
        assert!(report.violation.is_none(), "{:?}", report.violation);
        return;
    }
    let all = number("KNARR_SIM_SEEDS").unwrap_or(SEEDS);
    let broken = run(0..all);
    let mut seeds: Vec<_> = broken
        .iter()
        .map(|r| (r.seed, r.violation.as_ref().map(|v| v.rule)))
        .collect();
    seeds.sort_unstable();
    // One that holds again must be taken off.
    let open: Vec<_> = OPEN.iter().map(|(seed, rule)| (*seed, Some(*rule))).collect();
    let open: Vec<_> = open.into_iter().filter(|(seed, _)| *seed < all).collect();
    assert_eq!(seeds, open, "broken seeds, and those known to be");
}

#[test]
fn s9_mistakes_made_on_purpose_are_seen() {
    for (sabotage, rule) in [
        (Sabotage::DeleteBeforeTheEnd, "T5"),
        (Sabotage::StartTwice, "S1"),
        (Sabotage::CutTheGrace, "T3"),
        (Sabotage::ForceAway, "S2"),
        (Sabotage::ForgetUid, "S2"),
        (Sabotage::LoseLastStep, "S9"),
    ] {
        // One mistake may break several rules, and which is seen first is the history's.
        let mut found = Vec::new();
        for seed in 0..5 {
            let report = Simulation::new(seed).sabotage(sabotage).run().unwrap();
            found.extend(report.violation.map(|v| v.rule));
            if found.contains(&rule) {
                break;
            }
        }
        assert!(found.contains(&rule), "{sabotage:?}: {found:?}");
    }
}
