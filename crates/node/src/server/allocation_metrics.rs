//! Metrics of the resource managers and device plugins, under the kubelet's names.

use knarr_client::metrics::MetricType::{COUNTER, GAUGE};
use knarr_client::metrics::Samples;

use crate::containermanager::{Aligned, Metrics};

/// They follow the kubelet's other metrics at `/metrics`.
pub(super) fn of(metrics: &Metrics) -> String {
    let mut samples = Samples::default();
    let counts = &metrics.counts;
    for (name, help, value) in [
        (
            "cpu_manager_pinning_requests_total",
            "The number of cpu core allocations which required pinning.",
            counts.cpu_requests,
        ),
        (
            "cpu_manager_pinning_errors_total",
            "The number of cpu core allocations which required pinning failed.",
            counts.cpu_errors,
        ),
        (
            "memory_manager_pinning_requests_total",
            "The number of memory pages allocations which required pinning.",
            counts.memory_requests,
        ),
        (
            "memory_manager_pinning_errors_total",
            "The number of memory pages allocations which required pinning that failed.",
            counts.memory_errors,
        ),
        (
            "topology_manager_admission_requests_total",
            "The number of admission requests where resources have to be aligned.",
            counts.admission_requests,
        ),
        (
            "topology_manager_admission_errors_total",
            "The number of admission request failures where resources could not be aligned.",
            counts.admission_errors,
        ),
    ] {
        let name = format!("kubelet_{name}");
        samples.family(&name, COUNTER, help);
        samples.add(&[], value as f64);
    }
    for (name, help, value) in [
        (
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            metrics.shared_pool_millicores,
        ),
        (
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "The total number of CPUs exclusively allocated to containers running on this node",
            metrics.exclusive_cpus,
        ),
    ] {
        samples.family(name, GAUGE, help);
        samples.add(&[], value as f64);
    }
    const BY_NODE: &str = "kubelet_cpu_manager_allocation_per_numa";
    samples.family(BY_NODE, GAUGE, "Number of CPUs allocated per NUMA node");
    for (node, count) in &metrics.exclusive_by_numa_node {
        samples.add(&[("numa_node", &node.to_string())], *count as f64);
    }
    aligned(
        &mut samples,
        "kubelet_container_aligned_compute_resources_count",
        "Cumulative number of aligned compute resources allocated to containers by alignment type.",
        &counts.aligned,
    );
    aligned(
        &mut samples,
        "kubelet_container_aligned_compute_resources_failure_count",
        "Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
        &counts.not_aligned,
    );
    const ADMISSION: &str = "kubelet_topology_manager_admission_duration_ms";
    let help = "Duration in milliseconds to serve a pod admission request.";
    samples.histograms(ADMISSION, help, [(&[][..], &counts.admission_ms)]);
    devices(&mut samples, metrics);
    samples.text()
}

fn aligned(samples: &mut Samples, name: &str, help: &str, counts: &Aligned) {
    samples.family(name, COUNTER, help);
    for ((scope, boundary), count) in counts {
        samples.add(&[("scope", scope), ("boundary", boundary)], *count as f64);
    }
}

fn devices(samples: &mut Samples, metrics: &Metrics) {
    const REGISTRATIONS: &str = "kubelet_device_plugin_registration_total";
    let help = "Cumulative number of device plugin registrations. Broken down by resource name.";
    samples.family(REGISTRATIONS, COUNTER, help);
    for (resource, count) in &metrics.registrations {
        samples.add(&[("resource_name", resource)], *count as f64);
    }
    const ALLOCATIONS: &str = "kubelet_device_plugin_alloc_duration_seconds";
    let help =
        "Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.";
    let of_resource = |(resource, durations)| ([("resource_name", String::as_str(resource))], durations);
    let all: Vec<_> = metrics.allocations.iter().map(of_resource).collect();
    let all = all.iter().map(|(labels, durations)| (&labels[..], *durations));
    samples.histograms(ALLOCATIONS, help, all);
}

#[cfg(test)]
mod tests {
    use knarr_client::metrics::histogram;

    use super::*;

    #[test]
    fn n2_metrics_of_the_managers_have_the_kubelets_names() {
        let mut metrics = Metrics::default();
        metrics.counts.cpu_requests = 2;
        metrics.counts.admission_ms.observe(0.3);
        metrics.counts.aligned.insert(("container", "numa_node"), 3);
        metrics.shared_pool_millicores = 1000;
        metrics.exclusive_by_numa_node.insert(1, 4);
        metrics.registrations.insert("example.com/a".into(), 5);
        let durations = histogram(&[0.5, 1.0]);
        durations.observe(0.7);
        metrics.allocations.insert("example.com/a".into(), durations);
        let text = of(&metrics);
        for line in [
            "kubelet_cpu_manager_pinning_requests_total 2",
            "kubelet_cpu_manager_shared_pool_size_millicores 1000",
            "kubelet_cpu_manager_allocation_per_numa{numa_node=\"1\"} 4",
            "kubelet_container_aligned_compute_resources_count{scope=\"container\",boundary=\"numa_node\"} 3",
            "kubelet_topology_manager_admission_duration_ms_bucket{le=\"0.2\"} 0",
            "kubelet_topology_manager_admission_duration_ms_bucket{le=\"0.4\"} 1",
            "kubelet_topology_manager_admission_duration_ms_count 1",
            "kubelet_device_plugin_registration_total{resource_name=\"example.com/a\"} 5",
            "kubelet_device_plugin_alloc_duration_seconds_bucket{resource_name=\"example.com/a\",le=\"0.5\"} 0",
            "kubelet_device_plugin_alloc_duration_seconds_bucket{resource_name=\"example.com/a\",le=\"+Inf\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
