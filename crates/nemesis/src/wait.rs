//! Waiting for conditions, with a limit: no test sleeps in place of a condition.

use std::fmt::Display;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

/// The result of a scenario; the error has what was expected and what was found.
pub type Outcome = Result<(), Failed>;

/// How long a condition is waited for, and how often it is polled.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub limit: Duration,
    pub poll: Duration,
}

impl Wait {
    /// Waits until the condition holds; the error names `what` was waited for.
    pub fn until(self, what: &str, mut holds: impl FnMut() -> bool) -> Outcome {
        let begin = Instant::now();
        while !holds() {
            if begin.elapsed() > self.limit {
                return Err(format!("waited {} s for {what}", self.limit.as_secs()).into());
            }
            std::thread::sleep(self.poll);
        }
        Ok(())
    }

    /// Waits until the output of `kubectl args`, or its error, satisfies the condition, and returns it.
    pub fn until_output<E: Display>(
        self,
        args: &[&str],
        kubectl: impl Fn(&[&str]) -> Result<String, E>,
        holds: impl Fn(&str) -> bool,
    ) -> Result<String, Failed> {
        let mut last = String::new();
        let reached = self.until("", || {
            last = kubectl(args).unwrap_or_else(|e| e.to_string());
            holds(&last)
        });
        match reached {
            Ok(()) => Ok(last),
            Err(_) => Err(format!(
                "kubectl {} did not have the expected output within {} s; last:\n{last}",
                args.join(" "),
                self.limit.as_secs()
            )
            .into()),
        }
    }
}
