//! Chooses the switches of a swarmed history, so that pairs of faults and states occur that did not occur before.
//!
//! A bandit with one arm per switch: of some sets that the seed draws, it takes the one whose faults are the rarest
//! in the states that its switches made likely so far. The choice depends on the seed and the coverage alone.

use crate::coverage::{Coverage, State};
use crate::switches::{Class, Switch, Switches};

/// The number of sets to choose from.
const CANDIDATES: u32 = 32;

/// The best set among those that `seed` draws.
pub fn steer(seed: u64, before: &Coverage) -> Switches {
    let candidates = (0..CANDIDATES).map(|attempt| Switches::draw(seed, attempt));
    let scored = candidates.map(|set| (prospects(set, before), set));
    // The first of equally good ones.
    let best = scored.reduce(|best, other| if other.0 > best.0 { other } else { best });
    best.map_or_else(|| Switches::draw(seed, 0), |(_, set)| set)
}

/// What a history with these switches may add: for each pair of an enabled fault and a state, how rare it was, times
/// the probability of the state with these switches, divided by the number of faults, because they take turns.
fn prospects(set: Switches, before: &Coverage) -> f64 {
    let faults = || set.iter().filter(|switch| switch.class() == Class::Fault);
    let mut sum = 0.0;
    for state in State::ALL {
        let likely = likely(set, state, before);
        for fault in faults() {
            sum += likely / (1.0 + before.met(fault, state) as f64);
        }
    }
    sum / (faults().count().max(1) as f64).sqrt()
}

/// The mean over the switches of the fraction of histories with it that had some pod in this state when a fault
/// struck. A switch that was never tried counts as one half.
fn likely(set: Switches, state: State, before: &Coverage) -> f64 {
    let features: Vec<Switch> = set.iter().filter(|s| s.class() != Class::Fault).collect();
    let rate = |switch: &Switch| {
        let (with, all) = before.histories_with(*switch, state);
        (1.0 + with as f64) / (2.0 + all as f64)
    };
    features.iter().map(rate).sum::<f64>() / features.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steering_depends_on_seed_and_coverage_only_and_prefers_pairs_that_were_never_met() {
        let rare = Switch::ReplacedMachine;
        // All pairs have occurred often, except for one fault.
        let mut before = Coverage::default();
        for (fault, state) in Coverage::all_pairs().filter(|(fault, _)| *fault != rare) {
            let row = before.pairs.entry(fault.name().into()).or_default();
            row.insert(state.name().into(), 1_000_000);
        }
        for seed in 0..50 {
            let steered = steer(seed, &before);
            assert_eq!(steered, steer(seed, &before), "seed {seed}");
            assert!(steered.has(rare), "seed {seed}: {steered}");
        }
        let unsteered = (0..50).filter(|seed| Switches::draw(*seed, 0).has(rare));
        assert!(unsteered.count() < 40);
    }

    #[test]
    fn steering_prefers_what_brings_the_missing_state_about() {
        let mut before = Coverage::default();
        for (fault, state) in Coverage::all_pairs().filter(|(_, state)| *state != State::Attaching) {
            let row = before.pairs.entry(fault.name().into()).or_default();
            row.insert(state.name().into(), 1_000_000);
        }
        for switch in Switch::ALL {
            before.switches.insert(switch.name().into(), 100);
        }
        let disks = before.states.entry(Switch::Disks.name().into()).or_default();
        disks.insert(State::Attaching.name().into(), 100);
        let steered = (0..50).filter(|seed| steer(*seed, &before).has(Switch::Disks));
        assert_eq!(steered.count(), 50);
    }
}
