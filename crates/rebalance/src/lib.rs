//! The deciding half of the rebalancer (SPEC B3): which pods to evict so that the rules that pods and nodes violate are
//! violated less, and why the others stay. Pure: no IO, no clock, no randomness; a [`plan::Plan`] is data.
//!
//! Every rule is a natural number, its violation ([`constraint::Constraint`] has the units). [`plan()`] takes a pod away
//! from a copy of the scheduler's snapshot, lets the scheduler's own filters and scores say where the replacement would be
//! placed, and keeps the move only if no rule grows there and one that the policy names shrinks — on each of the nodes that
//! the scheduler finds equally good. So:
//!
//! - a plan ends, and planning again from its result gives an empty plan, unless a limit ended it: rebalancing cannot loop;
//! - no pod is evicted only to come back to its node, because the scheduler was asked before;
//! - PodDisruptionBudgets are hard: they split a plan into waves, or forbid moves.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | policies: RebalancePolicy, the descheduler's DeschedulerPolicy | [`policy`] |
//! | the snapshot that a plan is made from; the workload of a pod | [`snapshot`], `workload.rs` |
//! | the violations of all rules, kept up with each move | `rules/` |
//! | where the scheduler would place a pod | `simulation.rs` |
//! | pods that are never moved, and those that a policy protects | `protection.rs`, [`annotations`] |
//! | budgets per hour, PodDisruptionBudgets, waves | `budget.rs` |
//! | what bounds the time and the size of a plan | [`limits`] |
//! | the order in which pods are tried; why the others stay | `planner.rs`, `planner/` |
//! | the controller: kinds, one step from policies and objects to a wave of evictions | [`controller`] |
//! | the plan, its reasons, its tables | [`mod@plan`], [`reason`], `table.rs` |
//!
//! # What is absent
//!
//! Preferred terms of pod (anti-)affinity are not rules (the scheduler's scores count them). Pods with resource claims are
//! not moved: the allocation of devices is not simulated. Pending pods are not placed: they may take the room that a plan
//! counts on, and the next plan then differs. What moves cost (a restart, a cold cache) has no number.

pub mod annotations;
mod budget;
pub mod constraint;
pub mod controller;
pub mod limits;
pub mod plan;
mod planner;
pub mod policy;
mod protection;
pub mod reason;
mod rules;
mod simulation;
pub mod snapshot;
mod table;
mod workload;

pub use planner::{plan, plan_within};
