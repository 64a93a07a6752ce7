//! Runs every target on its seeds and on mutations of them. `KNARR_FUZZ_RUNS` sets the number of inputs per target,
//! `KNARR_FUZZ_SEED` the random seed, `KNARR_FUZZ_TARGET` selects one target, `KNARR_FUZZ_SHOW` prints the inputs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::mutation::{Random, mutated};
use crate::{TARGETS, escaped};

/// One or two seconds for all targets in a debug build.
const RUNS: u64 = 200;

fn number(variable: &str, otherwise: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a number")),
        Err(_) => otherwise,
    }
}

#[test]
fn no_input_breaks_a_property() {
    let (runs, seed) = (number("KNARR_FUZZ_RUNS", RUNS), number("KNARR_FUZZ_SEED", 1));
    let selected = std::env::var("KNARR_FUZZ_TARGET").ok();
    let shows = std::env::var_os("KNARR_FUZZ_SHOW").is_some();
    let mut broken = Vec::new();
    for target in TARGETS
        .iter()
        .filter(|t| selected.as_deref().is_none_or(|name| name == t.name))
    {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        let mut random = Random::new(seed);
        // This target writes files and is slow.
        let runs = if target.name == "storage" { runs / 10 } else { runs };
        let made = (0..runs).map(|_| {
            let (seed, other) = (
                &seeds[random.below(seeds.len())],
                &seeds[random.below(seeds.len())],
            );
            mutated(&mut random, seed, other)
        });
        let made: Vec<Vec<u8>> = made.collect();
        for input in seeds.iter().chain(&made) {
            // An abort (stack overflow) leaves no message: the last printed input caused it.
            if shows {
                eprintln!("{}: {}", target.name, escaped(input));
            }
            if catch_unwind(AssertUnwindSafe(|| (target.check)(input))).is_err() {
                broken.push(format!("{}: {}", target.name, escaped(input)));
                break;
            }
        }
    }
    assert!(broken.is_empty(), "broken by\n{}", broken.join("\n"));
}

#[test]
fn the_same_seed_makes_the_same_inputs() {
    let make = || {
        let mut random = Random::new(7);
        (0..50)
            .map(|_| mutated(&mut random, b"{\"a\":1}", b"[2]"))
            .collect::<Vec<_>>()
    };
    assert_eq!(make(), make());
}
