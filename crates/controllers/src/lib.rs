//! The deciding half of the controllers: plain functions from what is known to what is to be done.
//!
//! No IO, no clock, no randomness: a controller reads a [`View`], is told the time, and answers [`Action`]s that carry
//! what they were decided on (uid, resourceVersion). The driver in `control` carries them out.
//! To add a controller: one file (or folder), one line in [`all`].

pub mod action;
pub mod controller;
pub mod deployment;
pub mod owner;
pub mod pod;
pub mod replicaset;
#[cfg(test)]
mod world;

pub use action::{Action, Failure};
pub use controller::{Changed, Context, Controller, View};

/// Every controller that works on keys.
pub fn all() -> Vec<Box<dyn Controller>> {
    vec![Box::new(deployment::Deployments), Box::new(replicaset::ReplicaSets)]
}
