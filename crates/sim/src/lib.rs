//! The whole cluster in virtual time: one seed, one history (SPEC S9).
//!
//! The real API server over the memory store, the real controllers and scheduler, the real kubelets over a container
//! runtime in memory, on one thread and tokio's paused clock, with every choice drawn from one seed. Users work, faults
//! strike at three seams (the API as a component reaches it, the runtime, a component's being there), and after every
//! commit and every start and end of a process every rule in `rules` is asked. At last the faults end, and what was
//! wanted has to come about within bounded time.
//!
//! What cannot be found here: anything between threads, processes or machines that is not a message.

mod components;
mod faults;
mod history;
mod network;
mod observer;
mod random;
mod rules;
mod runtime;
mod simulation;
mod store;
mod workload;
mod world;

pub use observer::Violation;
pub use simulation::{Report, Simulation};

/// A mistake made on purpose, at the seams, to show that the rule against it sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Kubelets delete objects when they should say how the end goes (T5).
    DeleteBeforeTheEnd,
    /// Runtimes start a second set of processes (S1).
    StartTwice,
    /// KILL comes a second after TERM (T3).
    CutTheGrace,
    /// Controllers remove pods by force (S2).
    ForceAway,
    /// Deletions do not say which uid they mean (S2).
    ForgetUid,
    /// Kubelets' last step is not done (the cluster does not converge).
    LoseLastStep,
}
