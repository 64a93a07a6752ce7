//! The deciding part of the scheduler: which pod next, and which node for it.
//!
//! [`Scheduler`] keeps its own dense snapshot of the cluster ([`cluster`]), updated with each watch event, and for
//! each class of pods the results of the plugins on every node ([`evaluation`]), updated for the nodes that changed:
//! no decision iterates over pods. [`Scheduler::schedule_one`] takes the next pod of the queue and returns the action
//! for it. No IO, no clock, no randomness: among equally good nodes the choice rotates.
//! To add a plugin: one file under [`plugins`], one line in [`plugins::FILTERS`] or a column of [`evaluation`]; CONTRIBUTING.md has the other places.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | one plugin | one file in [`plugins`] |
//! | the fields of a pod that scheduling depends on: the key of a class | [`pod_info`] |
//! | one scheduling attempt; what changes of objects mean for the snapshot | `scheduler/attempt.rs`,
//! `scheduler/changes.rs` |
//! | results per class of pods, in columns, updated from the log of changed nodes | [`evaluation`], [`cluster`] |
//! | the scheduling queue, its queueing hints, the names of its events | `queue.rs`, `queueing_hints.rs`, `event.rs` |
//! | declared domains of topology keys (SPEC B3) | `topology_domains.rs` |
//! | PodDisruptionBudgets as preemption reads them | `budgets.rs` |
//! | claims and volumes, and the four plugins on them | `volumes.rs`, `storage.rs` |
//! | dynamic resource allocation: devices, classes and claims; the allocator; what an attempt reserves | `dynamic_resources/`, `scheduler/claims.rs` |
//! | KubeSchedulerConfiguration | `config/` |
//! | `knarr why` and `knarr whatif` (SPEC B1, B2) | `why.rs`, `whatif.rs` |

pub mod budgets;
pub mod cluster;
pub mod config;
pub mod diagnosis;
pub mod dynamic_resources;
pub mod evaluation;
pub mod event;
pub mod node_info;
pub mod plugins;
pub mod pod_info;
pub mod pod_volumes;
pub mod pre_bind;
pub mod profile;
pub mod queue;
pub mod queueing_hints;
pub mod resources;
pub mod scheduler;
pub mod storage;
pub mod topology_domains;
mod verdict;
pub mod volumes;
pub mod whatif;
pub mod why;

pub use cluster::Cluster;
pub use diagnosis::Diagnosis;
pub use node_info::NodeInfo;
pub use plugins::UnschedulableStatus;
pub use pod_info::PodInfo;
pub use profile::Profile;
pub use scheduler::{Action, Decision, Nomination, Scheduler};
