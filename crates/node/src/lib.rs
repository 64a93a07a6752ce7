//! The doing half of the kubelet: the runtime, volumes, network, and the streams and logs that users ask a node for.

pub mod streams;
