//! The checks of a recorded history, one file for each guarantee: pure functions over records, without IO or clock.

pub mod at_most_one;
pub mod grace;
pub mod linearizability;
pub mod self_fencing;
pub mod watches;

use std::fmt;

use serde::Serialize;

/// A guarantee that was violated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The checker: `linearizability`, `watches`, `at-most-one`, `grace`, `self-fencing`, `liveness`, `leftovers`, `panic`.
    pub rule: &'static str,
    /// The subject: a register, a watcher, a pod, a node.
    pub of: String,
    /// What was found and what was expected.
    pub text: String,
}

impl Violation {
    pub fn new(rule: &'static str, of: impl Into<String>, text: impl Into<String>) -> Violation {
        Violation {
            rule,
            of: of.into(),
            text: text.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.rule, self.of, self.text)
    }
}
