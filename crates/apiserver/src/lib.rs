//! The API server as a library: everything between a client's request and the store.
//!
//! Clock, randomness and the store come in through [`Server::new`]; a simulation hosts the server as it is.
//! In-process components speak to it through [`Server::api`], which shares the cache's objects with them;
//! everybody else through HTTPS ([`Server::serve`]). Both take the same path: authorization, admission,
//! validation, one encoding, one commit.
//!
//! What is not here: the rules of kinds (`knarr-api`), durability (`knarr-store`), controllers.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | connections, limits, timeouts; parsing of headers and query | `http/` |
//! | what a request asks for | `request.rs`, held against the kind's scope in `pipeline/target.rs` |
//! | authentication, impersonation; kubelets' port | `authn/`, `authn/delegated.rs` |
//! | RBAC, Node authorizer, default roles | `authz/` (`default_roles.txt`) |
//! | priority and fairness | `flow_control/`, borrowing in `lending.rs` |
//! | reads and writes | `pipeline/`; managed fields and apply: `managed_fields.rs`, `apply.rs` |
//! | admission plugins, one file each; policies and webhooks | `admission/`, `admission/extension/` |
//! | the watch cache; leaders' terms; custom resources | `cache/`, `cache/term.rs`, `cache/custom.rs` |
//! | conditions and names of CustomResourceDefinitions, conversion | `custom.rs`, `conversion.rs` |
//! | APIServices that name a Service | `aggregation/`; the local ones: `api_services.rs` |
//! | subresources; streams to pods and nodes, and their admission | `subresource/`, `node_stream.rs`, `proxy/`, `connect.rs` there |
//! | encryption at rest, audit log, metrics.k8s.io | `encryption/`, `audit/`, `resource_metrics.rs` |
//! | certificate authorities, signing, what joining needs | `pki/`, `signing/`, `joining.rs` |
//! | what the Service `kubernetes` leads to | `endpoint_leases.rs` |
//!
//! Tests: every kind's life over HTTPS and the requests of well-known clients, `tests/access`; recorded requests and answers of kube-apiserver,
//! `tests/replay` (`not_yet.txt`: what differs, and why).

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
