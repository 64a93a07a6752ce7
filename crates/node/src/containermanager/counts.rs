//! What the resource managers have done, for the kubelet's metrics.

use std::collections::BTreeMap;

use knarr_client::metrics::{Histogram, histogram};
use knarr_kubelet::cpumanager::CpuManager;

use crate::devicemanager::{Devices, Durations};

/// Upper bounds of `kubelet_topology_manager_admission_duration_ms`: v1.36's, 0.05 ms times powers of 2.
const ADMISSION_MS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2,
];

/// Allocations that were aligned, and those that could not be, by scope (`container`, `pod`) and boundary
/// (`numa_node`, `physical_cpu`, `uncore_cache`).
pub type Aligned = BTreeMap<(&'static str, &'static str), u64>;

/// Counters since the kubelet has started.
#[derive(Clone, Debug)]
pub struct Counts {
    pub admission_requests: u64,
    pub admission_errors: u64,
    pub admission_ms: Histogram,
    pub cpu_requests: u64,
    pub cpu_errors: u64,
    pub memory_requests: u64,
    pub memory_errors: u64,
    pub aligned: Aligned,
    pub not_aligned: Aligned,
}

impl Default for Counts {
    fn default() -> Self {
        Counts {
            admission_requests: 0,
            admission_errors: 0,
            admission_ms: histogram(ADMISSION_MS),
            cpu_requests: 0,
            cpu_errors: 0,
            memory_requests: 0,
            memory_errors: 0,
            aligned: Aligned::new(),
            not_aligned: Aligned::new(),
        }
    }
}

/// The counters with what the state is now.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    pub counts: Counts,
    /// How often device plugins have registered, by resource.
    pub registrations: BTreeMap<String, u64>,
    /// How long their allocations took, in seconds.
    pub allocations: Durations,
    pub shared_pool_millicores: usize,
    pub exclusive_cpus: usize,
    pub exclusive_by_numa_node: BTreeMap<u32, usize>,
}

impl Metrics {
    pub(super) fn of(counts: Counts, cpus: &CpuManager, devices: &Devices) -> Self {
        let (registrations, allocations) = devices.counts();
        Metrics {
            counts,
            registrations,
            allocations,
            shared_pool_millicores: cpus.available().len() * 1000,
            exclusive_cpus: cpus.state().exclusive().len(),
            exclusive_by_numa_node: cpus.exclusive_by_numa_node(),
        }
    }
}
