//! containerd's task service: what each request does.
//!
//! [`create`], [`exec`], [`steps`] (start, pause, resume, update) with [`release`] and [`sandbox`] (done by the shim itself), [`signals`] (kill), [`deletion`] and [`queries`] are
//! the requests; a request that needs the OCI runtime is answered when its invocation has exited
//! ([`Server::finish`]).

pub mod create;
pub mod deletion;
pub mod encode;
pub mod exec;
pub mod queries;
pub mod release;
pub mod sandbox;
pub mod signals;
pub mod steps;

use std::collections::BTreeMap;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::ttrpc::Request;

use self::create::Creating;
use self::exec::Starting;
use self::release::Releasing;
use self::sandbox::Awaited;
use crate::error::Failure;
use crate::log;
use crate::runtime::RuntimeError;
use crate::server::Server;
use crate::ttrpc::connection::ReplyTo;

/// The names of the service: of containerd 1.6 and 1.7, and of shim API 3 (containerd 2). The messages are the same.
const SERVICES: [&str; 2] = ["containerd.task.v2.Task", "containerd.task.v3.Task"];

/// The answer to a request: a message, or nothing yet.
pub type Answer = Result<Option<Vec<u8>>, Failure>;

/// What an invocation of the OCI runtime is for.
pub enum Purpose {
    Create(Box<Creating>, ReplyTo),
    Start(ReplyTo),
    StartExec(Box<Starting>, ReplyTo),
    Pause(ReplyTo),
    /// Without a request for a paused container whose first process has exited.
    Resume(Option<ReplyTo>),
    Update(ReplyTo),
    Kill(ReplyTo),
    /// Kill what a container has left, and then report the exit of its first process.
    End,
    Delete(ReplyTo),
    /// Remove a container that was made in vain.
    Discard,
}

/// What is under way without an invocation of the OCI runtime, by the number of its descriptor in the epoll set.
#[derive(Default)]
pub struct Awaiting {
    /// Starts of runc's containers.
    pub releases: BTreeMap<u32, Releasing>,
    /// Sandboxes whose process is about to report.
    pub sandboxes: BTreeMap<u32, Awaited>,
}

impl Purpose {
    /// Whether the invocation starts a process whose id is not known yet.
    pub fn starts_process(&self) -> bool {
        matches!(self, Purpose::Create(..) | Purpose::StartExec(..))
    }
}

fn parse<M: Message>(request: &Request) -> Result<M, Failure> {
    M::parse_from_bytes(&request.payload)
        .map_err(|e| Failure::invalid(format!("unmarshal request error: {e}")))
}

impl Server {
    /// Carries out a request.
    pub fn call(&mut self, request: &Request, reply: ReplyTo) -> Answer {
        if !SERVICES.contains(&request.service.as_str()) {
            return Err(Failure::unimplemented(format!("service {}", request.service)));
        }
        match request.method.as_str() {
            "State" => self.state(&parse(request)?),
            "Create" => self.create(parse(request)?, reply),
            "Start" => self.start(&parse(request)?, reply),
            "Delete" => self.delete(&parse(request)?, reply),
            "Pids" => self.pids(&parse(request)?),
            "Pause" => self.pause(&parse(request)?, reply),
            "Resume" => self.resume(&parse(request)?, reply),
            "Kill" => self.kill(&parse(request)?, reply),
            "Exec" => self.exec(parse(request)?),
            "ResizePty" => self.resize_pty(&parse(request)?),
            "CloseIO" => self.close_io(&parse(request)?),
            "Update" => self.update(&parse(request)?, reply),
            "Wait" => self.wait(&parse(request)?, reply),
            "Stats" => self.stats(&parse(request)?),
            "Connect" => self.connect(&parse(request)?),
            "Shutdown" => self.shutdown(),
            // Checkpoint among them.
            method => Err(Failure::unimplemented(format!("method {method}"))),
        }
    }

    /// An invocation of the OCI runtime has exited.
    pub fn finish(&mut self, container: &str, purpose: Purpose, result: Result<(), RuntimeError>) {
        match purpose {
            Purpose::Create(creating, reply) => self.finish_create(*creating, result, reply),
            Purpose::Start(reply) => self.finish_start(container, result, reply),
            Purpose::StartExec(starting, reply) => self.finish_exec(container, *starting, result, reply),
            Purpose::Pause(reply) => self.finish_pause(container, result, reply),
            Purpose::Resume(reply) => self.finish_resume(container, result, reply),
            Purpose::Update(reply) => {
                let result = result.map_err(|e| e.during("OCI runtime update failed"));
                self.answer(reply, result.and_then(|()| encode::empty()));
            }
            Purpose::Kill(reply) => {
                let result = result.map_err(|e| signals::kill_failure(&e));
                self.answer(reply, result.and_then(|()| encode::empty()));
            }
            Purpose::End => {
                if let Err(e) = result {
                    log::warn(
                        format_args!("cannot kill what the container has left: {e}"),
                        container,
                    );
                }
                let Some(of) = self.containers.get_mut(container) else {
                    return;
                };
                if let Some(exit) = of.init.end(false) {
                    self.report(container, "", exit);
                }
            }
            Purpose::Delete(reply) => self.finish_delete(container, result, reply),
            Purpose::Discard => {
                if let Err(e) = result {
                    log::error(
                        format_args!("a container that was made in vain is left: {e}"),
                        container,
                    );
                }
            }
        }
    }
}
