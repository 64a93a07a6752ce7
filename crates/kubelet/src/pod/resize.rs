//! In-place resize of a running pod and its containers (the `resize` subresource, KEP 1287).
//!
//! The node first admits the resources of the spec, then allocates them, then actuates them; each step is reported. A
//! container whose `resizePolicy` is `RestartContainer` is restarted with its new resources instead. An actuation that
//! fails is retried until it succeeds or the spec changes.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;

use super::allocation::same;
use super::clock_jump::move_by;
use super::container::StopReason;
use super::{Action, ActionError, INFEASIBLE, Pod};
use crate::admission::Rejection;
use crate::resources;

/// Wait between attempts of a resize that is deferred or has failed.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// The state of a pod's resize.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Resize {
    in_flight: InFlight,
    /// The resize is deferred or infeasible (condition PodResizePending): why, and when admission is tried again.
    pending: Option<(Rejection, Timestamp)>,
    /// The resize is admitted and not actuated yet (condition PodResizeInProgress).
    progress: Option<Progress>,
    /// The pod's cgroup does not have the allocated resources yet.
    cgroup_pending: bool,
}

/// The request whose result has not arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InFlight {
    #[default]
    None,
    /// [`Action::AdmitResize`], for this generation.
    Admission { generation: Option<i64> },
    /// [`Action::Resize`].
    Actuation,
}

/// An allocated resize that is not actuated yet.
#[derive(Clone, Debug, PartialEq)]
struct Progress {
    generation: Option<i64>,
    /// The error of the last attempt, and when it is retried.
    failed: Option<(ActionError, Timestamp)>,
}

impl Resize {
    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        let failed = self.progress.as_mut().and_then(|p| p.failed.as_mut());
        if let Some((_, again)) = &mut self.pending {
            move_by(again, by);
        }
        if let Some((_, again)) = failed {
            move_by(again, by);
        }
    }
}

impl Pod {
    /// Advances the resize: requested resources get allocated, and allocated ones actuated.
    pub(super) fn resize(&mut self, now: Timestamp) {
        if self.resize.in_flight != InFlight::None {
            return;
        }
        if !self.resize_requested() {
            if self.resize.pending.take().is_some() {
                self.report_status(now);
            }
        } else {
            match &self.resize.pending {
                Some((_, again)) if *again > now => {
                    let again = *again;
                    self.out.wake_at(again);
                }
                _ => {
                    self.resize.in_flight = InFlight::Admission {
                        generation: self.object.generation(),
                    };
                    self.out.push(Action::AdmitResize);
                    return;
                }
            }
        }
        self.actuate_resize(now);
    }

    /// Whether the node has not yet decided on a resize. Clients take a generation that a status has observed, without a
    /// resize condition, for resized: until the decision no status is reported.
    pub(super) fn awaits_resize_admission(&self) -> bool {
        matches!(self.resize.in_flight, InFlight::Admission { .. }) && self.termination.is_none()
    }

    pub(super) fn resize_admitted(&mut self, admitted: Result<(), Rejection>, now: Timestamp) {
        let InFlight::Admission { generation } = self.resize.in_flight else {
            return;
        };
        self.resize.in_flight = InFlight::None;
        if self.termination.is_some() || generation != self.object.generation() {
            // The spec has changed since: its admission is requested next.
            return;
        }
        if let Err(why) = admitted {
            let before = self.resize.pending.as_ref().map(|(before, _)| before);
            if before != Some(&why) {
                let message = self.summary(&format!("Pod resize {}", why.reason), Some(&why.message));
                let reason = match why.reason.as_str() {
                    INFEASIBLE => "ResizeInfeasible",
                    _ => "ResizeDeferred",
                };
                self.record(None, true, reason, message);
            }
            self.resize.pending = Some((why, now + RETRY));
            return self.report_status(now);
        }
        self.resize.pending = None;
        self.resize.progress = Some(Progress {
            generation: self.object.generation(),
            failed: None,
        });
        let message = self.summary("Pod resize started", None);
        self.record(None, false, "ResizeStarted", message);
        self.allocate();
        self.resize.cgroup_pending = true;
        // The new allocation is reported before it is actuated.
        self.report_status(now);
        self.actuate_resize(now);
    }

    /// Whether a running container's resources differ from its allocated ones. Containers that are being stopped or started
    /// do not count.
    fn needs_resize(&self, i: usize) -> bool {
        let container = &self.containers[i];
        let (allocated, actual) = self.allocated_and_actual(i);
        container.runs_undisturbed() && container.is_resizable() && !same(&allocated, &actual)
    }

    /// Whether a container that is restarted for its new resources does not run yet. One that waits for another reason does
    /// not count.
    fn has_restart_pending(&self) -> bool {
        self.containers
            .iter()
            .any(|c| c.restart.is_forced() && c.waiting.is_none())
    }

    /// Applies the allocated resources to the pod's cgroup and its containers; completes the resize once all have them.
    fn actuate_resize(&mut self, now: Timestamp) {
        if self.sandboxes.is_creating() {
            return;
        }
        let in_place = self.sandboxes.is_ready();
        self.resize.cgroup_pending &= in_place;
        let outdated: Vec<usize> = (0..self.containers.len())
            .filter(|i| self.needs_resize(*i))
            .collect();
        if !self.resize.cgroup_pending && (outdated.is_empty() || !in_place) {
            if !in_place || !self.has_restart_pending() {
                self.resize_completed(now);
            }
            return;
        }
        let failed = self.resize.progress.as_ref().and_then(|p| p.failed.as_ref());
        if let Some((_, again)) = failed.filter(|(_, again)| *again > now) {
            let again = *again;
            return self.out.wake_at(again);
        }
        let mut containers = Vec::new();
        for i in outdated {
            if self.resize_requires_restart(i) {
                let message = format!("Container {} resize requires restart", self.containers[i].name);
                self.stop(i, StopReason::Changed, message, now);
                self.containers[i].restart.force();
            } else if let Some(id) = self.containers[i].run_id() {
                containers.push((self.containers[i].name.clone(), id.clone()));
            }
        }
        self.resize.in_flight = InFlight::Actuation;
        self.out.push(Action::Resize { containers });
    }

    fn resize_requires_restart(&self, i: usize) -> bool {
        let (allocated, actual) = self.allocated_and_actual(i);
        let spec = self.object.container(&self.containers[i].name);
        let policies = spec.as_ref().and_then(|c| c.resize_policy.as_deref());
        let changed = |name: &str| {
            let of = |r: &core::ResourceRequirements| {
                [&r.requests, &r.limits].map(|l| {
                    l.as_ref()
                        .and_then(|l| l.get(name))
                        .map(|q| resources::amount(name, q))
                })
            };
            of(&allocated) != of(&actual)
        };
        policies
            .unwrap_or_default()
            .iter()
            .any(|p| p.restart_policy == "RestartContainer" && changed(&p.resource_name))
    }

    /// The result of an attempt: the containers that have their allocated resources, and the error if there was one.
    pub(super) fn resized(&mut self, done: &[ContainerId], result: Result<(), ActionError>, now: Timestamp) {
        self.resize.in_flight = InFlight::None;
        for i in done.iter().filter_map(|id| self.by_id(id)).collect::<Vec<_>>() {
            self.containers[i].resources.actuate();
        }
        match result {
            Ok(()) => {
                self.pod_level.actuate();
                self.resize.cgroup_pending = false;
                if let Some(progress) = &mut self.resize.progress {
                    progress.failed = None;
                }
            }
            Err(why) => {
                let generation = self.object.generation();
                let progress = self.resize.progress.get_or_insert(Progress {
                    generation,
                    failed: None,
                });
                let before = progress.failed.replace((why.clone(), now + RETRY));
                if before.is_none_or(|(before, _)| before != why) {
                    let message = self.summary("Pod resize error", Some(&why.to_string()));
                    self.record(None, true, "ResizeError", message);
                }
            }
        }
        if self.termination.is_none() {
            self.resize(now);
            self.report_status(now);
        }
    }

    fn resize_completed(&mut self, now: Timestamp) {
        if self.resize.progress.take().is_some() {
            let message = self.summary("Pod resize completed", None);
            self.record(None, false, "ResizeCompleted", message);
            self.report_status(now);
        }
    }

    /// The conditions of a resize in progress: type, reason, message.
    pub(super) fn resize_conditions(&self) -> Vec<(&'static str, Option<String>, Option<String>)> {
        let mut conditions = Vec::new();
        if let Some((why, _)) = &self.resize.pending {
            let reason = match why.reason.as_str() {
                INFEASIBLE => INFEASIBLE,
                _ => "Deferred",
            };
            let reason = Some(reason.to_string());
            conditions.push(("PodResizePending", reason, Some(why.message.clone())));
        }
        if let Some(progress) = &self.resize.progress {
            let failed = progress.failed.as_ref();
            let reason = failed.map(|_| "Error".to_string());
            let message = failed.map(|(why, _)| why.to_string());
            conditions.push(("PodResizeInProgress", reason, message));
        }
        conditions
    }

    /// The resources of all containers as upstream's resize events have them.
    fn summary(&self, title: &str, error: Option<&str>) -> String {
        let list = |containers: &[core::Container]| -> Vec<serde_json::Value> {
            let each = containers.iter().map(|c| {
                let resources = c.resources.clone().unwrap_or_default();
                serde_json::json!({"name": c.name, "resources": resources})
            });
            each.collect()
        };
        // The order of the fields is upstream's.
        let mut parts = Vec::new();
        let init = list(self.object.spec().init_containers.as_deref().unwrap_or_default());
        if !init.is_empty() {
            parts.push(format!("\"initContainers\":{}", serde_json::Value::from(init)));
        }
        let apps = list(&self.object.spec().containers);
        parts.push(format!("\"containers\":{}", serde_json::Value::from(apps)));
        let generation = self.object.generation().unwrap_or_default();
        parts.push(format!("\"generation\":{generation}"));
        if let Some(error) = error {
            parts.push(format!("\"error\":{}", serde_json::Value::from(error)));
        }
        format!("{title}: {{{}}}", parts.join(","))
    }
}
