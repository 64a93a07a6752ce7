//! Pods in `kubectl get`: READY, STATUS, RESTARTS and the wide columns (SPEC L13).
//!
//! STATUS is not a field of the API: it is worked out here from phase, reason, conditions and container states.

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use crate::table::{self, Cell, Column, RowCondition};

/// The reason that marks pods of a node that cannot be reached.
const NODE_LOST: &str = "NodeLost";

pub fn columns() -> &'static [Column] {
    const COLUMNS: &[Column] = &[
        table::NAME,
        Column::string("Ready"),
        Column::string("Status"),
        Column::string("Restarts"),
        table::AGE,
        Column::string("IP").wide(),
        Column::string("Node").wide(),
        Column::string("Nominated Node").wide(),
        Column::string("Readiness Gates").wide(),
    ];
    COLUMNS
}

pub fn row(pod: &Pod, now: Timestamp) -> Vec<Cell> {
    let shown = Shown::of(pod);
    let mut restarts = shown.restarts.to_string();
    if let (1.., Some(last)) = (shown.restarts, &shown.last_restart) {
        restarts = format!("{restarts} ({} ago)", table::age(Some(last), now));
    }
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let ip = status
        .and_then(|s| s.pod_ips.as_ref()?.first())
        .map(|ip| ip.ip.as_str());
    vec![
        table::name(&pod.metadata),
        format!("{}/{}", shown.ready, shown.total).into(),
        shown.reason.into(),
        restarts.into(),
        table::created(&pod.metadata, now),
        table::or(ip, "<none>").into(),
        table::or(spec.and_then(|s| s.node_name.as_deref()), "<none>").into(),
        table::or(status.and_then(|s| s.nominated_node_name.as_deref()), "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

/// The mark on rows of pods that have ended.
pub fn finished(pod: &Pod) -> Option<RowCondition> {
    let (reason, message) = match phase(pod) {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(RowCondition {
        of: "Completed",
        status: "True",
        reason,
        message,
    })
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("")
}

fn is_true(pod: &Pod, condition: &str) -> bool {
    let mut conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .find(|c| c.type_ == condition)
        .is_some_and(|c| c.status == "True")
}

fn readiness_gates(pod: &Pod) -> String {
    let gates = pod.spec.as_ref().and_then(|s| s.readiness_gates.as_deref());
    match gates {
        None | Some([]) => "<none>".into(),
        Some(gates) => {
            let open = gates.iter().filter(|g| is_true(pod, &g.condition_type)).count();
            format!("{open}/{}", gates.len())
        }
    }
}

/// What the first columns say of a pod.
struct Shown {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i32,
    last_restart: Option<Time>,
}

/// Restarts of some containers and the end of the latest run before the present one.
#[derive(Clone, Default)]
struct Restarts {
    count: i32,
    last: Option<Time>,
}

impl Restarts {
    fn add(&mut self, container: &ContainerStatus) {
        self.count += container.restart_count;
        let ended = container
            .last_state
            .as_ref()
            .and_then(|s| s.terminated.as_ref()?.finished_at.clone());
        if ended.as_ref().map(|t| t.0) > self.last.as_ref().map(|t| t.0) {
            self.last = ended;
        }
    }
}

impl Shown {
    fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let inits: &[Container] = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or(&[]);
        let is_sidecar = |name: &str| {
            inits
                .iter()
                .any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"))
        };
        let mut shown = Shown {
            ready: 0,
            total: spec.map_or(0, |s| s.containers.len())
                + inits.iter().filter(|c| is_sidecar(&c.name)).count(),
            reason: phase(pod).to_string(),
            restarts: 0,
            last_restart: None,
        };
        if let Some(reason) = status.and_then(|s| s.reason.as_ref()).filter(|r| !r.is_empty()) {
            shown.reason.clone_from(reason);
        }
        let conditions = status.iter().flat_map(|s| s.conditions.iter().flatten());
        if conditions
            .into_iter()
            .any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("SchedulingGated"))
        {
            shown.reason = "SchedulingGated".into();
        }

        let mut restarts = Restarts::default();
        let mut sidecar_restarts = Restarts::default();
        let mut initializing = false;
        let statuses = status.and_then(|s| s.init_container_statuses.as_deref());
        for (i, container) in statuses.unwrap_or(&[]).iter().enumerate() {
            restarts.add(container);
            let sidecar = is_sidecar(&container.name);
            if sidecar {
                sidecar_restarts.add(container);
            }
            let state = container.state.clone().unwrap_or_default();
            match (&state.terminated, &state.waiting) {
                (Some(ended), _) if ended.exit_code == 0 => continue,
                _ if sidecar && container.started == Some(true) => {
                    shown.ready += usize::from(container.ready);
                    continue;
                }
                (Some(ended), _) => shown.reason = format!("Init:{}", why_ended(ended)),
                (None, Some(waiting))
                    if !matches!(waiting.reason.as_deref(), None | Some("" | "PodInitializing")) =>
                {
                    shown.reason = format!("Init:{}", waiting.reason.as_deref().unwrap_or(""));
                }
                _ => shown.reason = format!("Init:{i}/{}", inits.len()),
            }
            initializing = true;
            break;
        }

        if !initializing || is_true(pod, "Initialized") {
            restarts = sidecar_restarts;
            shown.look_at_app_containers(pod, &mut restarts);
        }
        shown.restarts = restarts.count;
        shown.last_restart = restarts.last;

        if pod.metadata.deletion_timestamp.is_some() {
            if status.and_then(|s| s.reason.as_deref()) == Some(NODE_LOST) {
                shown.reason = "Unknown".into();
            } else if !matches!(phase(pod), "Succeeded" | "Failed") {
                shown.reason = "Terminating".into();
            }
        }
        shown
    }

    fn look_at_app_containers(&mut self, pod: &Pod, restarts: &mut Restarts) {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref());
        let mut has_running = false;
        let mut failure = None;
        // Backwards, so that the first container has the last word.
        for container in statuses.unwrap_or(&[]).iter().rev() {
            restarts.add(container);
            match container.state.clone().unwrap_or_default() {
                ContainerState {
                    waiting: Some(waiting),
                    ..
                } if waiting.reason.as_deref().is_some_and(|r| !r.is_empty()) => {
                    self.reason = waiting.reason.unwrap_or_default();
                }
                ContainerState {
                    terminated: Some(ended),
                    ..
                } => {
                    self.reason = why_ended(&ended);
                    if ended.exit_code != 0 {
                        failure = Some(self.reason.clone());
                    }
                }
                ContainerState { running: Some(_), .. } if container.ready => {
                    has_running = true;
                    self.ready += 1;
                }
                _ => {}
            }
        }
        if self.reason == "Completed" {
            if has_running && is_true(pod, "Ready") {
                self.reason = "Running".into();
            } else if let Some(failure) = failure {
                self.reason = failure;
            } else if has_running {
                self.reason = "NotReady".into();
            }
        }
    }
}

fn why_ended(ended: &ContainerStateTerminated) -> String {
    match (ended.reason.as_deref(), ended.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.to_string(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", ended.exit_code),
    }
}

#[cfg(test)]
mod tests;
