//! The deciding half of the scheduler: which node for which pod, and which pod next.
//!
//! [`Scheduler`] keeps its own picture of the nodes, fed with one change at a time, and never walks all pods for one
//! pod. [`Scheduler::step`] takes the next pod of the queue and says what is to be done with it. No IO, no clock, no
//! randomness: among nodes that are equally good the choice goes round.
//! To add a plugin: one file under [`plugins`], one line in [`plugins::default`].

pub mod config;
pub mod node_info;
pub mod plugins;
pub mod pod_info;
pub mod queue;
pub mod resources;
pub mod scheduler;

pub use node_info::NodeInfo;
pub use plugins::{Plugin, Refusal};
pub use pod_info::PodInfo;
pub use scheduler::{Decision, Diagnosis, Scheduler, Step};
