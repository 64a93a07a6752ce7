//! Requests to the kernel over netlink, and work in the network namespace of a pod: what the plugin `loopback`, the agent and
//! the kubelet share.
//!
//! All of it blocks for as long as the kernel works, and all of it acts in the network namespace of the calling thread.

pub mod accept_queues;
pub mod links;
pub mod namespace;
pub mod netlink;
