//! The deciding half of a node's network: the endpoints of Services, the answers of DNS, the connections that
//! NetworkPolicies allow, and the routes to other nodes' pods.
//!
//! Pure: no IO, no clock, no randomness, no tasks. `knarr-node-network` carries the decisions out.
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
