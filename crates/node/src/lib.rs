//! The doing half of the node: the container runtime, volumes, network, logs and streams.
//!
//! What is to be done is decided in `knarr-kubelet`; here it is carried out, and what happened is told back.

pub mod cgroup;
pub mod containerd;
pub mod images;
pub mod kubelet;
pub mod network;
pub mod probe;
pub mod runtime;
pub mod teardown;
pub mod volumes;

pub use kubelet::{Config, Kubelet};
