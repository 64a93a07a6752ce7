//! The deciding half of the network of a node: which endpoints a Service leads to, what DNS answers, which connections
//! NetworkPolicies allow, and how other nodes' pods are reached.
//!
//! Pure: no IO, no clock, no randomness, no tasks. What is decided here is carried out by `knarr-node-network`.
//!
//! # Where things are
//!
//! Services and EndpointSlices are kept once, reduced, in `catalog.rs`; proxy and DNS read it. The proxy's chains, rules, sets and maps are fixed and a Service
//! is elements (`proxy/`); `packet.rs` there sends packets through them, for tests and for `knarr net`. DNS: `dns/`; NetworkPolicies: `policy/`;
//! routes, VXLAN and WireGuard peers: `routes/`.

pub mod catalog;
pub mod dns;
pub mod nft;
pub mod policy;
pub mod proxy;
pub mod routes;
