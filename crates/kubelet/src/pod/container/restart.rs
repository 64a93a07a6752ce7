//! What decides about a container's restart besides its policy and its exit code. Each run begins without any of it.

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pod) struct RestartState {
    /// This node stopped the latest run for a probe, a changed definition, or while it was cut off from the API: it is
    /// restarted at once.
    is_immediate: bool,
    /// It is restarted whatever its policy says: it was stopped for a resize or by `RestartAllContainers`.
    is_forced: bool,
    /// The latest run failed its probe, and the policy does not allow another run.
    is_given_up: bool,
}

impl RestartState {
    pub(in crate::pod) fn is_immediate(self) -> bool {
        self.is_immediate
    }

    pub(in crate::pod) fn is_forced(self) -> bool {
        self.is_forced
    }

    pub(in crate::pod) fn is_given_up(self) -> bool {
        self.is_given_up
    }

    /// The latest run exited while this node stopped it.
    pub(in crate::pod) fn stopped_by_node(&mut self, is_for_restart: bool) {
        self.is_immediate = is_for_restart;
    }

    /// The restart is in back-off after all. Returns whether it would have been immediate.
    pub(in crate::pod) fn delay(&mut self) -> bool {
        std::mem::take(&mut self.is_immediate)
    }

    pub(in crate::pod) fn force(&mut self) {
        self.is_forced = true;
    }

    pub(in crate::pod) fn set_given_up(&mut self, is_given_up: bool) {
        self.is_given_up = is_given_up;
    }
}
