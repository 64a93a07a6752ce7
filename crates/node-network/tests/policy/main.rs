//! NetworkPolicies in the kernel: network namespaces are pods, and the node is the one that routes between them.

#![allow(clippy::unwrap_used)] // a test may panic anywhere; clippy knows that only inside test functions

mod enforcement;
mod network;
