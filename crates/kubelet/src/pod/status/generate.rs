//! The pod's status and its containers', as v1.36's `generateAPIPodStatus` has them.

use k8s_openapi::api::core::v1::{
    self as core, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, PodStatus,
};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

use crate::pod::container::{RunState, WaitingReason, container_status_unknown};
use crate::pod::termination::PodTermination;
use crate::pod::{Container, Pod, PodPhase, Role, restart_all};

impl Pod {
    pub(super) fn generate_status(&self, now: Timestamp) -> PodStatus {
        let of = |roles: &[Role]| -> Vec<ContainerStatus> {
            let listed = self.containers.iter().filter(|c| roles.contains(&c.role));
            listed.map(|c| self.container_status(c)).collect()
        };
        let mut init = of(&[Role::Init, Role::Sidecar]);
        let mut apps = of(&[Role::App]);
        let ephemeral = of(&[Role::Ephemeral]);
        let computed = self.phase(&init, &apps);
        let failed = match (&self.termination, self.eviction.requested()) {
            (None, _) => None,
            // Also if it was terminating already.
            (Some(_), Some(eviction)) => Some((eviction.reason.as_str(), eviction.message.as_str())),
            (Some(termination), None) => termination.failure(),
        };
        let target = if failed.is_some() {
            PodPhase::Failed
        } else {
            computed
        };
        // Its claims are unprepared with its volumes; once the phase is terminal, other pods may get their devices.
        let unprepared = self.volumes.is_torn_down() || !crate::dra::claim::uses_any(self.object.get());
        let stopped = self.termination.is_some()
            && unprepared
            && self.sandboxes.is_stopped()
            && !self.containers.iter().any(Container::has_processes);
        let held = self
            .termination
            .as_ref()
            .is_some_and(PodTermination::withholds_phase);
        let before = PodPhase::of(&self.status.last);
        let terminal = target.is_terminal();
        let mut phase = match target {
            _ if before.is_terminal() => before,
            // The phase is terminal only once processes and sandbox are stopped.
            _ if terminal && (!stopped || held) => before,
            // Running is never reset to Pending, unless RestartAllContainers restarts the pod.
            PodPhase::Pending
                if before == PodPhase::Running
                    && !self.containers.iter().any(restart_all::awaits_restart) =>
            {
                before
            }
            phase => phase,
        };
        let mut conditions = self.conditions(&init, &apps, if terminal { target } else { phase }, now);
        if let Some(termination) = self.termination.as_ref().filter(|t| t.has_terminated()) {
            mark_unknown(&mut init, &mut apps, termination.was_initialized());
            if !phase.is_terminal() {
                phase = PodPhase::Failed;
            }
        }
        // The reason of a failure is reported together with the phase Failed, not before.
        let over = failed.filter(|_| phase == PodPhase::Failed && before != PodPhase::Succeeded);
        if over.is_some() {
            conditions.extend(self.disruption_target(now));
        }
        let some = |list: Vec<ContainerStatus>| (!list.is_empty()).then_some(list);
        let ips = match self.sandboxes.is_ready() {
            true => self.ips().to_vec(),
            // The pod IP stays in the status after it is released, as in Kubernetes.
            false => {
                let shown = self.status.last.pod_ips.iter().flatten();
                shown.map(|ip| ip.ip.clone()).collect()
            }
        };
        let (resources, allocated) = self.resources_status(phase);
        PodStatus {
            allocated_resources: allocated,
            resources: Some(resources),
            conditions: Some(conditions),
            container_statuses: some(apps),
            init_container_statuses: some(init),
            ephemeral_container_statuses: some(ephemeral),
            host_ip: self.node.ips.first().cloned(),
            host_ips: some_vec(self.node.ips.iter().map(|ip| core::HostIP { ip: ip.clone() })),
            observed_generation: self.object.generation(),
            phase: Some(phase.as_str().into()),
            pod_ip: ips.first().cloned(),
            pod_ips: some_vec(ips.iter().map(|ip| core::PodIP { ip: ip.clone() })),
            qos_class: self.object.status().and_then(|s| s.qos_class.clone()),
            reason: over
                .map(|(reason, _)| reason.to_string())
                .or_else(|| self.status.last.reason.clone()),
            message: over
                .map(|(_, message)| message.to_string())
                .or_else(|| self.status.last.message.clone()),
            start_time: self.status.start_time.map(seconds),
            ..PodStatus::default()
        }
    }

    /// The waiting reason of a container that has not been created.
    pub(in crate::pod) fn waiting_reason(&self) -> WaitingReason {
        let before = |c: &Container| matches!(c.role, Role::Init | Role::Sidecar);
        match self.containers.iter().any(before) {
            true => WaitingReason::PodInitializing,
            false => WaitingReason::ContainerCreating,
        }
    }

    fn container_status(&self, container: &Container) -> ContainerStatus {
        let spec = self.object.container(&container.name);
        let fallback = self.waiting_reason();
        let waiting = |reason: WaitingReason, message: &str| ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.as_str().into()),
                message: Some(message.to_string()).filter(|message| !message.is_empty()),
            }),
            ..ContainerState::default()
        };
        let terminated = |t: &ContainerStateTerminated| ContainerState {
            terminated: Some(t.clone()),
            ..ContainerState::default()
        };
        let (run, previous) = (container.runs.latest(), container.runs.previous());
        let ephemeral = container.role == Role::Ephemeral;
        // Why an ephemeral container does not start is reported by events only.
        let kept_waiting = container.waiting.as_ref().filter(|_| !ephemeral);
        let (state, last) = match (kept_waiting, run) {
            (Some(kept), _) => {
                let last = container.exited().or(previous);
                (waiting(kept.reason(), kept.message()), last.map(terminated))
            }
            (None, None) => (waiting(fallback, ""), previous.map(terminated)),
            (None, Some(run)) => {
                let state = match &run.state {
                    RunState::Running { started_at } => ContainerState {
                        running: Some(ContainerStateRunning {
                            started_at: Some(seconds(*started_at)),
                        }),
                        ..ContainerState::default()
                    },
                    RunState::Exited(t) => terminated(t),
                };
                (state, previous.map(terminated))
            }
        };
        let known = self.object.status_of(container);
        let counted = match run {
            Some(run) => i32::try_from(run.attempt).unwrap_or(i32::MAX),
            None => known.map_or(0, |k| k.restart_count),
        };
        // A container that is not created has no resources.
        let made = !ephemeral && run.is_some_and(|r| r.id.is_some());
        let in_spec = spec.as_ref().and_then(|s| s.resources.clone());
        let given = |r: Option<&core::ResourceRequirements>| {
            let given = r.cloned().or_else(|| in_spec.clone());
            given.filter(|_| made)
        };
        let mounts = spec.as_ref().and_then(|s| s.volume_mounts.as_ref());
        ContainerStatus {
            name: container.name.clone(),
            state: Some(state),
            // `{}` if there is none.
            last_state: Some(last.unwrap_or_default()),
            ready: container.ready(),
            started: (!ephemeral).then(|| container.started()),
            restart_count: counted,
            image: run
                .map(|r| r.image.clone())
                .filter(|image| !image.is_empty())
                .or_else(|| spec.as_ref().and_then(|s| s.image.clone()))
                .unwrap_or_default(),
            image_id: run.map(|r| r.image_id.clone()).unwrap_or_default(),
            container_id: run
                .and_then(|r| r.id.as_ref())
                .map(|id| format!("containerd://{id}")),
            allocated_resources: given(container.resources.allocated()).and_then(|r| r.requests),
            resources: given(container.resources.actual())
                .filter(|given| in_spec.is_some() || *given != core::ResourceRequirements::default()),
            volume_mounts: mounts.map(|mounts| mounts.iter().map(mount_status).collect()),
            allocated_resources_status: self.resource_health_of(container, known),
            ..ContainerStatus::default()
        }
    }

    /// The health of an app container's devices (KEP 4680); it stays in the status after they are released.
    fn resource_health_of(
        &self,
        container: &Container,
        known: Option<&ContainerStatus>,
    ) -> Option<Vec<core::ResourceStatus>> {
        if container.role != Role::App {
            return None;
        }
        let current = self.resource_health.get(&container.name).cloned();
        current.or_else(|| known?.allocated_resources_status.clone())
    }
}

fn some_vec<T>(items: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let items: Vec<T> = items.collect();
    (!items.is_empty()).then_some(items)
}

fn mount_status(mount: &core::VolumeMount) -> core::VolumeMountStatus {
    core::VolumeMountStatus {
        mount_path: mount.mount_path.clone(),
        name: mount.name.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: mount.read_only.filter(|r| *r).map(|_| "Disabled".to_string()),
        ..core::VolumeMountStatus::default()
    }
}

/// Reports containers that never ran, or whose state is not known, as failed once the pod has terminated. Init containers
/// that were not reached, and the app containers after them, stay as they are.
fn mark_unknown(init: &mut [ContainerStatus], apps: &mut [ContainerStatus], initialized: bool) {
    let terminated = |s: &ContainerStatus| s.state.as_ref().is_some_and(|s| s.terminated.is_some());
    let last_terminated = |s: &ContainerStatus| s.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    let set_unknown = |s: &mut ContainerStatus| {
        s.state = Some(ContainerState {
            terminated: Some(container_status_unknown()),
            ..ContainerState::default()
        });
    };
    if initialized {
        apps.iter_mut().filter(|s| !terminated(s)).for_each(set_unknown);
    }
    let reached = init.iter().rposition(|s| terminated(s) || last_terminated(s));
    if let Some(reached) = reached {
        init[..=reached]
            .iter_mut()
            .filter(|s| !terminated(s))
            .for_each(set_unknown);
    }
}
