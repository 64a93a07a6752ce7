//! A sandbox that the shim makes itself: creation, start, pause and update. If it cannot be made, the OCI runtime
//! is asked; what was made here the runtime does not know, so it is not asked for the rest.

use std::rc::Rc;

use super::create::Creating;
use super::{Answer, encode};
use crate::bundle::{Bundle, INIT_PID};
use crate::cgroup::Cgroup;
use crate::cgroup::v1::Groups;
use crate::error::Failure;
use crate::log;
use crate::poll::{Interest, Source};
use crate::runtime::{RuntimeError, Streams};
use crate::sandbox::resources::Resources;
use crate::sandbox::{Report, Sandbox};
use crate::server::Server;
use crate::task::{Container, Step};
use crate::ttrpc::connection::ReplyTo;

/// A sandbox whose process is to report.
pub enum Awaited {
    Creation {
        creating: Box<Creating>,
        sandbox: Rc<Sandbox>,
        reply: ReplyTo,
    },
    Start {
        container: String,
        sandbox: Rc<Sandbox>,
        reply: ReplyTo,
    },
}

impl Awaited {
    pub fn container(&self) -> &str {
        match self {
            Awaited::Creation { creating, .. } => creating.id(),
            Awaited::Start { container, .. } => container,
        }
    }

    fn sandbox(&self) -> &Sandbox {
        match self {
            Awaited::Creation { sandbox, .. } | Awaited::Start { sandbox, .. } => sandbox,
        }
    }
}

impl Server {
    /// Begins a sandbox. Returns the container if the OCI runtime is to make it.
    pub(super) fn create_sandbox(&mut self, mut creating: Creating, reply: ReplyTo) -> Option<Creating> {
        let Some(plan) = creating.take_plan() else {
            return Some(creating);
        };
        let made = Sandbox::create(&plan, creating.bundle(), creating.id(), !creating.keeps_keyring());
        let sandbox = match made {
            Ok(sandbox) => Rc::new(sandbox),
            Err(e) => {
                log::warn(
                    format_args!("the OCI runtime makes the sandbox: {e}"),
                    creating.id(),
                );
                return Some(creating);
            }
        };
        let awaited = Awaited::Creation {
            creating: Box::new(creating),
            sandbox,
            reply,
        };
        if let Err((e, awaited)) = self.await_report(awaited) {
            self.reported(awaited, Report::Failed(e.to_string()));
        }
        None
    }

    fn await_report(&mut self, awaited: Awaited) -> Result<(), (std::io::Error, Awaited)> {
        let number = self.next_number();
        let added = self
            .poll
            .add(&awaited.sandbox().socket, Source::Sandbox(number), Interest::Read);
        match added {
            Ok(()) => {
                self.awaiting.sandboxes.insert(number, awaited);
                Ok(())
            }
            Err(e) => Err((e, awaited)),
        }
    }

    /// Begins the start of a sandbox that the shim has made. False if the container is another one.
    pub(super) fn start_sandbox(&mut self, id: &str, reply: ReplyTo) -> Result<bool, Failure> {
        let container = self.container(id)?;
        let Some(sandbox) = container.sandbox.clone() else {
            return Ok(false);
        };
        container.init.begin(Step::Start)?;
        let started = sandbox.start();
        let awaited = Awaited::Start {
            container: id.to_owned(),
            sandbox,
            reply,
        };
        match started {
            Ok(()) => {
                if let Err((e, awaited)) = self.await_report(awaited) {
                    self.reported(awaited, Report::Failed(e.to_string()));
                }
            }
            Err(e) => self.reported(awaited, Report::Failed(e.to_string())),
        }
        Ok(true)
    }

    /// Pauses or resumes a sandbox that the shim has made. None if the container is another one.
    pub(super) fn freeze_sandbox(
        &mut self,
        id: &str,
        step: Step,
    ) -> Result<Option<Result<(), RuntimeError>>, Failure> {
        let container = self.container(id)?;
        if container.sandbox.is_none() {
            return Ok(None);
        }
        let groups = groups(container)?.clone();
        container.init.begin(step)?;
        let done = match step {
            Step::Pause => groups.freeze(),
            _ => groups.thaw(),
        };
        Ok(Some(done.map_err(|e| RuntimeError::Logged(e.to_string()))))
    }

    /// A sandbox's process has said something, or has closed its socket.
    pub fn check_sandbox(&mut self, number: u32) {
        let Some(awaited) = self.awaiting.sandboxes.get(&number) else {
            return;
        };
        let report = awaited.sandbox().report();
        if report == Report::Nothing {
            return;
        }
        if let Some(awaited) = self.awaiting.sandboxes.remove(&number) {
            self.reported(awaited, report);
        }
    }

    fn reported(&mut self, awaited: Awaited, report: Report) {
        match awaited {
            Awaited::Creation {
                creating,
                sandbox,
                reply,
            } => self.finish_sandbox(*creating, sandbox, report, reply),
            Awaited::Start { container, reply, .. } => {
                let result = match report {
                    Report::Failed(text) => Err(RuntimeError::Logged(text)),
                    _ => Ok(()),
                };
                self.finish_start(&container, result, reply);
            }
        }
    }

    fn finish_sandbox(
        &mut self,
        mut creating: Creating,
        sandbox: Rc<Sandbox>,
        report: Report,
        reply: ReplyTo,
    ) {
        let bundle: Rc<Bundle> = creating.bundle().clone();
        let failed = match report {
            Report::Ready => {
                let pid = sandbox.pid.as_raw_nonzero().to_string();
                match bundle.write(INIT_PID, pid.as_bytes()) {
                    Ok(()) => None,
                    Err(e) => Some(e.to_string()),
                }
            }
            Report::Failed(text) => Some(text),
            Report::Closed | Report::Nothing => Some("its process has ended".to_owned()),
        };
        let Some(failed) = failed else {
            // Its next report is that of its start.
            if let Err(e) = self.poll.remove(&sandbox.socket) {
                log::warn(format_args!("the socket of a sandbox: {e}"), creating.id());
            }
            creating.set_sandbox(Some(sandbox));
            return self.finish_create(creating, Ok(()), reply);
        };
        log::warn(
            format_args!("the OCI runtime makes the sandbox: {failed}"),
            creating.id(),
        );
        if let Err(e) = sandbox.discard(&bundle) {
            log::warn(format_args!("the cgroups of a sandbox: {e}"), creating.id());
        }
        let streams = Streams::Container {
            stdin: None,
            stdout: None,
            stderr: None,
        };
        if let Err(failure) = self.create_by_runtime(creating, streams, reply) {
            self.answer(reply, Err(failure));
        }
    }
}

/// The groups of a sandbox that the shim has made.
pub(super) fn groups(container: &Container) -> Result<&Groups, Failure> {
    match &container.cgroup {
        Some(Cgroup::V1(groups)) => Ok(groups),
        _ => Err(Failure::not_found("cgroup does not exist")),
    }
}

/// Changes the resources of a sandbox that the shim has made.
pub(super) fn update_sandbox(container: &Container, resources: &[u8]) -> Answer {
    let resources = Resources::parse(resources).map_err(|e| {
        Failure::unimplemented(format!(
            "these resources of a sandbox without an OCI runtime: {e}"
        ))
    })?;
    resources
        .apply(groups(container)?)
        .map_err(|e| Failure::because("cannot update the sandbox", &e))?;
    encode::empty().map(Some)
}
