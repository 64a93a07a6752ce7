//! Which switches a swarmed history has, so that it may meet the pairs that the histories before it did not.
//!
//! A bandit with an arm a switch: of some sets that the seed draws, the one is taken whose faults are the rarest in the states
//! that its switches were seen to bring about. It follows from the seed and the coverage alone.

use crate::coverage::{Coverage, State};
use crate::switches::{Class, Switch, Switches};

/// Sets to choose from.
const CANDIDATES: u32 = 32;

/// The set with the best prospects among those that `seed` draws.
pub fn steer(seed: u64, before: &Coverage) -> Switches {
    let candidates = (0..CANDIDATES).map(|attempt| Switches::draw(seed, attempt));
    let scored = candidates.map(|set| (prospects(set, before), set));
    // The first of those that are as good.
    let best = scored.reduce(|best, other| if other.0 > best.0 { other } else { best });
    best.map_or_else(|| Switches::draw(seed, 0), |(_, set)| set)
}

/// What a history with these switches may add: for each pair of a fault that is on and a state, how rare it was, times how
/// likely the state is with these switches, shared among the faults, for they take turns.
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

/// The mean over the switches of how often a history with it had some pod in this state when a fault struck. One that was
/// never tried counts as one half.
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
    fn steering_follows_from_seed_and_coverage_and_goes_for_what_was_never_met() {
        let rare = Switch::ReplacedMachine;
        // All has been met often, but for one fault.
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
