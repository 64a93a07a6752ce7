//! Changing what running containers are given, without ending them (the `resize` subresource).
//!
//! What the spec asks for is first admitted by the node, then allocated, then brought about; each step is told. A
//! container whose `resizePolicy` says so is ended instead, and runs again with what it now has.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::container::find_spec;
use super::end::StopReason;
use super::{Action, Pod, Role, Work};
use crate::admission::Rejection;
use crate::resources;

/// Between attempts at a resize for which there is no room.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// What is under way of a pod's resize.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Resize {
    /// The node has been asked whether there is room.
    asked: bool,
    /// It has none: why, and when it is asked again.
    pending: Option<(Rejection, Timestamp)>,
    /// The generation being brought about, and what went wrong with it.
    progress: Option<(Option<i64>, Option<String>)>,
}

impl Resize {
    pub(super) fn asks_again_at(&mut self) -> Option<&mut Timestamp> {
        self.pending.as_mut().map(|(_, again)| again)
    }
}

impl Pod {
    /// What its containers are given, if it is not what the spec asks for.
    pub(super) fn resize(&mut self, now: Timestamp) {
        if self.resize.asked || self.resize.progress.is_some() {
            return;
        }
        if !(0..self.containers.len()).any(|i| self.is_resized(i)) {
            if self.resize.pending.take().is_some() {
                self.tell(now);
            }
            return;
        }
        match &self.resize.pending {
            Some((_, again)) if *again > now => {
                let again = *again;
                self.wake_at(again);
            }
            _ => {
                self.resize.asked = true;
                self.out.push(Action::AdmitResize);
            }
        }
    }

    /// The node has still to say whether there is room. Clients take a generation that a status has observed, with no
    /// condition of a resize, for resized: until there is an answer no status is told.
    pub(super) fn awaits_resize_answer(&self) -> bool {
        self.resize.asked && self.ending.is_none()
    }

    fn wanted(&self, i: usize) -> core::ResourceRequirements {
        find_spec(self.spec(), &self.containers[i].name)
            .and_then(|c| c.resources.clone())
            .unwrap_or_default()
    }

    fn is_resized(&self, i: usize) -> bool {
        let container = &self.containers[i];
        let runs = container.running_since().is_some() && container.work == Work::None;
        let given = container.allocated.as_ref();
        runs && matches!(container.role, Role::App | Role::Sidecar)
            && given.is_some_and(|given| !same(given, &self.wanted(i)))
    }

    pub(super) fn resize_admitted(&mut self, answer: Result<(), Rejection>, now: Timestamp) {
        self.resize.asked = false;
        if self.ending.is_some() {
            return;
        }
        if let Err(why) = answer {
            let news = self
                .resize
                .pending
                .as_ref()
                .is_none_or(|(before, _)| *before != why);
            if news {
                let message = self.summary(&format!("Pod resize {}", why.reason), Some(&why.message));
                self.record(None, true, "ResizeDeferred", message);
            }
            self.resize.pending = Some((why, now + RETRY));
            self.wake_at(now + RETRY);
            return self.tell(now);
        }
        self.resize.pending = None;
        self.resize.progress = Some((self.object.metadata.generation, None));
        let message = self.summary("Pod resize started", None);
        self.record(None, false, "ResizeStarted", message);
        let resized: Vec<usize> = (0..self.containers.len())
            .filter(|i| self.is_resized(*i))
            .collect();
        let mut told = false;
        for i in resized {
            let wanted = self.wanted(i);
            let restart = self.wants_restart(i, &wanted);
            self.containers[i].allocated = Some(wanted);
            if !told {
                // The new allocation is seen before it is so.
                self.tell(now);
                told = true;
            }
            if restart {
                let message = format!("Container {} resize requires restart", self.containers[i].name);
                self.stop(i, StopReason::Changed, message, now);
                self.containers[i].anew = true;
                continue;
            }
            let id = self.containers[i].run.as_ref().map(|r| r.id.clone());
            self.containers[i].resizing = true;
            self.out.push(Action::ResizeContainer {
                container: self.containers[i].name.clone(),
                id: id.unwrap_or_default(),
            });
        }
        self.settle_resize(now);
    }

    fn wants_restart(&self, i: usize, wanted: &core::ResourceRequirements) -> bool {
        let Some(given) = &self.containers[i].allocated else {
            return false;
        };
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
            of(given) != of(wanted)
        };
        policies
            .unwrap_or_default()
            .iter()
            .any(|p| p.restart_policy == "RestartContainer" && changed(&p.resource_name))
    }

    pub(super) fn container_resized(&mut self, id: &str, result: Result<(), String>, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        self.containers[i].resizing = false;
        match result {
            Ok(()) => self.containers[i].actual = self.containers[i].allocated.clone(),
            Err(why) => {
                if let Some((_, error)) = &mut self.resize.progress {
                    *error = Some(why.clone());
                }
                let message = self.summary("Pod resize error", Some(&why));
                self.record(None, true, "ResizeError", message);
            }
        }
        self.settle_resize(now);
    }

    /// The resize is over once every container has what it was allocated.
    fn settle_resize(&mut self, now: Timestamp) {
        let busy = self.containers.iter().any(|c| c.resizing);
        let failed = matches!(&self.resize.progress, Some((_, Some(_))));
        if !busy && !failed && self.resize.progress.take().is_some() {
            let message = self.summary("Pod resize completed", None);
            self.record(None, false, "ResizeCompleted", message);
        }
        if self.ending.is_none() {
            self.tell(now);
        }
    }

    /// The conditions that tell of a resize, while there is one: type, reason, message.
    pub(super) fn resize_conditions(&self) -> Vec<(&'static str, Option<String>, Option<String>)> {
        let mut conditions = Vec::new();
        if let Some((why, _)) = &self.resize.pending {
            let reason = Some("Deferred".to_string());
            conditions.push(("PodResizePending", reason, Some(why.message.clone())));
        }
        if let Some((_, error)) = &self.resize.progress {
            let reason = error.as_ref().map(|_| "Error".to_string());
            conditions.push(("PodResizeInProgress", reason, error.clone()));
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

/// Equal amounts, however they are written.
fn same(one: &core::ResourceRequirements, other: &core::ResourceRequirements) -> bool {
    let amounts = |r: &core::ResourceRequirements| {
        (
            resources::amounts(r.requests.as_ref()),
            resources::amounts(r.limits.as_ref()),
        )
    };
    amounts(one) == amounts(other)
}
