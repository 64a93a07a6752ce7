//! The other commands of `knarr-sim`: shrinking a broken history, and the coverage file.

pub mod coverage;
pub mod shrink;
