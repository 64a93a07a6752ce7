//! The file of outcomes, one JSON value a line. An outcome is appended when it is found, so that a run that is cut off loses none; the
//! file is rewritten when a run begins and when it ends.
//!
//! A line is a mutant's name with its outcome, or a [`Run`], which found the outcomes below it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::run::Outcome;

/// What a run's outcomes depend on: with the same sources and tests a mutant that survived survives again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub sources: u64,
    pub integration: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Outcome(String, Outcome),
    Run(Run),
}

/// The outcomes of this run and of earlier ones, by the mutants' names.
pub struct Outcomes {
    path: PathBuf,
    run: Run,
    /// What this run knows.
    known: BTreeMap<String, Outcome>,
    /// What earlier runs found and this one finds again.
    earlier: BTreeMap<String, Outcome>,
}

impl Outcomes {
    /// Reads the file, if there is one. A run that is not resumed knows nothing. One that is resumed knows what runs with the same
    /// sources and tests found, and of other runs the mutants that do not compile and those that a test caught. Lines that cannot be
    /// read are skipped, and their mutants run again.
    pub fn read(path: PathBuf, run: Run, resume: bool) -> Self {
        let (mut known, mut earlier) = (BTreeMap::new(), BTreeMap::new());
        let mut same = false;
        let bytes = fs::read(&path).unwrap_or_default();
        for line in String::from_utf8_lossy(&bytes).lines() {
            match serde_json::from_str(line) {
                Ok(Line::Run(found_by)) => same = found_by == run,
                Ok(Line::Outcome(name, outcome)) => {
                    let lasts = matches!(outcome, Outcome::Caught(_) | Outcome::Timeout | Outcome::Unviable);
                    let (to, from) = if resume && (same || lasts) {
                        (&mut known, &mut earlier)
                    } else {
                        (&mut earlier, &mut known)
                    };
                    from.remove(&name);
                    to.insert(name, outcome);
                }
                Err(_) => {}
            }
        }
        Self {
            path,
            run,
            known,
            earlier,
        }
    }

    pub fn get(&self, name: &str) -> Option<&Outcome> {
        self.known.get(name)
    }

    /// Adds what was found to the end of the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, name: &str, outcome: Outcome) -> Result<(), String> {
        let line = format!("{}\n", json(&(name, &outcome))?);
        OpenOptions::new()
            .append(true)
            .open(&self.path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        self.known.insert(name.to_owned(), outcome);
        Ok(())
    }

    /// Replaces the file by one with a line for each mutant.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn rewrite(&self) -> Result<(), String> {
        let mut lines = Vec::new();
        for entry in &self.earlier {
            if !self.known.contains_key(entry.0) {
                lines.push(json(&entry)?);
            }
        }
        lines.push(json(&self.run)?);
        for entry in &self.known {
            lines.push(json(&entry)?);
        }
        let new = self.path.with_extension("new");
        fs::write(&new, lines.join("\n") + "\n")
            .and_then(|()| fs::rename(&new, &self.path))
            .map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: Run = Run {
        sources: u64::MAX,
        integration: false,
    };

    fn caught() -> Outcome {
        Outcome::Caught("a::test".to_owned())
    }

    #[test]
    fn an_interrupted_run_is_resumed_with_all_that_it_found() {
        let directory = crate::temporary_directory("outcomes");
        let path = directory.join("outcomes.jsonl");
        // As written by older versions, without the run.
        fs::write(
            &path,
            "[\"old\",\"uncovered\"]\n[\"old caught\",{\"caught\":\"t\"}]\n",
        )
        .unwrap();
        let mut outcomes = Outcomes::read(path.clone(), RUN, false);
        assert_eq!(outcomes.get("old caught"), None, "it is not resumed");
        outcomes.rewrite().unwrap();
        outcomes.append("caught", caught()).unwrap();
        outcomes.append("missed", Outcome::Missed(3)).unwrap();
        outcomes.append("uncovered", Outcome::Uncovered).unwrap();
        outcomes.append("cut off", Outcome::Timeout).unwrap();
        let text = fs::read(&path).unwrap();
        fs::write(&path, &text[..text.len() - 5]).unwrap();

        let other_sources = Run { sources: 1, ..RUN };
        let other_tests = Run {
            integration: true,
            ..RUN
        };
        for (run, survivors) in [(RUN, true), (other_sources, false), (other_tests, false)] {
            let outcomes = Outcomes::read(path.clone(), run, true);
            assert_eq!(outcomes.get("caught"), Some(&caught()));
            assert!(outcomes.get("old caught").is_some());
            assert_eq!(outcomes.get("missed").is_some(), survivors);
            assert_eq!(outcomes.get("uncovered").is_some(), survivors);
            assert_eq!(outcomes.get("old"), None);
            assert_eq!(outcomes.get("cut off"), None);
        }

        // What is appended after the cut-off line is not lost, and a rewritten file says the same.
        let mut outcomes = Outcomes::read(path.clone(), RUN, true);
        outcomes.rewrite().unwrap();
        outcomes.append("cut off", Outcome::Unplaced).unwrap();
        outcomes.append("old", Outcome::Missed(1)).unwrap();
        outcomes.rewrite().unwrap();
        let outcomes = Outcomes::read(path.clone(), RUN, true);
        assert_eq!(outcomes.get("cut off"), Some(&Outcome::Unplaced));
        assert_eq!(outcomes.get("old"), Some(&Outcome::Missed(1)));
        assert_eq!(outcomes.get("missed"), Some(&Outcome::Missed(3)));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 7);
        fs::remove_dir_all(directory).unwrap();
    }
}
