//! Keeps running containers on their CPUs: those that share CPUs run on others whenever some are allocated or released.
//!
//! As in v1.36 all running containers are compared each `cpuManagerReconcilePeriod`, and also at once when the shared
//! CPUs may have changed. The runtime is called only for containers whose CPUs have changed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_cri::v1::LinuxContainerResources;
use knarr_apimachinery::ids::ContainerId;
use knarr_kubelet::cpumanager::cpuset;
use knarr_kubelet::runtime::ContainerState;
use tracing::warn;

use super::ContainerManager;
use crate::podresources::ActivePods;
use crate::runtime::Runtime;

/// Never returns; does nothing with the policy `none`.
pub async fn run(manager: Arc<ContainerManager>, runtime: Arc<dyn Runtime>, pods: Arc<ActivePods>) {
    if !manager.configuration.is_cpu_static {
        return;
    }
    let period = manager.configuration.cpu_reconcile_period.unsigned_abs();
    let mut known = BTreeMap::new();
    loop {
        reconcile(&manager, &*runtime, &pods, &mut known).await;
        tokio::select! {
            biased;
            () = manager.changed.notified() => {}
            () = tokio::time::sleep(period.max(Duration::from_millis(1))) => {}
        }
    }
}

/// `known` are the CPUs that containers were given last, by container id.
async fn reconcile(
    manager: &ContainerManager,
    runtime: &dyn Runtime,
    pods: &ActivePods,
    known: &mut BTreeMap<ContainerId, String>,
) {
    let containers = match runtime.containers().await {
        Ok(containers) => containers,
        Err(error) => return warn!(%error, "cannot compare the CPUs of containers yet"),
    };
    known.retain(|id, _| containers.iter().any(|container| container.id == *id));
    for container in containers {
        let is_running = matches!(container.state, ContainerState::Running { .. });
        if !is_running || !pods.lock().contains_key(container.pod.uid.as_str()) {
            continue;
        }
        let desired = {
            let managers = manager.managers.lock();
            managers
                .cpu
                .affinity(&container.pod.uid, &container.name)
                .map(cpuset::format)
        };
        let desired = desired.unwrap_or_default();
        if desired.is_empty() || known.get(&container.id) == Some(&desired) {
            continue;
        }
        let resources = LinuxContainerResources {
            cpuset_cpus: desired.clone(),
            ..LinuxContainerResources::default()
        };
        match runtime.update_container(&container.id, &resources).await {
            Ok(()) => drop(known.insert(container.id, desired)),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                warn!(container = %container.id, cpus = desired, %error, "cannot set the CPUs of a container")
            }
        }
    }
}
