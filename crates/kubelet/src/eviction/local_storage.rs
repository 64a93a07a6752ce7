//! Pods over their local storage limits: an emptyDir over its sizeLimit, a pod or a container over its limit of
//! ephemeral-storage. They are evicted at once, without node pressure.

use k8s_openapi::api::core::v1::Pod;
use knarr_api::k8s_openapi;
use knarr_apimachinery::quantity::{Notation, Quantity};

use super::{Disks, message};
use crate::resources;
use crate::stats::{FsStats, PodStats};

/// The message of the pod's eviction, if it is over one of its limits.
pub fn exceeded(pod: &Pod, stats: &PodStats, disks: Disks) -> Option<String> {
    empty_dir(pod, stats)
        .or_else(|| pod_limit(pod, stats))
        .or_else(|| container(pod, stats, disks))
}

fn bytes(used: u64) -> Quantity {
    Quantity::from_value(i64::try_from(used).unwrap_or(i64::MAX), Notation::BinarySi)
}

fn empty_dir(pod: &Pod, stats: &PodStats) -> Option<String> {
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    for volume in volumes {
        let limit = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref());
        let limit = limit.and_then(|l| Quantity::of(l).ok());
        let used = stats.volumes.iter().find(|v| v.name == volume.name);
        let (Some(limit), Some(used)) = (limit, used.and_then(|v| v.fs.used_bytes)) else {
            continue;
        };
        if !limit.is_zero() && !limit.is_negative() && bytes(used) > limit {
            return Some(message::empty_dir(&volume.name, limit));
        }
    }
    None
}

fn pod_limit(pod: &Pod, stats: &PodStats) -> Option<String> {
    let limit = *resources::limits(pod).get("ephemeral-storage")?;
    let used = stats.ephemeral_storage.as_ref().and_then(|fs| fs.used_bytes);
    let used = i64::try_from(used.unwrap_or(0)).unwrap_or(i64::MAX);
    (used > limit).then(|| message::pod_storage(limit_as_written(pod, limit)))
}

/// A sum of limits is written as the first of them.
fn limit_as_written(pod: &Pod, limit: i64) -> Quantity {
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let first = containers
        .filter_map(|c| c.resources.as_ref()?.limits.as_ref()?.get("ephemeral-storage"))
        .find_map(|q| Quantity::of(q).ok());
    let notation = first.map_or(Notation::BinarySi, |q| q.notation());
    Quantity::from_value(limit, notation)
}

fn container(pod: &Pod, stats: &PodStats, disks: Disks) -> Option<String> {
    let containers = pod.spec.iter().flat_map(|s| &s.containers);
    let limits: Vec<(&str, Quantity)> = containers
        .filter_map(|c| {
            let limit = c.resources.as_ref()?.limits.as_ref()?.get("ephemeral-storage")?;
            let limit = Quantity::of(limit).ok().filter(|l| !l.is_zero())?;
            Some((c.name.as_str(), limit))
        })
        .collect();
    for container in &stats.containers {
        let used = |fs: Option<&FsStats>| fs.and_then(|fs| fs.used_bytes).unwrap_or(0);
        let mut sum = used(container.logs.as_ref());
        // Writable layers on another filesystem than the pods' do not count.
        if !disks.dedicated_image_fs {
            sum = sum.saturating_add(used(container.rootfs.as_ref()));
        }
        match limits.iter().find(|(name, _)| *name == container.name) {
            Some((_, limit)) if bytes(sum) > *limit => {
                return Some(message::container_storage(&container.name, *limit));
            }
            _ => {}
        }
    }
    None
}
