//! Authentication, authorization and the API over HTTPS, of a server in this process with a clock of its own.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod aggregation;
mod at_rest;
mod audit;
mod bad_input;
mod clients;
mod cluster;
mod conformance;
mod extension;
mod forms;
#[path = "../in_process/hooks.rs"]
mod hooks;
mod hostile;
mod identities;
mod joining;
mod lifecycles;
mod limits;
mod memory;
mod nothing_open;
mod operators;
mod proxy;
mod rbac;
mod requests;
mod reviews;
mod subresource_admission;
mod surge_eviction;
mod tokens;
mod verbs;
mod versions;
mod webhooks;
