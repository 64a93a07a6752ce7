//! Which containers are restarted after an exit, and when all of a pod's containers have finished (SPEC L5).

use k8s_openapi::api::core::v1::ContainerRestartRule;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;

use super::{Container, Pod, Role};

impl Pod {
    /// Whether a container's latest run is in the current sandbox.
    pub(super) fn ran_in_current_sandbox(&self, container: &Container) -> bool {
        let run = container.runs.latest();
        self.sandboxes
            .is_current(run.and_then(|run| run.sandbox.as_ref()))
    }

    /// Whether app containers may start: in the current sandbox all init containers have completed, or an app container has
    /// run. In a new sandbox the init containers run again.
    pub(super) fn initialized(&self) -> bool {
        let app_ran = self
            .containers
            .iter()
            .any(|c| c.role == Role::App && self.ran_in_current_sandbox(c));
        app_ran
            || self.containers.iter().all(|c| match c.role {
                Role::Init => c.ready() && self.ran_in_current_sandbox(c),
                Role::Sidecar => c.started(),
                Role::App | Role::Ephemeral => true,
            })
    }

    /// Whether an exited container is restarted: by its restartPolicyRules, its own restartPolicy or the pod's, in this
    /// order.
    pub(super) fn will_restart(&self, i: usize) -> bool {
        let container = &self.containers[i];
        let Some(end) = container.exited() else {
            return container.runs.latest().is_none() && container.role != Role::Ephemeral;
        };
        let changed = container.runs.is_of_other_definition(container.hash());
        // A container that was stopped because its definition changed is restarted under every policy.
        let definition_changed = changed && matches!(container.role, Role::App | Role::Sidecar);
        // A container that failed its probe is restarted, whatever its exit code.
        let unhealthy =
            container.role == Role::App && container.restart.is_immediate() && self.may_restart(i);
        definition_changed
            || container.restart.is_forced()
            || unhealthy
            || self.must_initialize_again(i)
            || self.restarts_after_exit(i, end.exit_code)
    }

    /// Whether its restart policy allows restarts at all, its rules not considered.
    pub(super) fn may_restart(&self, i: usize) -> bool {
        self.restart_policy_of(i) != RestartPolicy::Never
    }

    fn restart_policy_of(&self, i: usize) -> RestartPolicy {
        let spec = self.object.container(&self.containers[i].name);
        let own = spec.as_ref().and_then(|c| c.restart_policy.as_deref());
        match own.or(self.object.spec().restart_policy.as_deref()) {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        }
    }

    /// Whether an init container completed in an earlier sandbox and the current sandbox is not initialized yet.
    fn must_initialize_again(&self, i: usize) -> bool {
        let container = &self.containers[i];
        let elsewhere = self.sandboxes.is_ready() && !self.ran_in_current_sandbox(container);
        container.role == Role::Init && container.ready() && elsewhere && !self.initialized()
    }

    pub(super) fn restarts_after_exit(&self, i: usize, code: i32) -> bool {
        let role = self.containers[i].role;
        if role == Role::Ephemeral {
            return false;
        }
        if let Some(action) = self.rule_after(i, code) {
            return action.starts_with("Restart");
        }
        if self.restart_all_requested() && (role != Role::Init || code != 0) {
            return true;
        }
        match self.restart_policy_of(i) {
            RestartPolicy::Never => false,
            RestartPolicy::OnFailure => code != 0,
            // A completed init container is not restarted.
            RestartPolicy::Always => role != Role::Init || code != 0,
        }
    }

    /// The action of the container's first restartPolicyRule that matches this exit code.
    pub(super) fn rule_after(&self, i: usize, code: i32) -> Option<String> {
        let spec = self.object.container(&self.containers[i].name)?;
        let mut rules = spec.restart_policy_rules.iter().flatten();
        let matches = |rule: &&ContainerRestartRule| {
            let Some(on) = &rule.exit_codes else { return false };
            let listed = on.values.iter().flatten().any(|v| *v == code);
            match on.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        };
        Some(rules.find(matches)?.action.clone())
    }

    /// When the back-off of an exited container began. For one that this node stopped it is the end of the run before:
    /// the first such restart is immediate.
    pub(super) fn back_off_since(&self, i: usize, now: Timestamp) -> Option<Timestamp> {
        let container = &self.containers[i];
        container.runs.ended(container.restart.is_immediate(), now)
    }

    /// Whether this node stopped the container and it is restarted without back-off.
    pub(super) fn restarts_immediately(&self, i: usize, now: Timestamp) -> bool {
        let container = &self.containers[i];
        let since = self.back_off_since(i, now);
        let until = since.and_then(|since| container.back_off.crash_until(since));
        container.restart.is_immediate() && self.will_restart(i) && until.is_none_or(|until| until <= now)
    }

    /// Whether all init and app containers have finished and none will be restarted (sidecars do not count).
    pub(super) fn is_complete(&self) -> bool {
        let done = |i: usize| {
            let c = &self.containers[i];
            let finished = c.is_idle() && c.exited().is_some() && !self.will_restart(i);
            finished || c.restart.is_given_up()
        };
        let indices = 0..self.containers.len();
        let init_failed = !self.initialized()
            && indices.clone().any(|i| {
                self.containers[i].role == Role::Init
                    && done(i)
                    && self.containers[i].exited().is_some_and(|t| t.exit_code != 0)
            });
        let mut apps = indices
            .filter(|i| self.containers[*i].role == Role::App)
            .peekable();
        init_failed || (apps.peek().is_some() && apps.all(done))
    }
}

/// `restartPolicy` of a container or its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}
