//! The real binaries under real faults: servers, etcd members and agents in network namespaces of their own are killed, cut
//! off, paused, given wrong clocks and full disks, while clients write, read and watch and pods run; then all faults end,
//! and the recorded history is checked against ground truth. `./dev nemesis`; docs/nemesis.md.
//!
//! The faults and their times follow from the seed ([`schedule`]); the rest depends on the host's timing. The checks are in
//! [`check`], pure functions over the history. The end-to-end tests use the hosts ([`fleet`], [`test_network`], [`etcd`]), too.

#![allow(clippy::disallowed_methods, reason = "real processes run on the real clock")]

pub mod check;
mod client;
mod cluster;
pub mod commands;
pub mod etcd;
pub mod fleet;
pub mod history;
mod pods;
mod processes;
mod registers;
pub mod run;
pub mod schedule;
pub mod test_network;
pub mod wait;
mod watchers;
