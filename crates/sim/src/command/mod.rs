//! What `knarr-sim` does apart from running histories: making a broken one small, and keeping what they have met.

pub mod coverage;
pub mod shrink;
