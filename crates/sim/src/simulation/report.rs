//! The result of a history.

use std::fmt;
use std::time::Duration;

use crate::coverage::Coverage;
use crate::observer::Violation;
use crate::script::Script;
use crate::switches::Switches;

/// The result of a history.
#[derive(Clone, Debug)]
pub struct Report {
    pub seed: u64,
    /// The hash of the whole trace: the same seed has the same.
    pub digest: String,
    pub events: u64,
    pub converged_after: Duration,
    /// Virtual time until the last fault was over.
    pub troubled: Duration,
    /// Virtual time in total.
    pub lasted: Duration,
    pub violation: Option<Violation>,
    /// The last lines of the trace, or all.
    pub trace: Vec<String>,
    /// Which faults hit pods in which states.
    pub coverage: Coverage,
    /// The switches that were on.
    pub switches: Switches,
    pub nodes: usize,
    /// What users and faults did.
    pub script: Script,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.violation {
            None => write!(f, "seed {}: every rule held", self.seed)?,
            Some(Violation { rule, what, at, .. }) => {
                write!(f, "seed {}: {rule} broken at {at}: {what}", self.seed)?
            }
        }
        write!(
            f,
            "\n{} steps in {} virtual seconds, settled {} s after the last fault, {}",
            self.events,
            self.lasted.as_secs(),
            self.converged_after.as_secs(),
            self.digest
        )
    }
}
