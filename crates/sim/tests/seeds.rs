//! Histories of the whole cluster (SPEC S9): the seeds that once broke a rule, a fixed range, and some random ones,
//! which are printed. `./dev sim` runs others, and shows one line by line.

#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use knarr_sim::{
    FIRST_INTERRUPTED, FIRST_PLACED, Mutation, Pace, Reduction, Report, Simulation, Swarm, Switch, Switches,
    run_all,
};
use parking_lot::Mutex;

const SEEDS: u64 = 20;
/// The most histories in which a mutant has to be found.
const MUTATED_SEEDS: u64 = 30;
/// The first history that a mutant is searched in, of those that seed 0 does not show. It only saves time: one mutant creates
/// pods without end in most histories, which take minutes each.
const SEARCHED_FIRST: &[(Mutation, u64)] = &[
    (Mutation::LengthenTheGrace, 1),
    (Mutation::ReplaceLost, 3),
    (Mutation::KeepReleased, 4),
    (Mutation::IgnoreTerminating, 2),
    (Mutation::ForgetTerm, 2),
    (Mutation::DetachByTimer, 24),
    (Mutation::MountWithoutAttach, 7),
    (Mutation::BelieveTheAgent, 3),
    (Mutation::FenceItselfLate, 10),
    (Mutation::ReportBeforeCommit, 2),
    (Mutation::StartBeforePolicy, 1),
    (Mutation::NeverStop, 1),
    (Mutation::TakeStartedForDone, 4),
    (Mutation::ForgetDaemonsOfANode, 24),
    (Mutation::TakeSentForRenewed, 3),
    (Mutation::TermWithoutBarrier, 5),
    (Mutation::KeepRemoved, 1),
    (Mutation::PreemptForEquals, 4),
    (Mutation::UnstageEarly, 11),
    (Mutation::DetachInUse, 8),
    (Mutation::OfferTerminating, 2),
];
/// The mutants of [`PLACEMENT_RULES`], the feature that each is about, and the first history that shows it.
const PLACED: &[(Mutation, &str, u64)] = &[
    (Mutation::MoveWithoutEnd, "rebalancing", FIRST_PLACED + 1),
    (Mutation::ForgetMoves, "rebalancing", FIRST_PLACED + 14),
    (Mutation::ScatterDown, "scale-down", FIRST_PLACED + 6),
    (Mutation::ForgetDeclared, "topology-domains", FIRST_PLACED + 13),
    (
        Mutation::EvictUnrecorded,
        "cross-node-preemption",
        FIRST_PLACED + 2,
    ),
    (Mutation::SoftenClass, "hard-budgets", FIRST_PLACED + 9),
    (Mutation::BackdateRequest, "surge-first", FIRST_PLACED),
    (
        Mutation::LeaveVictims,
        "cross-node-preemption,preemption-crash",
        FIRST_INTERRUPTED,
    ),
];
/// The rules on knarr's own placement.
const PLACEMENT_RULES: [&str; 3] = ["B3", "B5", "B6"];
/// Slow histories among those that once broke a rule take a debug build more than a minute each: each run draws so many of them.
const SLOW_BROKEN_BEFORE: usize = 2;
/// How they are run.
const SLOW: &str = " --pace slow";
/// New random seeds in each run.
const RANDOM_SEEDS: u64 = 2;
/// Random seeds are below this, so that they stay readable.
const RANDOM_BELOW: u64 = 1_000_000_000;
/// Findings that are not fixed yet, by seed and rule.
const OPEN: &[(u64, &str)] = &[];
/// Histories that once broke a rule, a line each: the seed, then the rules, then how it was run. `#` begins a
/// comment.
const BROKEN_BEFORE: &str = include_str!("broken_seeds.txt");

/// Slow histories take a debug build minutes: they are for `./dev sim`.
fn dense(seed: u64) -> Simulation {
    Simulation::new(seed).pace(Pace::Dense)
}

/// A history, with what `./dev sim` needs to run it.
struct History {
    seed: u64,
    simulation: Simulation,
    flags: &'static str,
}

/// The histories that broke a rule, as they were run then.
fn broken_before() -> Vec<History> {
    let lines = BROKEN_BEFORE.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [seed, _rules, pace] = words.as_slice() else {
                panic!("expected a seed, its rules and a pace: {line:?}");
            };
            let seed = seed.parse().unwrap();
            let simulation = Simulation::new(seed);
            let (simulation, flags) = match *pace {
                "drawn" => (simulation, ""),
                "rare" => (simulation.rare(), " --rare"),
                "dense" => (simulation.pace(Pace::Dense), " --pace dense"),
                "dense-rare" => (simulation.pace(Pace::Dense).rare(), " --pace dense --rare"),
                "dense-swarm" => {
                    let simulation = simulation.pace(Pace::Dense).swarm(Swarm::Always);
                    (simulation, " --pace dense --swarm")
                }
                "slow" => (simulation.pace(Pace::Slow), SLOW),
                "swarm" => (simulation.swarm(Swarm::Always), " --swarm"),
                _ => panic!("expected drawn, rare, dense, dense-rare, dense-swarm, slow or swarm: {line:?}"),
            };
            History {
                seed,
                simulation,
                flags,
            }
        })
        .collect()
}

/// Histories of hours, and of many nodes, take minutes each: begun last, one would run alone at the end.
fn longest_first(mut histories: Vec<History>) -> Vec<History> {
    histories.sort_by_key(|history| Reverse(history.simulation.node_seconds()));
    histories
}

/// A new random seed.
fn random_seed() -> u64 {
    // Each of these hashers has keys of its own, from the system's randomness.
    RandomState::new().hash_one(0) % RANDOM_BELOW
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

#[test]
fn s9_the_same_seed_gives_the_same_history() {
    // The second has failing mounts, and their messages contain the directory.
    // In the third the store compacts under a server's watch; in the fourth three servers wait for the same revisions.
    let by_seed = [1, 107, 220_000_139, 600_000_094].map(|seed| (seed, Swarm::BySeed));
    for (seed, swarm) in by_seed.into_iter().chain([(2, Swarm::Always)]) {
        let run = || dense(seed).swarm(swarm).whole_trace().run().unwrap();
        // At the same time: each runs on one core, and no other test may be left to use the others.
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(run);
            let second = run();
            (first.join().unwrap(), second)
        });
        let differ = first.trace.iter().zip(&second.trace).position(|(a, b)| a != b);
        if let Some(at) = differ {
            let from = at.saturating_sub(5);
            let show = |r: &Report| r.trace[from..r.trace.len().min(at + 5)].join("\n");
            panic!("seed {seed} differs:\n{}\n\n{}", show(&first), show(&second));
        }
        assert_eq!(first.digest, second.digest, "seed {seed}");
        assert_eq!(first.coverage, second.coverage, "seed {seed}");
    }
}

#[test]
fn s9_a_history_played_again_with_nothing_left_out_is_the_same() {
    for (seed, swarm) in [(3, Swarm::BySeed), (4, Swarm::Always)] {
        let base = dense(seed).swarm(swarm).whole_trace();
        let first = base.clone().run().unwrap();
        let script = Arc::new(first.script);
        let again = base
            .clone()
            .replay(script.clone(), Reduction::default())
            .run()
            .unwrap();
        assert_eq!(first.digest, again.digest, "seed {seed}");
        // What is left out is not done, and the rest is done as before, except for what follows from that.
        let faults = Switch::ALL.iter().copied();
        let reduction = Reduction {
            skip: "2-1000".parse().unwrap(),
            without: faults.filter(|s| s.name().contains("slow")).collect(),
            nodes: Some(1),
            ..Reduction::default()
        };
        let reduced = base.replay(script, reduction).run().unwrap();
        let done: Vec<_> = reduced
            .trace
            .iter()
            .filter(|line| line.contains(" step "))
            .collect();
        assert_eq!(done.len(), 1, "{done:?}");
        assert!(done[0].contains("step 1:"), "{done:?}");
        assert!(
            !reduced
                .trace
                .iter()
                .any(|line| line.contains("kubelet of n2 starts"))
        );
    }
}

#[test]
fn s9_a_swarmed_history_has_what_is_on_and_nothing_else() {
    let on: Switches = "bare-pods,delete-pods,kubelet-crash,reboot".parse().unwrap();
    let report = dense(1).swarm(Swarm::Only(on)).whole_trace().run().unwrap();
    assert_eq!(report.switches, on);
    assert!(
        report.trace[0].contains("on: bare-pods,delete-pods,kubelet-crash,reboot"),
        "{}",
        report.trace[0]
    );
    let faults: Vec<_> = report
        .trace
        .iter()
        .filter(|line| line.contains("fault: "))
        .collect();
    assert!(faults.len() > 3, "{faults:?}");
    for line in faults {
        assert!(
            line.contains("kubelet for") || line.contains("reboots for"),
            "{line}"
        );
    }
    let created = |what: &str| {
        report
            .trace
            .iter()
            .any(|line| line.contains(&format!("user: create {what}")))
    };
    assert!(created("pod") && !created("deployments") && !created("statefulsets"));
}

/// Zones lose their nodes only for the sake of features that are in the history.
#[test]
fn b3_zone_faults_are_left_out_with_the_feature_that_they_are_for() {
    let on: Switches = "rebalancing".parse().unwrap();
    let base = |seed| dense(seed).swarm(Swarm::Only(on)).whole_trace();
    let loses_zone = |report: &Report| report.trace.iter().any(|line| line.contains("fault: zone"));
    let mut histories =
        (FIRST_PLACED..FIRST_PLACED + MUTATED_SEEDS).map(|seed| (seed, base(seed).run().unwrap()));
    let (seed, found) = histories.find(|(_, report)| loses_zone(report)).unwrap();
    let reduction = Reduction {
        without: on,
        ..Reduction::default()
    };
    let reduced = base(seed)
        .replay(Arc::new(found.script), reduction)
        .run()
        .unwrap();
    assert!(!loses_zone(&reduced), "seed {seed}");
}

/// Each of knarr's own placement features in a history without other switches, one with all of them, and one in which preemptions are
/// interrupted.
#[test]
fn b3_b5_b6_rules_hold_with_each_placement_feature() {
    let each = [
        "scale-down",
        "topology-domains",
        "rebalancing",
        "cross-node-preemption",
        "hard-budgets",
        "surge-first",
    ];
    let all = each.join(",");
    let others = [all.as_str(), "cross-node-preemption,preemption-crash"];
    for (seed, only) in (FIRST_PLACED..).zip(each.into_iter().chain(others)) {
        let on: Switches = only.parse().unwrap();
        let report = dense(seed).swarm(Swarm::Only(on)).run().unwrap();
        assert!(report.violation.is_none(), "--only {only}: {report}");
        assert_eq!(report.switches, on);
    }
}

#[test]
fn s9_every_rule_holds_in_every_history() {
    let random: Vec<u64> = (0..RANDOM_SEEDS).map(|_| random_seed()).collect();
    let (mut slow, mut all): (Vec<_>, Vec<_>) = broken_before()
        .into_iter()
        .partition(|history| history.flags == SLOW);
    let drawn = usize::try_from(random_seed()).unwrap() % slow.len().max(1);
    slow.rotate_left(drawn);
    slow.truncate(SLOW_BROKEN_BEFORE);
    let slow_seeds: Vec<u64> = slow.iter().map(|history| history.seed).collect();
    eprintln!("random seeds of this run: {random:?}; slow ones that broke a rule: {slow_seeds:?}");
    all.extend(slow);
    let mut all = longest_first(all);
    let others = (0..SEEDS).chain(random).map(|seed| History {
        seed,
        simulation: dense(seed),
        flags: " --pace dense",
    });
    all.extend(longest_first(others.collect()));
    let flags: BTreeMap<u64, &str> = all.iter().map(|history| (history.seed, history.flags)).collect();
    let broken = Mutex::new(Vec::new());
    let simulations = all.into_iter().map(|history| history.simulation);
    run_all(threads(), simulations, |report| {
        if let Some(violation) = &report.violation {
            eprintln!(
                "{}\n{report}\nall of it: ./dev sim --seed {}{} --trace\n",
                report.trace.join("\n"),
                report.seed,
                flags[&report.seed]
            );
            broken.lock().push((report.seed, violation.rule));
        }
        true
    })
    .unwrap();
    let mut broken = broken.into_inner();
    broken.sort_unstable();
    // A finding that no longer occurs must be removed from the list.
    assert_eq!(broken, OPEN, "broken seeds, and those known to be");
}

/// The rules that the first histories with this mutant break, until its own rule is among them: one mutant may break
/// several rules, and which is found first depends on the history.
fn broken_by(mutation: Mutation) -> Vec<&'static str> {
    let first = SEARCHED_FIRST.iter().find(|(of, _)| *of == mutation);
    let mut found = Vec::new();
    for seed in first.map(|(_, seed)| *seed).into_iter().chain(0..MUTATED_SEEDS) {
        let report = dense(seed).mutation(mutation).run().unwrap();
        found.extend(report.violation.map(|v| v.rule));
        if found.contains(&mutation.rule()) {
            break;
        }
    }
    found
}

/// A rule that does not find its mutant any more is not a rule.
#[test]
fn s9_mutants_are_found() {
    let all = Mutation::ALL.into_iter();
    search(
        all.filter(|mutation| !PLACEMENT_RULES.contains(&mutation.rule()))
            .collect(),
    );
}

/// The same for the rules on knarr's own placement, in histories with one feature alone, and the fault that is about it.
#[test]
fn b3_b5_b6_mutants_are_found() {
    let ours = Mutation::ALL
        .into_iter()
        .filter(|mutation| PLACEMENT_RULES.contains(&mutation.rule()));
    let known: Vec<Mutation> = PLACED.iter().map(|(mutation, ..)| *mutation).collect();
    assert_eq!(ours.collect::<Vec<_>>(), known, "each is in the table");
    let missed = |&(mutation, only, first): &(Mutation, &str, u64)| {
        let on: Switches = only.parse().unwrap();
        let is_found = (first..first + MUTATED_SEEDS).any(|seed| {
            let history = dense(seed).swarm(Swarm::Only(on)).mutation(mutation);
            let violation = history.run().unwrap().violation;
            violation.is_some_and(|v| v.rule == mutation.rule())
        });
        (!is_found).then(|| format!("{mutation}: {}", mutation.what()))
    };
    let missed: Vec<String> = PLACED.iter().filter_map(missed).collect();
    assert!(missed.is_empty(), "mutants that no rule finds: {missed:#?}");
}

fn search(mutations: Vec<Mutation>) {
    let next = Mutex::new(mutations.into_iter());
    let missed = Mutex::new(Vec::new());
    let work = || {
        loop {
            let Some(mutation) = next.lock().next() else {
                return;
            };
            let found = broken_by(mutation);
            if !found.contains(&mutation.rule()) {
                missed
                    .lock()
                    .push(format!("{mutation}: {}: {found:?}", mutation.what()));
            }
        }
    };
    std::thread::scope(|scope| (0..threads()).for_each(|_| drop(scope.spawn(work))));
    let missed = missed.into_inner();
    assert!(missed.is_empty(), "mutants that no rule finds: {missed:#?}");
}
