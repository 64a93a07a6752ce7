//! The verdicts of the filters on the nodes, as numbers in a column: [`FEASIBLE`], [`NO_NODE`], or the number of the
//! status that a plugin rejected the node with.

use crate::plugins::UnschedulableStatus;

/// The verdict on an index without a node.
pub(crate) const NO_NODE: u16 = u16::MAX;
/// The verdict on a node that fits the pod.
pub(crate) const FEASIBLE: u16 = 0;

/// The different statuses, numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct StatusTable {
    all: Vec<UnschedulableStatus>,
}

impl StatusTable {
    pub fn number(&mut self, rejection: UnschedulableStatus) -> u16 {
        let at = match self.all.iter().position(|r| *r == rejection) {
            Some(at) => at,
            None => {
                self.all.push(rejection);
                self.all.len() - 1
            }
        };
        // There are as many different ones as combinations of insufficient resources: a few dozen.
        u16::try_from(at + 1).unwrap_or(NO_NODE - 1)
    }

    pub fn get(&self, number: u16) -> Option<&UnschedulableStatus> {
        self.all.get(usize::from(number).checked_sub(1)?)
    }

    /// Those that are numbered, in order.
    pub fn all(&self) -> &[UnschedulableStatus] {
        &self.all
    }
}
