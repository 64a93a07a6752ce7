//! The whole cluster in virtual time: one seed, one history (SPEC S9).
//!
//! The real API servers over one memory store, the real controllers and scheduler, the real kubelets over a container
//! runtime in memory, on one thread and tokio's paused clock, with every choice drawn from one seed. Users work,
//! faults are injected at the seams (the API as a component reaches it, a server's connection to the store, the
//! runtime, the life of a component's process, its clock), and after every commit and every start and exit of a
//! process every rule in `rules` is checked. At the end the faults stop, and the desired state has to come about
//! within bounded time.
//!
//! What cannot be found here: anything between threads, processes or hosts that is not a message. Features that no
//! rule needs and that cost much (managed fields) are on in some histories only.
//!
//! # Where things are
//!
//! Rules: one file per number of the specification in `rules/`; that a history ends well (SPEC S9): `simulation/convergence.rs`. Disks and fence agents: `disks.rs`, `fence_agents.rs`. Mutants: `mutation.rs`. What a history can
//! be without: `switches.rs`; its users and faults: `script.rs`, `trouble.rs`; what they met: `coverage.rs`; shrinking and the story: `shrink.rs`, `story.rs`.
//! `tests/controllers/` runs the whole control loop under churn and invalid objects, and compares `whatif` with what then happens; `tests/at_most_one_model.rs` is a
//! model checked exhaustively (`docs/safety.md`). `docs/simulator.md` explains how it works.

mod attacher;
mod clocks;
mod commits;
mod component_api;
mod components;
mod condition;
mod coverage;
mod definitions;
mod disks;
mod distortion;
mod faults;
mod fence_agents;
mod finding;
mod history;
mod host_access;
mod later;
mod metering;
mod mutation;
mod names;
mod network;
mod network_agent;
mod observer;
mod placement;
mod pod_network;
mod policy_table;
mod policy_verdict;
mod progress;
mod random;
mod readers;
mod rules;
mod runs;
mod runtime;
mod script;
mod servers;
mod shrink;
mod simulation;
mod staged;
mod staging;
mod steering;
mod store;
mod store_faults;
mod stored;
mod story;
mod switches;
mod trouble;
mod upgrade;
mod users;
mod versions;
mod world;

pub use coverage::{Coverage, State};
pub use mutation::Mutation;
pub use observer::Violation;
pub use runs::run_all;
pub use script::{Reduction, Script, Steps};
pub use shrink::{Limits, Shrunk, shrink};
pub use simulation::{Pace, Report, Simulation};
pub use steering::steer;
pub use switches::{
    Class, FIRST_INTERRUPTED, FIRST_LATER, FIRST_PLACED, FIRST_SWARMED, Swarm, Switch, Switches,
};
