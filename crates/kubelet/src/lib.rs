//! The deciding half of the kubelet: what becomes of a pod on its node, from what is known.
//!
//! Pure: no IO, no clock, no randomness, no tasks. [`pod::Pod::step`] takes an event and the time and answers
//! with actions; the doing half is `knarr-node`.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | whether a node takes a pod; who is preempted for a critical one | [`admission`], `preemption.rs` |
//! | the pod's state machine | [`pod`] |
//! | eviction, garbage collection, shutdown (SPEC T8, T9) | `eviction/`, `garbage/`, `shutdown.rs` |
//! | self-fencing and its arithmetic (SPEC B4) | `self_fencing.rs` |
//! | allocated resources; all pods and QoS classes together | `pod/allocation.rs`, `enforcement.rs` |
//! | CPUs, memory, NUMA nodes | `cpumanager/`, `memorymanager/`, `topologymanager/` |
//! | devices, claims | `devicemanager/`, `dra/` |
//! | KubeletConfiguration | `configuration/` |
//! | when to request which certificate | `certificates.rs` |

pub mod admission;
pub mod allocatable;
pub mod app_armor;
pub mod backoff;
pub mod certificates;
pub mod cgroup;
pub mod checksum;
pub mod configuration;
pub mod cpumanager;
pub mod devicemanager;
pub mod dra;
pub mod empty_dir;
pub mod enforcement;
pub mod env_file;
pub mod eviction;
pub mod garbage;
pub mod grace;
pub mod guaranteed;
pub mod huge_pages;
pub mod image;
pub mod memorymanager;
pub mod pod;
pub mod preemption;
pub mod probe;
pub mod resources;
pub mod runtime;
pub mod self_fencing;
pub mod shutdown;
pub mod static_pods;
pub mod stats;
pub mod sysctl;
pub mod topologymanager;
pub mod volume_expansion;
