//! One pod's stats: its cgroup's, its containers', its files'.

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;
use knarr_kubelet::cgroup::CgroupName;
use knarr_kubelet::runtime::Container;
use knarr_kubelet::static_pods::mirrored_hash;
use knarr_kubelet::stats::{
    ContainerStats, FsStats, PodReference, PodStats, ProcessStats, PvcReference, VolumeStats,
};

use super::disk::{self, Filesystem, Taken};
use super::{Measuring, RuntimeState, network};
use crate::kubelet::{namespaces, resources, sandbox};
use crate::volumes;

impl Measuring<'_> {
    /// None for a pod of which nothing runs.
    pub(super) fn pod(
        &mut self,
        pod: &core::Pod,
        held: &RuntimeState,
        node_fs: Option<Filesystem>,
        image_fs: Option<Filesystem>,
    ) -> Option<PodStats> {
        let api_uid = pod.metadata.uid.clone()?;
        // A mirror represents a static pod, which has another uid.
        let of_static = mirrored_hash(pod).map(|uid| {
            let mut pod = pod.clone();
            pod.metadata.uid = Some(uid.to_string());
            pod
        });
        let pod = of_static.as_ref().unwrap_or(pod);
        let uid = pod.metadata.uid.as_deref()?;
        let sandbox = held.sandboxes.iter().find(|s| s.pod.uid == uid)?;
        let group = resources::group(pod);
        let path = group.path(self.parts.cgroup_driver);
        let usage = self.cgroups.usage(&path);
        let running = held.containers.iter().filter(|c| c.sandbox_id == sandbox.id);
        let (mut containers, mut processes) = (Vec::new(), None);
        for container in running {
            let (stats, count) =
                self.container(pod, container, &group, held, node_fs.as_ref(), image_fs.as_ref());
            containers.push(stats);
            // The sandbox's own process belongs to no container.
            processes = count.map(|count| processes.unwrap_or(0) + count).or(processes);
        }
        let volumes = self.volumes(pod, held, node_fs.as_ref());
        let pid = held.pids.get(&sandbox.id).copied().flatten();
        let own_network = !namespaces::host_network(pod);
        Some(PodStats {
            pod_ref: PodReference {
                name: pod.metadata.name.clone().unwrap_or_default(),
                namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                uid: api_uid,
            },
            start_time: Some(seconds(sandbox.created_at)),
            cpu: self.cpu(&path, &usage),
            memory: self.memory_stats(&usage, usage.memory_limit_bytes),
            io: self.io(&usage),
            network: pid
                .filter(|_| own_network)
                .and_then(|pid| network::of_process(&pid.to_string(), self.time())),
            ephemeral_storage: Some(self.ephemeral(pod, &containers, &volumes, node_fs.as_ref())),
            process_stats: processes.map(|count| ProcessStats { count: Some(count) }),
            swap: self.swap(&usage),
            containers,
            volumes: volumes.into_iter().map(|(stats, _)| stats).collect(),
        })
    }

    fn container(
        &mut self,
        pod: &core::Pod,
        container: &Container,
        group: &CgroupName,
        held: &RuntimeState,
        node_fs: Option<&Filesystem>,
        image_fs: Option<&Filesystem>,
    ) -> (ContainerStats, Option<u64>) {
        let group = group.path_of_container(self.parts.cgroup_driver, &container.id);
        let usage = self.cgroups.usage(&group);
        let layer = held.usage.get(&container.id).map(|u| Taken {
            bytes: u.writable_layer_bytes,
            inodes: u.writable_layer_inodes,
        });
        let logs = sandbox::log_directory(pod, &self.parts.log_dir).join(&container.name);
        let logs = self.taken(logs);
        let stats = ContainerStats {
            name: container.name.clone(),
            start_time: Some(seconds(container.created_at)),
            cpu: self.cpu(&group, &usage),
            memory: self.memory_stats(&usage, usage.memory_limit_bytes),
            io: self.io(&usage),
            rootfs: layer.map(|layer| self.part(image_fs, layer)),
            logs: logs.map(|logs| self.part(node_fs, logs)),
            swap: self.swap(&usage),
        };
        (stats, usage.processes)
    }

    /// With each, whether it uses the node's own disk for as long as the pod lives.
    fn volumes(
        &mut self,
        pod: &core::Pod,
        held: &RuntimeState,
        node_fs: Option<&Filesystem>,
    ) -> Vec<(VolumeStats, bool)> {
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let mut found = Vec::new();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            if let Some(fs) = held.claimed.get(&(uid.into(), volume.name.clone())) {
                let stats = VolumeStats {
                    fs: self.fs(fs),
                    name: volume.name.clone(),
                    pvc_ref: volumes::claim_of(pod, volume).map(|name| PvcReference {
                        name,
                        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                    }),
                };
                found.push((stats, false));
                continue;
            }
            let Some(path) = volumes::layout::path_in(&self.parts.root_dir, uid, volume) else {
                continue;
            };
            let in_memory = volume.secret.is_some()
                || volume
                    .empty_dir
                    .as_ref()
                    .is_some_and(|e| e.medium.as_deref().is_some_and(|m| !m.is_empty()));
            let fs = if in_memory { disk::filesystem(&path) } else { None };
            let Some(taken) = self.taken(path) else { continue };
            let stats = VolumeStats {
                fs: self.part(fs.as_ref().or(node_fs), taken),
                name: volume.name.clone(),
                pvc_ref: None,
            };
            found.push((stats, !in_memory));
        }
        found
    }

    fn ephemeral(
        &self,
        pod: &core::Pod,
        containers: &[ContainerStats],
        volumes: &[(VolumeStats, bool)],
        node_fs: Option<&Filesystem>,
    ) -> FsStats {
        let mut sum = Taken::default();
        let mut add = |fs: Option<&FsStats>| {
            let Some(fs) = fs else { return };
            sum.bytes += fs.used_bytes.unwrap_or(0);
            sum.inodes += fs.inodes_used.unwrap_or(0);
        };
        for container in containers {
            add(container.rootfs.as_ref());
            add(container.logs.as_ref());
        }
        for (volume, _) in volumes.iter().filter(|(_, local)| *local) {
            add(Some(&volume.fs));
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or("");
        let hosts = self.parts.root_dir.join("pods").join(uid).join("etc-hosts");
        if let Some(hosts) = disk::taken(&hosts) {
            sum.bytes += hosts.bytes;
            sum.inodes += hosts.inodes;
        }
        self.part(node_fs, sum)
    }
}
