//! What bounds the time and the size of a plan, however many pods and rules a policy for all namespaces selects.
//!
//! The moves are bounded by the policy's budgets, of which a controller's are at most 300 an hour. What is left out is counted in the plan.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How often the scheduler is asked in vain: simulations after which the pod stays. Pods of one class on one node are simulated
    /// once for each pass over the rules.
    pub failed_simulations: usize,
    /// How many pods that stay are listed with their reasons; the others are counted by reason.
    pub not_moved: usize,
    /// How many violated rules are listed, those that the plan changes first.
    pub violations: usize,
}

impl Limits {
    /// A simulation filters and scores all nodes, some milliseconds with 5 000 of them: seconds for a plan in which no pod can be moved.
    /// A listed pod has some 500 bytes.
    pub const DEFAULT: Limits = Limits {
        failed_simulations: 2_000,
        not_moved: 1_000,
        violations: 1_000,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Limits::DEFAULT
    }
}
