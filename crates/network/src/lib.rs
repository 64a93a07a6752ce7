//! The deciding half of the network of a node: which endpoints a Service leads to, what DNS answers, which connections
//! NetworkPolicies allow, and how other nodes' pods are reached.
//!
//! Pure: no IO, no clock, no randomness, no tasks. What is decided here is carried out by `knarr-node-network`.

pub mod catalog;
pub mod dns;
pub mod nft;
pub mod policy;
pub mod proxy;
pub mod routes;
