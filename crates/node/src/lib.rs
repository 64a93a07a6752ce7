//! The executing half of the kubelet: containerd, the runtime, volumes, probes, network, node status, the pods' drivers,
//! and the server that users reach containers through (logs, exec, attach, port-forward).
//!
//! What to do is decided in `knarr-kubelet`; here it is carried out, and the results are reported back.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | what a kubelet consists of; its main loop | `kubelet/mod.rs`, `kubelet/sync_loop.rs` |
//! | the pods' workers, launching, status writes | `kubelet/` |
//! | what confines a container | `kubelet/security_context.rs` |
//! | at-most-one pods before they start (SPEC S1, S5, S6) | `kubelet/at_most_one.rs` |
//! | CRI; a private containerd and its adoption | `runtime/`, `containerd/` |
//! | calls over gRPC, of CRI and of plugins | `grpc.rs` |
//! | commands and mounts of the host, which tests and the simulation replace | `host.rs` |
//! | volumes; NFS, iSCSI and CSI; attachments (SPEC S7) | `volumes/`, `volumes/storage/`, `volumes/attach.rs` |
//! | the only module that opens what containers can change (SPEC A3) | `untrusted_fs/` |
//! | measured usage | `stats/` |
//! | plugins of a node; devices, claims, pod resources | `plugins/`, `devicemanager/`, `dra/` (CDI before containerd 1.7: `dra/cdi.rs`), `podresources/` |
//! | CPUs and NUMA nodes, performed | `containermanager/` |
//! | the kubelet's port; exec, attach, port-forward: the request, the bytes | `server/`; `server/streams.rs`, `streams/` |
//! | the kubelet's metrics | `server/metrics.rs`, `server/allocation_metrics.rs` |
//! | certificates: requested, kept, renewed | `certificates/` |

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests create the files that they read by name"
    )
)]

pub mod certificates;
pub mod cgroup;
pub mod containerd;
pub mod containermanager;
pub mod devicemanager;
pub mod dra;
mod grpc;
pub mod host;
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
pub mod stats;
pub mod streams;
mod task;
pub mod teardown;
pub mod untrusted_fs;
pub mod volumes;
mod watch;

pub use kubelet::{Config, Kubelet, Machine};
