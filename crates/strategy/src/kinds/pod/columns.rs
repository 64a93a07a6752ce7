//! Pods in `kubectl get`: READY, STATUS, RESTARTS and the wide columns (SPEC L13).
//!
//! STATUS is not a field of the API: it is computed from phase, reason, conditions and container states (`printPod`).

use k8s_openapi::api::core::v1::{Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use knarr_api::kinds::pod::phase;

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
    let columns = StatusColumns::of(pod);
    let mut restarts = columns.restarts.to_string();
    if let (1.., Some(last)) = (columns.restarts, &columns.last_restart) {
        restarts = format!("{restarts} ({} ago)", table::age(Some(last), now));
    }
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let ip = status
        .and_then(|s| s.pod_ips.as_ref()?.first())
        .map(|ip| ip.ip.as_str());
    vec![
        table::name(&pod.metadata),
        format!("{}/{}", columns.ready, columns.total).into(),
        columns.reason.into(),
        restarts.into(),
        table::created(&pod.metadata, now),
        table::or(ip, "<none>").into(),
        table::or(spec.and_then(|s| s.node_name.as_deref()), "<none>").into(),
        table::or(status.and_then(|s| s.nominated_node_name.as_deref()), "<none>").into(),
        readiness_gates(pod).into(),
    ]
}

/// The condition on rows of pods that are finished.
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

/// The values of the columns READY, STATUS and RESTARTS.
struct StatusColumns {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i32,
    last_restart: Option<Time>,
}

/// Restarts of some containers and when the latest of their previous runs finished.
#[derive(Clone, Default)]
struct Restarts {
    count: i32,
    last: Option<Time>,
}

impl Restarts {
    fn add(&mut self, container: &ContainerStatus) {
        self.count += container.restart_count;
        let finished_at = container
            .last_state
            .as_ref()
            .and_then(|s| s.terminated.as_ref()?.finished_at.clone());
        if finished_at.as_ref().map(|t| t.0) > self.last.as_ref().map(|t| t.0) {
            self.last = finished_at;
        }
    }
}

impl StatusColumns {
    fn of(pod: &Pod) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let inits: &[Container] = spec.and_then(|s| s.init_containers.as_deref()).unwrap_or(&[]);
        let is_sidecar = |name: &str| {
            inits
                .iter()
                .any(|c| c.name == name && c.restart_policy.as_deref() == Some("Always"))
        };
        let mut columns = StatusColumns {
            ready: 0,
            total: spec.map_or(0, |s| s.containers.len())
                + inits.iter().filter(|c| is_sidecar(&c.name)).count(),
            reason: phase(pod).to_string(),
            restarts: 0,
            last_restart: None,
        };
        if let Some(reason) = status.and_then(|s| s.reason.as_ref()).filter(|r| !r.is_empty()) {
            columns.reason.clone_from(reason);
        }
        let conditions = status.iter().flat_map(|s| s.conditions.iter().flatten());
        if conditions
            .into_iter()
            .any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("SchedulingGated"))
        {
            columns.reason = "SchedulingGated".into();
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
                (Some(terminated), _) if terminated.exit_code == 0 => continue,
                _ if sidecar && container.started == Some(true) => {
                    columns.ready += usize::from(container.ready);
                    continue;
                }
                (Some(terminated), _) => columns.reason = format!("Init:{}", termination_reason(terminated)),
                (None, Some(waiting))
                    if !matches!(waiting.reason.as_deref(), None | Some("" | "PodInitializing")) =>
                {
                    columns.reason = format!("Init:{}", waiting.reason.as_deref().unwrap_or(""));
                }
                _ => columns.reason = format!("Init:{i}/{}", inits.len()),
            }
            initializing = true;
            break;
        }

        if !initializing || is_true(pod, "Initialized") {
            restarts = sidecar_restarts;
            columns.add_app_containers(pod, &mut restarts);
        }
        columns.restarts = restarts.count;
        columns.last_restart = restarts.last;

        if pod.metadata.deletion_timestamp.is_some() {
            if status.and_then(|s| s.reason.as_deref()) == Some(NODE_LOST) {
                columns.reason = "Unknown".into();
            } else if !super::is_terminal(pod) {
                columns.reason = "Terminating".into();
            }
        }
        columns
    }

    fn add_app_containers(&mut self, pod: &Pod, restarts: &mut Restarts) {
        let statuses = pod.status.as_ref().and_then(|s| s.container_statuses.as_deref());
        let mut has_running = false;
        let mut failure = None;
        // In reverse order, so that the first container determines the reason.
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
                    terminated: Some(terminated),
                    ..
                } => {
                    self.reason = termination_reason(&terminated);
                    if terminated.exit_code != 0 {
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

fn termination_reason(terminated: &ContainerStateTerminated) -> String {
    match (terminated.reason.as_deref(), terminated.signal) {
        (Some(reason), _) if !reason.is_empty() => reason.to_string(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!("ExitCode:{}", terminated.exit_code),
    }
}

#[cfg(test)]
mod tests;
