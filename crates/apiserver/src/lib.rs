//! The API server as a library: everything between a client's request and the store.
//!
//! Clock, randomness and the store are arguments of [`Server::new`]; a simulation runs the server unchanged.
//! In-process components call it through [`Server::api`], which shares the cache's objects with them;
//! all other clients use HTTPS ([`Server::serve`]). Both take the same path: authorization, mutating admission, validating
//! admission and validation, one encoding, one commit.
//!
//! What is not here: the rules of kinds (`knarr-strategy`), durability (`knarr-store`), controllers.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | the composition of the parts | `server.rs` |
//! | connections, limits, timeouts; parsing of headers and query | `http/` |
//! | the layers of a request: authentication, audit, flow control, authorization, routing | `http/chain.rs` |
//! | a request's URL, checked against the kind's scope; its context | `request/`: `info.rs`, `target.rs`; `ctx.rs` |
//! | authentication, impersonation; kubelets' port | `authn/`, `authn/delegated.rs` |
//! | RBAC, Node authorizer, default roles; privilege escalation | `authz/` (`default_roles.txt`); `authz/escalation.rs` |
//! | priority and fairness | `flow_control/`, borrowing of seats in `lending.rs` |
//! | reads and writes; the stages of a write in their order | `pipeline/`; `pipeline/stages.rs` |
//! | admission plugins, one file each; policies and webhooks; how a webhook is called | `admission/`, `admission/extension/`; `webhook_client.rs` |
//! | the server's own controllers and writes | `controllers.rs`, `bootstrap.rs`, `loopback.rs` |
//! | the watch cache; indexes; leaders' terms; custom resources | `cache/`, `cache/index.rs`, `cache/term.rs`, `cache/custom.rs` |
//! | conditions and names of CustomResourceDefinitions, conversion | `custom.rs`, `conversion.rs` |
//! | APIServices that name a Service | `aggregation/`; the local ones: `api_services.rs` |
//! | subresources (Bindings, evictions, scales); streams to pods and nodes, and their admission | `subresource/`; `node_stream.rs`, `proxy/`, `connect.rs` there |
//! | quotas: charged, denied, written | `admission/resource_quota.rs`, `admission/quota_ledger.rs`; what is counted: `knarr_api::quota` |
//! | encryption at rest, audit log | `encryption/`, `audit/` |
//! | the server's own metrics; metrics.k8s.io, the usage of pods and nodes | `metrics/`; `resource_metrics.rs` |
//! | certificate authorities, signing, the objects that nodes need to join | `pki/`, `signing/`, `joining.rs` |
//! | the endpoints of the Service `kubernetes` | `endpoint_leases.rs` |
//!
//! Tests: the lifecycle of every kind over HTTPS and the requests of well-known clients, `tests/access`; recorded requests and responses of
//! kube-apiserver, `tests/replay` (`not_yet.txt`: the differences, and the reasons).

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
mod controllers;
mod conversion;
mod custom;
pub mod default_route;
pub mod encryption;
pub mod endpoint_leases;
mod flow_control;
pub mod http;
pub mod identity;
mod in_process;
pub mod joining;
mod keys;
mod loopback;
mod metrics;
pub mod pipeline;
pub mod pki;
mod references;
pub mod request;
mod resource_metrics;
pub mod seams;
mod server;
pub mod signing;
mod subresource;
pub mod tls;
pub mod user;
pub mod watch;
mod webhook_client;

pub use allocation::{ServiceRange, ServiceRangeError};
pub use server::{Config, ISSUER, Options, Seams, Server, StartError};
pub use user::User;
