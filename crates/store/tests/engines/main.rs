//! All engines against one suite, and each against what only it can suffer.

#![allow(
    clippy::unwrap_used,
    reason = "a failed unwrap is a failed test, also outside test functions"
)]

mod crash;
mod embedded;
mod etcd;
mod memory;
mod suite;
