//! The API server as a library: everything between a client's request and the store.
//!
//! Clock, randomness and the store come in through [`Server::new`]; a simulation hosts the server as it is.
//! In-process components speak to it through [`Server::api`], which shares the cache's objects with them;
//! everybody else through HTTPS ([`Server::serve`]). Both take the same path: authorization, admission,
//! validation, one encoding, one commit.
//!
//! What is not here: the rules of kinds (`knarr-api`), durability (`knarr-store`), controllers.

pub mod admission;
mod aggregation;
pub mod allocation;
mod api_services;
pub mod audit;
pub mod authn;
pub mod authz;
mod bootstrap;
pub mod cache;
pub mod cluster_authentication;
mod conversion;
mod custom;
pub mod default_route;
pub mod encryption;
pub mod endpoint_leases;
mod flow_control;
pub mod http;
mod in_process;
pub mod joining;
mod keys;
mod metrics;
pub mod pipeline;
pub mod pki;
pub mod request;
mod resource_metrics;
pub mod seams;
mod server;
pub mod signing;
mod subresource;
pub mod tls;
pub mod user;
pub mod watch;

pub use allocation::ServiceRange;
pub use server::{Config, ISSUER, Options, Seams, Server, StartError};
pub use user::User;
