//! What is told of a pod: a rollup of what is known, in v1.36's words (SPEC L1, L4, L6, L7).
//!
//! Computed anew each time; the only memory is when each condition last flipped.

use k8s_openapi::api::core::v1::{
    self as core, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, PodCondition, PodStatus,
};
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::time::seconds;

use crate::admission::Rejection;
use crate::eviction::TERMINATION_BY_KUBELET;

use super::container::{find_spec, lost_without_a_trace, status_of};
use super::{Action, Container, Pod, Role, RunState, Sandbox, Volumes, Why, restart_all};

/// The conditions this node writes; all others are somebody else's.
const OWN_CONDITIONS: [&str; 5] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

/// Likewise, but there only while they hold.
const PASSING_CONDITIONS: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// Our status over what the API has: what others have written there is kept.
pub fn merge(there: &PodStatus, ours: &PodStatus) -> PodStatus {
    let mut merged = ours.clone();
    let own = merged.conditions.take().unwrap_or_default();
    let others = there.conditions.iter().flatten();
    let others = others
        .filter(|c| {
            !own.iter().any(|o| o.type_ == c.type_) && !PASSING_CONDITIONS.contains(&c.type_.as_str())
        })
        .cloned();
    merged.conditions = Some(own.iter().cloned().chain(others).collect());
    merged.nominated_node_name.clone_from(&there.nominated_node_name);
    merged
        .resource_claim_statuses
        .clone_from(&there.resource_claim_statuses);
    merged
        .extended_resource_claim_status
        .clone_from(&there.extended_resource_claim_status);
    merged.resize.clone_from(&there.resize);
    merged.qos_class = there.qos_class.clone().or(merged.qos_class);
    // Phases only go forward (L1), also where a kubelet before this one has told more than this one saw.
    let keeps = match there.phase.as_deref() {
        Some("Succeeded" | "Failed") => true,
        Some("Running") => merged.phase.as_deref() == Some("Pending") && !restart_all::is_shown(ours),
        _ => false,
    };
    if keeps {
        merged.phase.clone_from(&there.phase);
    }
    merged
}

impl Pod {
    /// Tells the status, if it has changed.
    pub(super) fn tell(&mut self, now: Timestamp) {
        if self.rejected || self.awaits_resize_answer() {
            return;
        }
        let status = self.rollup(now);
        self.address_waits = false;
        if status != self.status {
            self.status = status.clone();
            if self.ends != self.told_ends
                && let Some(text) = self.ends.text()
            {
                self.told_ends = self.ends.clone();
                self.out.push(Action::WriteEnds(text));
            }
            self.out.push(Action::WriteStatus(Box::new(status)));
        }
    }

    pub(super) fn reject(&mut self, rejection: Rejection, now: Timestamp) {
        let Rejection { reason, message } = rejection;
        self.rejected = true;
        self.start_time.get_or_insert(now);
        let shown = self.object.status.as_ref();
        self.status = PodStatus {
            phase: Some("Failed".into()),
            reason: Some(reason.clone()),
            message: Some(format!("Pod was rejected: {message}")),
            qos_class: shown.and_then(|s| s.qos_class.clone()),
            start_time: self.start_time.map(seconds),
            observed_generation: self.object.metadata.generation,
            ..PodStatus::default()
        };
        self.out.push(Action::WriteStatus(Box::new(self.status.clone())));
        self.record(None, true, reason, message);
    }

    /// The sandbox is there: only that is told, at once; its address comes with whatever is told next.
    pub(super) fn tell_sandbox_ready(&mut self, now: Timestamp) {
        let mut status = self.status.clone();
        let conditions = status.conditions.get_or_insert_default();
        let Some(ready) = conditions
            .iter_mut()
            .find(|c| c.type_ == "PodReadyToStartContainers")
        else {
            return self.tell(now);
        };
        if ready.status != "True" {
            ready.status = "True".into();
            ready.last_transition_time = Some(seconds(now));
            self.status = status.clone();
            self.out.push(Action::WriteStatus(Box::new(status)));
        }
        self.address_waits = true;
    }

    /// Whether there is more to tell than an address that waits.
    pub(super) fn has_news(&self, now: Timestamp) -> bool {
        let mut status = self.rollup(now);
        if self.address_waits {
            status.pod_ip.clone_from(&self.status.pod_ip);
            status.pod_ips.clone_from(&self.status.pod_ips);
        }
        status != self.status
    }

    /// As an end begins: containers that waited for something are told, the others keep what was shown.
    pub(super) fn tell_waiting(&mut self, now: Timestamp) {
        let waited = |s: &ContainerStatus| {
            s.state
                .as_ref()
                .is_some_and(|s| s.waiting.as_ref().is_some_and(|w| w.message.is_some()))
        };
        let lists = [
            &self.status.init_container_statuses,
            &self.status.container_statuses,
        ];
        if lists.into_iter().flatten().flatten().any(waited) {
            self.tell(now);
        }
    }

    fn rollup(&self, now: Timestamp) -> PodStatus {
        let of = |roles: &[Role]| -> Vec<ContainerStatus> {
            let listed = self.containers.iter().filter(|c| roles.contains(&c.role));
            listed.map(|c| self.container_status(c)).collect()
        };
        let mut init = of(&[Role::Init, Role::Sidecar]);
        let mut apps = of(&[Role::App]);
        let ephemeral = of(&[Role::Ephemeral]);
        let freed = self.ending.as_ref().is_some_and(|e| e.freed);
        let computed = self.phase(&init, &apps);
        let failed = match (&self.ending, &self.eviction) {
            (None, _) => None,
            // Also where it was on its way out already.
            (Some(_), Some((eviction, _))) => Some((eviction.reason.clone(), eviction.message.clone())),
            (Some(e), None) => match &e.why {
                Why::Failed { reason, message } => Some((reason.clone(), message.clone())),
                _ => None,
            },
        };
        let target = if failed.is_some() { "Failed" } else { computed };
        // Its claims are unprepared with its volumes; once it shows as ended, others may get their devices.
        let unprepared = self.volumes == Volumes::Gone || !crate::dra::claim::uses_any(&self.object);
        let stopped = self.ending.is_some()
            && unprepared
            && self.sandbox == Sandbox::Stopped
            && !self.containers.iter().any(Container::has_processes);
        let held = self.ending.as_ref().is_some_and(|e| e.held);
        let before = self.status.phase.clone().unwrap_or_else(|| "Pending".into());
        let terminal = matches!(target, "Succeeded" | "Failed");
        let mut phase = match target {
            _ if matches!(before.as_str(), "Succeeded" | "Failed") => before.clone(),
            // A pod is not over before its processes and their sandbox are.
            "Succeeded" | "Failed" if !stopped || held => before.clone(),
            // And never goes back, unless a rule of a container begins the whole pod anew.
            "Pending" if before == "Running" && !self.containers.iter().any(restart_all::begins_anew) => {
                before.clone()
            }
            phase => phase.to_string(),
        };
        let mut conditions = self.conditions(&init, &apps, if terminal { target } else { &phase }, now);
        if freed {
            let initialized = self.ending.as_ref().is_some_and(|e| e.initialized);
            mark_lost(&mut init, &mut apps, initialized);
            if !matches!(phase.as_str(), "Succeeded" | "Failed") {
                phase = "Failed".into();
            }
        }
        // Why it failed stands beside the phase that says so, not before.
        let over = failed.filter(|_| phase == "Failed" && before != "Succeeded");
        if over.is_some() {
            conditions.extend(self.disruption_target(now));
        }
        let some = |list: Vec<ContainerStatus>| (!list.is_empty()).then_some(list);
        let ips = match &self.sandbox {
            Sandbox::Wanted { .. } | Sandbox::Creating if self.status.pod_ips.is_none() => Vec::new(),
            // An address stays shown after it is freed, as in Kubernetes.
            Sandbox::Lost { .. }
            | Sandbox::Stopping { .. }
            | Sandbox::Stopped
            | Sandbox::Wanted { .. }
            | Sandbox::Creating => {
                let shown = self.status.pod_ips.iter().flatten();
                shown.map(|ip| ip.ip.clone()).collect()
            }
            Sandbox::Ready { .. } => self.ips().to_vec(),
        };
        let (resources, allocated) = self.resources_status(&phase);
        PodStatus {
            allocated_resources: allocated,
            resources: Some(resources),
            conditions: Some(conditions),
            container_statuses: some(apps),
            init_container_statuses: some(init),
            ephemeral_container_statuses: some(ephemeral),
            host_ip: self.node.ips.first().cloned(),
            host_ips: some_vec(self.node.ips.iter().map(|ip| core::HostIP { ip: ip.clone() })),
            observed_generation: self.object.metadata.generation,
            phase: Some(phase),
            pod_ip: ips.first().cloned(),
            pod_ips: some_vec(ips.iter().map(|ip| core::PodIP { ip: ip.clone() })),
            qos_class: self.object.status.as_ref().and_then(|s| s.qos_class.clone()),
            reason: over
                .as_ref()
                .map(|f| f.0.clone())
                .or_else(|| self.status.reason.clone()),
            message: over.map(|f| f.1).or_else(|| self.status.message.clone()),
            start_time: self.start_time.map(seconds),
            ..PodStatus::default()
        }
    }

    /// What a container that has not been made waits for.
    pub(super) fn waiting_reason(&self) -> &'static str {
        let before = |c: &Container| matches!(c.role, Role::Init | Role::Sidecar);
        match self.containers.iter().any(before) {
            true => "PodInitializing",
            false => "ContainerCreating",
        }
    }

    fn container_status(&self, container: &Container) -> ContainerStatus {
        let spec = find_spec(self.spec(), &container.name);
        let fallback = self.waiting_reason();
        let waiting = |reason: &str, message: Option<&String>| ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.into()),
                message: message.filter(|message| !message.is_empty()).cloned(),
            }),
            ..ContainerState::default()
        };
        let ended = |t: &ContainerStateTerminated| ContainerState {
            terminated: Some(t.clone()),
            ..ContainerState::default()
        };
        let ephemeral = container.role == Role::Ephemeral;
        // Why an ephemeral container does not start is told by events only.
        let kept_waiting = container.waiting.as_ref().filter(|_| !ephemeral);
        let (state, last) = match (kept_waiting, &container.run) {
            (Some((reason, message)), _) => {
                let last = container.exited().or(container.previous.as_ref());
                (waiting(reason, Some(message)), last.map(ended))
            }
            (None, None) => (waiting(fallback, None), container.previous.as_ref().map(ended)),
            (None, Some(run)) => {
                let state = match &run.state {
                    RunState::Running { started_at } => ContainerState {
                        running: Some(ContainerStateRunning {
                            started_at: Some(seconds(*started_at)),
                        }),
                        ..ContainerState::default()
                    },
                    RunState::Exited(t) => ended(t),
                };
                (state, container.previous.as_ref().map(ended))
            }
        };
        let known = self.object.status.as_ref().and_then(|s| status_of(s, container));
        let run = container.run.as_ref();
        let counted = match run {
            Some(run) => i32::try_from(run.attempt).unwrap_or(i32::MAX),
            None => known.map_or(0, |k| k.restart_count),
        };
        // What is not made yet has been given nothing.
        let made = !ephemeral && run.is_some_and(|r| !r.id.is_empty());
        let in_spec = spec.as_ref().and_then(|s| s.resources.clone());
        let given = |r: &Option<core::ResourceRequirements>| {
            let given = r.clone().or_else(|| in_spec.clone());
            given.filter(|_| made)
        };
        let mounts = spec.as_ref().and_then(|s| s.volume_mounts.as_ref());
        ContainerStatus {
            name: container.name.clone(),
            state: Some(state),
            // Shown as {} where there is none.
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
                .filter(|r| !r.id.is_empty())
                .map(|r| format!("containerd://{}", r.id)),
            allocated_resources: given(&container.allocated).and_then(|r| r.requests),
            resources: given(&container.actual)
                .filter(|given| in_spec.is_some() || *given != core::ResourceRequirements::default()),
            volume_mounts: mounts.map(|mounts| mounts.iter().map(mount_status).collect()),
            allocated_resources_status: self.resource_health_of(container, known),
            ..ContainerStatus::default()
        }
    }

    /// The devices of an app container (KEP 4680); what was shown stays shown when they are given back.
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

    fn phase(&self, init: &[ContainerStatus], apps: &[ContainerStatus]) -> &'static str {
        let ended = |s: &ContainerStatus| s.state.as_ref().and_then(|s| s.terminated.clone());
        let last = |s: &ContainerStatus| s.last_state.as_ref().and_then(|s| s.terminated.clone());
        let running = |s: &ContainerStatus| s.state.as_ref().is_some_and(|s| s.running.is_some());
        let (mut init_pending, mut init_failed) = (0, 0);
        let (mut n_running, mut n_waiting, mut n_stopped, mut n_good, mut n_final) = (0, 0, 0, 0, 0);
        for status in init {
            let Some(i) = self.by_name(&status.name) else {
                continue;
            };
            let sidecar = self.containers[i].role == Role::Sidecar;
            if sidecar {
                match (running(status), ended(status), last(status)) {
                    (true, ..) => {
                        n_running += 1;
                        init_pending += usize::from(status.started != Some(true));
                    }
                    (false, None, None) => {
                        init_pending += 1;
                        n_waiting += 1;
                    }
                    _ => {}
                }
                continue;
            }
            match ended(status).or_else(|| last(status)) {
                _ if running(status) => init_pending += 1,
                Some(t) if t.exit_code == 0 => {}
                Some(t) if !self.restarts_after(i, t.exit_code) => init_failed += 1,
                _ => init_pending += 1,
            }
        }
        for status in apps {
            let Some(i) = self.by_name(&status.name) else {
                continue;
            };
            match (running(status), ended(status), last(status)) {
                (true, ..) => n_running += 1,
                (_, Some(t), _) => {
                    n_stopped += 1;
                    n_good += usize::from(t.exit_code == 0);
                    n_final += usize::from(!self.restarts(i));
                }
                (_, None, Some(_)) => n_stopped += 1,
                (_, None, None) => n_waiting += 1,
            }
        }
        let app_ran =
            n_running + n_stopped > 0
                && self.containers.iter().filter(|c| c.role == Role::App).any(|c| {
                    restart_all::is_removed(c) || c.run.as_ref().is_some_and(|run| !run.id.is_empty())
                });
        match () {
            () if init_failed > 0 && !app_ran => "Failed",
            () if init_pending > 0 && !app_ran => "Pending",
            () if n_waiting > 0 => "Pending",
            () if self.ending.is_some() && n_stopped > 0 && n_stopped == apps.len() => {
                if n_good == n_stopped {
                    "Succeeded"
                } else {
                    "Failed"
                }
            }
            () if n_running > 0 => "Running",
            () if n_stopped > 0 && n_final == n_stopped => {
                if n_good == n_stopped {
                    "Succeeded"
                } else {
                    "Failed"
                }
            }
            () if n_stopped > 0 => "Running",
            () => "Pending",
        }
    }

    fn conditions(
        &self,
        init: &[ContainerStatus],
        apps: &[ContainerStatus],
        phase: &str,
        now: Timestamp,
    ) -> Vec<PodCondition> {
        let sandbox = matches!(self.sandbox, Sandbox::Ready { .. });
        let containers_ready = self.containers_ready(init, apps, phase);
        let ready = if containers_ready.0 {
            self.gates_ready()
        } else {
            containers_ready.clone()
        };
        let answers = [
            (sandbox, None, None),
            self.initialized_condition(init, apps, phase),
            ready,
            containers_ready,
            (true, None, None),
        ];
        let known = self.status.conditions.iter().flatten();
        let known: Vec<&PodCondition> = known
            .chain(
                self.object
                    .status
                    .iter()
                    .flat_map(|s| s.conditions.iter().flatten()),
            )
            .collect();
        let mut conditions = Vec::new();
        let passing = self
            .resize_conditions()
            .into_iter()
            .map(|(type_, reason, message)| (type_, (true, reason, message)));
        let passing = passing.chain(
            self.restart_all_condition(phase)
                .map(|answer| (restart_all::CONDITION, answer)),
        );
        for (type_, (good, reason, message)) in OWN_CONDITIONS.into_iter().zip(answers).chain(passing) {
            let status = if good { "True" } else { "False" };
            let before = known.iter().find(|c| c.type_ == type_);
            let flipped = before.is_none_or(|c| c.status != status);
            conditions.push(PodCondition {
                type_: type_.into(),
                status: status.into(),
                reason,
                message,
                last_probe_time: None,
                last_transition_time: match before {
                    Some(c) if !flipped => c.last_transition_time.clone(),
                    _ => Some(seconds(now)),
                },
                observed_generation: self.object.metadata.generation,
            });
        }
        conditions
    }

    fn disruption_target(&self, now: Timestamp) -> Option<PodCondition> {
        const TYPE: &str = "DisruptionTarget";
        let message = self.eviction.as_ref().and_then(|(e, _)| e.disruption.clone())?;
        let known = self.status.conditions.iter().flatten().find(|c| c.type_ == TYPE);
        Some(PodCondition {
            type_: TYPE.into(),
            status: "True".into(),
            reason: Some(TERMINATION_BY_KUBELET.into()),
            message: Some(message),
            last_probe_time: None,
            last_transition_time: known.map_or(Some(seconds(now)), |c| c.last_transition_time.clone()),
            observed_generation: self.object.metadata.generation,
        })
    }

    fn containers_ready(&self, init: &[ContainerStatus], apps: &[ContainerStatus], phase: &str) -> Answer {
        match phase {
            "Succeeded" => return no("PodCompleted", None),
            "Failed" => return no("PodFailed", None),
            _ => {}
        }
        let is_sidecar = |s: &&ContainerStatus| {
            self.by_name(&s.name)
                .is_some_and(|i| self.containers[i].role == Role::Sidecar)
        };
        let unready: Vec<&str> = init
            .iter()
            .filter(is_sidecar)
            .chain(apps)
            .filter(|s| !s.ready)
            .map(|s| s.name.as_str())
            .collect();
        if unready.is_empty() {
            return (true, None, None);
        }
        let message = format!("containers with unready status: [{}]", unready.join(" "));
        no("ContainersNotReady", Some(message))
    }

    fn gates_ready(&self) -> Answer {
        let conditions = self.object.status.as_ref().and_then(|s| s.conditions.as_deref());
        let mut unready = Vec::new();
        for gate in self.spec().readiness_gates.iter().flatten() {
            let name = &gate.condition_type;
            match conditions.unwrap_or_default().iter().find(|c| c.type_ == *name) {
                None => unready.push(format!(
                    "corresponding condition of pod readiness gate \"{name}\" does not exist."
                )),
                Some(c) if c.status != "True" => unready.push(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => {}
            }
        }
        if unready.is_empty() {
            return (true, None, None);
        }
        no("ReadinessGatesNotReady", Some(unready.join(", ")))
    }

    fn initialized_condition(
        &self,
        init: &[ContainerStatus],
        apps: &[ContainerStatus],
        phase: &str,
    ) -> Answer {
        if phase == "Succeeded" {
            return (true, Some("PodCompleted".into()), None);
        }
        let app_ran = apps.iter().any(|s| {
            let state = s.state.as_ref();
            state.is_some_and(|s| s.running.is_some() || s.terminated.is_some())
                || s.last_state.as_ref().is_some_and(|s| s.terminated.is_some())
        });
        let incomplete: Vec<&str> = init
            .iter()
            .filter(|s| {
                let sidecar = self
                    .by_name(&s.name)
                    .is_some_and(|i| self.containers[i].role == Role::Sidecar);
                if sidecar {
                    s.started != Some(true)
                } else {
                    !s.ready
                }
            })
            .map(|s| s.name.as_str())
            .collect();
        if app_ran || incomplete.is_empty() {
            return (true, None, None);
        }
        let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
        no("ContainersNotInitialized", Some(message))
    }
}

/// Whether it holds, and the reason and message shown.
pub(super) type Answer = (bool, Option<String>, Option<String>);

fn no(reason: &str, message: Option<String>) -> Answer {
    (false, Some(reason.into()), message)
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

/// What never got to run, or was lost, is shown as failed once the pod is over. Init containers that were
/// never reached, and app containers behind them, stay as they are.
fn mark_lost(init: &mut [ContainerStatus], apps: &mut [ContainerStatus], initialized: bool) {
    let ended = |s: &ContainerStatus| s.state.as_ref().is_some_and(|s| s.terminated.is_some());
    let last_ended = |s: &ContainerStatus| s.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    let lose = |s: &mut ContainerStatus| {
        s.state = Some(ContainerState {
            terminated: Some(lost_without_a_trace()),
            ..ContainerState::default()
        });
    };
    if initialized {
        apps.iter_mut().filter(|s| !ended(s)).for_each(lose);
    }
    let reached = init.iter().rposition(|s| ended(s) || last_ended(s));
    if let Some(reached) = reached {
        init[..=reached].iter_mut().filter(|s| !ended(s)).for_each(lose);
    }
}

/// Whether a pod, as it was last shown, had got past its init containers.
pub(super) fn was_initialized(shown: &PodStatus, spec: &core::PodSpec) -> bool {
    let Some(last) = spec.init_containers.as_ref().and_then(|list| list.last()) else {
        return true;
    };
    let has = |state: &Option<ContainerState>| {
        state
            .as_ref()
            .is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    };
    let apps = shown.container_statuses.iter().flatten();
    if apps.clone().any(|s| has(&s.state) || has(&s.last_state)) {
        return true;
    }
    let Some(status) = shown.init_container_statuses.iter().flatten().next_back() else {
        return false;
    };
    if last.restart_policy.as_deref() == Some("Always") {
        let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
        return running && status.started == Some(true);
    }
    let codes =
        [&status.state, &status.last_state].map(|s| s.as_ref()?.terminated.as_ref().map(|t| t.exit_code));
    codes.contains(&Some(0))
}
