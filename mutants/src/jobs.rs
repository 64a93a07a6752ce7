//! Runs several mutants at the same time, and prints how many are done.

#![allow(
    clippy::disallowed_methods,
    reason = "a tool that runs in real time, never in the simulation"
)]

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::listing::Mutant;
use crate::run::{self, Outcome, Recorded};

/// The progress is printed after so many mutants, and at least this often.
const PRINT_MUTANTS: u32 = 100;
const PRINT_PERIOD: Duration = Duration::from_secs(30);

/// Runs the mutants, so many at the same time, and passes each outcome on. After a signal no further mutant is run.
///
/// # Errors
/// A test program does not start, or `found` failed.
pub fn run_all(
    mutants: &[&Mutant],
    programs: &[Recorded],
    jobs: NonZeroUsize,
    mut found: impl FnMut(&Mutant, Outcome) -> Result<(), String>,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    let mut progress = Progress::new(u32::try_from(mutants.len()).unwrap_or(u32::MAX));
    std::thread::scope(|scope| {
        let (send, results) = mpsc::channel();
        for _ in 0..jobs.get().min(mutants.len()) {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run::run(programs, mutant);
                    let interrupted = outcome == Ok(None);
                    if send.send((*mutant, outcome)).is_err() || interrupted {
                        break;
                    }
                }
            });
        }
        drop(send);
        loop {
            match results.recv_timeout(PRINT_PERIOD.saturating_sub(progress.printed.elapsed())) {
                Ok((mutant, outcome)) => {
                    if let Some(outcome) = outcome? {
                        progress.count(&outcome);
                        found(mutant, outcome)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => progress.print(),
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })
}

/// How many mutants are done.
struct Progress {
    begin: Instant,
    printed: Instant,
    total: u32,
    done: u32,
    caught: u32,
    survived: u32,
}

impl Progress {
    fn new(total: u32) -> Self {
        let begin = Instant::now();
        Self {
            begin,
            printed: begin,
            total,
            done: 0,
            caught: 0,
            survived: 0,
        }
    }

    fn count(&mut self, outcome: &Outcome) {
        self.done += 1;
        match outcome {
            Outcome::Caught(_) | Outcome::Timeout => self.caught += 1,
            Outcome::Missed(_) | Outcome::Uncovered => self.survived += 1,
            Outcome::Unviable | Outcome::Unplaced => {}
        }
        if self.done.is_multiple_of(PRINT_MUTANTS) {
            self.print();
        }
    }

    fn print(&mut self) {
        self.printed = Instant::now();
        eprintln!("{}", self.line(self.begin.elapsed()));
    }

    /// The remaining time is estimated as if each mutant took as long as those that are done.
    fn line(&self, elapsed: Duration) -> String {
        let left = self.total.saturating_sub(self.done);
        let remaining = match self.done {
            0 => String::new(),
            done => format!(
                ", about {} min remain",
                (elapsed * left / done).as_secs().div_ceil(60)
            ),
        };
        format!(
            "{} of {} mutants are done: {} caught, {} survived{remaining}",
            self.done, self.total, self.caught, self.survived
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutant_is_run_once() {
        let mutants: Vec<Mutant> = (0..250).map(Mutant::example).collect();
        let mutants: Vec<&Mutant> = mutants.iter().collect();
        for jobs in [1, 3, 300] {
            let mut ids = Vec::new();
            let jobs = NonZeroUsize::new(jobs).unwrap();
            let result = run_all(&mutants, &[], jobs, |mutant, outcome| {
                assert_eq!(outcome, Outcome::Uncovered);
                ids.push(mutant.id);
                Ok(())
            });
            assert_eq!(result, Ok(()));
            ids.sort_unstable();
            assert_eq!(ids, (0..250).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn an_outcome_that_cannot_be_written_ends_the_run() {
        let mutants: Vec<Mutant> = (0..250).map(Mutant::example).collect();
        let mutants: Vec<&Mutant> = mutants.iter().collect();
        let jobs = NonZeroUsize::new(2).unwrap();
        let result = run_all(&mutants, &[], jobs, |_, _| Err("disk full".to_owned()));
        assert_eq!(result, Err("disk full".to_owned()));
    }

    #[test]
    fn the_remaining_time_follows_from_the_mutants_that_are_done() {
        let mut progress = Progress::new(1000);
        assert_eq!(
            progress.line(Duration::from_secs(30)),
            "0 of 1000 mutants are done: 0 caught, 0 survived"
        );
        for outcome in [
            Outcome::Caught("t".to_owned()),
            Outcome::Timeout,
            Outcome::Missed(1),
            Outcome::Uncovered,
        ] {
            progress.count(&outcome);
        }
        assert_eq!(
            progress.line(Duration::from_secs(4)),
            "4 of 1000 mutants are done: 2 caught, 2 survived, about 17 min remain"
        );
    }
}
