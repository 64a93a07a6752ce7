//! The shim as a process, with a real runc and busybox, asked over ttrpc by the reference client (the ttrpc crate) and
//! reporting to its reference server. It needs root; without it, or without runc or a static busybox, nothing is run.
//!
//! [`pod`] is the harness: it does what containerd does.

// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used)]

mod life;
mod pod;
mod sandbox;
mod streams;
mod trouble;
