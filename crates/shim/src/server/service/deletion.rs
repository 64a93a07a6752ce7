//! `Delete`: of a container whose first process has ended (or was never started), or of an exec.
//!
//! It waits a while for the end of the output, which other processes may hold open; then what the OCI runtime keeps of
//! the container is removed (by [`runc`](crate::runc), or by the runtime's program where that does not suffice), and the
//! root file system is unmounted.

use std::time::Duration;

use containerd_shim_protos::api::{DeleteRequest, DeleteResponse};
use containerd_shim_protos::events::task::TaskDelete;
use rustix::io::Errno;

use super::exec::pid_file;
use super::{Answer, Purpose, encode};
use crate::bundle::{DELETED, ROOTFS};
use crate::clock::{Instant, WallTime};
use crate::exits::Exit;
use crate::log;
use crate::mounts;
use crate::runc::Directory;
use crate::runtime::{RuntimeError, Streams};
use crate::server::{Server, Timer};
use crate::task::{Container, Process, Step, pid_number};
use crate::ttrpc::connection::ReplyTo;

/// How long the end of output is waited for; as in Go's shim.
const OUTPUT: Duration = Duration::from_secs(2);
/// An unmount that fails because something is in use is tried so often, so far apart; as in containerd.
const UNMOUNT_ATTEMPTS: u32 = 50;
const UNMOUNT_WAIT: Duration = Duration::from_millis(50);
/// The same for the removal of a sandbox's cgroups: the kernel lets an ended process go a moment later.
const GROUP_WAIT: Duration = Duration::from_millis(5);
/// The exit code of a process whose exit was not seen.
const UNKNOWN: u32 = 255;

impl Server {
    pub(super) fn delete(&mut self, request: &DeleteRequest, reply: ReplyTo) -> Answer {
        let process = self.container(&request.id)?.process(&request.exec_id)?;
        process.begin(Step::Delete)?;
        let waits = process.io.has_output();
        let key = (request.id.clone(), request.exec_id.clone());
        self.deletions.insert(key, reply);
        if waits {
            let timer = Timer::Delete {
                container: request.id.clone(),
                exec: request.exec_id.clone(),
            };
            self.timers.set(Instant::now().after(OUTPUT), timer);
        } else {
            self.delete_now(&request.id, &request.exec_id);
        }
        Ok(None)
    }

    /// The output of a process may have ended, which its deletion may have waited for.
    pub fn delete_if_ended(&mut self, id: &str, exec: &str) {
        if !self.deletions.contains_key(&(id.to_owned(), exec.to_owned())) {
            return;
        }
        let Ok(process) = self.container(id).and_then(|container| container.process(exec)) else {
            return;
        };
        if !process.io.has_output() {
            self.delete_now(id, exec);
        }
    }

    /// Continues a deletion, whether the output has ended or not.
    pub fn delete_now(&mut self, id: &str, exec: &str) {
        let Some(reply) = self.deletions.remove(&(id.to_owned(), exec.to_owned())) else {
            return;
        };
        self.timers.cancel(&Timer::Delete {
            container: id.to_owned(),
            exec: exec.to_owned(),
        });
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if exec.is_empty() {
            if let Some(sandbox) = &container.sandbox {
                // It may not have been started.
                if container.init.exit.is_none() {
                    let _ = rustix::process::kill_process(sandbox.pid, rustix::process::Signal::KILL);
                }
                return self.finish_delete(id, Ok(()), reply);
            }
            if delete_here(id, container) {
                return self.finish_delete(id, Ok(()), reply);
            }
            let (runtime, bundle) = (container.runtime.clone(), container.bundle.clone());
            let purpose = Purpose::Delete(reply);
            let invoked = self.invoke(
                &runtime,
                &bundle,
                id,
                &["delete", id],
                Streams::captured(),
                purpose,
            );
            if let Err((error, _)) = invoked {
                self.finish_delete(id, Err(error), reply);
            }
            return;
        }
        let Some(removed) = container.execs.remove(exec) else {
            return;
        };
        container.bundle.remove(&pid_file(exec));
        let response = delete_response(&removed.process);
        self.release(removed.process);
        self.answer(reply, encode::message(&response));
    }

    pub(super) fn finish_delete(&mut self, id: &str, result: Result<(), RuntimeError>, reply: ReplyTo) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        match result {
            Err(e) if !e.is_absent() => {
                container.init.end(false);
                self.answer(reply, Err(e.during("failed to delete task")));
            }
            _ => {
                self.deletions.insert((id.to_owned(), String::new()), reply);
                self.unmount(id, 0);
            }
        }
    }

    /// Unmounts the root file system of a container that the OCI runtime has deleted, and then forgets it.
    pub fn unmount(&mut self, id: &str, attempt: u32) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if let Some(sandbox) = &container.sandbox
            && let Err(e) = sandbox.remove(&container.bundle)
        {
            if attempt < UNMOUNT_ATTEMPTS {
                let timer = Timer::Unmount {
                    container: id.to_owned(),
                    attempt: attempt + 1,
                };
                self.timers.set(Instant::now().after(GROUP_WAIT), timer);
                return;
            }
            log::error(format_args!("the sandbox's cgroups are left: {e}"), id);
        }
        if container.rootfs {
            let rootfs = container.bundle.join(ROOTFS);
            match mounts::unmount_all(&rootfs) {
                Ok(()) => {}
                Err(Errno::BUSY) if attempt < UNMOUNT_ATTEMPTS => {
                    let timer = Timer::Unmount {
                        container: id.to_owned(),
                        attempt: attempt + 1,
                    };
                    self.timers.set(Instant::now().after(UNMOUNT_WAIT), timer);
                    return;
                }
                Err(e) => {
                    log::warn(
                        format_args!("the root file system is detached, as unmounting fails: {e}"),
                        id,
                    );
                    if let Err(e) = mounts::detach(&rootfs) {
                        log::error(format_args!("the root file system stays mounted: {e}"), id);
                    }
                }
            }
        }
        self.forget(id);
    }

    fn forget(&mut self, id: &str) {
        let Some(container) = self.containers.remove(id) else {
            return;
        };
        self.oom.remove(id);
        self.strays.retain(|stray| stray.container != id);
        let response = delete_response(&container.init);
        // For the command `delete`, which has nothing to do then.
        let written = encode::message(&response).map(|bytes| container.bundle.write(DELETED, &bytes));
        if !matches!(written, Ok(Ok(()))) {
            log::warn("cannot note in the bundle that the container is deleted", id);
        }
        let event = TaskDelete {
            container_id: id.to_owned(),
            pid: response.pid,
            exit_status: response.exit_status,
            exited_at: response.exited_at.clone(),
            ..TaskDelete::default()
        };
        for (_, exec) in container.execs {
            self.release(exec.process);
        }
        self.release(container.init);
        self.publish("/tasks/delete", "containerd.events.TaskDelete", &event);
        if let Some(reply) = self.deletions.remove(&(id.to_owned(), String::new())) {
            self.answer(reply, encode::message(&response));
        }
    }

    /// Closes what a process has open, and answers who still waits for it.
    fn release(&mut self, process: Process) {
        let exit = process.exit.unwrap_or(Exit {
            status: UNKNOWN,
            at: WallTime::now(),
        });
        for reply in process.waiting {
            self.answer(reply, encode::wait_response(exit));
        }
        self.drop_streams(process.io);
    }

    /// Exits if there are no containers (any more); containerd asks after each container of a pod.
    pub(super) fn shutdown(&mut self) -> Answer {
        self.stop_when_unused = self.containers.is_empty();
        encode::empty().map(Some)
    }
}

/// Removes what runc keeps of a container that has ended, if that is all its deletion would do.
fn delete_here(id: &str, container: &Container) -> bool {
    let (true, Some(_), Some(pid)) = (container.plain, container.init.exit, container.init.pid) else {
        return false;
    };
    let deleted = Directory::open(&container.runtime.directory(id), pid).and_then(Directory::delete);
    // Another runtime has no such file.
    if let Err(e) = &deleted
        && e.kind() != std::io::ErrorKind::NotFound
    {
        log::warn(format_args!("the OCI runtime deletes the container: {e}"), id);
    }
    deleted.is_ok()
}

fn delete_response(process: &Process) -> DeleteResponse {
    let mut response = DeleteResponse {
        pid: process.pid.map_or(0, pid_number),
        ..DeleteResponse::default()
    };
    if let Some(exit) = process.exit {
        response.exit_status = exit.status;
        response.exited_at = exit.at.to_message();
    }
    response
}
