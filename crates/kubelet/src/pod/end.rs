//! Ending: one container, or the whole pod (SPEC T2–T6, L9–L11).
//!
//! Once a pod is ending, nothing of it starts, and the way back is closed. Order: processes, sandbox and
//! volumes, the final status, the final deletion.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;

use super::clock_jump::{move_by, moved};
use super::container::find_spec;
use super::status::was_initialized;
use super::{Action, Container, Hook, Old, Pod, Role, Sandbox, TerminationResume, Volumes, Work};
use crate::grace::{self, Graces, MINIMUM_SECONDS};
use crate::probe;

/// Between attempts at what cannot be given up.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

const DEADLINE_EXCEEDED: &str = "Pod was active on the node longer than the specified deadline";

/// An eviction may take at least so long.
const EVICTION_SECONDS_MIN: i64 = 10;
const EXCEEDED_GRACE: &str = "Container runtime did not kill the pod within specified grace period.";

/// Why a pod ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its containers are done.
    Completed,
    /// Somebody asked the API.
    Deleted,
    /// The object went without this node's word (T6).
    Removed,
    /// The node decided: `status.reason` and `status.message`.
    Failed { reason: String, message: String },
}

/// A pod on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub why: Why,
    pub began: Timestamp,
    pub grace_seconds: i64,
    /// Processes, sandbox and volumes are gone: the final status is out.
    pub freed: bool,
    /// It goes on from where a kubelet before this one left off: what hooks had to do is theirs.
    pub(super) resumed: bool,
    /// As the end began, the init containers were behind it.
    pub(super) initialized: bool,
    /// The sandbox's end is told once on its own, before the phase that follows from it.
    pub(super) held: bool,
    final_delete: FinalDelete,
    forgotten: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FinalDelete {
    NotYet,
    Sent,
    RetryAt(Timestamp),
}

/// Why one container is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The whole pod is.
    Pod,
    Changed,
    /// What it runs in is no more.
    Sandbox,
    PostStart,
    Probe(probe::Kind),
    /// All containers are to be restarted: there is no grace for that.
    All,
}

/// A container on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    pub reason: StopReason,
    pub began: Timestamp,
    pub grace_seconds: i64,
    pub stage: Stage,
    /// Its preStop hook has not answered, whether it is waited for or not.
    pub(super) hook_runs: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its hook runs.
    PreStop,
    /// Its hook is done; sidecars wait for those before them.
    Turn,
    /// It was told to end, and is killed then.
    Term { kill_at: Timestamp },
    /// That did not work.
    RetryAt(Timestamp),
}

impl Ending {
    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        move_by(&mut self.began, by);
        if let FinalDelete::RetryAt(at) = &mut self.final_delete {
            move_by(at, by);
        }
    }
}

impl Stop {
    pub(super) fn clock_jumped(&mut self, by: SignedDuration) {
        move_by(&mut self.began, by);
        if let Stage::Term { kill_at: at } | Stage::RetryAt(at) = &mut self.stage {
            move_by(at, by);
        }
    }

    fn deadline(&self) -> Timestamp {
        self.began + SignedDuration::from_secs(self.grace_seconds)
    }

    /// Whole seconds left, rounded up.
    fn left(&self, now: Timestamp) -> i64 {
        let left = self.deadline().duration_since(now);
        left.as_secs() + i64::from(left.subsec_nanos() > 0)
    }
}

impl Pod {
    /// Whether the pod has to end, and why.
    pub(super) fn look_for_the_end(&mut self, now: Timestamp) {
        let meta = &self.object.metadata;
        let phase = self.object.status.as_ref().and_then(|s| s.phase.as_deref());
        let why = if self.removed {
            Why::Removed
        } else if meta.deletion_timestamp.is_some() {
            Why::Deleted
        } else if self.rejected || matches!(phase, Some("Succeeded" | "Failed")) {
            Why::Completed
        } else if let Some((eviction, _)) = &self.eviction {
            Why::Failed {
                reason: eviction.reason.clone(),
                message: eviction.message.clone(),
            }
        } else if self.past_deadline(now) {
            self.record(None, false, "DeadlineExceeded", DEADLINE_EXCEEDED.into());
            Why::Failed {
                reason: "DeadlineExceeded".into(),
                message: DEADLINE_EXCEEDED.into(),
            }
        } else if self.is_complete() {
            Why::Completed
        } else {
            return;
        };
        let given = self.given_grace();
        let grace_seconds = grace::effective_seconds(Graces {
            in_force: None,
            deletion: if self.removed {
                Some(0)
            } else {
                self.object.metadata.deletion_grace_period_seconds
            },
            given,
            pod: self.spec().termination_grace_period_seconds,
        });
        let left = self.left_until_deadline(&why, now);
        let grace_seconds = left.map_or(grace_seconds, |left| grace_seconds.min(left));
        let completed = why == Why::Completed;
        self.ending = Some(Ending {
            resumed: left.is_some(),
            why,
            began: now,
            grace_seconds,
            freed: false,
            initialized: was_initialized(&self.status, self.spec()),
            held: false,
            final_delete: FinalDelete::NotYet,
            forgotten: false,
        });
        self.tell_beginning(now);
        self.close_barrier(now);
        let asked = self.wants_removal();
        if let Some(ending) = &mut self.ending {
            // What is ended by this node is first told to have ended; so is what never got to run.
            let ended_here = completed
                && self
                    .containers
                    .iter()
                    .any(|c| c.running_since().is_some() || c.ended_here);
            ending.held = ended_here;
        }
        if !asked {
            self.show_back_offs(now);
        }
        for i in 0..self.containers.len() {
            let container = &mut self.containers[i];
            // What kept a container from starting no longer matters to those who asked.
            if asked {
                container.waiting = None;
            }
            match std::mem::take(&mut container.work) {
                Work::Inspecting | Work::Pulling => {}
                Work::Created { id, .. } => container.remains.push(id),
                work => container.work = work,
            }
        }
        if matches!(self.ending.as_ref().map(|e| &e.why), Some(Why::Failed { .. })) {
            self.tell(now);
        } else if !completed || self.containers.iter().any(|c| c.running_since().is_some()) {
            // A pod that is told to end keeps its last shown state until it has ended.
            self.tell_waiting(now);
        }
        self.shrink_grace(now);
    }

    /// The timeline's first moment.
    fn tell_beginning(&mut self, now: Timestamp) {
        let Some(ending) = &self.ending else { return };
        let (what, why) = match &ending.why {
            Why::Completed => ("Completed", None),
            Why::Deleted => ("Deleted", None),
            Why::Removed => ("Removed", None),
            Why::Failed { reason, .. } => ("Ended", Some(reason.clone())),
        };
        let grace = format!("{}s of grace", ending.grace_seconds);
        let detail = match (why, &ending.why) {
            (_, Why::Completed) => None,
            (Some(why), _) => Some(format!("{why}, {grace}")),
            (None, _) => Some(grace),
        };
        self.moment(now, what, None, detail);
    }

    fn past_deadline(&mut self, now: Timestamp) -> bool {
        let (Some(started), Some(seconds)) = (self.start_time, self.spec().active_deadline_seconds) else {
            return false;
        };
        let deadline = moved(started, self.start_time_off) + SignedDuration::from_secs(seconds);
        if now < deadline {
            self.wake_at(deadline);
        }
        now >= deadline
    }

    /// What is left of an end that began before this kubelet, where that counts; never under a second.
    fn left_until_deadline(&self, why: &Why, now: Timestamp) -> Option<i64> {
        if *why != Why::Deleted || !self.met_ending || self.node.resume != TerminationResume::Deadline {
            return None;
        }
        let deadline = self.object.metadata.deletion_timestamp.as_ref()?.0;
        Some(deadline.duration_since(now).as_secs().max(1))
    }

    fn is_past_deadline(&self) -> bool {
        let why = self.ending.as_ref().map(|e| &e.why);
        matches!(why, Some(Why::Failed { reason, .. }) if reason == "DeadlineExceeded")
    }

    /// Whether no container will run any more, or go on running (sidecars do not count).
    pub(super) fn is_complete(&self) -> bool {
        let done = |i: usize| {
            let c = &self.containers[i];
            let ended = c.work == Work::None && c.exited().is_some() && !self.restarts(i);
            ended || c.given_up
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

    /// Begins to end one container.
    pub(super) fn stop(&mut self, i: usize, reason: StopReason, message: String, now: Timestamp) {
        let container = &self.containers[i];
        let Some(run) = &container.run else { return };
        let id = run.id.clone();
        let name = container.name.clone();
        let spec = find_spec(self.spec(), &name);
        let probe_grace = spec.as_ref().and_then(|s| match reason {
            StopReason::Probe(probe::Kind::Startup) => {
                s.startup_probe.as_ref()?.termination_grace_period_seconds
            }
            StopReason::Probe(_) => s.liveness_probe.as_ref()?.termination_grace_period_seconds,
            _ => None,
        });
        let grace_seconds = match (&self.ending, reason) {
            (Some(ending), _) => ending.grace_seconds,
            (None, StopReason::All) => 0,
            _ => grace::container_seconds(
                self.object.metadata.deletion_grace_period_seconds,
                self.spec().termination_grace_period_seconds,
                probe_grace,
            ),
        };
        let hooked = spec.is_some_and(|s| s.lifecycle.as_ref().is_some_and(|l| l.pre_stop.is_some()));
        self.record(Some(i), false, "Killing", message);
        let mut stop = Stop {
            reason,
            began: now,
            grace_seconds,
            stage: Stage::Turn,
            hook_runs: false,
        };
        let resumed = self.ending.as_ref().is_some_and(|e| e.resumed);
        if hooked && grace_seconds > 0 && !resumed {
            stop.stage = Stage::PreStop;
            stop.hook_runs = true;
            self.moment(now, "PreStop", Some(&name), None);
            self.out.push(Action::RunHook {
                container: name,
                id,
                hook: Hook::PreStop,
            });
        }
        self.containers[i].work = Work::Stopping(stop);
        self.advance_stop(i, now);
    }

    /// Takes every stop as far as it goes now.
    pub(super) fn advance_stops(&mut self, now: Timestamp) {
        for i in 0..self.containers.len() {
            self.advance_stop(i, now);
        }
    }

    /// Takes a stop as far as it goes now.
    fn advance_stop(&mut self, i: usize, now: Timestamp) {
        let Work::Stopping(mut stop) = self.containers[i].work.clone() else {
            return;
        };
        let Some(id) = self.containers[i].run.as_ref().map(|r| r.id.clone()) else {
            return;
        };
        if stop.stage == Stage::PreStop {
            if now < stop.deadline() {
                return self.wake_at(stop.deadline());
            }
            self.record(Some(i), true, "FailedPreStopHook", "PreStopHook failed".into());
            let name = self.containers[i].name.clone();
            self.moment(now, "PreStopCut", Some(&name), Some("the grace is over".into()));
            // It is only waited for no longer: while the container is there, it may go on.
            stop.stage = Stage::Turn;
        }
        let go = match stop.stage {
            Stage::Turn => {
                let in_turn = now >= stop.deadline() || !self.is_held(i);
                if !in_turn {
                    self.wake_at(stop.deadline());
                }
                in_turn && !self.barrier_holds(now)
            }
            Stage::RetryAt(at) if at > now => {
                self.wake_at(at);
                false
            }
            Stage::RetryAt(_) => {
                // Nobody knows whether it was told to end: from now on it has its full grace again (T4).
                stop.began = now;
                true
            }
            Stage::PreStop | Stage::Term { .. } => false,
        };
        if go {
            let seconds = stop.left(now).max(MINIMUM_SECONDS);
            stop.stage = Stage::Term {
                kill_at: now + SignedDuration::from_secs(seconds),
            };
            let name = self.containers[i].name.clone();
            self.moment(now, "Term", Some(&name), Some(format!("KILL after {seconds}s")));
            self.out.push(Action::StopContainer {
                id,
                grace_seconds: seconds,
            });
        }
        self.containers[i].work = Work::Stopping(stop);
    }

    /// Sidecars end after the app containers, and in reverse order (L10).
    fn is_held(&self, i: usize) -> bool {
        self.ending.is_some()
            && self.containers[i].role == Role::Sidecar
            && self.containers.iter().enumerate().any(|(j, other)| {
                let before = match other.role {
                    Role::App | Role::Init => true,
                    Role::Sidecar => j > i,
                    Role::Ephemeral => false,
                };
                j != i && before && other.has_processes()
            })
    }

    pub(super) fn pre_stop_done(&mut self, id: &str, result: Result<(), String>, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        let Work::Stopping(stop) = &mut self.containers[i].work else {
            return;
        };
        stop.hook_runs = false;
        if stop.stage != Stage::PreStop {
            return;
        }
        stop.stage = Stage::Turn;
        let name = self.containers[i].name.clone();
        let detail = result.is_err().then(|| "failed".to_string());
        self.moment(now, "PreStopDone", Some(&name), detail);
        if result.is_err() {
            self.record(Some(i), true, "FailedPreStopHook", "PreStopHook failed".into());
        }
        self.advance_stop(i, now);
    }

    /// The container went while it was being ended.
    pub(super) fn stop_answered(&mut self, stop: Stop, id: &str) {
        if stop.hook_runs {
            self.out.push(Action::CancelHook {
                id: id.into(),
                hook: Hook::PreStop,
            });
        }
    }

    pub(super) fn stop_failed(&mut self, id: &str, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        if let Work::Stopping(stop) = &mut self.containers[i].work {
            let again = now + RETRY;
            stop.stage = Stage::RetryAt(again);
            self.wake_at(again);
        }
    }

    /// A grace that shrinks takes effect at once; one that grows does not (T3).
    pub(super) fn shrink_grace(&mut self, now: Timestamp) {
        let deletion = match self.removed {
            true => Some(0),
            false => self.object.metadata.deletion_grace_period_seconds,
        };
        let given = self.given_grace();
        let Some(ending) = &mut self.ending else { return };
        ending.grace_seconds = grace::effective_seconds(Graces {
            in_force: Some(ending.grace_seconds),
            deletion,
            given,
            pod: None,
        });
        let grace_seconds = ending.grace_seconds;
        self.shorten_barrier();
        for i in 0..self.containers.len() {
            let container = &mut self.containers[i];
            let Some(id) = container.run.as_ref().map(|r| r.id.clone()) else {
                continue;
            };
            let Work::Stopping(stop) = &mut container.work else {
                continue;
            };
            if grace_seconds >= stop.grace_seconds {
                continue;
            }
            stop.grace_seconds = grace_seconds;
            let seconds = stop.left(now).max(1);
            let sooner = now + SignedDuration::from_secs(seconds);
            if let Stage::Term { kill_at } = &mut stop.stage
                && sooner < *kill_at
            {
                *kill_at = sooner;
                self.out.push(Action::StopContainer {
                    id,
                    grace_seconds: seconds,
                });
            }
        }
    }

    fn given_grace(&self) -> Option<i64> {
        self.eviction.as_ref().and_then(|(e, _)| e.grace_seconds)
    }

    /// An eviction that takes longer than it was given, and half as long again, is told (T8).
    fn tell_overrun(&mut self, now: Timestamp) {
        let Some((eviction, since)) = &self.eviction else {
            return;
        };
        if self.told_overrun || !self.containers.iter().any(Container::has_processes) {
            return;
        }
        let pods = self.spec().termination_grace_period_seconds;
        let grace = eviction.grace_seconds.or(pods).unwrap_or(0);
        let most = grace.saturating_add(grace / 2).max(EVICTION_SECONDS_MIN);
        let until = *since + SignedDuration::from_secs(most);
        if now < until {
            return self.wake_at(until);
        }
        self.told_overrun = true;
        self.record(None, true, "ExceededGracePeriod", EXCEEDED_GRACE.into());
    }

    /// Takes the pod's end as far as it goes now.
    pub(super) fn end(&mut self, now: Timestamp) {
        self.end_post_starts(now);
        self.tell_overrun(now);
        for i in 0..self.containers.len() {
            if self.containers[i].running_since().is_some() && self.containers[i].work == Work::None {
                let message = format!("Stopping container {}", self.containers[i].name);
                self.stop(i, StopReason::Pod, message, now);
            }
            self.advance_stop(i, now);
        }
        let busy = |w: &Work| matches!(w, Work::Creating { .. } | Work::Starting { .. });
        if self.containers.iter().any(|c| c.has_processes() || busy(&c.work)) {
            return;
        }
        if self.volumes == Volumes::SettingUp || self.sandbox == Sandbox::Creating {
            return;
        }
        self.containers.iter_mut().for_each(|c| c.work = Work::None);
        let completed = self.ending.as_ref().is_some_and(|e| e.why == Why::Completed);
        let held = self.ending.as_ref().is_some_and(|e| e.held);
        if completed && !held && matches!(self.sandbox, Sandbox::Ready { .. }) {
            // What has run is told before what it ran in is taken away.
            self.tell(now);
        }
        self.take_away();
        let old_ones_stopped = self.old_sandboxes.values().all(|old| *old == Old::Stopped);
        if self.sandbox != Sandbox::Stopped || !old_ones_stopped || self.volumes != Volumes::Gone {
            return;
        }
        let due = self.ending.as_ref().is_some_and(|e| !e.freed);
        if due {
            self.tell_the_end(now);
        }
        self.finish(now);
    }

    /// The last statuses: that nothing runs any more, and what has become of the pod by that.
    fn tell_the_end(&mut self, now: Timestamp) {
        let gone = self.removed;
        // Each is told only if it differs from the one before. First what the node's own hand has ended, …
        if !gone {
            self.tell(now);
        }
        if let Some(ending) = &mut self.ending {
            ending.held = false;
        }
        // … then what has become of the pod, …
        if !gone {
            self.tell(now);
            // Every look at a pod past its deadline says so.
            if self.is_past_deadline() {
                self.record(None, false, "DeadlineExceeded", DEADLINE_EXCEEDED.into());
                self.record(None, false, "DeadlineExceeded", DEADLINE_EXCEEDED.into());
            }
        }
        // … then what never got to run, or was lost.
        if let Some(ending) = &mut self.ending {
            ending.freed = true;
        }
        if !gone {
            self.tell(now);
        }
    }

    /// A hook of a container that has just started has its time, but no longer than the pod has.
    fn end_post_starts(&mut self, now: Timestamp) {
        let Some(deadline) = self
            .ending
            .as_ref()
            .map(|e| e.began + SignedDuration::from_secs(e.grace_seconds))
        else {
            return;
        };
        for i in 0..self.containers.len() {
            if !matches!(self.containers[i].work, Work::PostStart { .. }) {
                continue;
            }
            if now < deadline {
                self.wake_at(deadline);
            } else if let Work::PostStart { run } = std::mem::take(&mut self.containers[i].work) {
                let id = run.id.clone();
                let hook = Hook::PostStart;
                self.out.push(Action::CancelHook { id, hook });
                self.begin_run(i, run, now);
            }
        }
    }

    /// Sandbox and volumes, side by side; and what ran, where nobody will ask for its log.
    fn take_away(&mut self) {
        match self.sandbox.clone() {
            Sandbox::Ready { id, .. } => {
                self.sandbox = Sandbox::Stopping { id: id.clone() };
                self.out.push(Action::StopSandbox { id });
            }
            Sandbox::Wanted { .. } => self.sandbox = Sandbox::Stopped,
            Sandbox::Creating | Sandbox::Lost { .. } | Sandbox::Stopping { .. } | Sandbox::Stopped => {}
        }
        if matches!(self.volumes, Volumes::Ready | Volumes::Wanted { .. }) {
            self.volumes = Volumes::TearingDown;
            self.out.push(Action::TearDownVolumes);
        }
        if !self.wants_removal() {
            return;
        }
        for container in &mut self.containers {
            let exited = container
                .exited()
                .is_some()
                .then(|| container.run.as_ref().map(|r| r.id.clone()))
                .flatten();
            for id in container.remains.drain(..).chain(exited) {
                if !id.is_empty() && !container.taken_away.contains(&id) {
                    container.taken_away.push(id.clone());
                    self.removing.push(id.clone());
                    self.out.push(Action::RemoveContainer { id });
                }
            }
        }
    }

    fn wants_removal(&self) -> bool {
        self.removed || self.object.metadata.deletion_timestamp.is_some()
    }

    /// Nothing runs any more. The records go too, and then the object, if it is to.
    fn finish(&mut self, now: Timestamp) {
        if !self.wants_removal() || !self.removing.is_empty() {
            return;
        }
        if !self.old_sandboxes.is_empty() {
            for id in self.old_sandboxes.keys().cloned().collect::<Vec<_>>() {
                self.removing.push(id.clone());
                self.out.push(Action::RemoveSandbox { id });
            }
            return;
        }
        let removed = self.removed;
        let Some(ending) = &mut self.ending else { return };
        if removed {
            if !ending.forgotten {
                ending.forgotten = true;
                self.out.push(Action::Forget);
            }
            return;
        }
        match ending.final_delete {
            FinalDelete::Sent => {}
            FinalDelete::RetryAt(at) if at > now => self.wake_at(at),
            FinalDelete::NotYet | FinalDelete::RetryAt(_) => {
                ending.final_delete = FinalDelete::Sent;
                self.out.push(Action::FinalDelete);
            }
        }
    }

    pub(super) fn final_delete_failed(&mut self, now: Timestamp) {
        if let Some(ending) = &mut self.ending {
            ending.final_delete = FinalDelete::RetryAt(now + RETRY);
        }
    }
}
