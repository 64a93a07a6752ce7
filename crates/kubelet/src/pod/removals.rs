//! The containers and sandboxes whose removal is in flight. The object is deleted only once all are removed.

use knarr_apimachinery::ids::{ContainerId, SandboxId};

use super::Action;
use super::output::Output;

#[derive(Clone, Debug, Default)]
pub(super) struct Removals {
    containers: Vec<ContainerId>,
    sandboxes: Vec<SandboxId>,
}

impl Removals {
    pub(super) fn has_container(&self, id: &ContainerId) -> bool {
        self.containers.contains(id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }

    pub(super) fn container(&mut self, id: ContainerId, out: &mut Output) {
        self.containers.push(id.clone());
        out.push(Action::RemoveContainer { id });
    }

    /// Unless its removal is in flight.
    pub(super) fn container_once(&mut self, id: ContainerId, out: &mut Output) {
        if !self.has_container(&id) {
            self.container(id, out);
        }
    }

    pub(super) fn sandbox(&mut self, id: SandboxId, out: &mut Output) {
        self.sandboxes.push(id.clone());
        out.push(Action::RemoveSandbox { id });
    }

    pub(super) fn container_removed(&mut self, id: &ContainerId) {
        self.containers.retain(|r| r != id);
    }

    pub(super) fn sandbox_removed(&mut self, id: &SandboxId) {
        self.sandboxes.retain(|r| r != id);
    }
}
