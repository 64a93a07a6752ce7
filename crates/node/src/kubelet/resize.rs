//! Gives a running pod and its containers what they are allocated.
//!
//! The pod's cgroup grows first, then the containers change, the shrinking ones before the others, and the cgroup
//! shrinks last: at no time has a container a larger limit than its pod. Memory in use is not reclaimed: a limit below
//! the current use would trigger the OOM killer.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, PodUid};
use knarr_kubelet::cgroup::CgroupName;
use knarr_kubelet::pod::find_spec;
use knarr_kubelet::resources::{MemoryDecreaseError, check_memory_decrease};

use super::config::Config;
use super::enforcement::PodCgroups;
use super::node_resources::NodeResources;
use super::pod_runtime::PodRuntime;
use super::resources::{CpuQuota, group, of_container};
use crate::cgroup::{self, Limits, larger};
use crate::containermanager::ContainerManager;
use crate::runtime::RuntimeError;

/// Why a pod is not resized; shown to the user.
#[derive(Debug, thiserror::Error)]
pub(super) enum ResizeError {
    #[error(transparent)]
    MemoryDecrease(#[from] MemoryDecreaseError),
    #[error("the pod's limits: {0}")]
    PodLimits(#[source] std::io::Error),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// Resizes pods.
pub(super) struct Resizer {
    pub config: Arc<Config>,
    pub node: Arc<NodeResources>,
    pub runtime: Arc<PodRuntime>,
    pub cgroups: Arc<PodCgroups>,
    pub containers: Arc<ContainerManager>,
}

impl Resizer {
    /// The pod as it is, its target, and the containers (name and id) that change. Returns the ids of those that have
    /// changed, and the error.
    pub async fn resize(
        &self,
        from: &core::Pod,
        to: &core::Pod,
        containers: Vec<(String, ContainerId)>,
    ) -> (Vec<ContainerId>, Result<(), ResizeError>) {
        let configuration = &self.config.configuration;
        let (before, after) = (self.cgroups.limits_of(from), self.cgroups.limits_of(to));
        let uid = &PodUid::of(&to.metadata);
        let mut changes = Vec::new();
        for (name, id) in containers {
            let quota = match self.containers.has_exclusive_cpus(uid, Some(&name)) {
                true => CpuQuota::NONE,
                false => CpuQuota::of(configuration),
            };
            let given = |pod: &core::Pod| {
                let spec = pod.spec.as_ref().and_then(|s| find_spec(s, &name));
                spec.map(|spec| {
                    of_container(pod, &spec, self.node.memory_bytes, quota, &self.node.huge_pages)
                })
            };
            if let Some((before, after)) = given(from).zip(given(to)) {
                let memory = (before.memory_limit_in_bytes, after.memory_limit_in_bytes);
                changes.push((name, id, memory, after));
            }
        }
        // None is the largest limit of all.
        let order = |limit: i64| if limit == 0 { i64::MAX } else { limit };
        changes.sort_by_key(|(_, _, (before, after), _)| order(*after) > order(*before));
        let mut done = Vec::new();
        let host = self.config.machine.is_host();
        let (driver, group) = (configuration.cgroup_driver, group(to));
        let attempt = async {
            if host {
                let of_group = |path: String, limits: (i64, i64)| {
                    let shrinks = order(limits.1) < order(limits.0);
                    shrinks.then(|| (limits.1, cgroup::memory_usage_bytes(&path)))
                };
                let pod = of_group(group.path(driver), (before.memory_bytes, after.memory_bytes));
                let shrinking = changes.iter().filter_map(|(name, id, memory, _)| {
                    let (limit, usage) = of_group(group.path_of_container(driver, id), *memory)?;
                    Some((name.as_str(), limit, usage))
                });
                check_memory_decrease(pod, shrinking)?;
                self.set(&group, &larger(&before, &after)).await?;
            }
            for (_, id, _, desired) in &changes {
                self.runtime.update_container(id, desired).await?;
                done.push(id.clone());
            }
            if host {
                self.set(&group, &after).await?;
            }
            Ok(())
        };
        let result = attempt.await;
        self.cgroups.update_qos(None).await;
        (done, result)
    }

    async fn set(&self, group: &CgroupName, limits: &Limits) -> Result<(), ResizeError> {
        let set = self.cgroups.ensure(group, limits).await;
        set.map_err(ResizeError::PodLimits)
    }
}
