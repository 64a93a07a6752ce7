//! The doing half of the kubelet: containerd, the runtime, volumes, probes, network, node status, the pods' drivers,
//! and the server that users reach containers through (logs, exec, attach, port-forward).
//!
//! What is to be done is decided in `knarr-kubelet`; here it is carried out, and what happened is told back.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests make the files that they look at by name"
    )
)]

pub mod certificates;
pub mod cgroup;
pub mod containerd;
pub mod containermanager;
pub mod devicemanager;
pub mod dra;
pub mod figures;
mod host_fs;
pub mod images;
pub mod kubelet;
pub mod logs;
pub mod network;
pub mod plugins;
pub mod podresources;
pub mod probe;
pub mod runtime;
pub mod server;
pub mod streams;
pub mod teardown;
pub mod untrusted_fs;
pub mod volumes;
mod watch;

pub use kubelet::{Config, Kubelet, Machine};
