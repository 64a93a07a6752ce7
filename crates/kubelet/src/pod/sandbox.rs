//! A pod's sandboxes: the current one, and earlier ones that are broken or left over.
//!
//! Stopping a sandbox kills its containers at once. So a sandbox is stopped only when nothing runs in it any more: its
//! containers are stopped before, with their full grace period (SPEC T2, T3), also if the sandbox itself is lost.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::SandboxId;

use super::clock_jump::move_by;
use super::container::StopReason;
use super::output::Output;
use super::{Action, Pod};
use crate::runtime;

/// Wait between attempts to create a sandbox.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub(super) struct Sandboxes {
    current: Current,
    /// When the current sandbox was created by this kubelet.
    created_at: Option<Timestamp>,
    /// The number of sandboxes created so far: the next one's attempt.
    attempts: u32,
    /// Earlier sandboxes that the runtime still has, by id.
    old: BTreeMap<SandboxId, Old>,
}

/// The state of the current sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Current {
    Pending {
        not_before: Option<Timestamp>,
    },
    Creating,
    Ready {
        id: SandboxId,
        ips: Vec<String>,
    },
    /// It is not ready or does not exist any more; the containers that still run in it are being stopped.
    Lost {
        id: SandboxId,
    },
    /// The runtime stops it and releases its network.
    Stopping {
        id: SandboxId,
    },
    Stopped,
}

impl Default for Current {
    fn default() -> Self {
        Current::Pending { not_before: None }
    }
}

/// The state of a sandbox that is not the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// The containers that still run in it are being stopped.
    Draining,
    Stopping,
    Stopped,
}

impl Sandboxes {
    /// The current sandbox, if it is ready.
    pub(super) fn ready(&self) -> Option<&SandboxId> {
        match &self.current {
            Current::Ready { id, .. } => Some(id),
            _ => None,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready().is_some()
    }

    pub(super) fn is_creating(&self) -> bool {
        self.current == Current::Creating
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.current == Current::Stopped
    }

    /// Whether the runtime runs none of them any more.
    pub(super) fn are_all_stopped(&self) -> bool {
        self.is_stopped() && self.old.values().all(|old| *old == Old::Stopped)
    }

    /// Whether this is the current sandbox and it is ready.
    pub(super) fn is_current(&self, id: Option<&SandboxId>) -> bool {
        id.is_some() && self.ready() == id
    }

    /// The addresses of the current sandbox, if it is ready.
    pub(super) fn ips(&self) -> &[String] {
        match &self.current {
            Current::Ready { ips, .. } => ips,
            _ => &[],
        }
    }

    /// Requests a sandbox if there is none and it is time; a new one waits for the `processes` of the one before. Returns
    /// whether the current sandbox is ready.
    pub(super) fn create(&mut self, processes: bool, now: Timestamp, out: &mut Output) -> bool {
        match self.current {
            Current::Pending { not_before: Some(at) } if at > now => out.wake_at(at),
            Current::Pending { .. } if !processes => {
                out.push(Action::CreateSandbox {
                    attempt: self.attempts,
                });
                self.attempts += 1;
                self.current = Current::Creating;
            }
            _ => {}
        }
        self.is_ready()
    }

    /// Returns whether the created sandbox is the current one.
    fn created(&mut self, id: SandboxId, ips: Vec<String>, now: Timestamp) -> bool {
        if !self.is_creating() {
            self.old.insert(id, Old::Draining);
            return false;
        }
        self.current = Current::Ready { id, ips };
        self.created_at = Some(now);
        true
    }

    fn creation_failed(&mut self, now: Timestamp) {
        if self.is_creating() {
            self.current = Current::Pending {
                not_before: Some(now + RETRY),
            };
        }
    }

    /// Applies the sandboxes of a list that began at `since`; what changed after `since` stays as it is. Returns whether the
    /// current sandbox is lost.
    fn observe(&mut self, since: Timestamp, mut listed: Vec<runtime::Sandbox>) -> bool {
        listed.sort_by_key(|s| (s.attempt, s.created_at));
        for sandbox in &listed {
            self.attempts = self.attempts.max(sandbox.attempt + 1);
        }
        let mut lost = false;
        match &self.current {
            Current::Pending { .. } => {
                if let Some(found) = listed.iter().rfind(|s| s.ready).cloned() {
                    self.current = Current::Ready {
                        id: found.id,
                        ips: found.ips,
                    };
                }
            }
            Current::Ready { id, .. } => {
                lost = match listed.iter().find(|s| s.id == *id) {
                    Some(s) => !s.ready,
                    // Not listed: lost, unless it was created after the list began.
                    None => self.created_at.is_none_or(|at| at < since),
                };
                if lost {
                    self.current = Current::Lost { id: id.clone() };
                }
            }
            Current::Creating | Current::Lost { .. } | Current::Stopping { .. } | Current::Stopped => {}
        }
        let current = match &self.current {
            Current::Creating => return lost,
            Current::Ready { id, .. } | Current::Lost { id } | Current::Stopping { id } => Some(id),
            Current::Pending { .. } | Current::Stopped => None,
        };
        for sandbox in listed.iter().filter(|s| Some(&s.id) != current) {
            self.old.entry(sandbox.id.clone()).or_insert(Old::Draining);
        }
        lost
    }

    /// The sandboxes that are stopped as soon as nothing runs in them any more.
    fn to_drain(&self) -> Vec<SandboxId> {
        let lost = match &self.current {
            Current::Lost { id } => Some(id),
            _ => None,
        };
        let old = self.old.iter().filter(|(_, old)| **old == Old::Draining);
        lost.into_iter().chain(old.map(|(id, _)| id)).cloned().collect()
    }

    fn stop(&mut self, id: SandboxId, out: &mut Output) {
        match self.old.get_mut(&id) {
            Some(old) => *old = Old::Stopping,
            None => self.current = Current::Stopping { id: id.clone() },
        }
        out.push(Action::StopSandbox { id });
    }

    /// Ends the use of the current sandbox: nothing runs in it any more, and the pod gets no other.
    pub(super) fn release(&mut self, out: &mut Output) {
        match self.current.clone() {
            Current::Ready { id, .. } => {
                self.current = Current::Stopping { id: id.clone() };
                out.push(Action::StopSandbox { id });
            }
            Current::Pending { .. } => self.current = Current::Stopped,
            Current::Creating | Current::Lost { .. } | Current::Stopping { .. } | Current::Stopped => {}
        }
    }

    /// Returns whether it was the current one; a pod that is not terminating gets another.
    fn stopped(&mut self, id: SandboxId, is_terminating: bool) -> bool {
        let was_current = matches!(&self.current, Current::Stopping { id: current } if *current == id);
        if was_current {
            self.current = match is_terminating {
                true => Current::Stopped,
                false => Current::default(),
            };
        }
        self.old.insert(id, Old::Stopped);
        was_current
    }

    pub(super) fn removed(&mut self, id: &SandboxId) {
        self.old.remove(id);
    }

    /// Those that are not removed yet, once all are stopped.
    pub(super) fn left(&self) -> Vec<SandboxId> {
        self.old.keys().cloned().collect()
    }

    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        if let Current::Pending { not_before: Some(at) } = &mut self.current {
            move_by(at, by);
        }
        if let Some(at) = &mut self.created_at {
            move_by(at, by);
        }
    }
}

impl Pod {
    pub(super) fn sandbox_created(&mut self, id: SandboxId, ips: Vec<String>, now: Timestamp) {
        if self.sandboxes.created(id, ips, now) && self.termination.is_none() {
            self.report_sandbox_ready(now);
        }
    }

    pub(super) fn sandbox_failed(&mut self, reason: &'static str, message: String, now: Timestamp) {
        if self.termination.is_none() {
            self.record(None, true, reason, message);
        }
        self.sandboxes.creation_failed(now);
    }

    pub(super) fn observe_sandboxes(&mut self, since: Timestamp, listed: Vec<runtime::Sandbox>) {
        if self.sandboxes.observe(since, listed) && self.termination.is_none() {
            let message = "Pod sandbox changed, it will be killed and re-created.".into();
            self.record(None, false, "SandboxChanged", message);
        }
    }

    /// Stops the containers in lost and old sandboxes, then the sandboxes.
    pub(super) fn drain_sandboxes(&mut self, now: Timestamp) {
        for id in self.sandboxes.to_drain() {
            for i in 0..self.containers.len() {
                let container = &self.containers[i];
                if container.runs_undisturbed() && container.runs.sandbox() == Some(&id) {
                    let message = format!("Stopping container {}", container.name);
                    self.stop(i, StopReason::Sandbox, message, now);
                }
            }
            let has_processes = self
                .containers
                .iter()
                .any(|c| c.runs.sandbox() == Some(&id) && c.has_processes());
            if !has_processes {
                self.sandboxes.stop(id, &mut self.out);
            }
        }
    }

    pub(super) fn sandbox_stopped(&mut self, id: SandboxId, now: Timestamp) {
        self.add_to_timeline(now, "SandboxStopped", None, None);
        let is_terminating = self.termination.is_some();
        let was_current = self.sandboxes.stopped(id, is_terminating);
        // An object that is deleted has no status.
        if was_current && is_terminating && !self.object.is_removed() {
            self.report_status(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(id: &str, attempt: u32, ready: bool) -> runtime::Sandbox {
        runtime::Sandbox {
            id: id.into(),
            attempt,
            ready,
            ..runtime::Sandbox::default()
        }
    }

    #[test]
    fn t2_a_lost_sandbox_is_stopped_before_there_is_another_and_each_is_removed() {
        let (mut sandboxes, mut out) = (Sandboxes::default(), Output::default());
        let now = Timestamp::UNIX_EPOCH;
        let later = now + SignedDuration::from_secs(1);
        assert!(!sandboxes.observe(now, vec![listed("s0", 0, false), listed("s1", 1, true)]));
        assert_eq!(sandboxes.ready(), Some(&"s1".into()));
        assert_eq!(sandboxes.to_drain(), ["s0"]);
        assert!(
            sandboxes.observe(later, vec![listed("s0", 0, false)]),
            "s1 is lost"
        );
        assert!(!sandboxes.create(false, later, &mut out));
        assert_eq!(out.take(), [], "it is not stopped yet");
        for id in sandboxes.to_drain() {
            sandboxes.stop(id.clone(), &mut out);
            assert_eq!(sandboxes.stopped(id.clone(), false), id == "s1");
        }
        out.take();
        assert!(!sandboxes.create(true, later, &mut out));
        assert_eq!(out.take(), [], "its processes still run");
        assert!(!sandboxes.create(false, later, &mut out));
        assert_eq!(out.take(), [Action::CreateSandbox { attempt: 2 }]);
        assert!(sandboxes.created("s2".into(), vec!["10.0.0.1".into()], later));
        assert_eq!(sandboxes.ips(), ["10.0.0.1"]);
        sandboxes.release(&mut out);
        assert!(!sandboxes.are_all_stopped());
        sandboxes.stopped("s2".into(), true);
        assert!(sandboxes.are_all_stopped());
        assert_eq!(sandboxes.left(), ["s0", "s1", "s2"]);
    }
}
