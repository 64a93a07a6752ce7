//! Bringing a pod up, and keeping it up: volumes, sandbox, init containers, app containers, restarts.
//!
//! Containers are started one after another, in the spec's order: the next one's turn comes when the one
//! before runs (its postStart hook done) or has failed to.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::moved;
use super::container::{find_spec, terminated};
use super::end::StopReason;
use super::{Action, Container, Hook, Pod, Pulled, Role, Run, RunState, Sandbox, Volumes, Work};
use crate::backoff::{self, BASE, go_millis, go_seconds};
use crate::runtime::Exit;
use crate::{image, probe};

/// How long an end is shown as such at most, before it is shown as waiting in back-off. In v1.36 that comes with the
/// next look at the pod: other news of it, the end of the wait, or a look without news, which was seen to come six
/// seconds after the end and much later. Nine are less than the first wait.
const SHOW_BACK_OFF_AFTER: SignedDuration = SignedDuration::from_secs(9);
/// The same where this node has killed the container, for a probe or a failed postStart hook: its end is news.
const SHOW_BACK_OFF_AFTER_KILL: SignedDuration = SignedDuration::from_secs(1);
/// Likewise for images: after the first failure, and after later ones.
const SHOW_PULL_BACK_OFF_AFTER: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(9), SignedDuration::from_secs(1));
/// A start that failed for a reason that may pass is tried again after the first of these, then the second.
const START_RETRY: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(1), SignedDuration::from_secs(12));

impl Pod {
    pub(super) fn start(&mut self, now: Timestamp) {
        if self.start_time.is_none() {
            self.start_time = Some(now);
            self.tell(now);
        }
        match &self.volumes {
            Volumes::Wanted { not_before } => match *not_before {
                Some(at) if at > now => self.wake_at(at),
                _ => {
                    self.volumes = Volumes::SettingUp;
                    self.out.push(Action::SetUpVolumes);
                }
            },
            Volumes::Ready | Volumes::SettingUp | Volumes::TearingDown | Volumes::Gone => {}
        }
        if self.volumes != Volumes::Ready {
            return;
        }
        self.stop_changed(now);
        match &self.sandbox {
            Sandbox::Wanted { not_before } => match *not_before {
                Some(at) if at > now => return self.wake_at(at),
                _ if self.containers.iter().any(Container::has_processes) => return,
                _ => {
                    let attempt = self.sandbox_attempts;
                    self.sandbox_attempts += 1;
                    self.sandbox = Sandbox::Creating;
                    self.probing_since.get_or_insert(now);
                    return self.out.push(Action::CreateSandbox { attempt });
                }
            },
            Sandbox::Ready { .. } => {}
            Sandbox::Creating | Sandbox::Lost { .. } | Sandbox::Stopping { .. } | Sandbox::Stopped => return,
        }
        if !self.restart_all(now) {
            self.start_containers(now);
        }
    }

    fn start_containers(&mut self, now: Timestamp) {
        // One at a time.
        if self.containers.iter().any(Container::is_starting) {
            return;
        }
        for i in 0..self.containers.len() {
            if self.containers[i].role == Role::Ephemeral && self.wants_start(i) && self.try_start(i, now) {
                return;
            }
        }
        let initialized = self.initialized();
        for i in 0..self.containers.len() {
            match self.containers[i].role {
                Role::Init if !initialized => {
                    let container = &self.containers[i];
                    let done = container.ready() && self.ran_here(container);
                    if done && container.waiting.is_none() {
                        continue;
                    }
                    if self.wants_start(i) {
                        self.try_start(i, now);
                    }
                    return;
                }
                Role::Sidecar => {
                    if self.wants_start(i) && self.try_start(i, now) {
                        return;
                    }
                    if !initialized && !self.containers[i].started() {
                        return;
                    }
                }
                Role::App if self.wants_start(i) => {
                    if self.try_start(i, now) {
                        return;
                    }
                }
                Role::Init | Role::App | Role::Ephemeral => {}
            }
        }
    }

    /// Whether app containers may run: in the sandbox in use all init containers are done, or an app container has run.
    /// A new sandbox begins from the beginning, whatever was done in the one before.
    pub(super) fn initialized(&self) -> bool {
        let app_ran = self
            .containers
            .iter()
            .any(|c| c.role == Role::App && self.ran_here(c));
        app_ran
            || self.containers.iter().all(|c| match c.role {
                Role::Init => c.ready() && self.ran_here(c),
                Role::Sidecar => c.started(),
                Role::App | Role::Ephemeral => true,
            })
    }

    /// Whether a container's newest run is of the sandbox in use.
    pub(super) fn ran_here(&self, container: &Container) -> bool {
        container
            .run
            .as_ref()
            .is_some_and(|run| self.is_in_use(&run.sandbox))
    }

    fn wants_start(&self, i: usize) -> bool {
        let container = &self.containers[i];
        match (&container.work, &container.run) {
            (Work::Created { .. }, _) | (Work::None, None) => true,
            (Work::None, Some(_)) => container.exited().is_some() && self.restarts(i),
            _ => false,
        }
    }

    /// Whether a container that has ended is started again: restartPolicy (L5), the container's own where it
    /// has one, and its rules before that.
    pub(super) fn restarts(&self, i: usize) -> bool {
        let container = &self.containers[i];
        let Some(end) = container.exited() else {
            return container.run.is_none() && container.role != Role::Ephemeral;
        };
        let run_hash = container.run.as_ref().map_or("", |r| r.hash.as_str());
        let changed = !run_hash.is_empty() && run_hash != container.hash;
        // What was ended to run anew does, whatever the policy.
        let anew = changed && matches!(container.role, Role::App | Role::Sidecar);
        // One that this node has ended was not done, whatever code it answered TERM with.
        let unhealthy = container.role == Role::App && container.ended_here && self.may_restart(i);
        anew || container.anew
            || unhealthy
            || self.is_to_initialize_again(i)
            || self.restarts_after(i, end.exit_code)
    }

    /// Whether there is a way for it to end after which it runs again, its rules left aside.
    fn may_restart(&self, i: usize) -> bool {
        let own = find_spec(self.spec(), &self.containers[i].name).and_then(|c| c.restart_policy.clone());
        own.as_deref().unwrap_or(self.restart_policy()) != "Never"
    }

    /// Whether an init container was done in a sandbox that is no more, and the one in use is still to be initialized.
    fn is_to_initialize_again(&self, i: usize) -> bool {
        let container = &self.containers[i];
        let in_use = matches!(self.sandbox, Sandbox::Ready { .. });
        let elsewhere = in_use && !self.ran_here(container);
        container.role == Role::Init && container.ready() && elsewhere && !self.initialized()
    }

    pub(super) fn restarts_after(&self, i: usize, code: i32) -> bool {
        let container = &self.containers[i];
        if container.role == Role::Ephemeral {
            return false;
        }
        if let Some(action) = self.rule_after(i, code) {
            return action.starts_with("Restart");
        }
        if self.restarts_all() && (container.role != Role::Init || code != 0) {
            return true;
        }
        let spec = find_spec(self.spec(), &container.name);
        let own = spec.as_ref().and_then(|s| s.restart_policy.as_deref());
        match own.unwrap_or(self.restart_policy()) {
            "Never" => false,
            "OnFailure" => code != 0,
            // An init container that is done is done.
            _ => container.role != Role::Init || code != 0,
        }
    }

    /// What the first of the container's rules that is about this code asks for.
    pub(super) fn rule_after(&self, i: usize, code: i32) -> Option<String> {
        let spec = find_spec(self.spec(), &self.containers[i].name)?;
        let mut rules = spec.restart_policy_rules.iter().flatten();
        let rule = rules.find(|rule| {
            let Some(on) = &rule.exit_codes else { return false };
            let listed = on.values.iter().flatten().any(|v| *v == code);
            match on.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })?;
        Some(rule.action.clone())
    }

    /// Begins a start, unless it is to wait. True when one is under way.
    fn try_start(&mut self, i: usize, now: Timestamp) -> bool {
        if let Work::Created { id, attempt } = self.containers[i].work.clone() {
            if self.is_in_use(&self.containers[i].sandbox) {
                return self.start_created(i, id, attempt);
            }
            // It was made for a sandbox that is no more.
            self.containers[i].work = Work::None;
            self.containers[i].remains.push(id);
        }
        if let Some(at) = self.containers[i].retry_at.filter(|at| *at > now) {
            self.wake_at(at);
            return false;
        }
        if self.in_crash_back_off(i, now) || self.in_pull_back_off(i, now) {
            return false;
        }
        let image = self.image_of(i);
        if let Err(why) = image::normalize(&image) {
            let message = format!("Failed to apply default image tag {image:?}: {why}");
            self.record(Some(i), true, "InspectFailed", message.clone());
            self.failed_to_start(i, "InvalidImageName", message, now);
            return false;
        }
        self.containers[i].work = Work::Inspecting;
        self.out.push(Action::InspectImage {
            container: self.containers[i].name.clone(),
            image,
        });
        true
    }

    fn image_of(&self, i: usize) -> String {
        find_spec(self.spec(), &self.containers[i].name)
            .and_then(|c| c.image.clone())
            .unwrap_or_default()
    }

    /// Since when a container waits that has ended and will run again. One that this node has ended to run anew is
    /// measured by the run before: the first such restart comes at once.
    fn waits_since(&self, i: usize, now: Timestamp) -> Option<Timestamp> {
        let container = &self.containers[i];
        let (end, off) = match container.ended_here {
            true => (container.previous.as_ref()?, container.previous_off),
            false => (container.exited()?, container.run_off),
        };
        Some(end.finished_at.as_ref().map_or(now, |t| moved(t.0, off)))
    }

    /// It was ended by this node, runs again, and need not wait for that.
    pub(super) fn restarts_at_once(&self, i: usize, now: Timestamp) -> bool {
        let container = &self.containers[i];
        let since = self.waits_since(i, now);
        let until = since.and_then(|since| container.crash.until(since));
        container.ended_here && self.restarts(i) && until.is_none_or(|until| until <= now)
    }

    fn in_crash_back_off(&mut self, i: usize, now: Timestamp) -> bool {
        let Some(since) = self.waits_since(i, now) else {
            return false;
        };
        let Some(until) = self.containers[i].crash.until(since) else {
            return false;
        };
        if until <= now {
            // Whoever looks is shown why it took so long, before it goes on.
            if self.containers[i].told_back_off == Some(until) {
                self.show_crash_back_off(i);
                self.tell(now);
            }
            return false;
        }
        // From now on it is measured by its own end, as one that has ended by itself.
        let container = &mut self.containers[i];
        let hook_failed = matches!(container.waiting, Some(("PostStartHookError", _)));
        let killed = std::mem::take(&mut container.ended_here) || hook_failed;
        let until = self
            .waits_since(i, now)
            .and_then(|since| self.containers[i].crash.until(since));
        let Some(until) = until.filter(|at| *at > now) else {
            return false;
        };
        self.wake_at(until);
        if self.containers[i].told_back_off != Some(until) {
            self.containers[i].told_back_off = Some(until);
            self.containers[i].show_back_off_at = Some(
                now + match killed {
                    true => SHOW_BACK_OFF_AFTER_KILL,
                    false => SHOW_BACK_OFF_AFTER,
                },
            );
            let (name, pod) = (self.containers[i].name.clone(), self.full_name());
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            self.record(Some(i), true, "BackOff", message);
        }
        match self.containers[i].show_back_off_at {
            Some(at) if at <= now => {
                self.show_crash_back_off(i);
                self.tell(now);
            }
            Some(at) => self.wake_at(at),
            None => {}
        }
        true
    }

    fn show_crash_back_off(&mut self, i: usize) {
        let delay = go_seconds(self.containers[i].crash.delay());
        let (name, pod) = (self.containers[i].name.clone(), self.full_name());
        let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
        self.containers[i].waiting = Some(("CrashLoopBackOff", message));
        self.containers[i].show_back_off_at = None;
    }

    /// Whatever else happens to a pod, its containers in back-off are shown so by the way.
    pub(super) fn show_back_offs(&mut self, now: Timestamp) {
        for i in 0..self.containers.len() {
            let waits =
                self.containers[i].show_back_off_at.is_some() && self.containers[i].work == Work::None;
            if !waits {
                continue;
            }
            if self.containers[i].pull_failed.is_some() {
                self.show_pull_back_off(i);
            } else if self.containers[i].told_back_off.is_some_and(|until| until > now) && self.restarts(i) {
                self.show_crash_back_off(i);
            }
        }
    }

    fn in_pull_back_off(&mut self, i: usize, now: Timestamp) -> bool {
        let Some((failed_at, _)) = self.containers[i].pull_failed.clone() else {
            return false;
        };
        let Some(until) = self.containers[i].pull.until(failed_at).filter(|at| *at > now) else {
            return false;
        };
        self.wake_at(until);
        if self.containers[i].told_back_off != Some(until) {
            self.containers[i].told_back_off = Some(until);
            let first = self.containers[i].pull.delay() <= BASE;
            let wait = if first {
                SHOW_PULL_BACK_OFF_AFTER.0
            } else {
                SHOW_PULL_BACK_OFF_AFTER.1
            };
            self.containers[i].show_back_off_at = Some(failed_at + wait);
            if self.containers[i].role != Role::Ephemeral {
                let message = format!("Back-off pulling image {:?}", self.image_of(i));
                self.record(Some(i), false, "BackOff", message);
                self.record(Some(i), true, "Failed", "Error: ImagePullBackOff".into());
            }
        }
        match self.containers[i].show_back_off_at {
            Some(at) if at <= now => {
                self.show_pull_back_off(i);
                self.tell(now);
            }
            Some(at) => self.wake_at(at),
            None => {}
        }
        true
    }

    fn show_pull_back_off(&mut self, i: usize) {
        let Some((_, why)) = self.containers[i].pull_failed.clone() else {
            return;
        };
        let message = format!("Back-off pulling image {:?}", self.image_of(i));
        let container = &mut self.containers[i];
        container.waiting = Some(("ImagePullBackOff", format!("{message}: ErrImagePull: {why}")));
        container.show_back_off_at = None;
    }

    /// This start has failed; it is tried again after a while, and the next container has its turn.
    fn failed_to_start(&mut self, i: usize, reason: &'static str, message: String, now: Timestamp) {
        let told = match reason {
            "CreateContainerConfigError" | "CreateContainerError" => message.clone(),
            _ => reason.to_string(),
        };
        self.record(Some(i), true, "Failed", format!("Error: {told}"));
        let container = &mut self.containers[i];
        container.work = Work::None;
        container.waiting = Some((reason, message));
        container.retries += 1;
        let wait = if container.retries == 1 {
            START_RETRY.0
        } else {
            START_RETRY.1
        };
        container.retry_at = Some(now + wait);
        self.wake_at(now + wait);
        self.tell(now);
    }

    pub(super) fn image_inspected(&mut self, name: &str, present: Result<bool, String>, now: Timestamp) {
        let Some(i) = self
            .by_name(name)
            .filter(|i| self.containers[*i].work == Work::Inspecting)
        else {
            return;
        };
        if self.ending.is_some() {
            self.containers[i].work = Work::None;
            return;
        }
        let image = self.image_of(i);
        let policy = find_spec(self.spec(), name).and_then(|c| c.image_pull_policy.clone());
        match (policy.as_deref().unwrap_or("IfNotPresent"), present) {
            (_, Err(why)) => {
                let message = format!("Failed to inspect image {image:?}: {why}");
                self.record(Some(i), true, "InspectFailed", message.clone());
                self.failed_to_start(i, "ImageInspectError", message, now);
            }
            ("Always", _) | ("IfNotPresent", Ok(false)) => {
                self.record(Some(i), false, "Pulling", format!("Pulling image {image:?}"));
                self.containers[i].work = Work::Pulling;
                self.out.push(Action::PullImage {
                    container: name.into(),
                    image,
                });
            }
            (_, Ok(true)) => {
                let message = format!(
                    "Container image {image:?} already present on machine and can be accessed by the pod"
                );
                self.record(Some(i), false, "Pulled", message);
                self.create(i, now);
            }
            (_, Ok(false)) => {
                let message = format!("Container image {image:?} is not present with pull policy of Never");
                self.record(Some(i), true, "ErrImageNeverPull", message.clone());
                self.failed_to_start(i, "ErrImageNeverPull", message, now);
            }
        }
    }

    pub(super) fn image_pulled(&mut self, name: &str, result: Result<Pulled, String>, now: Timestamp) {
        let Some(i) = self
            .by_name(name)
            .filter(|i| self.containers[*i].work == Work::Pulling)
        else {
            return;
        };
        self.containers[i].work = Work::None;
        if self.ending.is_some() {
            return;
        }
        let image = self.image_of(i);
        match result {
            Ok(pulled) => {
                self.containers[i].pull.reset();
                self.containers[i].pull_failed = None;
                let message = format!(
                    "Successfully pulled image {image:?} in {} ({} including waiting). Image size: {} bytes.",
                    go_millis(pulled.took),
                    go_millis(pulled.with_waiting),
                    pulled.size_bytes
                );
                self.record(Some(i), false, "Pulled", message);
                self.create(i, now);
            }
            Err(why) => {
                let message = format!("Failed to pull image {image:?}: {why}");
                self.record(Some(i), true, "Failed", message.clone());
                self.record(Some(i), true, "Failed", "Error: ErrImagePull".into());
                let container = &mut self.containers[i];
                container.pull.next(now, now, backoff::MAX);
                container.pull_failed = Some((now, why.clone()));
                container.waiting = Some(("ErrImagePull", why));
                self.tell(now);
            }
        }
    }

    fn create(&mut self, i: usize, now: Timestamp) {
        let Sandbox::Ready { id: sandbox, .. } = self.sandbox.clone() else {
            self.containers[i].work = Work::None;
            return;
        };
        if let Some(since) = self.waits_since(i, now) {
            self.containers[i]
                .crash
                .next(since, now, self.node.longest_restart_wait);
        }
        let attempt = self.containers[i].attempts;
        let wanted = self.wanted(&self.containers[i]);
        let container = &mut self.containers[i];
        container.actual = Some(container.allocated.get_or_insert(wanted).clone());
        self.containers[i].work = Work::Creating { attempt };
        self.containers[i].sandbox.clone_from(&sandbox);
        self.out.push(Action::CreateContainer {
            container: self.containers[i].name.clone(),
            sandbox,
            attempt,
        });
    }

    pub(super) fn create_failed(
        &mut self,
        name: &str,
        reason: &'static str,
        message: String,
        now: Timestamp,
    ) {
        let creating = |c: &Container| matches!(c.work, Work::Creating { .. });
        let Some(i) = self.by_name(name).filter(|i| creating(&self.containers[*i])) else {
            return;
        };
        self.containers[i].work = Work::None;
        if self.ending.is_none() {
            self.failed_to_start(i, reason, message, now);
        }
    }

    pub(super) fn container_created(&mut self, name: &str, id: String) {
        let Some(i) = self.by_name(name) else { return };
        let Work::Creating { attempt } = self.containers[i].work else {
            return self.out.push(Action::RemoveContainer { id });
        };
        if self.ending.is_some() || !self.is_in_use(&self.containers[i].sandbox) {
            self.containers[i].work = Work::None;
            self.containers[i].remains.push(id);
            return;
        }
        self.record(Some(i), false, "Created", "Container created".into());
        self.start_created(i, id, attempt);
    }

    fn start_created(&mut self, i: usize, id: String, attempt: u32) -> bool {
        self.containers[i].work = Work::Starting {
            id: id.clone(),
            attempt,
        };
        self.out.push(Action::StartContainer {
            container: self.containers[i].name.clone(),
            id,
        });
        true
    }

    fn take_starting(&mut self, name: &str, id: &str) -> Option<(usize, u32)> {
        let i = self.by_name(name)?;
        match &self.containers[i].work {
            Work::Starting {
                id: starting,
                attempt,
            } if starting == id => {
                let attempt = *attempt;
                self.containers[i].work = Work::None;
                Some((i, attempt))
            }
            _ => None,
        }
    }

    pub(super) fn container_started(
        &mut self,
        name: &str,
        id: String,
        at: Timestamp,
        (image, image_id): (String, String),
        now: Timestamp,
    ) {
        let Some((i, attempt)) = self.take_starting(name, &id) else {
            return;
        };
        self.record(Some(i), false, "Started", "Container started".into());
        let run = Run {
            id: id.clone(),
            sandbox: self.containers[i].sandbox.clone(),
            attempt,
            state: RunState::Running { started_at: at },
            image,
            image_id,
            hash: self.containers[i].hash.clone(),
        };
        let early_exit = self.containers[i].early_exit.take();
        let hooked = find_spec(self.spec(), name)
            .is_some_and(|c| c.lifecycle.as_ref().is_some_and(|l| l.post_start.is_some()));
        if hooked && self.ending.is_none() && early_exit.is_none() {
            self.containers[i].work = Work::PostStart { run };
            self.out.push(Action::RunHook {
                container: name.into(),
                id,
                hook: Hook::PostStart,
            });
            return;
        }
        self.begin_run(i, run, now);
        if self.ending.is_none() {
            self.tell(now);
        }
        if let Some(exit) = early_exit {
            self.container_exited(&id, exit, now);
        }
    }

    pub(super) fn start_failed(&mut self, name: &str, id: String, message: String, now: Timestamp) {
        let Some((i, attempt)) = self.take_starting(name, &id) else {
            return;
        };
        self.containers[i].early_exit = None;
        self.record(Some(i), true, "Failed", format!("Error: {message}"));
        let exit = Exit {
            code: 128,
            reason: "StartError".into(),
            message: message.clone(),
            started_at: Some(Timestamp::UNIX_EPOCH),
            finished_at: Some(now),
        };
        let run = Run {
            id: id.clone(),
            sandbox: self.containers[i].sandbox.clone(),
            attempt,
            state: RunState::Exited(Box::new(terminated(&id, &exit, None))),
            image: self.image_of(i),
            image_id: String::new(),
            hash: self.containers[i].hash.clone(),
        };
        self.begin_run(i, run, now);
        self.containers[i].probes.clear();
        if self.restarts(i) {
            self.containers[i].waiting = Some(("RunContainerError", message));
        }
        if self.ending.is_none() {
            self.tell(now);
        }
    }

    pub(super) fn post_start_done(&mut self, id: &str, result: Result<(), String>, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        let run = match std::mem::take(&mut self.containers[i].work) {
            Work::PostStart { run } => run,
            other => {
                self.containers[i].work = other;
                return;
            }
        };
        self.begin_run(i, run, now);
        if let Err(why) = result
            && self.ending.is_none()
        {
            self.record(
                Some(i),
                true,
                "FailedPostStartHook",
                "PostStartHook failed".into(),
            );
            self.containers[i].waiting = Some(("PostStartHookError", why));
            self.stop(i, StopReason::PostStart, "FailedPostStartHook".into(), now);
            return;
        }
        // It ran before its end began, and users see that it did.
        self.tell(now);
    }

    /// Ends containers whose definition has changed; they are started again from the new one.
    fn stop_changed(&mut self, now: Timestamp) {
        for i in 0..self.containers.len() {
            let container = &self.containers[i];
            let changed = container.running_since().is_some()
                && container.work == Work::None
                && container
                    .run
                    .as_ref()
                    .is_some_and(|run| !run.hash.is_empty() && run.hash != container.hash);
            if changed {
                let message = format!(
                    "Container {} definition changed, will be restarted",
                    container.name
                );
                self.stop(i, StopReason::Changed, message, now);
            }
        }
    }

    pub(super) fn stop_unhealthy(&mut self, i: usize, kind: probe::Kind, now: Timestamp) {
        let restarts = self.may_restart(i);
        self.containers[i].given_up = !restarts;
        let is_last = !restarts && self.is_complete();
        // Rules on exit codes have their say once there is one.
        let spec = find_spec(self.spec(), &self.containers[i].name);
        if spec.is_some_and(|c| c.restart_policy_rules.as_ref().is_some_and(|r| !r.is_empty())) {
            self.containers[i].given_up = false;
        } else if is_last {
            // Nothing is left that would run on: the pod ends, sidecars and all.
            return;
        }
        let name = &self.containers[i].name;
        let title = kind.title().to_lowercase();
        let message = match (self.containers[i].role, restarts) {
            _ if is_last => format!("Stopping container {name}"),
            (Role::Sidecar, _) => format!("Init container {name} failed {title} probe"),
            (_, true) => format!("Container {name} failed {title} probe, will be restarted"),
            (_, false) => format!("Container {name} failed {title} probe"),
        };
        // The last one ends with the pod's own grace.
        let reason = if is_last {
            StopReason::Changed
        } else {
            StopReason::Probe(kind)
        };
        self.stop(i, reason, message, now);
    }
}
