//! Runs the mutants of cargo-mutants from one build.
//!
//! `cargo mutants` builds once per mutant, which takes days for the deciding crates (12 000 mutants). Here the same list
//! (`cargo mutants --list`) is compiled into one build, each mutant behind a switch that an environment variable turns on, and
//! for each mutant only the tests that reach it run, which takes minutes. Mutants that cannot have a switch (in constants, in
//! conditions with `let`) are listed as "unplaced"; `cargo mutants` itself can run them.

mod build;
mod child;
mod jobs;
mod listing;
mod outcomes;
mod run;
mod schemata;
mod sources;

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use listing::Mutant;
use outcomes::{Outcomes, Run};
use run::Outcome;
use sources::Sources;

const HELP: &str = "\
usage: mutants [--integration] [--only TEXT]... [--resume] [--jobs N] [--list] PACKAGE...

  --integration  run the packages' integration tests, too, not only those of the library
  --only TEXT    only mutants whose name (crates/…/file.rs:line:column: replace … in function) contains TEXT
  --resume       keep what earlier runs found: run only mutants that are new, or survived with other sources or other tests
  --jobs N       run the tests of N mutants at the same time (default: the number of CPUs); each may use 6 GiB of memory
  --list         run nothing; print the number of mutants of each file

Each outcome is appended to target/mutants/outcomes.jsonl when it is found; the names of the survivors are written to
target/mutants/survivors.txt at the end. SIGINT, SIGTERM and SIGHUP end the run: the table of what is known is printed.
--resume continues such a run, and one that was killed: if no file was changed, the survivors are kept, too.";

#[derive(Default)]
struct Arguments {
    integration: bool,
    resume: bool,
    list: bool,
    /// None: the number of CPUs.
    jobs: Option<NonZeroUsize>,
    only: Vec<String>,
    packages: Vec<String>,
}

fn main() -> ExitCode {
    let mut arguments = Arguments::default();
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--integration" => arguments.integration = true,
            "--resume" => arguments.resume = true,
            "--list" => arguments.list = true,
            "--only" => arguments.only.extend(given.next()),
            "--jobs" => {
                arguments.jobs = given.next().and_then(|number| number.parse().ok());
                if arguments.jobs.is_none() {
                    eprintln!("--jobs: expected a number that is at least 1");
                    return ExitCode::from(2);
                }
            }
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            _ => arguments.packages.push(argument),
        }
    }
    match mutants(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the mutants; true if none survived.
fn mutants(arguments: &Arguments) -> Result<bool, String> {
    child::handle_signals()?;
    let tree = std::env::current_dir().map_err(|error| format!("current directory: {error}"))?;
    let chosen: Vec<Mutant> = listing::list(&tree, &arguments.packages)?
        .into_iter()
        .filter(|mutant| {
            arguments.only.is_empty() || arguments.only.iter().any(|text| mutant.name.contains(text))
        })
        .collect();
    let scratch = tree.join("target/mutants");
    fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let sources = Sources::read(&tree)?;
    let run = Run {
        sources: sources.digest(),
        integration: arguments.integration,
    };
    let mut outcomes = Outcomes::read(scratch.join("outcomes.jsonl"), run, arguments.resume);
    if !arguments.list {
        outcomes.rewrite()?;
        let found = find_outcomes(arguments, &chosen, &sources, &scratch, &mut outcomes);
        if !child::interrupted() {
            found?;
        }
        outcomes.rewrite()?;
    }
    let none_survived = report(&chosen, &outcomes, &scratch.join("survivors.txt"));
    if child::interrupted() {
        let missing = chosen
            .iter()
            .filter(|mutant| outcomes.get(&mutant.name).is_none());
        return Err(format!(
            "interrupted: {} mutants have no outcome; continue with --resume",
            missing.count()
        ));
    }
    Ok(none_survived)
}

/// Builds the mutants, and runs those whose outcome is not known.
fn find_outcomes(
    arguments: &Arguments,
    chosen: &[Mutant],
    sources: &Sources,
    scratch: &Path,
    outcomes: &mut Outcomes,
) -> Result<(), String> {
    let unviable = chosen
        .iter()
        .filter(|mutant| outcomes.get(&mutant.name) == Some(&Outcome::Unviable));
    let builder = build::Builder {
        sources,
        copy: scratch.join("tree"),
        target: scratch.join("build"),
        mutants: chosen,
        unviable: unviable.map(|mutant| mutant.id).collect(),
        packages: &arguments.packages,
        integration: arguments.integration,
    };
    let built = builder.build()?;
    eprintln!(
        "{} mutants in {} test programs",
        built.placed.len(),
        built.tests.len()
    );
    for mutant in chosen {
        let outcome = if built.unviable.contains(&mutant.id) {
            Outcome::Unviable
        } else if !built.placed.contains(&mutant.id) {
            Outcome::Unplaced
        } else {
            continue;
        };
        if outcomes.get(&mutant.name) != Some(&outcome) {
            outcomes.append(&mutant.name, outcome)?;
        }
    }
    let to_run: Vec<&Mutant> = chosen
        .iter()
        .filter(|mutant| outcomes.get(&mutant.name).is_none())
        .collect();
    let mut programs = Vec::new();
    for program in built.tests {
        if to_run.iter().any(|mutant| mutant.package == program.package) {
            programs.push(run::record(program, scratch)?);
        }
    }
    let jobs = match arguments.jobs {
        Some(jobs) => jobs,
        None => std::thread::available_parallelism().map_err(|error| format!("number of CPUs: {error}"))?,
    };
    jobs::run_all(&to_run, &programs, jobs, |mutant, outcome| {
        outcomes.append(&mutant.name, outcome)
    })
}

/// Prints the table of files and writes the survivors' names into the file; true if none survived.
fn report(mutants: &[Mutant], outcomes: &Outcomes, path: &Path) -> bool {
    let mut files: BTreeMap<&str, [usize; 6]> = BTreeMap::new();
    let mut survivors = String::new();
    for mutant in mutants {
        let counts = files.entry(&mutant.file).or_default();
        counts[0] += 1;
        match outcomes.get(&mutant.name) {
            Some(Outcome::Caught(_)) => counts[1] += 1,
            Some(Outcome::Timeout) => counts[2] += 1,
            Some(Outcome::Unviable) => counts[3] += 1,
            Some(Outcome::Unplaced) => counts[4] += 1,
            Some(outcome @ (Outcome::Missed(_) | Outcome::Uncovered)) => {
                counts[5] += 1;
                survivors.push_str(&mutant.name);
                survivors.push_str(if *outcome == Outcome::Uncovered {
                    " (no test reaches it)\n"
                } else {
                    "\n"
                });
            }
            None => {}
        }
    }
    let mut all = [0; 6];
    println!(
        "{:<64}{:>8}{:>8}{:>8}{:>9}{:>9}{:>9}",
        "file", "mutants", "caught", "timeout", "unviable", "unplaced", "survived"
    );
    for (file, counts) in files.iter().map(|(file, counts)| (*file, *counts)) {
        print_row(file, &counts);
        for (sum, count) in all.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    print_row("all", &all);
    if let Err(error) = fs::write(path, &survivors) {
        eprintln!("{}: {error}", path.display());
    }
    all[5] == 0
}

fn print_row(name: &str, counts: &[usize; 6]) {
    let [mutants, caught, timeout, unviable, unplaced, survived] = counts;
    println!("{name:<64}{mutants:>8}{caught:>8}{timeout:>8}{unviable:>9}{unplaced:>9}{survived:>9}");
}

/// An empty directory for a test.
#[cfg(test)]
fn temporary_directory(name: &str) -> std::path::PathBuf {
    let directory = std::env::temp_dir().join(format!("knarr-mutants-{}-{name}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    directory
}
