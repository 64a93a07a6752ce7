//! Garbage collection: unused images ([`images`]), and containers, sandboxes and directories of pods that are finished or
//! deleted ([`containers`]). Nothing is removed here: the functions return what to remove.

pub mod containers;
pub mod images;
