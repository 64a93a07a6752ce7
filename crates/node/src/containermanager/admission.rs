//! Admission: everything that a pod's containers need is allocated in the kubelet's order (devices, CPUs, memory),
//! aligned by the topology manager's policy and scope.

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_api::k8s_openapi;
use knarr_kubelet::admission::Rejection;
use knarr_kubelet::cpumanager::Allocated;
use knarr_kubelet::guaranteed;
use knarr_kubelet::topologymanager::{self, Hint, Policy, Scope};
use tokio::time::Instant;
use tracing::warn;

use super::{ContainerManager, Managers};
use crate::devicemanager::Devices;

pub(super) const CONTAINER: &str = "container";
const POD: &str = "pod";
pub(super) const NUMA_NODE: &str = "numa_node";
const PHYSICAL_CPU: &str = "physical_cpu";
const UNCORE_CACHE: &str = "uncore_cache";

impl ContainerManager {
    /// Allocates all that a pod's containers need. What a rejected pod has got is released.
    pub async fn admit(&self, pod: &Pod) -> Result<(), Rejection> {
        let begin = Instant::now();
        let admitted = match self.is_active() {
            true => self.admit_managed(pod).await,
            false => self.devices.allocate_pod(pod).await,
        };
        let is_error = admitted.is_err() && self.configuration.topology_policy != Policy::None;
        let mut managers = self.managers.lock();
        let counts = &mut managers.counts;
        counts.admission_requests += 1;
        counts.admission_errors += u64::from(is_error);
        counts
            .admission_ms
            .observe(begin.elapsed().as_secs_f64() * 1000.0);
        admitted
    }

    async fn admit_managed(&self, pod: &Pod) -> Result<(), Rejection> {
        let aligned = self.configuration.topology_policy != Policy::None;
        let _turn = match aligned {
            true => Some(self.aligning.lock().await),
            false => None,
        };
        let allocated = match self.configuration.topology_scope {
            Scope::Pod if aligned => self.allocate_in_pod_scope(pod).await,
            _ => self.allocate_in_container_scope(pod).await,
        };
        let saved = match allocated {
            Ok(()) => {
                let saved = self.save().await;
                saved.map_err(|error| topologymanager::unexpected(&error))
            }
            rejected => rejected,
        };
        if saved.is_err() {
            self.release_managed(&guaranteed::uid(pod));
        }
        self.changed.notify_one();
        saved
    }

    /// A pod that ran before this kubelet started keeps what the checkpoint has for it. A pod without one, because the
    /// policy was another then, gets CPUs and memory while it runs, as far as they are available.
    pub async fn readmit(&self, pod: &Pod) {
        if !self.is_active() || !guaranteed::qualifies(pod) {
            return;
        }
        for container in guaranteed::containers(pod) {
            let Err(why) = self.allocate_managed(pod, container, Hint::default()) else {
                continue;
            };
            warn!(
                pod = pod.metadata.name,
                container = container.name,
                reason = why.reason,
                message = why.message,
                "a container that runs shares its CPUs or memory"
            );
        }
        if let Err(error) = self.save().await {
            warn!(%error, "cannot store the state of the resource managers");
        }
        self.changed.notify_one();
    }

    async fn allocate_in_container_scope(&self, pod: &Pod) -> Result<(), Rejection> {
        for container in guaranteed::containers(pod) {
            let hint = self.merge(CONTAINER, |managers, devices| {
                [
                    devices.with(|devices| devices.hints(pod, container, &managers.numa_nodes)),
                    managers.cpu.hints(pod, container),
                    managers.memory.hints(pod, container),
                ]
            })?;
            self.allocate(pod, container, hint).await?;
            self.note_aligned(CONTAINER);
        }
        Ok(())
    }

    async fn allocate_in_pod_scope(&self, pod: &Pod) -> Result<(), Rejection> {
        let hint = self.merge(POD, |managers, devices| {
            [
                devices.with(|devices| devices.pod_hints(pod, &managers.numa_nodes)),
                managers.cpu.pod_hints(pod),
                managers.memory.pod_hints(pod),
            ]
        })?;
        for container in guaranteed::containers(pod) {
            self.allocate(pod, container, hint).await?;
        }
        self.note_aligned(POD);
        Ok(())
    }

    fn merge(
        &self,
        scope: &'static str,
        hints: impl FnOnce(&Managers, &Devices) -> [topologymanager::ProviderHints; 3],
    ) -> Result<Hint, Rejection> {
        let mut managers = self.managers.lock();
        let policy = self.configuration.topology_policy;
        let Some(topology) = managers.topology.as_ref().filter(|_| policy != Policy::None) else {
            return Ok(Hint::default());
        };
        let (best, admits) = topology.merge(&hints(&managers, &self.devices));
        if admits {
            return Ok(best);
        }
        if policy.guarantees_alignment() {
            *managers.counts.not_aligned.entry((scope, NUMA_NODE)).or_default() += 1;
        }
        Err(topologymanager::rejection())
    }

    fn note_aligned(&self, scope: &'static str) {
        if self.configuration.topology_policy.guarantees_alignment() {
            let mut managers = self.managers.lock();
            *managers.counts.aligned.entry((scope, NUMA_NODE)).or_default() += 1;
        }
    }

    async fn allocate(&self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), Rejection> {
        let devices = self.devices.allocate(pod, container, hint.affinity).await;
        devices.map_err(|error| error.rejection())?;
        self.allocate_managed(pod, container, hint)
    }

    fn allocate_managed(&self, pod: &Pod, container: &Container, hint: Hint) -> Result<(), Rejection> {
        let mut managers = self.managers.lock();
        let Managers {
            cpu, memory, counts, ..
        } = &mut *managers;
        let by_cores = cpu.options().full_pcpus_only;
        match cpu.allocate(pod, container, hint.affinity) {
            Ok(Allocated::Shared) => {}
            Ok(allocated) => {
                counts.cpu_requests += 1;
                if by_cores {
                    *counts.aligned.entry((CONTAINER, PHYSICAL_CPU)).or_default() += 1;
                }
                if let Allocated::New {
                    is_uncore_aligned: true,
                } = allocated
                {
                    *counts.aligned.entry((CONTAINER, UNCORE_CACHE)).or_default() += 1;
                }
            }
            Err(error) => {
                counts.cpu_requests += 1;
                counts.cpu_errors += 1;
                if by_cores {
                    *counts.not_aligned.entry((CONTAINER, PHYSICAL_CPU)).or_default() += 1;
                }
                return Err(error.into());
            }
        }
        if memory.is_static() && guaranteed::qualifies(pod) {
            counts.memory_requests += 1;
        }
        match memory.allocate(pod, container, hint) {
            Ok(_) => Ok(()),
            Err(error) => {
                counts.memory_errors += 1;
                Err(error.into())
            }
        }
    }
}
