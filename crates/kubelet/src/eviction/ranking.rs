//! The order in which pods are evicted: first those that use more than their request, then by priority, then by how much
//! more (SPEC T8). Processes have no requests: by priority, then by number.

use std::cmp::Ordering;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;

use super::{Disks, Pressure, Signal};
use crate::resources;
use crate::stats::{FsStats, PodStats, Summary};

/// Which files of a pod are on the filesystem of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MeasuredFiles {
    layers: bool,
    logs: bool,
    volumes: bool,
}

fn measured_files(signal: Signal, disks: Disks) -> MeasuredFiles {
    let all = |layers, logs, volumes| MeasuredFiles {
        layers,
        logs,
        volumes,
    };
    let images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
    let containers = matches!(
        signal,
        Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree
    );
    match (disks.dedicated_image_fs, disks.split_container_fs) {
        (false, _) => all(true, true, true),
        (true, false) if images || containers => all(true, false, false),
        (true, false) => all(false, true, true),
        // That filesystem has only images, which do not count as a pod's usage.
        (true, true) if images => all(false, false, false),
        (true, true) => all(true, true, true),
    }
}

/// A pod's measured usage of a signal's resource.
fn usage(signal: Signal, disks: Disks, pod: &Pod, stats: &PodStats) -> i64 {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    match signal.pressure() {
        Pressure::Memory => signed(
            stats
                .memory
                .as_ref()
                .and_then(|m| m.working_set_bytes)
                .unwrap_or(0),
        ),
        Pressure::Pid => signed(stats.process_stats.as_ref().and_then(|p| p.count).unwrap_or(0)),
        Pressure::Disk => {
            let inodes = signal.resource() == "inodes";
            let of = |fs: Option<&FsStats>| {
                let used = fs.and_then(|fs| if inodes { fs.inodes_used } else { fs.used_bytes });
                signed(used.unwrap_or(0))
            };
            let what = measured_files(signal, disks);
            let mut sum: i64 = 0;
            for container in &stats.containers {
                if what.layers {
                    sum = sum.saturating_add(of(container.rootfs.as_ref()));
                }
                if what.logs {
                    sum = sum.saturating_add(of(container.logs.as_ref()));
                }
            }
            if what.volumes {
                for volume in stats.volumes.iter().filter(|v| is_local(pod, &v.name)) {
                    sum = sum.saturating_add(of(Some(&volume.fs)));
                }
            }
            sum
        }
    }
}

/// Whether a volume uses the node filesystem.
fn is_local(pod: &Pod, name: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter(|v| v.name == name).any(|v| {
        let in_memory = v
            .empty_dir
            .as_ref()
            .is_some_and(|e| e.medium.as_deref().is_some_and(|m| !m.is_empty()));
        v.host_path.is_some()
            || (v.empty_dir.is_some() && !in_memory)
            || v.config_map.is_some()
            || v.git_repo.is_some()
    })
}

fn request(signal: Signal, pod: &Pod) -> i64 {
    resources::requests(pod)
        .get(signal.resource())
        .copied()
        .unwrap_or(0)
}

/// The values that pods are ordered by: whether the usage is within the request, the priority, and the usage above the
/// request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EvictionRank {
    within_request: bool,
    priority: i32,
    over: i64,
}

/// `None` for a pod without stats: it is evicted first.
fn eviction_rank(signal: Signal, disks: Disks, pod: &Pod, stats: Option<&PodStats>) -> Option<EvictionRank> {
    let stats = stats?;
    let priority = pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
    let used = usage(signal, disks, pod, stats);
    if signal.pressure() == Pressure::Pid {
        return Some(EvictionRank {
            within_request: true,
            priority,
            over: used,
        });
    }
    // There are no requests of inodes; the disk's request is subtracted all the same, as upstream's `exceedDiskRequests` does.
    let against = if signal.pressure() == Pressure::Disk {
        resources::requests(pod)
            .get("ephemeral-storage")
            .copied()
            .unwrap_or(0)
    } else {
        request(signal, pod)
    };
    Some(EvictionRank {
        within_request: used <= request(signal, pod),
        priority,
        over: used.saturating_sub(against),
    })
}

/// The pods in the order of eviction. Equal ones keep their order.
pub fn rank<'a>(signal: Signal, disks: Disks, pods: &[&'a Pod], summary: &Summary) -> Vec<&'a Pod> {
    let mut ranked: Vec<(&Pod, Option<EvictionRank>)> = pods
        .iter()
        .map(|pod| {
            let uid = pod.metadata.uid.as_deref().unwrap_or("");
            (*pod, eviction_rank(signal, disks, pod, summary.pod(uid)))
        })
        .collect();
    let pid = signal.pressure() == Pressure::Pid;
    ranked.sort_by(|(one, a), (other, b)| match (a, b) {
        // Without requests the priority decides first.
        _ if pid && priority(one) != priority(other) => priority(one).cmp(&priority(other)),
        (None, None) => priority(one).cmp(&priority(other)),
        (None, Some(_)) => Ordering::Less,
        (Some(_), None) => Ordering::Greater,
        (Some(a), Some(b)) => a
            .within_request
            .cmp(&b.within_request)
            .then(a.priority.cmp(&b.priority))
            .then(b.over.cmp(&a.over)),
    });
    ranked.into_iter().map(|(pod, _)| pod).collect()
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}
