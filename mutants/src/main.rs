//! Runs the mutants of cargo-mutants from one build.
//!
//! `cargo mutants` builds once per mutant, which takes days for the deciding crates (12 000 mutants). Here the same list
//! (`cargo mutants --list`) is compiled into one build, each mutant behind a switch that an environment variable turns on, and
//! for each mutant only the tests that reach it run, which takes minutes. Mutants that cannot have a switch (in constants, in
//! conditions with `let`) are listed as "unplaced"; `cargo mutants` itself can run them.

mod build;
mod listing;
mod run;
mod schemata;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use listing::Mutant;
use run::Outcome;

const HELP: &str = "\
usage: mutants [--integration] [--only TEXT]... [--resume] [--list] PACKAGE...

  --integration  run the packages' integration tests, too, not only those of the library
  --only TEXT    only mutants whose name (crates/…/file.rs:line:column: replace … in function) contains TEXT
  --resume       run only mutants that are new or survived the last run
  --list         run nothing; print the number of mutants of each file

The outcomes are written to target/mutants/outcomes.jsonl, the names of the survivors to target/mutants/survivors.txt.";

#[derive(Default)]
struct Arguments {
    integration: bool,
    resume: bool,
    list: bool,
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
    let tree = std::env::current_dir().map_err(|error| format!("current directory: {error}"))?;
    let mutants = listing::list(&tree, &arguments.packages)?;
    let chosen: Vec<Mutant> = mutants
        .into_iter()
        .filter(|mutant| {
            arguments.only.is_empty() || arguments.only.iter().any(|text| mutant.name.contains(text))
        })
        .collect();
    let scratch = tree.join("target/mutants");
    fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let path = scratch.join("outcomes.jsonl");
    let mut earlier = read_outcomes(&path);
    let mut outcomes: BTreeMap<u32, Outcome> = BTreeMap::new();
    if arguments.resume {
        for mutant in &chosen {
            let outcome = earlier.get(&mutant.name);
            let outcome = outcome.filter(|o| !matches!(o, Outcome::Missed(_) | Outcome::Uncovered));
            outcomes.extend(outcome.map(|outcome| (mutant.id, outcome.clone())));
        }
    }
    if !arguments.list {
        let unviable = outcomes
            .iter()
            .filter(|(_, outcome)| **outcome == Outcome::Unviable);
        let builder = build::Builder {
            tree: &tree,
            copy: scratch.join("tree"),
            mutants: &chosen,
            unviable: unviable.map(|(id, _)| *id).collect(),
            packages: &arguments.packages,
            integration: arguments.integration,
        };
        let built = builder.build()?;
        eprintln!(
            "{} mutants in {} test programs",
            built.placed.len(),
            built.tests.len()
        );
        for mutant in &chosen {
            if built.unviable.contains(&mutant.id) {
                outcomes.insert(mutant.id, Outcome::Unviable);
            } else if !built.placed.contains(&mutant.id) {
                outcomes.insert(mutant.id, Outcome::Unplaced);
            }
        }
        for program in &built.tests {
            run_all(program, &chosen, &mut outcomes, &scratch)?;
            for mutant in &chosen {
                let outcome = outcomes.get(&mutant.id);
                earlier.extend(outcome.map(|outcome| (mutant.name.clone(), outcome.clone())));
            }
            write_outcomes(&path, &earlier)?;
        }
    }
    Ok(report(&chosen, &outcomes, &scratch.join("survivors.txt")))
}

/// Runs the mutants of the program's package that no test has caught yet.
fn run_all(
    program: &build::TestProgram,
    mutants: &[Mutant],
    outcomes: &mut BTreeMap<u32, Outcome>,
    scratch: &Path,
) -> Result<(), String> {
    let of_package: Vec<&Mutant> = mutants
        .iter()
        .filter(|mutant| mutant.package == program.package)
        .collect();
    if of_package.is_empty() {
        return Ok(());
    }
    let coverage = run::record(program, scratch)?;
    for (number, mutant) in of_package.iter().enumerate() {
        if number % 500 == 0 {
            eprintln!("{}: {number} of {}", program.package, of_package.len());
        }
        let before = outcomes.get(&mutant.id);
        if !matches!(before, None | Some(Outcome::Missed(_) | Outcome::Uncovered)) {
            continue;
        }
        let now = run::run(program, &coverage, mutant.id)?;
        // A program whose tests do not reach the mutant does not change an earlier outcome.
        if before.is_none() || now != Outcome::Uncovered {
            outcomes.insert(mutant.id, now);
        }
    }
    Ok(())
}

/// The outcomes of earlier runs, by the mutants' names. Lines that cannot be read are skipped, and their mutants run again.
fn read_outcomes(path: &Path) -> BTreeMap<String, Outcome> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn write_outcomes(path: &Path, outcomes: &BTreeMap<String, Outcome>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = BufWriter::new(File::create(path).map_err(failed)?);
    for entry in outcomes {
        let line = serde_json::to_string(&entry).map_err(|error| error.to_string())?;
        writeln!(file, "{line}").map_err(failed)?;
    }
    file.flush().map_err(failed)
}

/// Prints the table of files and writes the survivors' names into the file; true if none survived.
fn report(mutants: &[Mutant], outcomes: &BTreeMap<u32, Outcome>, path: &Path) -> bool {
    let mut files: BTreeMap<&str, [usize; 6]> = BTreeMap::new();
    let mut survivors = String::new();
    for mutant in mutants {
        let counts = files.entry(&mutant.file).or_default();
        counts[0] += 1;
        match outcomes.get(&mutant.id) {
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
