//! What follows from the exit of a child: of a container's process, or of an invocation of the OCI runtime.

use containerd_shim_protos::events::task::{TaskExit, TaskOOM};
use nix::libc;
use rustix::process::{Pid, Signal};

use super::Server;
use crate::cgroup::signal::Signalled;
use crate::exits::{self, Exit};
use crate::log;
use crate::runtime::Streams;
use crate::server::service::Purpose;
use crate::server::service::encode::wait_response;
use crate::stdio::Stream;
use crate::task::{State, pid_number};

impl Server {
    pub(super) fn take_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            match i32::try_from(signal.ssi_signo) {
                Ok(libc::SIGTERM | libc::SIGINT) => {
                    log::warn(
                        "exiting on a signal; containers are left to containerd's cleanup",
                        "",
                    );
                    self.stop();
                }
                _ => self.reap(),
            }
        }
    }

    /// Takes a batch of exits; others wait for the next turn. Those of containers' processes come first: when the invocation that started
    /// a process is finished, the process's exit is known, or is as one that comes later.
    pub(super) fn reap(&mut self) {
        let mut finished = Vec::new();
        let exits = exits::reap();
        self.more_exits = exits.len() == exits::BATCH;
        for (pid, exit) in exits {
            match self.under_way.remove(&pid.as_raw_nonzero().get()) {
                Some(under_way) => finished.push((under_way, exit)),
                None => match self.find(pid) {
                    Some((container, exec)) => self.exited(&container, &exec, exit),
                    // Of a process that an invocation is about to name, or an orphan of no concern.
                    None => self.unclaimed.keep(pid, exit),
                },
            }
        }
        for (under_way, exit) in finished {
            let result = under_way.invocation.finish(&under_way.bundle, exit);
            self.finish(&under_way.container, under_way.purpose, result);
        }
        if !self
            .under_way
            .values()
            .any(|under_way| under_way.purpose.starts_process())
            && self.awaiting.sandboxes.is_empty()
        {
            self.unclaimed.forget();
        }
    }

    fn find(&self, pid: Pid) -> Option<(String, String)> {
        let mut containers = self.containers.iter();
        containers.find_map(|(id, container)| Some((id.clone(), container.find(pid)?.to_owned())))
    }

    /// A process has become known. It may have exited before.
    pub fn claim(&mut self, pid: Pid, container: &str, exec: &str) {
        match self.unclaimed.claim(pid) {
            // That was an orphan which had the same id before.
            Some(_) if exits::is_child(pid) => {}
            Some(exit) => self.exited(container, exec, exit),
            None => {}
        }
    }

    /// A container's process has exited.
    fn exited(&mut self, id: &str, exec: &str, exit: Exit) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Ok(process) = container.process(exec) else {
            return;
        };
        if let Some(exit) = process.exited(exit) {
            self.ended(id, exec, exit);
        } else if exec.is_empty() {
            self.end_release(id);
        }
    }

    /// A process has exited and no step is under way. Without a PID namespace of its own, a container's other processes
    /// are killed before the exit of its first one is reported.
    pub fn ended(&mut self, id: &str, exec: &str, exit: Exit) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if !exec.is_empty() {
            return self.report(id, exec, exit);
        }
        let (runtime, bundle) = (container.runtime.clone(), container.bundle.clone());
        // A sandbox of the shim's has no other processes.
        if container.init.state == State::Paused && container.sandbox.is_none() {
            // Frozen processes would not die.
            let resume = ["resume", id];
            if let Err((e, _)) = self.invoke(
                &runtime,
                &bundle,
                id,
                &resume,
                Streams::captured(),
                Purpose::Resume(None),
            ) {
                log::warn(e, id);
            }
        }
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.own_pid_namespace {
            return self.report(id, exec, exit);
        }
        let signalled = container
            .cgroup
            .as_ref()
            .map(|cgroup| cgroup.signal_all(Signal::KILL));
        if matches!(signalled, Some(Ok(Signalled::All))) {
            return self.report(id, exec, exit);
        }
        container.init.hold(exit);
        let kill = ["kill", "--all", id, "9"];
        if let Err((e, _)) = self.invoke(&runtime, &bundle, id, &kill, Streams::captured(), Purpose::End) {
            log::error(format_args!("cannot kill what the container has left: {e}"), id);
            self.report(id, exec, exit);
        }
    }

    /// Publishes an exit, and answers the requests that wait for it.
    pub fn report(&mut self, id: &str, exec: &str, exit: Exit) {
        if exec.is_empty() && self.oom.take(id) {
            self.publish_oom(id);
        }
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Ok(process) = container.process(exec) else {
            return;
        };
        let waiting = process.stop(exit);
        let pid = process.pid.map_or(0, pid_number);
        let output = |(stream, number): &(Stream, u32)| (*stream != Stream::Stdin).then_some(*number);
        let terminal: Vec<u32> = match process.io.console {
            Some(_) => process.io.copies.iter().filter_map(output).collect(),
            None => Vec::new(),
        };
        let event = TaskExit {
            container_id: id.to_owned(),
            id: if exec.is_empty() { id } else { exec }.to_owned(),
            pid,
            exit_status: exit.status,
            exited_at: exit.at.to_message(),
            ..TaskExit::default()
        };
        self.publish("/tasks/exit", "containerd.events.TaskExit", &event);
        for reply in waiting {
            self.answer(reply, wait_response(exit));
        }
        for number in terminal {
            self.finish_stream(number);
        }
    }

    pub(super) fn publish_oom(&mut self, id: &str) {
        let event = TaskOOM {
            container_id: id.to_owned(),
            ..TaskOOM::default()
        };
        self.publish("/tasks/oom", "containerd.events.TaskOOM", &event);
    }
}
