//! The metrics of the allocator: how much of the process's memory is held by what the program has allocated, and how much by the
//! allocator itself. They are read when they are collected.
//!
//! Allocated ≤ active ≤ resident. What is allocated is held by objects, live or forgotten in a container that does not shrink. Active
//! beyond it is the free part of pages that are in use (fragmentation). Resident beyond active is the allocator's metadata, and free
//! pages that are returned to the kernel after `dirty_decay_ms` (`.cargo/config.toml`).

use knarr_client::metrics::count;
use prometheus::IntGauge;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tikv_jemalloc_ctl::{epoch, stats};

/// A number that jemalloc's statistics have, in bytes.
struct Statistic {
    gauge: IntGauge,
    read: fn() -> tikv_jemalloc_ctl::Result<usize>,
}

/// Collects the statistics of this process's allocator.
pub struct AllocatorMetrics([Statistic; 5]);

impl Default for AllocatorMetrics {
    fn default() -> Self {
        AllocatorMetrics([
            statistic(
                "knarr_allocator_allocated_bytes",
                "Bytes that the program has allocated.",
                stats::allocated::read,
            ),
            statistic(
                "knarr_allocator_active_bytes",
                "Bytes of pages with allocations of the program.",
                stats::active::read,
            ),
            statistic(
                "knarr_allocator_resident_bytes",
                "Bytes of the allocator's pages in physical memory: active pages, metadata, and free pages that are not yet returned.",
                stats::resident::read,
            ),
            statistic(
                "knarr_allocator_retained_bytes",
                "Bytes of address space that the allocator keeps without physical memory.",
                stats::retained::read,
            ),
            statistic(
                "knarr_allocator_metadata_bytes",
                "Bytes of the allocator's own data.",
                stats::metadata::read,
            ),
        ])
    }
}

fn statistic(name: &str, help: &str, read: fn() -> tikv_jemalloc_ctl::Result<usize>) -> Statistic {
    match IntGauge::new(name, help) {
        Ok(gauge) => Statistic { gauge, read },
        Err(error) => panic!("an invalid metric: {error}"),
    }
}

impl AllocatorMetrics {
    /// Sets the gauges to the present values.
    fn update(&self) -> tikv_jemalloc_ctl::Result<()> {
        // jemalloc computes its statistics when the epoch advances.
        epoch::advance()?;
        for Statistic { gauge, read } in &self.0 {
            gauge.set(count(read()?));
        }
        Ok(())
    }
}

impl Collector for AllocatorMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().flat_map(|one| one.gauge.desc()).collect()
    }

    /// Nothing if the statistics cannot be read: an old value would not be recognized as such.
    fn collect(&self) -> Vec<MetricFamily> {
        match self.update() {
            Ok(()) => self.0.iter().flat_map(|one| one.gauge.collect()).collect(),
            Err(error) => {
                tracing::warn!(%error, "cannot read the allocator's statistics");
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use knarr_client::metrics::Registry;

    use super::*;

    fn read(registry: &Registry, name: &str) -> usize {
        let text = registry.text();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name} in\n{text}"));
        value.trim().parse().unwrap()
    }

    #[test]
    fn the_statistics_are_those_of_now() {
        const BYTES: usize = 64 << 20;
        let registry = Registry::default();
        registry.register(AllocatorMetrics::default());
        let before = read(&registry, "knarr_allocator_allocated_bytes");
        // Touched, so that it is not removed by the compiler.
        let held = std::hint::black_box(vec![1_u8; BYTES]);
        let with = read(&registry, "knarr_allocator_allocated_bytes");
        // Other tests allocate and free meanwhile, but not half of it.
        assert!(with > before + BYTES / 2, "{with} after {before}");
        assert!(read(&registry, "knarr_allocator_active_bytes") > BYTES);
        assert!(read(&registry, "knarr_allocator_resident_bytes") > BYTES);
        drop(held);
        let after = read(&registry, "knarr_allocator_allocated_bytes");
        assert!(after < with - BYTES / 2, "{after} after {with}");
    }
}
