//! The deciding half of the kubelet: pure functions from the known state to actions.
//!
//! No IO, no clock, no randomness, no tasks. [`pod::Pod::step`] takes an event and the time and returns actions;
//! `knarr-node` carries them out.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | whether a node admits a pod; which pods are preempted for a critical one | [`admission`], `preemption.rs` |
//! | the pod's state machine | [`pod`] |
//! | the grace period in force, of a pod and of a container (SPEC T2, T3) | [`grace`]; what it bounds: `pod/termination.rs`, `pod/stop.rs` |
//! | eviction, garbage collection, shutdown (SPEC T8, T9) | `eviction/`, `garbage/`, `shutdown.rs` |
//! | self-fencing and its deadlines (SPEC B4) | `self_fencing.rs` |
//! | allocated resources; cgroups of all pods and of the QoS classes | `pod/allocation.rs`, `enforcement.rs` |
//! | CPU, memory and topology manager | `cpumanager/`, `memorymanager/`, `topologymanager/` |
//! | devices, ResourceClaims | `devicemanager/`, `dra/` |
//! | when a volume is unstaged, and its attachment released (SPEC S7) | `attached_volumes.rs` |
//! | KubeletConfiguration | `configuration/` |
//! | when to request which certificate | `certificates.rs` |

pub mod admission;
pub mod allocatable;
pub mod app_armor;
pub mod attached_volumes;
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
mod node_affinity;
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
