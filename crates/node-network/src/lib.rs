//! The doing half of the network of a node: nftables, the DNS server, pods' interfaces, routes to other nodes.
//!
//! What is to be done is decided in `knarr-network`; here the API is watched and the kernel is changed.

pub mod catalog;
pub mod dns;
mod lease;
pub mod own_node;
pub mod pods;
pub mod policy;
pub mod propagation;
pub mod proxy;
pub mod routes;
pub mod signal;
pub mod table;
pub mod wireguard;
