//! A reduced history breaks the same rule, has a story, and is reproduced by the flags that are printed.

#![allow(clippy::unwrap_used)]

use std::cell::RefCell;

use knarr_sim::{Limits, Mutation, Pace, Reduction, Simulation, Swarm, shrink};

fn mutated(mutation: Mutation) -> Simulation {
    Simulation::new(1).pace(Pace::Dense).mutation(mutation)
}

fn flag(flags: &str, name: &str) -> Option<String> {
    let mut words = flags.split_whitespace();
    words.find(|word| *word == name)?;
    words.next().map(String::from)
}

/// What the command line parses of what it printed.
fn read(flags: &str) -> Reduction {
    Reduction {
        skip: flag(flags, "--skip")
            .map(|f| f.parse().unwrap())
            .unwrap_or_default(),
        without: flag(flags, "--without")
            .map(|f| f.parse().unwrap())
            .unwrap_or_default(),
        nodes: flag(flags, "--keep-nodes").map(|f| f.parse().unwrap()),
        until: flag(flags, "--until").map(|f| std::time::Duration::from_secs(f.parse().unwrap())),
    }
}

#[test]
fn s9_a_mutated_history_shrinks_to_fewer_steps_and_breaks_the_same_rule() {
    for (simulation, mutation) in [
        (mutated(Mutation::CutTheGrace), Mutation::CutTheGrace),
        (
            mutated(Mutation::ForceAway).swarm(Swarm::Always),
            Mutation::ForceAway,
        ),
        (
            mutated(Mutation::DeleteBeforeTheEnd),
            Mutation::DeleteBeforeTheEnd,
        ),
    ] {
        let reported = RefCell::new(Vec::new());
        let limits = Limits {
            runs: 60,
            threads: 2,
            go_on: &|| true,
            report: &|line| reported.borrow_mut().push(line.to_string()),
        };
        let shrunk = shrink(&simulation, &limits).unwrap().unwrap();
        let (before, after) = shrunk.steps;
        assert!(
            after * 4 < before,
            "{mutation}: {before} steps became {after}: {:#?}",
            reported.borrow()
        );
        assert!(shrunk.nodes.1 <= shrunk.nodes.0, "{mutation}");
        let violation = shrunk.report.violation.clone().unwrap();
        assert_eq!(violation.rule, mutation.rule(), "{mutation}");

        // The same by the flags, as they are printed and parsed.
        let reduction = read(&shrunk.reduction.to_string());
        assert_eq!(reduction, shrunk.reduction, "{mutation}");
        let again = simulation.clone().reduced(reduction).unwrap().run().unwrap();
        assert_eq!(again.digest, shrunk.report.digest, "{mutation}");

        let story = shrunk.report.story().unwrap();
        let last = story.lines().rfind(|line| line.contains("VIOLATION")).unwrap();
        assert!(last.contains(&violation.what), "{last}");
        assert!(story.contains("sees") && story.contains("asks"), "{story}");
        assert!(
            story.lines().count() < shrunk.report.trace.len() / 2,
            "{mutation}"
        );
    }
}

#[test]
fn a_history_that_holds_is_not_shrunk_and_has_no_story() {
    let simulation = Simulation::new(1).pace(Pace::Dense);
    let limits = Limits {
        runs: 60,
        threads: 1,
        go_on: &|| true,
        report: &|line| panic!("{line}"),
    };
    assert!(shrink(&simulation, &limits).unwrap().is_none());
    assert!(simulation.story().run().unwrap().story().is_none());
}

#[test]
fn shrinking_stops_at_its_limits_and_keeps_its_result() {
    let simulation = mutated(Mutation::CutTheGrace);
    let limits = Limits {
        runs: 1_000,
        threads: 1,
        go_on: &|| false,
        report: &|_| {},
    };
    let shrunk = shrink(&simulation, &limits).unwrap().unwrap();
    assert!(!shrunk.finished);
    assert_eq!(shrunk.steps.0, shrunk.steps.1);
    assert_eq!(shrunk.report.violation.unwrap().rule, "T3");
}
