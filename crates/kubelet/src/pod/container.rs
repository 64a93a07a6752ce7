//! One container of a pod: what runs, what ran, what is being done about it, and how its end is taken in.

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::k8s_openapi;
use knarr_api::time::seconds;

use super::end::{Stop, StopReason};
use super::{Action, Pod, restart_all};
use crate::backoff::BackOff;
use crate::probe::{self, Probe};
use crate::runtime::Exit;

/// In which list of the spec a container stands, and whether it is a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Init,
    /// An init container that restarts always.
    Sidecar,
    App,
    Ephemeral,
}

impl Role {
    /// For an event's `involvedObject.fieldPath`.
    pub fn field(self) -> &'static str {
        match self {
            Role::Init | Role::Sidecar => "spec.initContainers",
            Role::App => "spec.containers",
            Role::Ephemeral => "spec.ephemeralContainers",
        }
    }
}

/// One run: a container of the runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub id: String,
    /// Where it ran; empty where only the API remembers it.
    pub sandbox: String,
    pub attempt: u32,
    pub state: RunState,
    pub image: String,
    pub image_id: String,
    /// Of the definition it was made from.
    pub hash: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RunState {
    Running { started_at: Timestamp },
    Exited(Box<core::ContainerStateTerminated>),
}

/// What is under way for a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Work {
    #[default]
    None,
    Inspecting,
    Pulling,
    Creating {
        attempt: u32,
    },
    /// Made, but not started (also found so after a restart).
    Created {
        id: String,
        attempt: u32,
    },
    Starting {
        id: String,
        attempt: u32,
    },
    /// It runs, but does not count as running before the hook has ended.
    PostStart {
        run: Run,
    },
    Stopping(Stop),
}

/// A container as the spec names it, over all of its runs.
#[derive(Clone, Debug)]
pub struct Container {
    pub name: String,
    pub role: Role,
    /// The newest run that got as far as running.
    pub run: Option<Run>,
    /// How the run before that ended.
    pub previous: Option<core::ContainerStateTerminated>,
    pub work: Work,
    /// In which sandbox its newest run, or the run being made, is.
    pub(super) sandbox: String,
    /// Shown instead of how the newest run ended, where it will be tried again: reason and message.
    pub waiting: Option<(&'static str, String)>,
    /// Not before then, after a failure that is no exit.
    pub(super) retry_at: Option<Timestamp>,
    pub(super) retries: u32,
    pub(super) crash: BackOff,
    pub(super) pull: BackOff,
    pub(super) pull_failed: Option<(Timestamp, String)>,
    /// When back-off was last told of, so that each wait is told once.
    pub(super) told_back_off: Option<Timestamp>,
    /// Not shown as being in back-off yet; it is then, if nothing else happens before.
    pub(super) show_back_off_at: Option<Timestamp>,
    pub probes: Vec<Probe>,
    /// How far the clock has jumped since the times of the newest run were told, and those of the run before it.
    pub(super) run_off: SignedDuration,
    pub(super) previous_off: SignedDuration,
    /// Runs made so far, by what the runtime and the API remember.
    pub(super) attempts: u32,
    /// Ended runs that are still there, oldest first.
    pub(super) remains: Vec<String>,
    /// As in the spec now.
    pub(super) hash: String,
    /// It ended before its start was answered.
    pub(super) early_exit: Option<Exit>,
    /// What it was doing by the API's memory, until the runtime has been looked at.
    pub(super) lost: Option<Run>,
    /// The newest run was ended by this node, for the container's own sake.
    pub(super) ended_here: bool,
    /// Ended to run again, whatever the policy says.
    pub(super) anew: bool,
    /// A probe has found the newest run not worth going on, and there will be no other.
    pub(super) given_up: bool,
    /// What the node has set aside for it, and what its newest run really has.
    pub(super) allocated: Option<core::ResourceRequirements>,
    pub(super) actual: Option<core::ResourceRequirements>,
    /// Its runs that were removed at the pod's end.
    pub(super) taken_away: Vec<String>,
}

impl Container {
    pub(super) fn new(name: String, role: Role) -> Self {
        Container {
            name,
            role,
            run: None,
            previous: None,
            work: Work::None,
            sandbox: String::new(),
            waiting: None,
            retry_at: None,
            retries: 0,
            crash: BackOff::default(),
            pull: BackOff::default(),
            pull_failed: None,
            told_back_off: None,
            run_off: SignedDuration::ZERO,
            previous_off: SignedDuration::ZERO,
            show_back_off_at: None,
            probes: Vec::new(),
            attempts: 0,
            remains: Vec::new(),
            hash: String::new(),
            early_exit: None,
            lost: None,
            ended_here: false,
            anew: false,
            given_up: false,
            allocated: None,
            actual: None,
            taken_away: Vec::new(),
        }
    }

    /// The spec says something else now. What did not work before is no reason to wait: each definition has its own
    /// back-off, each image too.
    pub(super) fn redefine(&mut self, hash: String) {
        if self.hash == hash {
            return;
        }
        self.hash = hash;
        self.crash.reset();
        self.pull.reset();
        self.pull_failed = None;
        self.retry_at = None;
        self.retries = 0;
    }

    /// Whether this is the id of its newest run, or of the run being made.
    pub(super) fn is(&self, id: &str) -> bool {
        self.run.as_ref().is_some_and(|r| r.id == id)
            || match &self.work {
                Work::Created { id: i, .. } | Work::Starting { id: i, .. } => i == id,
                Work::PostStart { run } => run.id == id,
                _ => false,
            }
    }

    pub fn running_since(&self) -> Option<Timestamp> {
        match self.run.as_ref()?.state {
            RunState::Running { started_at } => Some(started_at),
            RunState::Exited(_) => None,
        }
    }

    pub fn exited(&self) -> Option<&core::ContainerStateTerminated> {
        match &self.run.as_ref()?.state {
            RunState::Exited(t) => Some(t),
            RunState::Running { .. } => None,
        }
    }

    /// Whether processes of it may be there, or are about to be.
    pub fn has_processes(&self) -> bool {
        self.running_since().is_some() || matches!(self.work, Work::Starting { .. } | Work::PostStart { .. })
    }

    /// Whether the container is on its way to running.
    pub(super) fn is_starting(&self) -> bool {
        matches!(
            self.work,
            Work::Inspecting
                | Work::Pulling
                | Work::Creating { .. }
                | Work::Starting { .. }
                | Work::PostStart { .. }
        )
    }

    fn probe_result(&self, kind: probe::Kind) -> Option<Option<bool>> {
        self.probes.iter().find(|p| p.kind == kind).map(|p| p.result)
    }

    /// Running, its hook done, and its startup probe (if any) passed.
    pub fn started(&self) -> bool {
        self.running_since().is_some()
            && self
                .probe_result(probe::Kind::Startup)
                .is_none_or(|result| result == Some(true))
    }

    /// As `status.containerStatuses[].ready`.
    pub fn ready(&self) -> bool {
        match self.role {
            Role::Init => self.exited().is_some_and(|t| t.exit_code == 0) || restart_all::is_removed(self),
            Role::Ephemeral => false,
            Role::Sidecar | Role::App => {
                self.started()
                    && self
                        .probe_result(probe::Kind::Readiness)
                        .is_none_or(|result| result == Some(true))
            }
        }
    }
}

/// Identifies a definition: what changes of it need a new container (name and image, as in Kubernetes).
pub fn definition_hash(container: &core::Container) -> String {
    let image = container.image.as_deref().unwrap_or("");
    // FNV-1a, 32 bits: short, and the same everywhere.
    let hash = format!("{}\0{image}", container.name)
        .bytes()
        .fold(0x811c_9dc5_u32, |h, b| {
            (h ^ u32::from(b)).wrapping_mul(0x0100_0193)
        });
    format!("{hash:x}")
}

/// An ephemeral container is a container with fewer fields.
pub fn ephemeral_as_container(e: &core::EphemeralContainer) -> core::Container {
    core::Container {
        args: e.args.clone(),
        command: e.command.clone(),
        env: e.env.clone(),
        env_from: e.env_from.clone(),
        image: e.image.clone(),
        image_pull_policy: e.image_pull_policy.clone(),
        name: e.name.clone(),
        resources: e.resources.clone(),
        security_context: e.security_context.clone(),
        stdin: e.stdin,
        stdin_once: e.stdin_once,
        termination_message_path: e.termination_message_path.clone(),
        termination_message_policy: e.termination_message_policy.clone(),
        tty: e.tty,
        volume_devices: e.volume_devices.clone(),
        volume_mounts: e.volume_mounts.clone(),
        working_dir: e.working_dir.clone(),
        ..core::Container::default()
    }
}

/// The container of this name, whichever list it is in.
pub fn find_spec<'a>(spec: &'a core::PodSpec, name: &str) -> Option<std::borrow::Cow<'a, core::Container>> {
    use std::borrow::Cow;
    let listed = spec.init_containers.iter().flatten().chain(&spec.containers);
    listed
        .into_iter()
        .find(|c| c.name == name)
        .map(Cow::Borrowed)
        .or_else(|| {
            let ephemeral = spec.ephemeral_containers.iter().flatten();
            ephemeral
                .into_iter()
                .find(|c| c.name == name)
                .map(|c| Cow::Owned(ephemeral_as_container(c)))
        })
}

/// What brings a time that the clock has not reached to now: it was set back since.
pub(super) fn behind(told: Option<&Time>, now: Timestamp) -> SignedDuration {
    told.map_or(SignedDuration::ZERO, |at| {
        now.duration_since(at.0).min(SignedDuration::ZERO)
    })
}

/// An end of which there is no record.
pub(super) fn lost_without_a_trace() -> core::ContainerStateTerminated {
    core::ContainerStateTerminated {
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".into()),
        message: Some("The container could not be located when the pod was terminated".into()),
        ..core::ContainerStateTerminated::default()
    }
}

pub(super) fn terminated(
    id: &str,
    exit: &Exit,
    started_at: Option<Timestamp>,
) -> core::ContainerStateTerminated {
    core::ContainerStateTerminated {
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

impl Pod {
    pub(super) fn make_probes(&mut self, i: usize, started_at: Timestamp) {
        let Some(spec) = find_spec(self.spec(), &self.containers[i].name) else {
            return;
        };
        let probes = [
            (probe::Kind::Startup, &spec.startup_probe),
            (probe::Kind::Liveness, &spec.liveness_probe),
            (probe::Kind::Readiness, &spec.readiness_probe),
        ];
        let probes = probes
            .into_iter()
            .filter_map(|(kind, spec)| {
                let since = self.probing_since.unwrap_or(started_at);
                Some(Probe::new(kind, spec.as_ref()?, started_at, since))
            })
            .collect();
        if matches!(self.containers[i].role, Role::Sidecar | Role::App) {
            self.containers[i].probes = probes;
        }
    }

    /// A container's first process has ended.
    pub(super) fn container_exited(&mut self, id: &str, exit: Exit, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        let container = &mut self.containers[i];
        match std::mem::take(&mut container.work) {
            Work::PostStart { run } if run.id == id => self.begin_run(i, run, now),
            Work::Starting {
                id: starting,
                attempt,
            } if starting == id => {
                // It ended before its start was answered: take it as started.
                container.work = Work::Starting {
                    id: starting,
                    attempt,
                };
                container.early_exit = Some(exit);
                return;
            }
            Work::Stopping(stop) => {
                self.containers[i].ended_here =
                    matches!(stop.reason, StopReason::Probe(_) | StopReason::Changed);
                self.stop_answered(stop, id);
            }
            work => container.work = work,
        }
        let container = &mut self.containers[i];
        let Some(run) = &mut container.run else { return };
        if run.id != id {
            return;
        }
        let RunState::Running { started_at } = run.state else {
            return;
        };
        let mut end = terminated(id, &exit, Some(started_at));
        end.finished_at.get_or_insert_with(|| seconds(now));
        let (attempt, ended) = (run.attempt, end.clone());
        run.state = RunState::Exited(Box::new(end));
        container.run_off = behind(ended.finished_at.as_ref(), now);
        container.probes.clear();
        let name = container.name.clone();
        self.remember_end(&name, attempt, &ended);
        let code = format!("exit code {}", ended.exit_code);
        self.moment(now, "Exited", Some(&name), Some(code));
        let container = &mut self.containers[i];
        if container.waiting.is_some() && !self.restarts(i) {
            self.containers[i].waiting = None;
        }
        // One that runs again at once has not been away: users see the next run.
        // Nor is a last one told apart from the pod's end, where this node has made both.
        let last = self.containers[i].ended_here && self.is_complete();
        if self.ending.is_none() && !last && !self.restarts_at_once(i, now) {
            self.tell(now);
        }
    }

    /// A run counts as running from here on.
    pub(super) fn begin_run(&mut self, i: usize, run: Run, now: Timestamp) {
        let started_at = match run.state {
            RunState::Running { started_at } => started_at,
            RunState::Exited(_) => now,
        };
        let container = &mut self.containers[i];
        if let Some(old) = container.run.take() {
            if let RunState::Exited(t) = old.state {
                container.previous = Some(*t);
            }
            if !old.id.is_empty() {
                container.remains.push(old.id);
            }
        }
        container.attempts = run.attempt + 1;
        container.run = Some(run);
        container.previous_off = std::mem::take(&mut container.run_off);
        container.ended_here = false;
        container.anew = false;
        container.given_up = false;
        container.show_back_off_at = None;
        container.waiting = None;
        container.retries = 0;
        container.retry_at = None;
        self.restart_all_begun();
        self.make_probes(i, started_at);
    }

    /// Of the ended runs, the newest two are kept (one for `logs --previous`), the others go.
    pub(super) fn prune(&mut self) {
        for container in &mut self.containers {
            while container.remains.len() > 1 {
                let id = container.remains.remove(0);
                if !self.removing.contains(&id) {
                    self.removing.push(id.clone());
                    self.out.push(Action::RemoveContainer { id });
                }
            }
        }
    }

    /// Asks what is due, and sees to it that it is woken for the next.
    pub(super) fn probe(&mut self, now: Timestamp) {
        let mut asks = Vec::new();
        let mut wake = Vec::new();
        // Those that begin together are shown running together, and only then is the first of them ready.
        let begins = |c: &Container| {
            let is_under_way = matches!(
                c.work,
                Work::Inspecting | Work::Creating { .. } | Work::Created { .. } | Work::Starting { .. }
            );
            c.role == Role::App && c.run.is_none() && is_under_way
        };
        let begins = self.containers.iter().any(begins);
        for container in &mut self.containers {
            let Some(run) = &container.run else { continue };
            let (id, name) = (run.id.clone(), container.name.clone());
            if container.running_since().is_none() {
                continue;
            }
            let started = container.started();
            // While it is ended, only readiness is still of interest.
            let stopping = matches!(container.work, Work::Stopping(_)) || self.ending.is_some();
            for probe in &mut container.probes {
                let held = match probe.kind {
                    probe::Kind::Startup => started || stopping,
                    probe::Kind::Liveness => !started || stopping,
                    probe::Kind::Readiness => !started || begins && container.role == Role::App,
                };
                probe.hold(held, now);
                if held {
                    continue;
                }
                if probe.due(now) {
                    asks.push(Action::Probe {
                        container: name.clone(),
                        id: id.clone(),
                        kind: probe.kind,
                    });
                } else if let (Some(at), false) = (probe.next_at, probe.asking) {
                    wake.push(at);
                }
            }
        }
        self.out.append(&mut asks);
        wake.into_iter().for_each(|at| self.wake_at(at));
    }

    pub(super) fn probed(&mut self, id: &str, kind: probe::Kind, answer: probe::Answer, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        let Some(probe) = self.containers[i].probes.iter_mut().find(|p| p.kind == kind) else {
            return;
        };
        let changed = probe.answer(&answer);
        let title = kind.title();
        let told = match &answer {
            probe::Answer::Success => None,
            probe::Answer::Warning(heard) => {
                Some(("ProbeWarning", format!("{title} probe warning: {heard}")))
            }
            probe::Answer::Failure(heard) => Some(("Unhealthy", format!("{title} probe failed: {heard}"))),
            probe::Answer::Unknown(why) => Some((
                "Unhealthy",
                format!("{title} probe errored and resulted in unknown state: {why}"),
            )),
        };
        if let Some((reason, message)) = told {
            self.record(Some(i), true, reason, message);
        }
        match changed {
            Some(false) if kind != probe::Kind::Readiness && self.ending.is_none() => {
                self.stop_unhealthy(i, kind, now);
            }
            // Who is still told apart by it takes no traffic from a pod that winds down.
            Some(_) if kind == probe::Kind::Readiness || self.ending.is_none() => self.tell(now),
            _ => {}
        }
    }
}

/// The status the API has of a container.
pub(super) fn status_of<'a>(
    status: &'a core::PodStatus,
    container: &Container,
) -> Option<&'a core::ContainerStatus> {
    let list = match container.role {
        Role::Init | Role::Sidecar => &status.init_container_statuses,
        Role::App => &status.container_statuses,
        Role::Ephemeral => &status.ephemeral_container_statuses,
    };
    list.iter().flatten().find(|s| s.name == container.name)
}
