//! Recorded requests and responses of kube-apiserver v1.36.2, compared with this server's.
//!
//! One trial for each topic of recordings, each with a server of its own (memory store, the few controllers that recordings need, no nodes)
//! over HTTP in this process. Every scenario must pass except those that `not_yet.txt` names with a reason;
//! a scenario that is listed and passes is a failure too, so that the list cannot become stale. `GOLDEN_API_DIR` names other
//! recordings: the list does not apply to them, but the minimum percentage of each topic does.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]
#![allow(
    clippy::disallowed_methods,
    reason = "recorded responses have the time of day; the server's clock is the real one"
)]

mod client;
mod controllers;
mod matching;
mod scenario;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use scenario::Scenario;

/// The percentage of each topic's scenarios that must pass, whatever the recordings.
const LEAST_PERCENT: usize = 98;
/// Topics that are not complete yet: the percentage must not fall below this.
const LEAST_PERCENT_OF: [(&str, usize); 1] = [
    // Of few scenarios, one is about RS256; tokens are signed with ES256 here.
    ("discovery", 97),
];

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let given = std::env::var_os("GOLDEN_API_DIR").map(PathBuf::from);
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../strategy/tests/golden-api");
    let directory = given.clone().unwrap_or(ours);
    let not_yet = match given {
        Some(_) => BTreeMap::new(),
        None => not_yet(),
    };
    let mut trials = Vec::new();
    for (topic, scenarios) in scenario::read(&directory) {
        let listed: BTreeMap<_, _> = not_yet
            .iter()
            .filter(|(id, _)| id.rsplit_once('-').is_some_and(|(of, _)| of == topic))
            .map(|(id, reason)| (id.clone(), reason.clone()))
            .collect();
        let strict = std::env::var_os("GOLDEN_API_DIR").is_none();
        trials.push(Trial::test(topic.clone(), move || {
            play(&topic, scenarios, &listed, strict)
        }));
    }
    libtest_mimic::run(&args, trials).exit_code()
}

/// Scenarios that need not pass, with the reason.
fn not_yet() -> BTreeMap<String, String> {
    include_str!("not_yet.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (id, reason) = line.split_once(' ').expect("a line is an id and a reason");
            (id.to_string(), reason.trim().to_string())
        })
        .collect()
}

fn play(
    topic: &str,
    scenarios: Vec<Scenario>,
    listed: &BTreeMap<String, String>,
    strict: bool,
) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let total = scenarios.len();
    let outcomes = runtime.block_on(scenario::play_all(scenarios, listed));
    let mut passed = 0;
    let mut wrong = String::new();
    for (id, title, outcome) in outcomes {
        match (outcome, listed.get(&id)) {
            (Ok(()), None) => passed += 1,
            (Ok(()), Some(reason)) => {
                passed += 1;
                wrong.push_str(&format!(
                    "{id} ({title}) passes: take it off not_yet.txt ({reason})\n"
                ));
            }
            (Err(_), Some(_)) => {}
            (Err(differences), None) => {
                wrong.push_str(&format!("{id} ({title})\n"));
                for line in differences.iter().take(6) {
                    wrong.push_str(&format!("    {}\n", line.chars().take(600).collect::<String>()));
                }
            }
        }
    }
    let least = LEAST_PERCENT_OF
        .iter()
        .find(|(of, _)| *of == topic)
        .map_or(LEAST_PERCENT, |(_, least)| *least);
    let report = format!("{topic}: {passed} of {total} pass, at least {least} % must\n{wrong}");
    if passed * 100 < least * total || (strict && !wrong.is_empty()) {
        return Err(report.into());
    }
    if !strict {
        eprintln!("{report}");
    }
    Ok(())
}
