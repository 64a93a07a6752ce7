//! What the node measures, for clients: `/stats/summary`, `/metrics`, `/metrics/resource`, `/metrics/cadvisor`,
//! `/metrics/probes`. The names are those that dashboards and metrics-server know.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::k8s_openapi;
use knarr_client::metrics::MetricType::{self, COUNTER, GAUGE};
use knarr_client::metrics::Samples;
use knarr_kubelet::stats::{ContainerStats, FsStats, PodStats, Summary};

use crate::probe::ProbeSeries;

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn start(at: Option<&Time>) -> Option<f64> {
    at.map(|t| t.0.as_millisecond() as f64 / 1000.0)
}

/// One value of a container or pod, if it is known.
type ValueOf<T> = fn(&T) -> Option<f64>;

/// `/metrics/resource`: what metrics-server reads.
pub(super) fn resource(summary: &Summary) -> String {
    let mut samples = Samples::default();
    let node = &summary.node;
    let at = node.cpu.as_ref().and_then(|c| c.time.as_ref());
    let per_container: [(&str, MetricType, &str, ValueOf<ContainerStats>); 4] = [
        (
            "container_cpu_usage_seconds_total",
            COUNTER,
            "Cumulative cpu time consumed by the container in core-seconds",
            |c| c.cpu.as_ref()?.usage_core_nano_seconds.map(seconds),
        ),
        (
            "container_memory_working_set_bytes",
            GAUGE,
            "Current working set of the container in bytes",
            |c| c.memory.as_ref()?.working_set_bytes.map(|n| n as f64),
        ),
        (
            "container_start_time_seconds",
            GAUGE,
            "Start time of the container since unix epoch in seconds",
            |c| start(c.start_time.as_ref()),
        ),
        (
            "container_swap_usage_bytes",
            GAUGE,
            "Current amount of the container swap usage in bytes",
            |c| c.swap.as_ref()?.swap_usage_bytes.map(|n| n as f64),
        ),
    ];
    for (name, kind, help, of) in per_container {
        samples.family(name, kind, help);
        for pod in &summary.pods {
            for container in &pod.containers {
                let Some(value) = of(container) else { continue };
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", &pod.pod_ref.namespace),
                    ("pod", &pod.pod_ref.name),
                ];
                let stamp = container.cpu.as_ref().and_then(|c| c.time.as_ref());
                samples.add_at(&labels, value, stamp.filter(|_| !name.contains("start")));
            }
        }
    }
    for (name, kind, help, value) in [
        (
            "node_cpu_usage_seconds_total",
            COUNTER,
            "Cumulative cpu time consumed by the node in core-seconds",
            node.cpu
                .as_ref()
                .and_then(|c| c.usage_core_nano_seconds)
                .map(seconds),
        ),
        (
            "node_memory_working_set_bytes",
            GAUGE,
            "Current working set of the node in bytes",
            node.memory
                .as_ref()
                .and_then(|m| m.working_set_bytes)
                .map(|n| n as f64),
        ),
        (
            "node_swap_usage_bytes",
            GAUGE,
            "Current swap usage of the node in bytes. Reported only on non-windows systems",
            node.swap
                .as_ref()
                .and_then(|s| s.swap_usage_bytes)
                .map(|n| n as f64),
        ),
    ] {
        if let Some(value) = value {
            samples.family(name, kind, help);
            samples.add_at(&[], value, at);
        }
    }
    let per_pod: [(&str, MetricType, &str, ValueOf<PodStats>); 3] = [
        (
            "pod_cpu_usage_seconds_total",
            COUNTER,
            "Cumulative cpu time consumed by the pod in core-seconds",
            |p| p.cpu.as_ref()?.usage_core_nano_seconds.map(seconds),
        ),
        (
            "pod_memory_working_set_bytes",
            GAUGE,
            "Current working set of the pod in bytes",
            |p| p.memory.as_ref()?.working_set_bytes.map(|n| n as f64),
        ),
        (
            "pod_swap_usage_bytes",
            GAUGE,
            "Current amount of the pod swap usage in bytes",
            |p| p.swap.as_ref()?.swap_usage_bytes.map(|n| n as f64),
        ),
    ];
    for (name, kind, help, of) in per_pod {
        samples.family(name, kind, help);
        for pod in &summary.pods {
            let Some(value) = of(pod) else { continue };
            let labels = [
                ("namespace", pod.pod_ref.namespace.as_str()),
                ("pod", &pod.pod_ref.name),
            ];
            samples.add_at(&labels, value, pod.cpu.as_ref().and_then(|c| c.time.as_ref()));
        }
    }
    samples.family(
        "resource_scrape_error",
        GAUGE,
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    let failed = node.memory.is_none();
    samples.add(&[], f64::from(u8::from(failed)));
    samples.text()
}

/// `/metrics/cadvisor`: the most used names. An empty container label means the whole pod, as in cAdvisor.
pub(super) fn cadvisor(summary: &Summary, cpus: usize) -> String {
    let mut samples = Samples::default();
    let per_container: [(&str, MetricType, &str, ValueOf<ContainerStats>); 7] = [
        (
            "container_cpu_usage_seconds_total",
            COUNTER,
            "Cumulative cpu time consumed in seconds.",
            |c| c.cpu.as_ref()?.usage_core_nano_seconds.map(seconds),
        ),
        (
            "container_fs_usage_bytes",
            GAUGE,
            "Number of bytes that are consumed by the container on this filesystem.",
            |c| c.rootfs.as_ref()?.used_bytes.map(|n| n as f64),
        ),
        ("container_memory_rss", GAUGE, "Size of RSS in bytes.", |c| {
            c.memory.as_ref()?.rss_bytes.map(|n| n as f64)
        }),
        (
            "container_memory_swap",
            GAUGE,
            "Container swap usage in bytes.",
            |c| c.swap.as_ref()?.swap_usage_bytes.map(|n| n as f64),
        ),
        (
            "container_memory_usage_bytes",
            GAUGE,
            "Current memory usage in bytes, including all memory regardless of when it was accessed",
            |c| c.memory.as_ref()?.usage_bytes.map(|n| n as f64),
        ),
        (
            "container_memory_working_set_bytes",
            GAUGE,
            "Current working set in bytes.",
            |c| c.memory.as_ref()?.working_set_bytes.map(|n| n as f64),
        ),
        (
            "container_start_time_seconds",
            GAUGE,
            "Start time of the container since unix epoch in seconds.",
            |c| start(c.start_time.as_ref()),
        ),
    ];
    for (name, kind, help, of) in per_container {
        samples.family(name, kind, help);
        for pod in &summary.pods {
            let whole = ContainerStats {
                cpu: pod.cpu.clone(),
                memory: pod.memory.clone(),
                swap: pod.swap.clone(),
                start_time: pod.start_time.clone(),
                ..ContainerStats::default()
            };
            for container in pod.containers.iter().chain([&whole]) {
                let Some(value) = of(container) else { continue };
                let mut labels = vec![
                    ("container", container.name.as_str()),
                    ("namespace", &pod.pod_ref.namespace),
                    ("pod", &pod.pod_ref.name),
                ];
                if name.contains("cpu") {
                    labels.insert(1, ("cpu", "total"));
                }
                let stamp = container.cpu.as_ref().and_then(|c| c.time.as_ref());
                samples.add_at(&labels, value, stamp);
            }
        }
    }
    samples.family(
        "container_processes",
        GAUGE,
        "Number of processes running inside the container.",
    );
    for pod in &summary.pods {
        let count = pod.process_stats.as_ref().and_then(|p| p.count);
        let labels = [
            ("container", ""),
            ("namespace", pod.pod_ref.namespace.as_str()),
            ("pod", &pod.pod_ref.name),
        ];
        if let Some(count) = count {
            samples.add(&labels, count as f64);
        }
    }
    for (name, help, received) in [
        (
            "container_network_receive_bytes_total",
            "Cumulative count of bytes received",
            true,
        ),
        (
            "container_network_transmit_bytes_total",
            "Cumulative count of bytes transmitted",
            false,
        ),
    ] {
        samples.family(name, COUNTER, help);
        for pod in &summary.pods {
            for interface in pod.network.iter().flat_map(|n| &n.interfaces) {
                let bytes = if received {
                    interface.rx_bytes
                } else {
                    interface.tx_bytes
                };
                let labels = [
                    ("interface", interface.name.as_str()),
                    ("namespace", &pod.pod_ref.namespace),
                    ("pod", &pod.pod_ref.name),
                ];
                if let Some(bytes) = bytes {
                    samples.add(&labels, bytes as f64);
                }
            }
        }
    }
    samples.family("machine_cpu_cores", GAUGE, "Number of logical CPU cores.");
    samples.add(&[], cpus as f64);
    let memory = summary.node.memory.as_ref();
    let total = memory.and_then(|m| Some(m.available_bytes? + m.working_set_bytes?));
    if let Some(total) = total {
        samples.family(
            "machine_memory_bytes",
            GAUGE,
            "Amount of memory installed on the machine.",
        );
        samples.add(&[], total as f64);
    }
    samples.text_without_levels()
}

/// `/metrics`: the kubelet itself.
pub(super) fn own(summary: &Summary, own: &KubeletProcess) -> String {
    let mut samples = Samples::default();
    samples.family(
        "kubelet_node_name",
        GAUGE,
        "The node's name. The count is always 1.",
    );
    samples.add(&[("node", &summary.node.node_name)], 1.0);
    samples.family(
        "kubelet_running_containers",
        GAUGE,
        "Number of containers currently running",
    );
    let running: usize = summary.pods.iter().map(|p| p.containers.len()).sum();
    let labels = [("container_state", "running")];
    samples.add(&labels, running as f64);
    samples.family(
        "kubelet_running_pods",
        GAUGE,
        "Number of pods that have a running pod sandbox",
    );
    samples.add(&[], summary.pods.len() as f64);
    claimed_volumes(&mut samples, summary);
    samples.family(
        "process_cpu_seconds_total",
        COUNTER,
        "Total user and system CPU time spent in seconds.",
    );
    samples.add(&[], own.cpu_seconds);
    samples.family(
        "process_resident_memory_bytes",
        GAUGE,
        "Resident memory size in bytes.",
    );
    samples.add(&[], own.resident_bytes);
    samples.text()
}

/// How full claimed volumes are.
fn claimed_volumes(samples: &mut Samples, summary: &Summary) {
    let stats: [(&str, &str, ValueOf<FsStats>); 6] = [
        (
            "available_bytes",
            "Number of available bytes in the volume",
            |fs| fs.available_bytes.map(|n| n as f64),
        ),
        ("capacity_bytes", "Capacity in bytes of the volume", |fs| {
            fs.capacity_bytes.map(|n| n as f64)
        }),
        ("inodes", "Maximum number of inodes in the volume", |fs| {
            fs.inodes.map(|n| n as f64)
        }),
        ("inodes_free", "Number of free inodes in the volume", |fs| {
            fs.inodes_free.map(|n| n as f64)
        }),
        ("inodes_used", "Number of used inodes in the volume", |fs| {
            fs.inodes_used.map(|n| n as f64)
        }),
        ("used_bytes", "Number of used bytes in the volume", |fs| {
            fs.used_bytes.map(|n| n as f64)
        }),
    ];
    // Pods may share a claim: it is reported once.
    let claimed: BTreeMap<_, _> = summary
        .pods
        .iter()
        .flat_map(|pod| &pod.volumes)
        .filter_map(|volume| {
            let claim = volume.pvc_ref.as_ref()?;
            Some(((&claim.namespace, &claim.name), &volume.fs))
        })
        .collect();
    for (name, help, of) in stats.iter().filter(|_| !claimed.is_empty()) {
        let name = format!("kubelet_volume_stats_{name}");
        samples.family(&name, GAUGE, help);
        for ((namespace, claim), fs) in &claimed {
            let labels = [
                ("namespace", namespace.as_str()),
                ("persistentvolumeclaim", claim.as_str()),
            ];
            if let Some(value) = of(fs) {
                samples.add(&labels, value);
            }
        }
    }
}

/// `/metrics/probes`
pub(super) fn probes(counts: &BTreeMap<ProbeSeries, u64>) -> String {
    const NAME: &str = "prober_probe_total";
    let mut samples = Samples::default();
    samples.family(
        NAME,
        COUNTER,
        "Cumulative number of a liveness, readiness or startup probe for a container by result.",
    );
    for (series, count) in counts {
        let labels = [
            ("container", series.container.as_str()),
            ("namespace", &series.namespace),
            ("pod", &series.pod),
            ("pod_uid", &series.pod_uid),
            ("probe_type", series.probe_type),
            ("result", series.result),
        ];
        samples.add(&labels, *count as f64);
    }
    samples.text()
}

/// What this process uses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KubeletProcess {
    pub cpu_seconds: f64,
    pub resident_bytes: f64,
}

impl KubeletProcess {
    pub fn read() -> Self {
        let statm = crate::host_fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: f64 = statm
            .split_whitespace()
            .nth(1)
            .and_then(|n| n.parse().ok())
            .unwrap_or(0.0);
        // Nanoseconds on a processor, of all threads of the process.
        let threads = crate::host_fs::read_dir("/proc/self/task")
            .into_iter()
            .flatten()
            .flatten();
        let on_cpu = threads.filter_map(|t| {
            let text = crate::host_fs::read_to_string(t.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        KubeletProcess {
            cpu_seconds: seconds(on_cpu.sum()),
            resident_bytes: pages * 4096.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use knarr_kubelet::stats::{
        CpuStats, InterfaceStats, MemoryStats, NetworkStats, NodeStats, PodReference, PvcReference,
        VolumeStats,
    };

    use super::*;

    fn summary() -> Summary {
        let time = Some(Time(Timestamp::from_second(1_800_000_000).unwrap()));
        let cpu = Some(CpuStats {
            time: time.clone(),
            usage_core_nano_seconds: Some(1_500_000_000),
            usage_nano_cores: None,
            psi: None,
        });
        let memory = Some(MemoryStats {
            working_set_bytes: Some(4096),
            available_bytes: Some(1000),
            ..MemoryStats::default()
        });
        let interface = InterfaceStats {
            name: "eth0".into(),
            rx_bytes: Some(7),
            ..InterfaceStats::default()
        };
        Summary {
            node: NodeStats {
                node_name: "n1".into(),
                cpu: cpu.clone(),
                memory: memory.clone(),
                ..NodeStats::default()
            },
            pods: vec![PodStats {
                pod_ref: PodReference {
                    name: "p".into(),
                    namespace: "ns".into(),
                    uid: "u".into(),
                },
                start_time: time.clone(),
                containers: vec![ContainerStats {
                    name: "a\"b".into(),
                    start_time: time,
                    cpu: cpu.clone(),
                    memory: memory.clone(),
                    ..ContainerStats::default()
                }],
                cpu,
                memory,
                network: Some(NetworkStats {
                    interfaces: vec![interface],
                    ..NetworkStats::default()
                }),
                volumes: vec![VolumeStats {
                    name: "v".into(),
                    fs: FsStats {
                        used_bytes: Some(3),
                        inodes: Some(9),
                        ..FsStats::default()
                    },
                    pvc_ref: Some(PvcReference {
                        name: "data".into(),
                        namespace: "ns".into(),
                    }),
                }],
                ..PodStats::default()
            }],
        }
    }

    #[test]
    fn l13_resource_metrics_are_those_metrics_server_reads() {
        let text = resource(&summary());
        for line in [
            "# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds",
            "# TYPE container_cpu_usage_seconds_total counter",
            "container_cpu_usage_seconds_total{container=\"a\\\"b\",namespace=\"ns\",pod=\"p\"} 1.5 1800000000000",
            "container_start_time_seconds{container=\"a\\\"b\",namespace=\"ns\",pod=\"p\"} 1800000000",
            "node_memory_working_set_bytes 4096 1800000000000",
            "pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"p\"} 1.5 1800000000000",
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn l13_metrics_have_cadvisors_names_for_containers_and_an_empty_container_for_pods() {
        let text = cadvisor(&summary(), 2);
        for line in [
            "# HELP container_cpu_usage_seconds_total Cumulative cpu time consumed in seconds.",
            "container_cpu_usage_seconds_total{container=\"\",cpu=\"total\",namespace=\"ns\",pod=\"p\"} 1.5 1800000000000",
            "container_network_receive_bytes_total{interface=\"eth0\",namespace=\"ns\",pod=\"p\"} 7",
            "machine_cpu_cores 2",
            "machine_memory_bytes 5096",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} is not in\n{text}");
        }
        let own = own(&summary(), &KubeletProcess::default());
        for line in [
            "kubelet_running_containers{container_state=\"running\"} 1",
            "kubelet_volume_stats_used_bytes{namespace=\"ns\",persistentvolumeclaim=\"data\"} 3",
            "kubelet_volume_stats_inodes{namespace=\"ns\",persistentvolumeclaim=\"data\"} 9",
        ] {
            assert!(own.lines().any(|l| l == line), "{line:?} is not in\n{own}");
        }
    }
}
