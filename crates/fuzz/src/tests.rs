//! Every target on its seeds and on inputs made of them. `KNARR_FUZZ_RUNS` (per target) and `KNARR_FUZZ_SEED` make more,
//! `KNARR_FUZZ_TARGET` chooses one, `KNARR_FUZZ_SHOW` prints them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::mutation::{Dice, mutated};
use crate::{TARGETS, shown};

/// A second or two for all targets, unoptimized.
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
fn no_input_breaks_a_promise() {
    let (runs, seed) = (number("KNARR_FUZZ_RUNS", RUNS), number("KNARR_FUZZ_SEED", 1));
    let wanted = std::env::var("KNARR_FUZZ_TARGET").ok();
    let shows = std::env::var_os("KNARR_FUZZ_SHOW").is_some();
    let mut broken = Vec::new();
    for target in TARGETS
        .iter()
        .filter(|t| wanted.as_deref().is_none_or(|wanted| wanted == t.name))
    {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has nothing to start from", target.name);
        let mut dice = Dice::new(seed);
        // Files are slow to make.
        let runs = if target.name == "storage" { runs / 10 } else { runs };
        let made = (0..runs).map(|_| {
            let (seed, other) = (&seeds[dice.below(seeds.len())], &seeds[dice.below(seeds.len())]);
            mutated(&mut dice, seed, other)
        });
        let made: Vec<Vec<u8>> = made.collect();
        for input in seeds.iter().chain(&made) {
            // What aborts leaves no message: then the last input shown is the one.
            if shows {
                eprintln!("{}: {}", target.name, shown(input));
            }
            if catch_unwind(AssertUnwindSafe(|| (target.check)(input))).is_err() {
                broken.push(format!("{}: {}", target.name, shown(input)));
                break;
            }
        }
    }
    assert!(broken.is_empty(), "broken by\n{}", broken.join("\n"));
}

#[test]
fn the_same_number_makes_the_same_inputs() {
    let make = || {
        let mut dice = Dice::new(7);
        (0..50)
            .map(|_| mutated(&mut dice, b"{\"a\":1}", b"[2]"))
            .collect::<Vec<_>>()
    };
    assert_eq!(make(), make());
}
