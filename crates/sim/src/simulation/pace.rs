//! How close together the events of a history are.

use std::str::FromStr;

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

/// There is no pace of this name.
#[derive(Debug, thiserror::Error)]
#[error("expected dense or slow")]
pub struct UnknownPace;

impl FromStr for Pace {
    type Err = UnknownPace;

    fn from_str(name: &str) -> Result<Pace, UnknownPace> {
        match name {
            "dense" => Ok(Pace::Dense),
            "slow" => Ok(Pace::Slow),
            _ => Err(UnknownPace),
        }
    }
}
