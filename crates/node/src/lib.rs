//! The doing half of the kubelet: runtime, volumes, probes, node status, the pods' drivers, and the server that
//! users reach containers through (logs, exec, attach, port-forward).

pub mod logs;
pub mod runtime;
pub mod server;
pub mod streams;
