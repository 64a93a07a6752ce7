//! The runs of one container: the latest, the one before, and exited ones that the runtime still has.

use k8s_openapi::api::core::v1::ContainerStateTerminated;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_apimachinery::time::seconds;

use crate::pod::clock_jump::moved;
use crate::runtime::Exit;

/// The exit code of a run whose own is not known, or that was killed.
const KILLED: i32 = 137;
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
const STATUS_UNKNOWN_MESSAGE: &str = "The container could not be located when the pod was terminated";

/// One run of a container: a container of the runtime.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pod) struct Run {
    /// `None` if its container was removed for a restart in place, or is not known.
    pub id: Option<ContainerId>,
    /// `None` if the run is known from the API's status only.
    pub sandbox: Option<SandboxId>,
    pub attempt: u32,
    pub state: RunState,
    pub image: String,
    pub image_id: String,
    /// [`super::definition_hash`] of the container that it was created from.
    pub hash: String,
}

/// Whether a run is running or has exited.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::pod) enum RunState {
    Running { started_at: Timestamp },
    Exited(Box<ContainerStateTerminated>),
}

impl Run {
    pub(in crate::pod) fn exited(&self) -> Option<&ContainerStateTerminated> {
        match &self.state {
            RunState::Exited(terminated) => Some(terminated),
            RunState::Running { .. } => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(in crate::pod) struct Runs {
    /// The latest run that was started.
    latest: Option<Run>,
    /// The termination of the run before (`lastState`).
    previous: Option<ContainerStateTerminated>,
    /// The run that the API's status reports as running, until the runtime was listed for the first time.
    reported: Option<Run>,
    /// The sandbox of the latest run, or of the run that is being started.
    sandbox: Option<SandboxId>,
    /// The number of runs so far, by the runtime and the API's status: the next run's attempt.
    attempts: u32,
    /// Ids of exited runs that the runtime still has, oldest first.
    dead: Vec<ContainerId>,
    /// Ids of runs that were removed in the pod's termination.
    removed: Vec<ContainerId>,
    /// By how much the clock has jumped since the times of the latest run were recorded.
    clock_offset: SignedDuration,
    /// The same for the run before it.
    previous_clock_offset: SignedDuration,
}

impl Runs {
    pub(in crate::pod) fn latest(&self) -> Option<&Run> {
        self.latest.as_ref()
    }

    pub(in crate::pod) fn latest_id(&self) -> Option<&ContainerId> {
        self.latest.as_ref()?.id.as_ref()
    }

    /// When the latest run started, if that is running.
    pub(in crate::pod) fn running_since(&self) -> Option<Timestamp> {
        match self.latest.as_ref()?.state {
            RunState::Running { started_at } => Some(started_at),
            RunState::Exited(_) => None,
        }
    }

    /// The termination of the latest run, if that has exited.
    pub(in crate::pod) fn exited(&self) -> Option<&ContainerStateTerminated> {
        self.latest.as_ref()?.exited()
    }

    /// The termination of the run before.
    pub(in crate::pod) fn previous(&self) -> Option<&ContainerStateTerminated> {
        self.previous.as_ref()
    }

    pub(in crate::pod) fn next_attempt(&self) -> u32 {
        self.attempts
    }

    /// The sandbox of the latest run, or of the run that is being started.
    pub(in crate::pod) fn sandbox(&self) -> Option<&SandboxId> {
        self.sandbox.as_ref()
    }

    /// Whether the latest run was created from an earlier definition than this one.
    pub(in crate::pod) fn is_of_other_definition(&self, hash: &str) -> bool {
        self.latest
            .as_ref()
            .is_some_and(|run| !run.hash.is_empty() && run.hash != hash)
    }

    /// When the latest run ended, or with `of_previous` the one before, by the present clock.
    pub(in crate::pod) fn ended(&self, of_previous: bool, now: Timestamp) -> Option<Timestamp> {
        let (end, offset) = match of_previous {
            true => (self.previous()?, self.previous_clock_offset),
            false => (self.exited()?, self.clock_offset),
        };
        Some(end.finished_at.as_ref().map_or(now, |t| moved(t.0, offset)))
    }

    /// A run is being started in this sandbox.
    pub(in crate::pod) fn start_in(&mut self, sandbox: SandboxId) {
        self.sandbox = Some(sandbox);
    }

    /// A new run has started; the one before it has exited.
    pub(in crate::pod) fn begin(&mut self, run: Run) {
        self.attempts = run.attempt + 1;
        if let Some(old) = self.latest.replace(run) {
            if let RunState::Exited(terminated) = old.state {
                self.previous = Some(*terminated);
            }
            self.dead.extend(old.id);
        }
        self.previous_clock_offset = std::mem::take(&mut self.clock_offset);
    }

    /// The latest run has exited. Returns its attempt and its termination if it was running.
    pub(in crate::pod) fn end(
        &mut self,
        id: &ContainerId,
        exit: &Exit,
        now: Timestamp,
    ) -> Option<(u32, ContainerStateTerminated)> {
        let run = self.latest.as_mut().filter(|run| run.id.as_ref() == Some(id))?;
        let RunState::Running { started_at } = run.state else {
            return None;
        };
        let mut end = terminated(id, exit, Some(started_at));
        end.finished_at.get_or_insert_with(|| seconds(now));
        run.state = RunState::Exited(Box::new(end.clone()));
        self.clock_offset = offset_to_now(end.finished_at.as_ref(), now);
        Some((run.attempt, end))
    }

    /// A container that was created and is not started any more.
    pub(in crate::pod) fn add_dead(&mut self, id: ContainerId) {
        self.dead.push(id);
    }

    pub(in crate::pod) fn is_dead(&self, id: &ContainerId) -> bool {
        self.dead.contains(id)
    }

    /// All exited runs before the latest, except the newest of them (for `logs --previous`).
    pub(in crate::pod) fn prune(&mut self) -> Vec<ContainerId> {
        let kept = self.dead.len().min(1);
        let kept = self.dead.split_off(self.dead.len() - kept);
        std::mem::replace(&mut self.dead, kept)
    }

    /// The ids of exited runs that the runtime still has, each once.
    pub(in crate::pod) fn take_unremoved(&mut self) -> Vec<ContainerId> {
        let exited = self.exited().and(self.latest_id()).cloned();
        let mut ids: Vec<ContainerId> = self.dead.drain(..).chain(exited).collect();
        ids.retain(|id| {
            let is_new = !self.removed.contains(id);
            if is_new {
                self.removed.push(id.clone());
            }
            is_new
        });
        ids
    }

    /// The latest run is removed so that the container starts from the beginning: it counts as ended in this way, outside
    /// of the current sandbox, and the restart is counted from now on. Returns the ids of all runs that the runtime has.
    pub(in crate::pod) fn discard(
        &mut self,
        terminated: ContainerStateTerminated,
    ) -> Option<Vec<ContainerId>> {
        let run = self.latest.as_mut()?;
        run.state = RunState::Exited(Box::new(terminated));
        run.attempt = self.attempts;
        run.sandbox = None;
        let id = run.id.take();
        Some(self.dead.drain(..).chain(id).collect())
    }

    /// Of a container that this kubelet starts to manage, by its status in the API.
    pub(in crate::pod) fn recall(
        &mut self,
        restart_count: u32,
        previous: Option<ContainerStateTerminated>,
        exited: Option<Run>,
        running: Option<Run>,
    ) {
        let has_run = exited.is_some() || running.is_some() || previous.is_some();
        self.attempts = restart_count + u32::from(has_run);
        self.previous = previous;
        self.latest = exited;
        self.reported = running;
    }

    /// The runtime was listed: a run that the API's status reports as running and that is not listed has exited.
    pub(in crate::pod) fn settle_reported(&mut self, is_idle: bool) {
        let reported = self.reported.take();
        if self.latest.is_none() && is_idle {
            self.latest = reported;
        }
    }

    /// Whether nothing is known of any run.
    pub(in crate::pod) fn are_unknown(&self) -> bool {
        self.latest.is_none() && self.reported.is_none()
    }

    /// The run took place, although neither the runtime nor the API's status knows it.
    pub(in crate::pod) fn assume(&mut self, run: Run) {
        self.latest = Some(run);
    }

    /// The runtime has a container of this attempt.
    pub(in crate::pod) fn observe_attempt(&mut self, attempt: u32) {
        self.attempts = self.attempts.max(attempt + 1);
    }

    /// The runtime lists the latest run, in this sandbox.
    pub(in crate::pod) fn observe_sandbox(&mut self, sandbox: &SandboxId) {
        if let Some(run) = &mut self.latest {
            run.sandbox = Some(sandbox.clone());
        }
    }

    /// A kubelet that has just started finds a container in this sandbox, and older ones.
    pub(in crate::pod) fn find(&mut self, sandbox: &SandboxId, older: Vec<ContainerId>) {
        self.sandbox = Some(sandbox.clone());
        self.dead = older;
    }

    /// The found container was started.
    pub(in crate::pod) fn adopt(
        &mut self,
        run: Run,
        previous: Option<ContainerStateTerminated>,
        now: Timestamp,
    ) {
        if let Some(end) = run.exited() {
            self.clock_offset = offset_to_now(end.finished_at.as_ref(), now);
        }
        self.latest = Some(run);
        self.previous = previous.or_else(|| self.previous.take());
    }

    /// The found container was not started.
    pub(in crate::pod) fn adopt_created(&mut self, attempt: u32) {
        self.attempts = attempt;
    }

    /// A recorded time of the latest run by the present clock.
    pub(in crate::pod) fn by_present_clock(&self, at: Timestamp) -> Timestamp {
        moved(at, self.clock_offset)
    }

    pub(in crate::pod) fn clock_jumped(&mut self, by: SignedDuration) {
        self.clock_offset += by;
        self.previous_clock_offset += by;
    }
}

/// The offset from a recorded time that is in the future to `now`: the clock was set back since. Zero for other times.
fn offset_to_now(recorded: Option<&Time>, now: Timestamp) -> SignedDuration {
    recorded.map_or(SignedDuration::ZERO, |at| {
        now.duration_since(at.0).min(SignedDuration::ZERO)
    })
}

/// The termination of a run that the runtime does not have any more.
pub(in crate::pod) fn container_status_unknown() -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: KILLED,
        reason: Some(STATUS_UNKNOWN.into()),
        message: Some(STATUS_UNKNOWN_MESSAGE.into()),
        ..ContainerStateTerminated::default()
    }
}

/// The same as an exit, found now.
pub(in crate::pod) fn exit_unknown(started_at: Timestamp, now: Timestamp) -> Exit {
    Exit {
        code: KILLED,
        reason: STATUS_UNKNOWN.into(),
        message: STATUS_UNKNOWN_MESSAGE.into(),
        started_at: Some(started_at),
        finished_at: Some(now),
    }
}

pub(in crate::pod) fn terminated(
    id: &ContainerId,
    exit: &Exit,
    started_at: Option<Timestamp>,
) -> ContainerStateTerminated {
    ContainerStateTerminated {
        container_id: Some(format!("containerd://{id}")),
        exit_code: exit.code,
        finished_at: exit.finished_at.map(seconds),
        message: (!exit.message.is_empty()).then(|| exit.message.clone()),
        reason: Some(match exit.reason.as_str() {
            "" if exit.code == 0 => "Completed".to_string(),
            "" => "Error".to_string(),
            reason => reason.to_string(),
        }),
        signal: None,
        started_at: exit.started_at.or(started_at).map(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(id: &str, attempt: u32) -> Run {
        Run {
            id: Some(id.into()),
            sandbox: Some("s".into()),
            attempt,
            state: RunState::Running {
                started_at: Timestamp::UNIX_EPOCH,
            },
            image: String::new(),
            image_id: String::new(),
            hash: String::new(),
        }
    }

    #[test]
    fn l5_the_ends_of_the_last_two_runs_move_with_the_clock() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let exited_at = |second| Exit {
            finished_at: Some(at(second)),
            ..Exit::default()
        };
        let mut runs = Runs::default();
        runs.begin(run("c0", 0));
        assert!(runs.end(&"c0".into(), &exited_at(100), at(100)).is_some());
        runs.begin(run("c1", 1));
        assert!(runs.end(&"c1".into(), &exited_at(200), at(200)).is_some());
        runs.clock_jumped(SignedDuration::from_secs(1000));
        assert_eq!(runs.ended(true, at(1300)), Some(at(1100)));
        assert_eq!(runs.ended(false, at(1300)), Some(at(1200)));
    }

    #[test]
    fn l5_an_end_in_the_future_counts_as_now() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (finished_at, ended) in [(60, 60), (100, 100), (3700, 100)] {
            let exit = Exit {
                finished_at: Some(at(finished_at)),
                ..Exit::default()
            };
            let mut runs = Runs::default();
            runs.begin(run("c0", 0));
            assert!(runs.end(&"c0".into(), &exit, at(100)).is_some());
            assert_eq!(runs.ended(false, at(100)), Some(at(ended)), "{finished_at}");
        }
    }

    #[test]
    fn l13_each_exited_run_is_removed_once_and_one_is_kept_for_the_previous_logs() {
        let (mut runs, now) = (Runs::default(), Timestamp::UNIX_EPOCH);
        let exit = Exit::default();
        for attempt in 0..4 {
            let id = format!("c{attempt}");
            runs.begin(run(&id, attempt));
            assert_eq!(runs.next_attempt(), attempt + 1);
            assert!(runs.end(&id.as_str().into(), &exit, now).is_some());
            assert!(
                runs.end(&id.as_str().into(), &exit, now).is_none(),
                "it has exited already"
            );
        }
        assert_eq!(runs.prune(), ["c0", "c1"]);
        assert!(runs.prune().is_empty());
        assert_eq!(runs.take_unremoved(), ["c2", "c3"]);
        assert!(runs.take_unremoved().is_empty());
    }
}
