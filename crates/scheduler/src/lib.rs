//! The deciding half of the scheduler: which node for which pod, and which pod next.
//!
//! [`Scheduler`] keeps its own dense picture of the cluster ([`cluster`]), fed with one change at a time, and for each
//! class of pods what the rules say of every node ([`evaluation`]), brought up to date with what changed: no decision
//! walks over pods. [`Scheduler::step`] takes the next pod of the queue and says what is to be done with it. No IO, no
//! clock, no randomness: among nodes that are equally good the choice goes round.
//! To add a plugin: one file under [`plugins`], one line in its list.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | one plugin | one file in [`plugins`] |
//! | one attempt; what changes mean for the snapshot | `scheduler/attempt.rs`, `scheduler/changes.rs` |
//! | results per class of pods, in columns, updated from the log of changed nodes | [`evaluation`], [`cluster`] |
//! | the queue and which events help | `queue.rs`, `queueing_hints.rs` |
//! | claims and volumes, and the four plugins on them | `volumes.rs`, `storage.rs` |
//! | dynamic resource allocation: devices, classes and claims; the allocator; what an attempt reserves | `dynamic_resources/`, `scheduler/claims.rs` |
//! | KubeSchedulerConfiguration | `config/` |
//! | `knarr why` and `knarr whatif` (SPEC B1, B2) | `why.rs`, `whatif.rs` |

pub mod cluster;
pub mod config;
pub mod diagnosis;
pub mod dynamic_resources;
pub mod evaluation;
pub mod node_info;
pub mod plugins;
pub mod pod_info;
pub mod pod_volumes;
pub mod profile;
pub mod queue;
pub mod queueing_hints;
pub mod resources;
pub mod scheduler;
pub mod storage;
pub mod volumes;
pub mod whatif;
pub mod why;

pub use cluster::Cluster;
pub use diagnosis::Diagnosis;
pub use node_info::NodeInfo;
pub use plugins::Refusal;
pub use pod_info::PodInfo;
pub use profile::Profile;
pub use scheduler::{Decision, Nomination, Scheduler, Step};
