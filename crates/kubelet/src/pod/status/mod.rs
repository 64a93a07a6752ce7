//! The status of a pod, generated from the known state as v1.36's `generateAPIPodStatus` does (SPEC L1, L4, L6, L7).
//!
//! It is computed from scratch each time; only the conditions' lastTransitionTime is kept.

mod conditions;
mod generate;
mod phase;

use k8s_openapi::api::core::v1::{self as core, ContainerState, ContainerStatus, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::time::seconds;

use super::clock_jump::moved;
use super::{Action, Pod, PodPhase, restart_all};
use crate::admission::Rejection;

/// Conditions that the kubelet owns and that exist only while they are true.
const PASSING_CONDITIONS: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// Whether the phase is one that a pod does not leave.
pub(crate) fn is_terminal(status: &PodStatus) -> bool {
    PodPhase::of(status).is_terminal()
}

fn has_running_container(status: &PodStatus) -> bool {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let runs = |s: &ContainerStatus| s.state.as_ref().is_some_and(|state| state.running.is_some());
    lists.into_iter().flatten().flatten().any(runs)
}

/// Merges our status into the API's: fields and conditions of other components are kept.
pub fn merge(current: &PodStatus, ours: &PodStatus) -> PodStatus {
    // The kubelet before this one reported the end of every container. What this one has read before is older (T5).
    if is_terminal(current) && !has_running_container(current) && !is_terminal(ours) {
        return current.clone();
    }
    let mut merged = ours.clone();
    let own = merged.conditions.take().unwrap_or_default();
    let others = current.conditions.iter().flatten();
    let others = others
        .filter(|c| {
            !own.iter().any(|o| o.type_ == c.type_) && !PASSING_CONDITIONS.contains(&c.type_.as_str())
        })
        .cloned();
    merged.conditions = Some(own.iter().cloned().chain(others).collect());
    merged
        .nominated_node_name
        .clone_from(&current.nominated_node_name);
    merged
        .resource_claim_statuses
        .clone_from(&current.resource_claim_statuses);
    merged
        .extended_resource_claim_status
        .clone_from(&current.extended_resource_claim_status);
    merged.resize.clone_from(&current.resize);
    merged.qos_class = current.qos_class.clone().or(merged.qos_class);
    // A phase is never reset to an earlier one (L1), also if an earlier kubelet reported a later one.
    let is_reset = PodPhase::of(current) == PodPhase::Running
        && PodPhase::of(&merged) == PodPhase::Pending
        && !restart_all::is_shown(ours);
    if is_terminal(current) || is_reset {
        merged.phase.clone_from(&current.phase);
    }
    merged
}

/// The status as it was last reported, and what of it does not follow from the state of the containers.
#[derive(Clone, Debug)]
pub(super) struct StatusReport {
    last: PodStatus,
    /// The pod IP is known but not reported: it is part of the next status.
    pod_ip_pending: bool,
    /// Admission rejected the pod: its status is final.
    rejected: bool,
    /// `status.startTime`.
    start_time: Option<Timestamp>,
    /// By how much the clock has jumped since the start time was recorded.
    start_time_clock_offset: SignedDuration,
}

impl StatusReport {
    /// Of a pod that this kubelet starts to manage, by its status in the API.
    pub(super) fn recall(status: Option<&PodStatus>) -> Self {
        let last = status.cloned().unwrap_or_default();
        StatusReport {
            start_time: last.start_time.as_ref().map(|t| t.0),
            start_time_clock_offset: SignedDuration::ZERO,
            // A rejected pod stays rejected after a restart of the kubelet.
            rejected: PodPhase::of(&last) == PodPhase::Failed && last.container_statuses.is_none(),
            pod_ip_pending: false,
            last,
        }
    }

    pub(super) fn last(&self) -> &PodStatus {
        &self.last
    }

    pub(super) fn is_rejected(&self) -> bool {
        self.rejected
    }

    /// Sets the start time, unless it is set.
    pub(super) fn start(&mut self, now: Timestamp) -> bool {
        let is_new = self.start_time.is_none();
        self.start_time.get_or_insert(now);
        is_new
    }

    /// The start time by the present clock.
    pub(super) fn started(&self) -> Option<Timestamp> {
        Some(moved(self.start_time?, self.start_time_clock_offset))
    }

    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        self.start_time_clock_offset += by;
    }

    /// Whether the init containers had completed by the last reported status.
    pub(super) fn was_initialized(&self, spec: &core::PodSpec) -> bool {
        let Some(last) = spec.init_containers.as_ref().and_then(|list| list.last()) else {
            return true;
        };
        let has = |state: &Option<ContainerState>| {
            state
                .as_ref()
                .is_some_and(|s| s.running.is_some() || s.terminated.is_some())
        };
        let apps = self.last.container_statuses.iter().flatten();
        if apps.clone().any(|s| has(&s.state) || has(&s.last_state)) {
            return true;
        }
        let Some(status) = self.last.init_container_statuses.iter().flatten().next_back() else {
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
}

impl Pod {
    /// Reports the status, if it has changed.
    pub(super) fn report_status(&mut self, now: Timestamp) {
        if self.status.rejected || self.awaits_resize_admission() {
            return;
        }
        let status = self.generate_status(now);
        self.status.pod_ip_pending = false;
        if status != self.status.last {
            self.status.last = status.clone();
            if let Some(text) = self.history.take_changed() {
                self.out.push(Action::WriteTerminationHistory(text));
            }
            self.out.push(Action::WriteStatus(Box::new(status)));
        }
    }

    pub(super) fn reject(&mut self, rejection: Rejection, now: Timestamp) {
        let Rejection { reason, message } = rejection;
        self.status.rejected = true;
        self.status.start(now);
        let shown = self.object.status();
        self.status.last = PodStatus {
            phase: Some(PodPhase::Failed.as_str().into()),
            reason: Some(reason.clone()),
            message: Some(format!("Pod was rejected: {message}")),
            qos_class: shown.and_then(|s| s.qos_class.clone()),
            start_time: self.status.start_time.map(seconds),
            observed_generation: self.object.generation(),
            ..PodStatus::default()
        };
        self.out
            .push(Action::WriteStatus(Box::new(self.status.last.clone())));
        self.record(None, true, reason, message);
    }

    /// Reports the condition PodReadyToStartContainers alone, at once; the pod IP is part of the next status.
    pub(super) fn report_sandbox_ready(&mut self, now: Timestamp) {
        let mut status = self.status.last.clone();
        let conditions = status.conditions.get_or_insert_default();
        let Some(ready) = conditions
            .iter_mut()
            .find(|c| c.type_ == "PodReadyToStartContainers")
        else {
            return self.report_status(now);
        };
        if ready.status != "True" {
            ready.status = "True".into();
            ready.last_transition_time = Some(seconds(now));
            self.status.last = status.clone();
            self.out.push(Action::WriteStatus(Box::new(status)));
        }
        self.status.pod_ip_pending = true;
    }

    /// Whether the status has changed in more than the pod IP that is not reported yet.
    pub(super) fn status_changed(&self, now: Timestamp) -> bool {
        let mut status = self.generate_status(now);
        if self.status.pod_ip_pending {
            status.pod_ip.clone_from(&self.status.last.pod_ip);
            status.pod_ips.clone_from(&self.status.last.pod_ips);
        }
        status != self.status.last
    }

    /// When the termination begins: reports the status if a container waited with a message; else the last one stays.
    pub(super) fn report_waiting_containers(&mut self, now: Timestamp) {
        let waited = |s: &ContainerStatus| {
            s.state
                .as_ref()
                .is_some_and(|s| s.waiting.as_ref().is_some_and(|w| w.message.is_some()))
        };
        let lists = [
            &self.status.last.init_container_statuses,
            &self.status.last.container_statuses,
        ];
        if lists.into_iter().flatten().flatten().any(waited) {
            self.report_status(now);
        }
    }
}
