//! Runs the tests once per mutant: only those that reach it, stopped at the first that fails.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool that runs in real time, never in the simulation"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::build::TestProgram;

/// A mutant may make a test wait or loop: its tests have this long, or [`SLOWER`] times what all tests take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How much slower than all tests, run two at a time, the tests of one mutant may be that are run one at a time.
const SLOWER: u32 = 3;
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

/// Which tests of which program reach each mutant.
pub struct Coverage {
    tests: BTreeMap<u32, BTreeSet<String>>,
    popularity: BTreeMap<String, usize>,
    took: Duration,
}

/// Runs all tests of the program without a mutant.
///
/// # Errors
/// A test fails.
pub fn record(program: &TestProgram, scratch: &Path) -> Result<Coverage, String> {
    let record = scratch.join("record");
    let _ = fs::remove_file(&record);
    let begin = Instant::now();
    passes(command(program))?;
    let took = begin.elapsed();
    let mut recording = command(program);
    recording.env("MUTANT_RECORD", &record);
    passes(recording)?;
    let mut coverage = Coverage {
        tests: BTreeMap::new(),
        popularity: BTreeMap::new(),
        took,
    };
    for line in fs::read_to_string(&record).unwrap_or_default().lines() {
        let Some((id, test)) = line.split_once(' ') else {
            continue;
        };
        let Ok(id) = id.parse() else { continue };
        if coverage.tests.entry(id).or_default().insert(test.to_owned()) {
            *coverage.popularity.entry(test.to_owned()).or_default() += 1;
        }
    }
    Ok(coverage)
}

/// Runs all tests. With one thread all tests would have the main thread's name, by which they are recorded.
fn passes(mut tests: Command) -> Result<(), String> {
    let output = tests
        .args(["--test-threads", "2"])
        .stderr(Stdio::null())
        .output()
        .map_err(|error| format!("the test program does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "tests fail without a mutant: {}",
        String::from_utf8_lossy(&output.stdout)
    ))
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
        .env("RUST_BACKTRACE", "0");
    // A persisted failure of one mutant would be run for the next one.
    command
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1")
        .stdin(Stdio::null());
    command
}

/// Runs the tests of one program that reach the mutant.
///
/// # Errors
/// The program does not start.
pub fn run(program: &TestProgram, coverage: &Coverage, id: u32) -> Result<Outcome, String> {
    let Some(tests) = coverage.tests.get(&id) else {
        return Ok(Outcome::Uncovered);
    };
    let mut command = command(program);
    command.env("MUTANT", id.to_string());
    if tests.contains(UNNAMED) {
        command.args(["--test-threads", "2"]);
    } else {
        // A test that reaches few mutants is the most specific to this one: it runs first.
        let mut tests: Vec<&String> = tests.iter().collect();
        tests.sort_by_key(|test| coverage.popularity.get(*test));
        command.args(["--exact", "--test-threads", "1"]).args(tests);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.path.display()))?;
    let (send, lines) = mpsc::channel();
    let reader = child.stdout.take().map(BufReader::new);
    std::thread::spawn(move || {
        for line in reader.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + TIMEOUT.max(coverage.took * SLOWER);
    let outcome = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line.starts_with("test ") && line.ends_with("FAILED") => {
                let test = line
                    .trim_start_matches("test ")
                    .split(' ')
                    .next()
                    .unwrap_or_default();
                break Some(Outcome::Caught(test.to_owned()));
            }
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => break Some(Outcome::Timeout),
            Err(mpsc::RecvTimeoutError::Disconnected) => break None,
        }
    };
    if outcome.is_some() {
        let _ = child.kill();
    }
    let status = child
        .wait()
        .map_err(|error| format!("{}: {error}", program.path.display()))?;
    Ok(outcome.unwrap_or_else(|| {
        if status.success() {
            Outcome::Missed(tests.len())
        } else {
            Outcome::Caught(format!("{status}"))
        }
    }))
}
