//! `Create`: mounts the root file system, opens the streams, and has the OCI runtime make the container.
//!
//! The container is in the table once the runtime has made it, so no other request sees it half-done. If it cannot be
//! made, everything is undone.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use containerd_shim_protos::api::{CreateTaskRequest, CreateTaskResponse};
use containerd_shim_protos::events::task::{TaskCreate, TaskIO};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::types::mount::Mount;
use rustix::process::Pid;

use super::{Answer, Purpose, encode};
use crate::arguments::is_identifier;
use crate::bundle::{Bundle, CONFIG, DELETED, INIT_PID, MAX_CONFIG_BYTES, ROOTFS};
use crate::cgroup::Cgroup;
use crate::error::Failure;
use crate::log;
use crate::mounts;
use crate::options::Options;
use crate::runtime::{Runtime, RuntimeError, Streams};
use crate::sandbox::Sandbox;
use crate::sandbox::plan::Plan;
use crate::server::Server;
use crate::spec::Spec;
use crate::stdio::console::ConsoleSocket;
use crate::stdio::{self, Owner, Prepared, Stdio};
use crate::task::{Container, Process, pid_number};
use crate::ttrpc::connection::ReplyTo;

/// A container that is being made.
pub struct Creating {
    id: String,
    bundle: Rc<Bundle>,
    options: Options,
    runtime: Runtime,
    own_pid_namespace: bool,
    plain: bool,
    rootfs: Vec<Mount>,
    stdio: Stdio,
    prepared: Prepared,
    console: Option<ConsoleSocket>,
    /// A sandbox that the shim makes itself.
    plan: Option<Box<Plan>>,
    sandbox: Option<Rc<Sandbox>>,
}

impl Creating {
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn bundle(&self) -> &Rc<Bundle> {
        &self.bundle
    }

    pub(super) fn keeps_keyring(&self) -> bool {
        self.options.no_new_keyring
    }

    pub(super) fn take_plan(&mut self) -> Option<Box<Plan>> {
        self.plan.take()
    }

    pub(super) fn set_sandbox(&mut self, sandbox: Option<Rc<Sandbox>>) {
        self.sandbox = sandbox;
    }

    /// Removes what was made outside of the runtime.
    fn undo(&self) {
        if let Some(console) = &self.console {
            console.remove(&self.bundle);
        }
        unmount(&self.id, &self.bundle, &self.rootfs);
    }
}

fn unmount(id: &str, bundle: &Bundle, rootfs: &[Mount]) {
    if !rootfs.is_empty()
        && let Err(e) = mounts::unmount_all(&bundle.join(ROOTFS))
    {
        log::warn(format_args!("cannot unmount the root file system: {e}"), id);
    }
}

impl Server {
    pub(super) fn create(&mut self, request: CreateTaskRequest, reply: ReplyTo) -> Answer {
        if !is_identifier(&request.id) {
            return Err(Failure::invalid(format!("container id {:?}", request.id)));
        }
        let being_made =
            |purpose: &Purpose| matches!(purpose, Purpose::Create(creating, _) if creating.id == request.id);
        let exists = self.containers.contains_key(&request.id)
            || self
                .awaiting
                .sandboxes
                .values()
                .any(|awaited| awaited.container() == request.id);
        if exists || self.under_way.values().any(|other| being_made(&other.purpose)) {
            return Err(Failure::already_exists(format!("container {}", request.id)));
        }
        if !request.checkpoint.is_empty() {
            return Err(Failure::unimplemented("restoring a checkpoint"));
        }
        let (creating, streams) = self.prepare(request)?;
        match self.create_sandbox(creating, reply) {
            None => Ok(None),
            Some(creating) => self.create_by_runtime(creating, streams, reply),
        }
    }

    /// Has the OCI runtime make a container.
    pub(super) fn create_by_runtime(
        &mut self,
        creating: Creating,
        streams: Streams,
        reply: ReplyTo,
    ) -> Answer {
        let runtime = creating.runtime.clone();
        let (bundle, id) = (creating.bundle.clone(), creating.id.clone());
        let pid_file = bundle.join(INIT_PID);
        let (path, pid_file) = (bundle.path().to_string_lossy(), pid_file.to_string_lossy());
        let console = creating.console.as_ref().map(|console| console.name().to_owned());
        let mut arguments = vec!["create", "--bundle", &path, "--pid-file", &pid_file];
        if let Some(console) = &console {
            arguments.extend(["--console-socket", console]);
        }
        if creating.options.no_pivot_root {
            arguments.push("--no-pivot");
        }
        if creating.options.no_new_keyring {
            arguments.push("--no-new-keyring");
        }
        arguments.push(&id);
        let purpose = Purpose::Create(Box::new(creating), reply);
        let invoked = self.invoke(&runtime, &bundle, &id, &arguments, streams, purpose);
        invoked.map(|()| None).map_err(|(error, purpose)| {
            if let Purpose::Create(creating, _) = purpose {
                creating.undo();
            }
            error.during("OCI runtime create failed")
        })
    }

    fn prepare(&mut self, request: CreateTaskRequest) -> Result<(Creating, Streams), Failure> {
        let failed = |what: &'static str| move |e: std::io::Error| Failure::because(what, &e);
        let bundle =
            Rc::new(Bundle::open(Path::new(&request.bundle)).map_err(failed("cannot open the bundle"))?);
        let options = match request.options.as_ref() {
            Some(options) => Options::from_any(options).map_err(failed("runtime options"))?,
            None => Options::default(),
        };
        let config = bundle
            .read(CONFIG, MAX_CONFIG_BYTES)
            .map_err(failed("cannot read the container's configuration"))?;
        let spec = Spec::parse(&config)
            .map_err(|e| Failure::because("cannot parse the container's configuration", &e))?;
        // For `delete`, should this process be killed.
        options
            .write(&bundle)
            .map_err(failed("cannot write to the bundle"))?;
        bundle.remove(INIT_PID);
        bundle.remove(DELETED);
        mount_rootfs(&bundle, &request.rootfs)
            .inspect_err(|_| unmount(&request.id, &bundle, &request.rootfs))?;
        let stdio = Stdio {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        };
        let streams = self.open_streams(&bundle, &stdio, &options);
        let (streams, prepared, console) = streams
            .map_err(failed("failed to create init process I/O"))
            .inspect_err(|_| unmount(&request.id, &bundle, &request.rootfs))?;
        let has_streams = !(stdio.stdin.is_empty() && stdio.stdout.is_empty() && stdio.stderr.is_empty());
        let plan = if has_streams || stdio.terminal || !options.makes_plain_sandboxes() {
            None
        } else {
            Sandbox::plan(&config).map(Box::new)
        };
        let creating = Creating {
            plan,
            sandbox: None,
            runtime: Runtime::new(&options, &self.namespace),
            id: request.id,
            plain: spec.is_plain() && !options.systemd_cgroup,
            bundle,
            options,
            own_pid_namespace: spec.has_own_pid_namespace(),
            rootfs: request.rootfs,
            stdio,
            prepared,
            console,
        };
        Ok((creating, streams))
    }

    /// The streams of a process that is about to be started: pipes, or a socket for its terminal.
    pub(super) fn open_streams(
        &mut self,
        bundle: &Bundle,
        stdio: &Stdio,
        options: &Options,
    ) -> std::io::Result<(Streams, Prepared, Option<ConsoleSocket>)> {
        if stdio.terminal {
            let console = ConsoleSocket::new(bundle, self.next_number())?;
            return Ok((Streams::captured(), Prepared::default(), Some(console)));
        }
        let owner = Owner {
            uid: options.io_uid,
            gid: options.io_gid,
        };
        let (streams, prepared) = stdio::prepare(stdio, owner)?;
        Ok((streams, prepared, None))
    }

    pub(super) fn finish_create(
        &mut self,
        creating: Creating,
        result: Result<(), RuntimeError>,
        reply: ReplyTo,
    ) {
        if let Err(e) = result {
            creating.undo();
            return self.answer(reply, Err(e.during("OCI runtime create failed")));
        }
        let (id, runtime, bundle) = (
            creating.id.clone(),
            creating.runtime.clone(),
            creating.bundle.clone(),
        );
        let (rootfs, sandbox) = (creating.rootfs.clone(), creating.sandbox.clone());
        match self.add_container(creating) {
            Ok(pid) => {
                let response = CreateTaskResponse {
                    pid: pid_number(pid),
                    ..CreateTaskResponse::default()
                };
                self.answer(reply, encode::message(&response));
                self.claim(pid, &id, "");
            }
            Err(failure) => {
                if let Some(sandbox) = sandbox
                    && let Err(e) = sandbox.discard(&bundle)
                {
                    log::error(format_args!("a sandbox that was made in vain is left: {e}"), &id);
                }
                let delete = ["delete", "--force", &id];
                let discarded = self.invoke(
                    &runtime,
                    &bundle,
                    &id,
                    &delete,
                    Streams::captured(),
                    Purpose::Discard,
                );
                if let Err((e, _)) = discarded {
                    log::error(e, &id);
                }
                if !rootfs.is_empty() {
                    let _ = mounts::detach(&bundle.join(ROOTFS));
                }
                self.answer(reply, Err(failure));
            }
        }
    }

    fn add_container(&mut self, creating: Creating) -> Result<Pid, Failure> {
        let failed = |what: &'static str| move |e: std::io::Error| Failure::because(what, &e);
        let Creating {
            id,
            bundle,
            options,
            runtime,
            own_pid_namespace,
            plain,
            rootfs,
            stdio,
            prepared,
            console,
            plan: _,
            sandbox,
        } = creating;
        let pid = bundle
            .read_pid(INIT_PID)
            .map_err(failed("failed to retrieve OCI runtime container pid"))?;
        let (prepared, master) = receive_terminal(&bundle, &stdio, prepared, console)
            .map_err(failed("failed to retrieve console master"))?;
        let io = self
            .begin_streams(&id, "", prepared, master)
            .map_err(failed("failed to start io pipe copy"))?;
        // Its number may be another process's once it was waited for.
        let cgroup = crate::exits::is_child(pid)
            .then(|| Cgroup::of(pid))
            .and_then(|found| {
                found
                    .inspect_err(|e| log::warn(format_args!("the container's cgroup: {e}"), &id))
                    .ok()
            });
        if let Some(cgroup) = &cgroup
            && let Err(e) = self.oom.add(&id, cgroup, &self.poll)
        {
            log::warn(format_args!("cannot watch the container's memory: {e}"), &id);
        }
        let event = TaskCreate {
            container_id: id.clone(),
            bundle: bundle.path().to_string_lossy().into_owned(),
            io: MessageField::some(TaskIO {
                stdin: stdio.stdin.clone(),
                stdout: stdio.stdout.clone(),
                stderr: stdio.stderr.clone(),
                terminal: stdio.terminal,
                ..TaskIO::default()
            }),
            rootfs: rootfs.clone(),
            pid: pid_number(pid),
            ..TaskCreate::default()
        };
        let container = Container {
            bundle,
            options,
            runtime,
            rootfs: !rootfs.is_empty(),
            own_pid_namespace,
            plain,
            sandbox,
            cgroup,
            init: Process::new(Some(pid), stdio, io),
            execs: Default::default(),
        };
        self.containers.insert(id, container);
        self.publish("/tasks/create", "containerd.events.TaskCreate", &event);
        Ok(pid)
    }
}

fn mount_rootfs(bundle: &Bundle, rootfs: &[Mount]) -> Result<(), Failure> {
    if rootfs.is_empty() {
        return Ok(());
    }
    bundle
        .create_rootfs()
        .map_err(|e| Failure::because("cannot make the directory of the root file system", &e))?;
    for mount in rootfs {
        mounts::mount(mount, &bundle.join(ROOTFS))
            .map_err(|e| Failure::because("failed to mount rootfs component", &e))?;
    }
    Ok(())
}

/// Takes the terminal that the runtime has sent, if there is to be one.
pub(super) fn receive_terminal(
    bundle: &Bundle,
    stdio: &Stdio,
    prepared: Prepared,
    console: Option<ConsoleSocket>,
) -> std::io::Result<(Prepared, Option<OwnedFd>)> {
    let Some(console) = console else {
        return Ok((prepared, None));
    };
    let master = console.receive();
    console.remove(bundle);
    let master = master?;
    Ok((stdio::prepare_terminal(stdio, &master)?, Some(master)))
}
