//! The output of the step in progress: actions in the order in which they were decided, and the time of the next step.

use std::borrow::Cow;

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::{Action, Container};

#[derive(Clone, Debug, Default)]
pub(super) struct Output {
    actions: Vec<Action>,
    /// The earliest time at which an [`super::Event::Timer`] is needed.
    timer: Option<Timestamp>,
}

impl Output {
    pub(super) fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    pub(super) fn wake_at(&mut self, at: Timestamp) {
        self.timer = Some(self.timer.map_or(at, |t| t.min(at)));
    }

    /// Records an event about the container, or about the pod.
    pub(super) fn record(
        &mut self,
        container: Option<&Container>,
        warning: bool,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) {
        self.actions.push(Action::Record {
            container: container.map(|c| (c.role, c.name.clone())),
            warning,
            reason: reason.into(),
            message,
        });
    }

    /// The actions of this step; the next one begins without any.
    pub(super) fn take(&mut self) -> Vec<Action> {
        if let Some(at) = self.timer.take() {
            self.actions.push(Action::SetTimer(at));
        }
        std::mem::take(&mut self.actions)
    }
}
