//! Runs the tests once per mutant: only those that reach it, stopped at the first that fails.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool that runs in real time, never in the simulation"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::build::TestProgram;
use crate::child::{Child, Stopped};
use crate::listing::Mutant;

/// A mutant may make a test wait or loop: its tests have this long, or [`SLOWER`] times what all tests take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How much slower than all tests, run two at a time, the tests of one mutant may be that are run one at a time, while those of
/// other mutants use all CPUs.
const SLOWER: u32 = 4;
/// What a mutant's tests may allocate, in KiB: a loop that never ends must not use up the host's memory.
const MEMORY_KIB: u64 = 6 << 20;
/// The name of a thread that a test started: mutants that such a thread reaches are run with all tests.
const UNNAMED: &str = "?";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The test that failed.
    Caught(String),
    Timeout,
    /// All tests that reach it passed: how many.
    Missed(usize),
    /// No test reaches it.
    Uncovered,
    /// rustc rejects it.
    Unviable,
    /// It has no switch (constants, conditions with `let`): cargo-mutants has to run it.
    Unplaced,
}

/// A test program, and which of its tests reach each mutant.
pub struct Recorded {
    program: TestProgram,
    tests: BTreeMap<u32, BTreeSet<String>>,
    popularity: BTreeMap<String, usize>,
    took: Duration,
}

/// Runs all tests of the program without a mutant.
///
/// # Errors
/// A test fails.
pub fn record(program: TestProgram, scratch: &Path) -> Result<Recorded, String> {
    let record = scratch.join("record");
    let _ = fs::remove_file(&record);
    let begin = Instant::now();
    passes(command(&program))?;
    let took = begin.elapsed();
    let mut recording = command(&program);
    recording.env("MUTANT_RECORD", &record);
    passes(recording)?;
    let mut recorded = Recorded {
        program,
        tests: BTreeMap::new(),
        popularity: BTreeMap::new(),
        took,
    };
    for line in fs::read_to_string(&record).unwrap_or_default().lines() {
        let Some((id, test)) = line.split_once(' ') else {
            continue;
        };
        let Ok(id) = id.parse() else { continue };
        if recorded.tests.entry(id).or_default().insert(test.to_owned()) {
            *recorded.popularity.entry(test.to_owned()).or_default() += 1;
        }
    }
    Ok(recorded)
}

/// Runs all tests. With one thread all tests would have the main thread's name, by which they are recorded.
fn passes(mut tests: Command) -> Result<(), String> {
    let (status, output) = Child::spawn(tests.args(["--test-threads", "2"]))?.output()?;
    if status.success() {
        return Ok(());
    }
    Err(format!("tests fail without a mutant: {output}"))
}

fn command(program: &TestProgram) -> Command {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        &format!("ulimit -v {MEMORY_KIB}; exec nice -n 10 \"$0\" \"$@\""),
    ]);
    command.arg(&program.path).current_dir(&program.directory);
    command
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .env("INSTA_UPDATE", "no")
        .env("RUST_BACKTRACE", "0")
        // A persisted failure of one mutant would be run for the next one.
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
        .stderr(Stdio::null());
    command
}

/// Runs the tests that reach the mutant, until one fails; none if a signal ended them.
///
/// # Errors
/// A program does not start.
pub fn run(programs: &[Recorded], mutant: &Mutant) -> Result<Option<Outcome>, String> {
    let mut passed = 0;
    for recorded in programs {
        if recorded.program.package != mutant.package {
            continue;
        }
        match run_program(recorded, mutant.id)? {
            Some(Outcome::Missed(tests)) => passed += tests,
            Some(Outcome::Uncovered) => {}
            found => return Ok(found),
        }
    }
    Ok(Some(match passed {
        0 => Outcome::Uncovered,
        _ => Outcome::Missed(passed),
    }))
}

/// Runs the tests of one program that reach the mutant.
fn run_program(recorded: &Recorded, id: u32) -> Result<Option<Outcome>, String> {
    let Some(tests) = recorded.tests.get(&id) else {
        return Ok(Some(Outcome::Uncovered));
    };
    let mut command = command(&recorded.program);
    command.env("MUTANT", id.to_string());
    if tests.contains(UNNAMED) {
        command.args(["--test-threads", "2"]);
    } else {
        // A test that reaches few mutants is the most specific to this one: it runs first.
        let mut tests: Vec<&String> = tests.iter().collect();
        tests.sort_by_key(|test| recorded.popularity.get(*test));
        command.args(["--exact", "--test-threads", "1"]).args(tests);
    }
    let child = Child::spawn(&mut command)?;
    let deadline = Instant::now() + TIMEOUT.max(recorded.took * SLOWER);
    loop {
        match child.line(Some(deadline)) {
            Ok(Some(line)) if line.starts_with("test ") && line.ends_with("FAILED") => {
                let test = line.trim_start_matches("test ").split(' ').next();
                return Ok(Some(Outcome::Caught(test.unwrap_or_default().to_owned())));
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(Stopped::Deadline) => return Ok(Some(Outcome::Timeout)),
            Err(Stopped::Signal) => return Ok(None),
        }
    }
    let status = child.wait()?;
    Ok(Some(if status.success() {
        Outcome::Missed(tests.len())
    } else {
        Outcome::Caught(status.to_string())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test program that is a shell script. Its test `a` reaches the mutants 1 to 3.
    fn recorded(directory: &Path, name: &str, script: &str) -> Recorded {
        let path = directory.join(name);
        // Another process writes it: a file that this one has open for writing cannot be executed, nor while a child that another
        // test starts at that moment has inherited it.
        let status = Command::new("sh")
            .args(["-c", "printf '#!/bin/sh\n%s' \"$1\" >\"$0\" && chmod +x \"$0\""])
            .arg(&path)
            .arg(script)
            .status();
        assert!(status.unwrap().success());
        let tests = BTreeSet::from(["a".to_owned()]);
        Recorded {
            program: TestProgram {
                package: Mutant::example(0).package,
                path,
                directory: directory.to_owned(),
            },
            tests: (1..=3).map(|id| (id, tests.clone())).collect(),
            popularity: BTreeMap::new(),
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_mutant_is_run_in_all_programs_of_its_package_until_a_test_fails() {
        let directory = crate::temporary_directory("run");
        let script = "case $MUTANT in
            1) echo 'test a ... FAILED'; sleep 1000 ;;
            2) echo 'test a ... ok' ;;
            3) exit 101 ;;
        esac";
        let programs = [
            recorded(&directory, "passes", "exit 0"),
            recorded(&directory, "fails", script),
        ];
        for (id, expected) in [
            (1, Outcome::Caught("a".to_owned())),
            (2, Outcome::Missed(2)),
            (3, Outcome::Caught("exit status: 101".to_owned())),
            (4, Outcome::Uncovered),
        ] {
            assert_eq!(run(&programs, &Mutant::example(id)), Ok(Some(expected)), "{id}");
        }
        let mut other = Mutant::example(1);
        other.package = "knarr-other".to_owned();
        assert_eq!(run(&programs, &other), Ok(Some(Outcome::Uncovered)));
        fs::remove_dir_all(directory).unwrap();
    }
}
