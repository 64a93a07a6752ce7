//! The executing half of the network of a node: nftables, the DNS server, pods' interfaces, routes to other nodes.
//!
//! What is to be done is decided in `knarr-network`; here the API is watched and the kernel is changed.
//!
//! # Where things are
//!
//! Pods' interfaces and the CNI plugin: `pods/`. NetworkPolicies: `policy/`. Routes and VXLAN: `routes/`; WireGuard: `wireguard/`. The service proxy: `proxy/`; DNS: `dns/`. What the
//! node's kernel has programmed, and so when TERM may be sent (SPEC B7): `propagation.rs`. The account is `Component::NetworkAgent`.

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
