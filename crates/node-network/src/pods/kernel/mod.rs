//! Requests to the kernel: links, addresses, routes and queueing disciplines over rtnetlink, and sysctls.
//!
//! All of it blocks for as long as the kernel works, and all of it acts in the network namespace of the calling thread.

pub mod links;
pub mod namespace;
pub mod netlink;
pub mod shaping;
pub mod sysctl;
