//! Changing what a running pod and its containers are given, without ending them (the `resize` subresource).
//!
//! What the spec asks for is first admitted by the node, then allocated, then brought about; each step is told. A
//! container whose `resizePolicy` says so is ended instead, and runs again with what it now has. What cannot be brought
//! about is tried again, until it can or something else is asked for.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::allocation::same;
use super::container::find_spec;
use super::end::StopReason;
use super::sandbox::Sandbox;
use super::{Action, INFEASIBLE, Pod, Work};
use crate::admission::Rejection;
use crate::resources;

/// Between attempts at a resize for which there is no room, or which failed.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// What is under way of a pod's resize.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Resize {
    /// The node has been asked whether there is room for this generation.
    asked: Option<Option<i64>>,
    /// It has none: why, and when it is asked again.
    pending: Option<(Rejection, Timestamp)>,
    progress: Option<Progress>,
    /// The pod's own group is not what was allocated.
    group_due: bool,
    /// An attempt waits for its answer.
    trying: bool,
}

/// What is allocated and not there yet.
#[derive(Clone, Debug, PartialEq)]
struct Progress {
    generation: Option<i64>,
    /// What went wrong, and when it is tried again.
    failed: Option<(String, Timestamp)>,
}

impl Resize {
    pub(super) fn waits(&mut self) -> impl Iterator<Item = &mut Timestamp> {
        let pending = self.pending.as_mut().map(|(_, again)| again);
        let failed = self.progress.as_mut().and_then(|p| p.failed.as_mut());
        pending.into_iter().chain(failed.map(|(_, again)| again))
    }
}

impl Pod {
    /// Sees to it that what is asked for is allocated, and what is allocated is there.
    pub(super) fn resize(&mut self, now: Timestamp) {
        if self.resize.asked.is_some() || self.resize.trying {
            return;
        }
        if !self.is_asked_for_more() {
            if self.resize.pending.take().is_some() {
                self.tell(now);
            }
        } else {
            match &self.resize.pending {
                Some((_, again)) if *again > now => {
                    let again = *again;
                    self.wake_at(again);
                }
                _ => {
                    self.resize.asked = Some(self.object.metadata.generation);
                    self.out.push(Action::AdmitResize);
                    return;
                }
            }
        }
        self.bring_about(now);
    }

    /// The node has still to say whether there is room. Clients take a generation that a status has observed, with no
    /// condition of a resize, for resized: until there is an answer no status is told.
    pub(super) fn awaits_resize_answer(&self) -> bool {
        self.resize.asked.is_some() && self.ending.is_none()
    }

    pub(super) fn resize_admitted(&mut self, answer: Result<(), Rejection>, now: Timestamp) {
        let asked = self.resize.asked.take();
        if self.ending.is_some() || asked != Some(self.object.metadata.generation) {
            // Something else is asked for by now: so is the node then.
            return;
        }
        if let Err(why) = answer {
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
            self.wake_at(now + RETRY);
            return self.tell(now);
        }
        self.resize.pending = None;
        self.resize.progress = Some(Progress {
            generation: self.object.metadata.generation,
            failed: None,
        });
        let message = self.summary("Pod resize started", None);
        self.record(None, false, "ResizeStarted", message);
        self.allocate();
        self.resize.group_due = true;
        // The new allocation is seen before it is so.
        self.tell(now);
        self.bring_about(now);
    }

    /// Whether a container runs with something else than it is allocated. What it is ended or started with is decided
    /// there.
    fn lags(&self, i: usize) -> bool {
        let container = &self.containers[i];
        let runs = container.running_since().is_some() && container.work == Work::None;
        let (allocated, actual) = self.allocated_and_actual(i);
        runs && container.is_resizable() && !same(&allocated, &actual)
    }

    /// Whether a container that is ended to run with what it now has is still to do so. One that is held back by
    /// something else is not waited for.
    fn awaits_run(&self) -> bool {
        self.containers.iter().any(|c| c.anew && c.waiting.is_none())
    }

    /// Gives the pod and its containers what they are allocated. It is over once they have it.
    fn bring_about(&mut self, now: Timestamp) {
        if self.sandbox == Sandbox::Creating {
            return;
        }
        let in_place = matches!(self.sandbox, Sandbox::Ready { .. });
        self.resize.group_due &= in_place;
        let lagging: Vec<usize> = (0..self.containers.len()).filter(|i| self.lags(*i)).collect();
        if !self.resize.group_due && (lagging.is_empty() || !in_place) {
            if !in_place || !self.awaits_run() {
                self.resize_completed(now);
            }
            return;
        }
        let failed = self.resize.progress.as_ref().and_then(|p| p.failed.as_ref());
        if let Some((_, again)) = failed.filter(|(_, again)| *again > now) {
            let again = *again;
            return self.wake_at(again);
        }
        let mut containers = Vec::new();
        for i in lagging {
            if self.wants_restart(i) {
                let message = format!("Container {} resize requires restart", self.containers[i].name);
                self.stop(i, StopReason::Changed, message, now);
                self.containers[i].anew = true;
            } else if let Some(run) = &self.containers[i].run {
                containers.push((self.containers[i].name.clone(), run.id.clone()));
            }
        }
        self.resize.trying = true;
        self.out.push(Action::Resize { containers });
    }

    fn wants_restart(&self, i: usize) -> bool {
        let (allocated, actual) = self.allocated_and_actual(i);
        let spec = find_spec(self.spec(), &self.containers[i].name);
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

    /// What came of an attempt: the containers that have what they are allocated, and what went wrong, if it did.
    pub(super) fn resized(&mut self, done: &[String], result: Result<(), String>, now: Timestamp) {
        self.resize.trying = false;
        for i in done.iter().filter_map(|id| self.by_id(id)).collect::<Vec<_>>() {
            self.containers[i].actual = self.containers[i].allocated.clone();
        }
        match result {
            Ok(()) => {
                self.whole.actual.clone_from(&self.whole.allocated);
                self.resize.group_due = false;
                if let Some(progress) = &mut self.resize.progress {
                    progress.failed = None;
                }
            }
            Err(why) => {
                let generation = self.object.metadata.generation;
                let progress = self.resize.progress.get_or_insert(Progress {
                    generation,
                    failed: None,
                });
                let before = progress.failed.replace((why.clone(), now + RETRY));
                if before.is_none_or(|(before, _)| before != why) {
                    let message = self.summary("Pod resize error", Some(&why));
                    self.record(None, true, "ResizeError", message);
                }
            }
        }
        if self.ending.is_none() {
            self.resize(now);
            self.tell(now);
        }
    }

    fn resize_completed(&mut self, now: Timestamp) {
        if self.resize.progress.take().is_some() {
            let message = self.summary("Pod resize completed", None);
            self.record(None, false, "ResizeCompleted", message);
            self.tell(now);
        }
    }

    /// The conditions that tell of a resize, while there is one: type, reason, message.
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
            let message = failed.map(|(why, _)| why.clone());
            conditions.push(("PodResizeInProgress", reason, message));
        }
        conditions
    }

    /// What all containers ask for, as events tell it.
    fn summary(&self, title: &str, error: Option<&str>) -> String {
        let list = |containers: &[core::Container]| -> Vec<serde_json::Value> {
            let each = containers.iter().map(|c| {
                let resources = c.resources.clone().unwrap_or_default();
                serde_json::json!({"name": c.name, "resources": resources})
            });
            each.collect()
        };
        // The fields' order is the one users know.
        let mut parts = Vec::new();
        let init = list(self.spec().init_containers.as_deref().unwrap_or_default());
        if !init.is_empty() {
            parts.push(format!("\"initContainers\":{}", serde_json::Value::from(init)));
        }
        let apps = list(&self.spec().containers);
        parts.push(format!("\"containers\":{}", serde_json::Value::from(apps)));
        let generation = self.object.metadata.generation.unwrap_or_default();
        parts.push(format!("\"generation\":{generation}"));
        if let Some(error) = error {
            parts.push(format!("\"error\":{}", serde_json::Value::from(error)));
        }
        format!("{title}: {{{}}}", parts.join(","))
    }
}
