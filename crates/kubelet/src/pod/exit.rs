//! The beginning and the end of a container's run.

use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::ContainerId;

use super::container::{Operation, Run, RunState, Starting};
use super::{Action, Hook, Pod};
use crate::runtime::Exit;

impl Pod {
    /// A container's first process has exited.
    pub(super) fn container_exited(&mut self, id: &ContainerId, exit: Exit, now: Timestamp) {
        let Some(i) = self.by_id(id) else { return };
        let container = &mut self.containers[i];
        match std::mem::take(&mut container.operation) {
            Operation::PostStart { run } if run.id.as_ref() == Some(id) => self.begin_run(i, run, now),
            Operation::Starting(starting) if starting.id == *id => {
                // It exited before `ContainerStarted` arrived: it counts as started.
                container.operation = Operation::Starting(Starting {
                    exit: Some(exit),
                    ..starting
                });
                return;
            }
            Operation::Stopping(stop) => {
                container.restart.stopped_by_node(stop.is_for_restart());
                if stop.hook_runs() {
                    self.out.push(Action::CancelHook {
                        id: id.clone(),
                        hook: Hook::PreStop,
                    });
                }
            }
            operation => container.operation = operation,
        }
        let container = &mut self.containers[i];
        let Some((attempt, terminated)) = container.runs.end(id, &exit, now) else {
            return;
        };
        container.probes.clear();
        let name = container.name.clone();
        self.history.add_termination(&name, attempt, &terminated);
        let code = format!("exit code {}", terminated.exit_code);
        self.add_to_timeline(now, "Exited", Some(&name), Some(code));
        let is_self_fenced = self.restart_if_self_fenced(i, id);
        if self.containers[i].waiting.is_some() && !self.will_restart(i) {
            self.containers[i].waiting = None;
        }
        // The exit of a container that is restarted immediately is not reported: users see the next run. One that fenced
        // itself is, for its next run waits until the node is connected again.
        // Nor is that of the last container reported before the pod's phase, if this node stopped it.
        let last = self.containers[i].restart.is_immediate() && self.is_complete();
        let is_next_run_shown = !is_self_fenced && self.restarts_immediately(i, now);
        if self.termination.is_none() && !last && !is_next_run_shown {
            self.report_status(now);
        }
    }

    /// From here on the run counts as running.
    pub(super) fn begin_run(&mut self, i: usize, run: Run, now: Timestamp) {
        let started_at = match run.state {
            RunState::Running { started_at } => started_at,
            RunState::Exited(_) => now,
        };
        self.containers[i].begin_run(run);
        self.restart_all_started();
        self.make_probes(i, started_at);
    }

    /// Keeps the latest two exited runs (one for `logs --previous`) and removes the others.
    pub(super) fn prune(&mut self) {
        for container in &mut self.containers {
            for id in container.runs.prune() {
                self.removals.container_once(id, &mut self.out);
            }
        }
    }
}
