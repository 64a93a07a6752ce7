//! The doing half of the kubelet: runtime, volumes, probes, node status, and the pods' drivers.

pub mod runtime;
