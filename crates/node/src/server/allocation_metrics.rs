//! Metrics of the resource managers and device plugins, under the kubelet's names.

use super::metrics::Text;
use crate::containermanager::{Aligned, Histogram, Metrics};

/// They follow the kubelet's other metrics at `/metrics`.
pub(super) fn of(metrics: &Metrics) -> String {
    let mut text = Text::default();
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
        text.family(&name, "counter", &format!("[ALPHA] {help}"));
        text.sample(&name, &[], value as f64, None);
    }
    for (name, help, value) in [
        (
            "kubelet_cpu_manager_shared_pool_size_millicores",
            "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            metrics.shared_pool_millicores,
        ),
        (
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
            metrics.exclusive_cpus,
        ),
    ] {
        text.family(name, "gauge", help);
        text.sample(name, &[], value as f64, None);
    }
    const BY_NODE: &str = "kubelet_cpu_manager_allocation_per_numa";
    text.family(BY_NODE, "gauge", "[ALPHA] Number of CPUs allocated per NUMA node");
    for (node, count) in &metrics.exclusive_by_numa_node {
        text.sample(BY_NODE, &[("numa_node", &node.to_string())], *count as f64, None);
    }
    aligned(
        &mut text,
        "kubelet_container_aligned_compute_resources_count",
        "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.",
        &counts.aligned,
    );
    aligned(
        &mut text,
        "kubelet_container_aligned_compute_resources_failure_count",
        "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
        &counts.not_aligned,
    );
    const ADMISSION: &str = "kubelet_topology_manager_admission_duration_ms";
    let help = "[ALPHA] Duration in milliseconds to serve a pod admission request.";
    text.family(ADMISSION, "histogram", help);
    histogram(&mut text, ADMISSION, None, &counts.admission_ms);
    devices(&mut text, metrics);
    text.done()
}

fn aligned(text: &mut Text, name: &str, help: &str, counts: &Aligned) {
    text.family(name, "counter", help);
    for ((scope, boundary), count) in counts {
        text.sample(
            name,
            &[("scope", scope), ("boundary", boundary)],
            *count as f64,
            None,
        );
    }
}

fn devices(text: &mut Text, metrics: &Metrics) {
    const REGISTRATIONS: &str = "kubelet_device_plugin_registration_total";
    let help = "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource name.";
    text.family(REGISTRATIONS, "counter", help);
    for (resource, count) in &metrics.registrations {
        text.sample(REGISTRATIONS, &[("resource_name", resource)], *count as f64, None);
    }
    const ALLOCATIONS: &str = "kubelet_device_plugin_alloc_duration_seconds";
    let help = "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken down by resource name.";
    text.family(ALLOCATIONS, "histogram", help);
    for (resource, durations) in &metrics.allocations {
        histogram(text, ALLOCATIONS, Some(("resource_name", resource)), durations);
    }
}

fn histogram(text: &mut Text, name: &str, label: Option<(&str, &str)>, of: &Histogram) {
    let bucket = format!("{name}_bucket");
    let buckets = of.buckets().map(|(bound, count)| (bound.to_string(), count));
    for (bound, count) in buckets.chain([("+Inf".to_string(), of.count)]) {
        let labels: Vec<(&str, &str)> = label.into_iter().chain([("le", bound.as_str())]).collect();
        text.sample(&bucket, &labels, count as f64, None);
    }
    let labels: Vec<(&str, &str)> = label.into_iter().collect();
    text.sample(&format!("{name}_sum"), &labels, of.sum, None);
    text.sample(&format!("{name}_count"), &labels, of.count as f64, None);
}

#[cfg(test)]
mod tests {
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
        let mut durations = Histogram::new(&[0.5, 1.0]);
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
