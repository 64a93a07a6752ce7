//! How close together the events of a history are.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A few minutes with an event every few seconds, as no real cluster has them: faults overlap.
    Dense,
    /// Hours with an event every few minutes, and most faults last for minutes: what only long faults cause (pods
    /// that are evicted after five minutes, the longest backoffs) happens, and at the end the cluster is observed at
    /// rest.
    Slow,
}
