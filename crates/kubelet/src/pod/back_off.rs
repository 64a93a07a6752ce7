//! Containers in back-off: when they are started again, and when users see why not (SPEC L5).

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::container::WaitingReason;
use super::{Pod, Role};
use crate::backoff::go_seconds;

/// How long an exited container is reported as terminated at most, before it is reported as waiting in CrashLoopBackOff.
/// In v1.36 that happens in the next sync of the pod: another change of it, the end of the back-off, or a periodic sync,
/// which was observed six seconds after the exit and much later. Nine seconds are less than the first back-off.
const SHOW_BACK_OFF_AFTER: SignedDuration = SignedDuration::from_secs(9);
/// The same for a container that this node killed, for a probe or a failed postStart hook: its exit triggers a sync.
const SHOW_BACK_OFF_AFTER_KILL: SignedDuration = SignedDuration::from_secs(1);
/// The same for ImagePullBackOff: after the first failure, and after later ones.
const SHOW_PULL_BACK_OFF_AFTER: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(9), SignedDuration::from_secs(1));

impl Pod {
    pub(super) fn in_crash_back_off(&mut self, i: usize, now: Timestamp) -> bool {
        let Some(since) = self.back_off_since(i, now) else {
            return false;
        };
        let Some(until) = self.containers[i].back_off.crash_until(since) else {
            return false;
        };
        if until <= now {
            // CrashLoopBackOff is reported before the restart, so that users see why it took so long.
            if self.containers[i].back_off.reported_until() == Some(until) {
                self.show_crash_back_off(i);
                self.report_status(now);
            }
            return false;
        }
        // From now on its back-off counts from its own exit, as if it had exited by itself.
        let container = &mut self.containers[i];
        let hook_failed = container.waits_for(WaitingReason::PostStartHookError);
        let killed = container.restart.delay() || hook_failed;
        let until = self
            .back_off_since(i, now)
            .and_then(|since| self.containers[i].back_off.crash_until(since));
        let Some(until) = until.filter(|at| *at > now) else {
            return false;
        };
        self.out.wake_at(until);
        if self.containers[i].back_off.reported_until() != Some(until) {
            let wait = match killed {
                true => SHOW_BACK_OFF_AFTER_KILL,
                false => SHOW_BACK_OFF_AFTER,
            };
            self.containers[i].back_off.announce(until, now + wait);
            let (name, pod) = (&self.containers[i].name, self.object.full_name());
            let message = format!("Back-off restarting failed container {name} in pod {pod}");
            self.record(Some(i), true, "BackOff", message);
        }
        match self.containers[i].back_off.status_at() {
            Some(at) if at <= now => {
                self.show_crash_back_off(i);
                self.report_status(now);
            }
            Some(at) => self.out.wake_at(at),
            None => {}
        }
        true
    }

    fn show_crash_back_off(&mut self, i: usize) {
        let container = &mut self.containers[i];
        let delay = go_seconds(container.back_off.crash_delay());
        let (name, pod) = (&container.name, self.object.full_name());
        let message = format!("back-off {delay} restarting failed container={name} pod={pod}");
        container.wait(WaitingReason::CrashLoopBackOff, message);
        container.back_off.status_reported();
    }

    /// Sets the status of containers in back-off to waiting: any sync of the pod does so.
    pub(super) fn show_back_offs(&mut self, now: Timestamp) {
        for i in 0..self.containers.len() {
            let container = &self.containers[i];
            let back_off = &container.back_off;
            if back_off.status_at().is_none() || !container.is_idle() {
                continue;
            }
            if back_off.pull_error().is_some() {
                self.show_pull_back_off(i);
            } else if back_off.reported_until().is_some_and(|until| until > now) && self.will_restart(i) {
                self.show_crash_back_off(i);
            }
        }
    }

    pub(super) fn in_pull_back_off(&mut self, i: usize, now: Timestamp) -> bool {
        let container = &mut self.containers[i];
        let Some((failed_at, until)) = container.back_off.pull_until().filter(|(_, until)| *until > now)
        else {
            return false;
        };
        self.out.wake_at(until);
        if container.back_off.reported_until() != Some(until) {
            let wait = match container.back_off.is_first_pull() {
                true => SHOW_PULL_BACK_OFF_AFTER.0,
                false => SHOW_PULL_BACK_OFF_AFTER.1,
            };
            container.back_off.announce(until, failed_at + wait);
            if container.role != Role::Ephemeral {
                let image = self.object.image_of(&container.name);
                let message = format!("Back-off pulling image {image:?}");
                self.record(Some(i), false, "BackOff", message);
                self.record(Some(i), true, "Failed", "Error: ImagePullBackOff".into());
            }
        }
        match self.containers[i].back_off.status_at() {
            Some(at) if at <= now => {
                self.show_pull_back_off(i);
                self.report_status(now);
            }
            Some(at) => self.out.wake_at(at),
            None => {}
        }
        true
    }

    fn show_pull_back_off(&mut self, i: usize) {
        let container = &mut self.containers[i];
        let Some(why) = container.back_off.pull_error() else {
            return;
        };
        let image = self.object.image_of(&container.name);
        let message = format!("Back-off pulling image {image:?}: ErrImagePull: {why}");
        container.wait(WaitingReason::ImagePullBackOff, message);
        container.back_off.status_reported();
    }

    /// The start has failed: it is retried after a wait, and the next container may start.
    pub(super) fn failed_to_start(
        &mut self,
        i: usize,
        reason: WaitingReason,
        message: String,
        now: Timestamp,
    ) {
        let error = match reason {
            WaitingReason::CreateContainerConfigError | WaitingReason::CreateContainerError => {
                message.as_str()
            }
            _ => reason.as_str(),
        };
        self.record(Some(i), true, "Failed", format!("Error: {error}"));
        let container = &mut self.containers[i];
        container.operation = super::Operation::None;
        container.wait(reason, message);
        let retry_at = container.back_off.start_failed(now);
        self.out.wake_at(retry_at);
        self.report_status(now);
    }
}
