//! The cgroups that pods are in: what a pod may use, what all pods together may use, and what each class of service weighs.
//!
//! The latter follows from the admitted pods, and is set again whenever a pod starts, terminates or is resized; each
//! minute also what other programs have changed. A hollow node has no cgroups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::PodUid;
use knarr_client::events::EventType;
use knarr_kubelet::cgroup::CgroupName;
use knarr_kubelet::enforcement::{ResourceConfig, of_node_allocatable, of_qos_classes};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tracing::warn;

use super::bound_pods::BoundPods;
use super::config::Config;
use super::events::Events;
use super::node_resources::NodeResources;
use super::resources::{self, CpuQuota};
use crate::cgroup::{self, Limits};
use crate::containermanager::ContainerManager;

/// Between two times at which all is set again, also what could not be set.
const RESYNC_PERIOD: Duration = Duration::from_secs(60);

/// See the module.
pub(super) struct PodCgroups {
    config: Arc<Config>,
    node: Arc<NodeResources>,
    pods: BoundPods,
    containers: Arc<ContainerManager>,
    events: Events,
    /// What each cgroup above the pods' was set to last. Locked while they are set.
    applied: Mutex<BTreeMap<String, ResourceConfig>>,
}

impl PodCgroups {
    pub fn new(
        config: Arc<Config>,
        node: Arc<NodeResources>,
        pods: BoundPods,
        containers: Arc<ContainerManager>,
        events: Events,
    ) -> Self {
        PodCgroups {
            config,
            node,
            pods,
            containers,
            events,
            applied: Mutex::default(),
        }
    }

    /// Keeps what all pods may use and what the classes weigh, of a node that is this host.
    pub async fn run(&self) {
        let configuration = &self.config.configuration;
        let all = of_node_allocatable(&self.node.capacity, configuration);
        let mut warned = false;
        loop {
            // A limit below the current use cannot be set; eviction reduces the use.
            match self.set(&all).await {
                Ok(()) if warned => {}
                Ok(()) => {
                    warned = true;
                    let message = "Updated Node Allocatable limit across pods";
                    self.events
                        .of_node(EventType::Normal, "NodeAllocatableEnforced", message);
                }
                Err(error) => {
                    let path = all.group.path(configuration.cgroup_driver);
                    let message = format!("Failed to update Node Allocatable Limits {path:?}: {error}");
                    let reason = "FailedNodeAllocatableEnforcement";
                    self.events.of_node(EventType::Warning, reason, message);
                }
            }
            self.applied.lock().await.clear();
            self.update_qos(None).await;
            sleep(RESYNC_PERIOD).await;
        }
    }

    /// Recomputes what the classes weigh; `beginning` is a starting pod that is not in the store yet.
    pub async fn update_qos(&self, beginning: Option<&core::Pod>) {
        if !self.config.machine.is_host() {
            return;
        }
        let mut last = self.applied.lock().await;
        let known = self.pods.list();
        let is_known = |pod: &&core::Pod| known.iter().any(|k| k.metadata.uid == pod.metadata.uid);
        let beginning = beginning.filter(|pod| !is_known(pod));
        let all = known.iter().map(|pod| &**pod).chain(beginning);
        for resources in of_qos_classes(all, &self.node.huge_pages) {
            let path = resources.group.path(self.config.configuration.cgroup_driver);
            if last.get(&path) == Some(&resources) {
                continue;
            }
            match self.set(&resources).await {
                Ok(()) => drop(last.insert(path, resources)),
                Err(error) => warn!(path, %error, "cannot set the cgroup of a QoS class"),
            }
        }
    }

    async fn set(&self, resources: &ResourceConfig) -> std::io::Result<()> {
        let limits = Limits {
            cpu_shares: resources::shares(resources.milli_cpu),
            memory_bytes: resources.memory_bytes,
            huge_pages: resources.huge_pages.clone(),
            ..Limits::default()
        };
        self.ensure(&resources.group, &limits).await
    }

    /// Makes a group, if it is not there, and gives it these limits.
    pub async fn ensure(&self, group: &CgroupName, limits: &Limits) -> std::io::Result<()> {
        cgroup::ensure(self.config.configuration.cgroup_driver, group, limits).await
    }

    /// Makes the pod's group, if it is not there, and gives it the pod's limits.
    pub async fn limit_pod(&self, pod: &core::Pod) -> std::io::Result<()> {
        self.ensure(&resources::group(pod), &self.limits_of(pod)).await
    }

    /// Removes the group of a pod that has terminated.
    pub async fn remove(&self, group: &CgroupName) {
        if self.config.machine.is_host() {
            cgroup::remove(self.config.configuration.cgroup_driver, group).await;
            self.update_qos(None).await;
        }
    }

    /// What the pod's group is limited to. No quota holds for a pod with containers that have CPUs to themselves.
    pub fn limits_of(&self, pod: &core::Pod) -> Limits {
        let uid = &PodUid::of(&pod.metadata);
        let configuration = &self.config.configuration;
        let quota = match self.containers.has_exclusive_cpus(uid, None) {
            true => CpuQuota::NONE,
            false => CpuQuota::of(configuration),
        };
        resources::of_pod(pod, configuration, quota, &self.node.huge_pages)
    }
}
