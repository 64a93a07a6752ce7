//! The stats of a node and its pods, as in the kubelet's Summary API (`/stats/summary`, v1alpha1).
//!
//! Evictions are decided on these stats, and clients read them; `knarr-node` measures them. Unknown values are left out.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_api::k8s_openapi;
use serde::Serialize;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
}

impl Summary {
    pub fn pod(&self, uid: &str) -> Option<&PodStats> {
        self.pods.iter().find(|p| p.pod_ref.uid == uid)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    /// `kubelet`, `runtime`, `pods`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    pub start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    /// The filesystem of pods' volumes and logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<RlimitStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RlimitStats {
    pub time: Option<Time>,
    #[serde(rename = "maxpid", skip_serializing_if = "Option::is_none")]
    pub max_pid: Option<i64>,
    #[serde(rename = "curproc", skip_serializing_if = "Option::is_none")]
    pub running: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    /// The filesystem of images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_fs: Option<FsStats>,
    /// The filesystem of containers' writable layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_fs: Option<FsStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodReference,
    pub start_time: Option<Time>,
    pub containers: Vec<ContainerStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStats>,
    /// Writable layers, logs and local volumes together.
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub process_stats: Option<ProcessStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PodReference {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    pub start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    /// The writable layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    pub time: Option<Time>,
    /// Averaged over the time since the measurement before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    pub time: Option<Time>,
    /// Only if there is a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    /// Memory that cannot be reclaimed at once: usage without inactive file pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IoStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub psi: Option<PsiStats>,
}

/// Pressure stall information: how long processes of a cgroup waited. Only cgroup v2 has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PsiStats {
    /// All processes waited at the same time.
    pub full: PsiData,
    /// Some processes waited.
    pub some: PsiData,
}

/// `total` is the kernel's own number, in microseconds, as every kubelet passes it on (the API's documentation says
/// nanoseconds); the others are percent of the last so many seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PsiData {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_usage_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tx_errors: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct NetworkStats {
    pub time: Option<Time>,
    /// The default interface; without a name if there is none.
    #[serde(flatten)]
    pub default: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<InterfaceStats>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VolumeStats {
    #[serde(flatten)]
    pub fs: FsStats,
    pub name: String,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pub pvc_ref: Option<PvcReference>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PvcReference {
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    pub time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    #[serde(rename = "process_count", skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_those_that_clients_of_the_summary_read() {
        let summary = Summary {
            node: NodeStats {
                node_name: "n1".into(),
                rlimit: Some(RlimitStats {
                    max_pid: Some(10),
                    running: Some(3),
                    ..RlimitStats::default()
                }),
                ..NodeStats::default()
            },
            pods: vec![PodStats {
                network: Some(NetworkStats {
                    default: InterfaceStats {
                        name: "eth0".into(),
                        rx_bytes: Some(1),
                        ..InterfaceStats::default()
                    },
                    ..NetworkStats::default()
                }),
                volumes: vec![VolumeStats {
                    name: "v".into(),
                    fs: FsStats {
                        used_bytes: Some(4),
                        ..FsStats::default()
                    },
                    pvc_ref: None,
                }],
                io: Some(IoStats {
                    time: None,
                    psi: Some(PsiStats {
                        some: PsiData {
                            total: 7,
                            avg10: 0.5,
                            ..PsiData::default()
                        },
                        ..PsiStats::default()
                    }),
                }),
                ephemeral_storage: Some(FsStats::default()),
                process_stats: Some(ProcessStats { count: Some(2) }),
                ..PodStats::default()
            }],
        };
        assert_eq!(
            serde_json::to_value(&summary).unwrap(),
            json!({
                "node": {"nodeName": "n1", "startTime": null, "rlimit": {"time": null, "maxpid": 10, "curproc": 3}},
                "pods": [{
                    "podRef": {"name": "", "namespace": "", "uid": ""}, "startTime": null, "containers": [],
                    "io": {"time": null, "psi": {
                        "full": {"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0},
                        "some": {"total": 7, "avg10": 0.5, "avg60": 0.0, "avg300": 0.0},
                    }},
                    "network": {"time": null, "name": "eth0", "rxBytes": 1},
                    "volume": [{"time": null, "usedBytes": 4, "name": "v"}],
                    "ephemeral-storage": {"time": null},
                    "process_stats": {"process_count": 2},
                }],
            })
        );
    }
}
