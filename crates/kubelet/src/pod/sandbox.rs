//! A pod's sandboxes: the one in use, and those that are broken or left over.
//!
//! Stopping a sandbox kills what runs in it at once. So one is stopped only when nothing runs in it any more: what does
//! is ended before, with its whole grace (SPEC T2, T3), also where the sandbox itself is lost.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::end::StopReason;
use super::{Action, Pod, Work};
use crate::runtime;

/// Wait between attempts to make a sandbox.
pub(super) const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// The one in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sandbox {
    Wanted {
        not_before: Option<Timestamp>,
    },
    Creating,
    Ready {
        id: String,
        ips: Vec<String>,
    },
    /// It is broken; what still runs in it is being ended.
    Lost {
        id: String,
    },
    /// Its network must go.
    Stopping {
        id: String,
    },
    Stopped,
}

/// One that is there besides the one in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Old {
    /// What still runs in it is being ended.
    Emptying,
    Stopping,
    Stopped,
}

impl Pod {
    /// Takes in what sandboxes there are; what changed after the look began is left alone.
    pub(super) fn observe_sandboxes(&mut self, since: Timestamp, mut sandboxes: Vec<runtime::Sandbox>) {
        sandboxes.sort_by_key(|s| (s.attempt, s.created_at));
        for sandbox in &sandboxes {
            self.sandbox_attempts = self.sandbox_attempts.max(sandbox.attempt + 1);
        }
        let newest_ready = sandboxes.iter().rfind(|s| s.ready).cloned();
        match &self.sandbox {
            Sandbox::Wanted { .. } => {
                if let Some(found) = newest_ready {
                    self.sandbox = Sandbox::Ready {
                        id: found.id,
                        ips: found.ips,
                    };
                }
            }
            Sandbox::Ready { id, .. } => {
                let id = id.clone();
                let lost = match sandboxes.iter().find(|s| s.id == id) {
                    Some(s) => !s.ready,
                    // Made after the look began?
                    None => self.sandbox_made_at.is_none_or(|at| at < since),
                };
                if lost {
                    self.sandbox_lost(id);
                }
            }
            Sandbox::Creating | Sandbox::Lost { .. } | Sandbox::Stopping { .. } | Sandbox::Stopped => {}
        }
        if self.sandbox == Sandbox::Creating {
            return;
        }
        let in_use = match &self.sandbox {
            Sandbox::Ready { id, .. } | Sandbox::Lost { id } | Sandbox::Stopping { id } => Some(id.clone()),
            _ => None,
        };
        for s in &sandboxes {
            if Some(&s.id) != in_use.as_ref() {
                self.old_sandboxes.entry(s.id.clone()).or_insert(Old::Emptying);
            }
        }
    }

    fn sandbox_lost(&mut self, id: String) {
        if self.ending.is_none() {
            self.record(
                None,
                false,
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.".into(),
            );
        }
        self.sandbox = Sandbox::Lost { id };
    }

    /// Whether a container was made in the sandbox that is in use, and can run there.
    pub(super) fn is_in_use(&self, sandbox: &str) -> bool {
        matches!(&self.sandbox, Sandbox::Ready { id, .. } if id == sandbox)
    }

    /// Ends what runs in sandboxes that are of no use any more, then those.
    pub(super) fn empty_sandboxes(&mut self, now: Timestamp) {
        let mut unused: Vec<String> = Vec::new();
        if let Sandbox::Lost { id } = &self.sandbox {
            unused.push(id.clone());
        }
        let old = self
            .old_sandboxes
            .iter()
            .filter(|(_, old)| **old == Old::Emptying);
        unused.extend(old.map(|(id, _)| id.clone()));
        for id in unused {
            for i in 0..self.containers.len() {
                let container = &self.containers[i];
                let runs = container.running_since().is_some() && container.work == Work::None;
                if runs && container.sandbox == id {
                    let message = format!("Stopping container {}", container.name);
                    self.stop(i, StopReason::Sandbox, message, now);
                }
            }
            if self
                .containers
                .iter()
                .any(|c| c.sandbox == id && c.has_processes())
            {
                continue;
            }
            match self.old_sandboxes.get_mut(&id) {
                Some(old) => *old = Old::Stopping,
                None => self.sandbox = Sandbox::Stopping { id: id.clone() },
            }
            self.out.push(Action::StopSandbox { id });
        }
    }

    pub(super) fn sandbox_stopped(&mut self, id: String, now: Timestamp) {
        if (Sandbox::Stopping { id: id.clone() }) == self.sandbox {
            self.sandbox = match self.ending {
                Some(_) => Sandbox::Stopped,
                None => Sandbox::Wanted { not_before: None },
            };
            if self.ending.is_some() {
                self.tell(now);
            }
        }
        self.old_sandboxes.insert(id, Old::Stopped);
    }
}
