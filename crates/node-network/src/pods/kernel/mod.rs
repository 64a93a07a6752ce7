//! Requests to the kernel: links of pods, routes and queueing disciplines over rtnetlink, and sysctls.
//!
//! All of it blocks for as long as the kernel works, and all of it acts in the network namespace of the calling thread.

pub mod pod_links;
pub mod shaping;
pub mod sysctl;
