//! Termination of the pod (SPEC T2–T6, L9–L11).
//!
//! Once a pod is terminating, nothing of it starts, and the termination is never undone. The order: processes, sandbox
//! and volumes, the final status, the final deletion.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::move_by;
use super::container::StopReason;
use super::output::Output;
use super::{Action, Container, Operation, Pod, TerminationResume};
use crate::grace::{self, GracePeriods};

/// Wait before the final deletion is tried again.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
const DEADLINE_EXCEEDED_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// Why a pod terminates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TerminationCause {
    /// All its containers have finished, or its phase was terminal already.
    Completed,
    /// The object has a deletionTimestamp.
    Deleted,
    /// The object was deleted from the API before this node finished the termination (T6).
    Removed,
    /// The node decided (eviction, active deadline): `status.reason` and `status.message`.
    Failed { reason: String, message: String },
}

/// The termination of a pod, from its beginning on.
#[derive(Clone, Debug)]
pub(super) struct PodTermination {
    cause: TerminationCause,
    began: Timestamp,
    /// The grace period in force; it only gets shorter.
    grace_seconds: i64,
    /// A kubelet before this one began the termination and ran the hooks; they do not run again.
    resumed: bool,
    /// The init containers had completed when the termination began.
    initialized: bool,
    stage: Stage,
}

/// How far the termination of a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Processes, sandbox and volumes are being removed.
    Stopping {
        /// The terminal phase is withheld until the stopped sandbox was reported in a status of its own.
        phase_withheld: bool,
    },
    /// Processes, sandbox and volumes are removed, and the final status is reported.
    Terminated,
    /// The final deletion of the object is requested.
    DeletionSent,
    /// It failed.
    RetryDeletionAt(Timestamp),
    /// The object is deleted: [`Action::Forget`] was returned.
    Forgotten,
}

impl PodTermination {
    pub(super) fn began(&self) -> Timestamp {
        self.began
    }

    pub(super) fn grace_seconds(&self) -> i64 {
        self.grace_seconds
    }

    /// When the grace period is over.
    fn deadline(&self) -> Timestamp {
        self.began + SignedDuration::from_secs(self.grace_seconds)
    }

    pub(super) fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Whether the init containers had completed when it began.
    pub(super) fn was_initialized(&self) -> bool {
        self.initialized
    }

    /// Whether endpoints follow from the object that the pod terminates.
    pub(super) fn is_announced(&self) -> bool {
        matches!(
            self.cause,
            TerminationCause::Deleted | TerminationCause::Failed { .. }
        )
    }

    /// `status.reason` and `status.message`, if the pod failed by a decision of the node.
    pub(super) fn failure(&self) -> Option<(&str, &str)> {
        match &self.cause {
            TerminationCause::Failed { reason, message } => Some((reason, message)),
            _ => None,
        }
    }

    pub(super) fn withholds_phase(&self) -> bool {
        self.stage == Stage::Stopping { phase_withheld: true }
    }

    /// Whether processes, sandbox and volumes are removed, and the final status is being reported.
    pub(super) fn has_terminated(&self) -> bool {
        !matches!(self.stage, Stage::Stopping { .. })
    }

    /// A shorter grace period takes effect at once; a longer one does not (T3). Returns the one in force.
    fn shorten(&mut self, deletion: Option<i64>, eviction: Option<i64>) -> i64 {
        self.grace_seconds = grace::effective_seconds(GracePeriods {
            in_force: Some(self.grace_seconds),
            deletion,
            eviction,
            pod: None,
        });
        self.grace_seconds
    }

    /// Nothing is left on the node: requests the deletion of the object, or forgets the pod if it is deleted.
    fn finish(&mut self, is_removed: bool, now: Timestamp, out: &mut Output) {
        match self.stage {
            Stage::Stopping { .. } | Stage::Forgotten => {}
            _ if is_removed => {
                self.stage = Stage::Forgotten;
                out.push(Action::Forget);
            }
            Stage::DeletionSent => {}
            Stage::RetryDeletionAt(at) if at > now => out.wake_at(at),
            Stage::Terminated | Stage::RetryDeletionAt(_) => {
                self.stage = Stage::DeletionSent;
                out.push(Action::FinalDelete);
            }
        }
    }

    pub(super) fn final_delete_failed(&mut self, now: Timestamp) {
        if self.stage == Stage::DeletionSent {
            self.stage = Stage::RetryDeletionAt(now + RETRY);
        }
    }

    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        move_by(&mut self.began, by);
        if let Stage::RetryDeletionAt(at) = &mut self.stage {
            move_by(at, by);
        }
    }

    /// The first entry of the termination's timeline: its name, and its detail.
    fn title(&self) -> (&'static str, Option<String>) {
        let grace = format!("{}s of grace", self.grace_seconds);
        match &self.cause {
            TerminationCause::Completed => ("Completed", None),
            TerminationCause::Deleted => ("Deleted", Some(grace)),
            TerminationCause::Removed => ("Removed", Some(grace)),
            TerminationCause::Failed { reason, .. } => ("Ended", Some(format!("{reason}, {grace}"))),
        }
    }
}

impl Pod {
    /// Begins the pod's termination if there is a cause for one.
    pub(super) fn check_termination(&mut self, now: Timestamp) {
        let Some(cause) = self.termination_cause(now) else {
            return;
        };
        let grace_seconds = grace::effective_seconds(GracePeriods {
            in_force: None,
            deletion: self.object.deletion_grace_seconds(),
            eviction: self.eviction.grace_seconds(),
            pod: self.object.spec().termination_grace_period_seconds,
        });
        let left = self.resumed_grace_seconds(&cause, now);
        let completed = cause == TerminationCause::Completed;
        let failed = matches!(cause, TerminationCause::Failed { .. });
        // The exits of containers that this node stops, and of those that never ran, are reported before the phase.
        let stops_containers = completed && self.containers.iter().any(Container::is_stopped_by_node);
        let termination = PodTermination {
            resumed: left.is_some(),
            cause,
            began: now,
            grace_seconds: left.map_or(grace_seconds, |left| grace_seconds.min(left)),
            initialized: self.status.was_initialized(self.object.spec()),
            stage: Stage::Stopping {
                phase_withheld: stops_containers,
            },
        };
        let (title, detail) = termination.title();
        self.termination = Some(termination);
        self.add_to_timeline(now, title, None, detail);
        self.close_barrier(now);
        let is_being_deleted = self.object.is_being_deleted();
        if !is_being_deleted {
            self.show_back_offs(now);
        }
        for container in &mut self.containers {
            // A pod that is being deleted does not report why a container could not start.
            if is_being_deleted {
                container.waiting = None;
            }
            container.cancel_start();
        }
        if failed {
            self.report_status(now);
        } else if !completed || self.containers.iter().any(Container::is_running) {
            // A pod that is being deleted keeps its last reported state until its containers have exited.
            self.report_waiting_containers(now);
        }
        self.shrink_grace(now);
    }

    fn termination_cause(&mut self, now: Timestamp) -> Option<TerminationCause> {
        let object = &self.object;
        if object.is_removed() {
            Some(TerminationCause::Removed)
        } else if object.is_being_deleted() {
            Some(TerminationCause::Deleted)
        } else if self.status.is_rejected() || object.status().is_some_and(super::is_terminal) {
            Some(TerminationCause::Completed)
        } else if let Some(eviction) = self.eviction.requested() {
            Some(TerminationCause::Failed {
                reason: eviction.reason.clone(),
                message: eviction.message.clone(),
            })
        } else if self.active_deadline_exceeded(now) {
            self.record(None, false, DEADLINE_EXCEEDED, DEADLINE_EXCEEDED_MESSAGE.into());
            Some(TerminationCause::Failed {
                reason: DEADLINE_EXCEEDED.into(),
                message: DEADLINE_EXCEEDED_MESSAGE.into(),
            })
        } else {
            self.is_complete().then_some(TerminationCause::Completed)
        }
    }

    fn active_deadline_exceeded(&mut self, now: Timestamp) -> bool {
        let limit = self.object.spec().active_deadline_seconds;
        let (Some(started), Some(seconds)) = (self.status.started(), limit) else {
            return false;
        };
        let deadline = started + SignedDuration::from_secs(seconds);
        if now >= deadline {
            return true;
        }
        self.out.wake_at(deadline);
        false
    }

    /// The rest of the grace period of a deletion that began before this kubelet started, at least one second; `None` if
    /// the full grace period applies.
    fn resumed_grace_seconds(&self, cause: &TerminationCause, now: Timestamp) -> Option<i64> {
        if *cause != TerminationCause::Deleted || self.node.resume != TerminationResume::Deadline {
            return None;
        }
        let deadline = self.object.earlier_deletion()?;
        Some(deadline.duration_since(now).as_secs().max(1))
    }

    /// A shorter grace period takes effect at once; a longer one does not (T3).
    pub(super) fn shrink_grace(&mut self, now: Timestamp) {
        let deletion = self.object.deletion_grace_seconds();
        let eviction = self.eviction.grace_seconds();
        let Some(termination) = &mut self.termination else {
            return;
        };
        let grace_seconds = termination.shorten(deletion, eviction);
        self.shorten_barrier();
        self.shorten_stops(grace_seconds, now);
    }

    /// Advances the pod's termination as far as possible.
    pub(super) fn terminate(&mut self, now: Timestamp) {
        self.end_post_start_hooks(now);
        if self.containers.iter().any(Container::has_processes) {
            let grace_seconds = self.object.spec().termination_grace_period_seconds;
            self.eviction.check_overrun(grace_seconds, now, &mut self.out);
        }
        for i in 0..self.containers.len() {
            if self.containers[i].runs_undisturbed() {
                let message = format!("Stopping container {}", self.containers[i].name);
                self.stop(i, StopReason::Pod, message, now);
            }
            self.advance_stop(i, now);
        }
        if self.containers.iter().any(Container::may_get_processes) {
            return;
        }
        if self.volumes.is_setting_up() || self.sandboxes.is_creating() {
            return;
        }
        self.containers
            .iter_mut()
            .for_each(|c| c.operation = Operation::None);
        let completed = self
            .termination
            .as_ref()
            .is_some_and(|t| t.cause == TerminationCause::Completed && !t.withholds_phase());
        if completed && self.sandboxes.is_ready() {
            // The containers' exits are reported before the sandbox is stopped.
            self.report_status(now);
        }
        self.release_resources();
        if !self.sandboxes.are_all_stopped() || !self.volumes.is_torn_down() {
            return;
        }
        if !self.has_terminated() {
            self.report_final_statuses(now);
        }
        self.finish(now);
    }

    /// Reports the last statuses: that nothing runs any more, and the pod's terminal phase.
    fn report_final_statuses(&mut self, now: Timestamp) {
        let removed = self.object.is_removed();
        // Each status is reported only if it differs from the one before. First the exits of containers that the node stopped, …
        if !removed {
            self.report_status(now);
        }
        self.set_stage(Stage::Stopping {
            phase_withheld: false,
        });
        // … then the terminal phase, …
        if !removed {
            self.report_status(now);
            // Upstream records the event in each sync of a pod past its active deadline.
            let failure = self.termination.as_ref().and_then(PodTermination::failure);
            if failure.is_some_and(|(reason, _)| reason == DEADLINE_EXCEEDED) {
                self.record(None, false, DEADLINE_EXCEEDED, DEADLINE_EXCEEDED_MESSAGE.into());
                self.record(None, false, DEADLINE_EXCEEDED, DEADLINE_EXCEEDED_MESSAGE.into());
            }
        }
        // … then the containers that never ran, or whose status is unknown.
        self.set_stage(Stage::Terminated);
        if !removed {
            self.report_status(now);
        }
    }

    fn set_stage(&mut self, stage: Stage) {
        if let Some(termination) = &mut self.termination {
            termination.stage = stage;
        }
    }

    /// Cancels postStart hooks that still run when the pod's grace period is over.
    fn end_post_start_hooks(&mut self, now: Timestamp) {
        let Some(deadline) = self.termination.as_ref().map(PodTermination::deadline) else {
            return;
        };
        for i in 0..self.containers.len() {
            if !matches!(self.containers[i].operation, Operation::PostStart { .. }) {
                continue;
            }
            if now < deadline {
                self.out.wake_at(deadline);
            } else {
                self.cancel_post_start_hook(i, now);
            }
        }
    }

    /// Stops the sandbox and tears down the volumes, both at once; removes the containers of a pod that is being deleted
    /// (the logs of the others stay readable).
    fn release_resources(&mut self) {
        self.sandboxes.release(&mut self.out);
        self.volumes.tear_down(&mut self.out);
        if !self.object.is_being_deleted() {
            return;
        }
        for container in &mut self.containers {
            for id in container.runs.take_unremoved() {
                self.removals.container(id, &mut self.out);
            }
        }
    }

    /// Nothing runs any more: removes the sandboxes of a pod that is being deleted, then deletes the object.
    fn finish(&mut self, now: Timestamp) {
        if !self.object.is_being_deleted() || !self.removals.is_empty() {
            return;
        }
        let sandboxes = self.sandboxes.left();
        if !sandboxes.is_empty() {
            for id in sandboxes {
                self.removals.sandbox(id, &mut self.out);
            }
            return;
        }
        let is_removed = self.object.is_removed();
        if let Some(termination) = &mut self.termination {
            termination.finish(is_removed, now, &mut self.out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn termination(stage: Stage) -> PodTermination {
        PodTermination {
            cause: TerminationCause::Deleted,
            began: Timestamp::UNIX_EPOCH,
            grace_seconds: 30,
            resumed: false,
            initialized: true,
            stage,
        }
    }

    #[test]
    fn t5_a_clock_that_jumps_moves_the_deadline_and_the_retry_of_the_deletion() {
        let (now, mut out) = (Timestamp::UNIX_EPOCH, Output::default());
        let mut termination = termination(Stage::DeletionSent);
        termination.final_delete_failed(now);
        let (deadline, by) = (termination.deadline(), SignedDuration::from_hours(3));
        termination.clock_jumped(by);
        assert_eq!(termination.deadline(), deadline + by);
        termination.finish(false, now + by, &mut out);
        assert_eq!(out.take(), [Action::SetTimer(now + by + RETRY)]);
    }

    #[test]
    fn t5_the_object_is_deleted_once_all_is_stopped_and_again_after_a_failure_until_it_is_removed() {
        let (mut now, mut out) = (Timestamp::UNIX_EPOCH, Output::default());
        let mut termination = termination(Stage::Stopping { phase_withheld: true });
        let mut finish = |termination: &mut PodTermination, is_removed: bool, now: Timestamp| {
            termination.finish(is_removed, now, &mut out);
            out.take()
        };
        assert!(termination.withholds_phase() && !termination.has_terminated());
        assert_eq!(finish(&mut termination, false, now), [], "something still runs");
        termination.stage = Stage::Terminated;
        assert_eq!(finish(&mut termination, false, now), [Action::FinalDelete]);
        assert_eq!(finish(&mut termination, false, now), []);
        termination.final_delete_failed(now);
        assert_eq!(
            finish(&mut termination, false, now),
            [Action::SetTimer(now + RETRY)]
        );
        now += RETRY;
        assert_eq!(finish(&mut termination, false, now), [Action::FinalDelete]);
        assert_eq!(finish(&mut termination, true, now), [Action::Forget]);
        termination.final_delete_failed(now);
        assert_eq!(finish(&mut termination, true, now), [], "only once");
    }
}
