//! The deciding half of the controllers: plain functions from what is known to what is to be done.
//!
//! No IO, no clock, no randomness: a controller reads a [`View`], is told the time, and answers [`Action`]s that carry
//! what they were decided on (uid, resourceVersion). The driver in `control` carries them out.
//! To add a controller: one file (or folder), one line in [`all`].

pub mod action;
pub mod controller;
pub mod deployment;
pub mod endpoints;
pub mod garbagecollector;
pub mod namespace;
pub mod node;
pub mod owner;
pub mod pod;
pub mod podgc;
pub mod protection;
pub mod replicaset;
pub mod root_ca;
pub mod serviceaccount;
pub mod sweep;
#[cfg(test)]
mod world;

pub use action::{Action, Failure};
pub use controller::{Changed, Context, Controller, View};

/// What the controllers must be told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The certificates by which pods know the API server, in PEM; without them no namespace gets any.
    pub root_ca: Option<String>,
    /// How many finished pods may lie about before the oldest are removed; 0 is any number (SPEC L12).
    pub terminated_pod_gc_threshold: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            root_ca: None,
            terminated_pod_gc_threshold: 12_500,
        }
    }
}

/// Every controller that works on keys.
pub fn all(config: &Config) -> Vec<Box<dyn Controller>> {
    let mut all: Vec<Box<dyn Controller>> = vec![
        Box::new(deployment::Deployments),
        Box::new(endpoints::legacy::Endpoints),
        Box::new(endpoints::slices::EndpointSlices),
        Box::new(namespace::Namespaces),
        Box::new(node::eviction::TaintEviction),
        Box::new(node::taints::NodeTaints),
        Box::new(protection::ClaimProtection),
        Box::new(protection::VolumeProtection),
        Box::new(replicaset::ReplicaSets),
        Box::new(serviceaccount::ServiceAccounts),
    ];
    if let Some(bundle) = config.root_ca.clone() {
        all.push(Box::new(root_ca::RootCa { bundle }));
    }
    all
}

/// Every controller that looks at everything now and then.
pub fn sweeps(config: &Config) -> Vec<Box<dyn sweep::Sweep>> {
    vec![
        Box::<node::health::NodeHealth>::default(),
        Box::new(podgc::PodGc::new(config.terminated_pod_gc_threshold)),
    ]
}
