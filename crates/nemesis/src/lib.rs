//! The real binaries under real faults: servers, etcd members and agents in network namespaces of their own are killed, cut
//! off, paused, given wrong clocks and full disks, while clients write, read and watch and pods run; then everything heals,
//! and what was recorded is checked on ground truth. `./dev nemesis`; docs/nemesis.md.
//!
//! Which fault strikes when follows from the seed ([`schedule`]); the rest is the machine's own timing. What must hold is in
//! [`check`], pure functions over the history. The machines ([`fleet`], [`wire`], [`etcd`]) are the end-to-end tests' too.

#![allow(clippy::disallowed_methods, reason = "real processes run on the real clock")]

pub mod check;
mod client;
mod cluster;
pub mod etcd;
pub mod fleet;
pub mod history;
mod pods;
mod processes;
mod registers;
pub mod run;
pub mod schedule;
mod watchers;
pub mod wire;
