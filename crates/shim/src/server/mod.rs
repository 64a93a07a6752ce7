//! The shim's loop: one thread, one epoll set. Whatever happens is a [`Source`] that became ready, a child that exited,
//! or a [`Timer`]; nothing here waits for anything else.
//!
//! [`exits`] is what follows from exits, [`streams`] moves input and output. Requests are carried out by
//! [`service`].

pub mod exits;
pub mod service;
pub mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use containerd_shim_protos::protobuf::Message;
use nix::sys::signalfd::SignalFd;

use self::service::{Awaiting, Purpose};
use self::streams::{Stray, Streaming};
use crate::address::Address;
use crate::bundle::Bundle;
use crate::clock::Instant;
use crate::error::Failure;
use crate::exits::Unclaimed;
use crate::log;
use crate::oom::OomWatches;
use crate::poll::{Interest, Poll, Source};
use crate::runtime::{Invocation, Runtime, RuntimeError, Streams};
use crate::task::Container;
use crate::timers::Timers;
use crate::ttrpc::connection::{Connection, ReplyTo};
use crate::ttrpc::frame::Peer;
use crate::ttrpc::publisher::Publisher;

/// How long events may take to reach containerd before the shim exits.
const FLUSH: Duration = Duration::from_secs(5);
/// A shim without containers and without connections is of no use: its containerd was killed before it used it.
const IDLE: Duration = Duration::from_secs(60);

/// What a shim is started with.
pub struct Config {
    pub namespace: String,
    /// The path of the socket of containerd's events service.
    pub events: Option<String>,
    pub address: Address,
}

/// What happens later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timer {
    /// Connect again, or give the connection up.
    Publisher,
    /// Check whether output that was kept has been read.
    Stray,
    /// A process is deleted although its output has not ended.
    Delete { container: String, exec: String },
    /// Try again to unmount a root file system.
    Unmount { container: String, attempt: u32 },
    /// The shim is not used.
    Idle,
    /// The shim exits whether its events have been sent or not.
    Stop,
}

/// An invocation of the OCI runtime, and what it is for.
pub struct UnderWay {
    pub invocation: Invocation,
    pub bundle: Rc<Bundle>,
    pub container: String,
    pub purpose: Purpose,
}

pub struct Server {
    pub namespace: String,
    address: Address,
    pub poll: Poll,
    listener: Option<OwnedFd>,
    signals: SignalFd,
    connections: BTreeMap<u32, Connection>,
    publisher: Publisher,
    /// Something happened that concerns the publisher.
    publish: bool,
    pub containers: BTreeMap<String, Container>,
    /// By process id.
    pub under_way: BTreeMap<i32, UnderWay>,
    pub unclaimed: Unclaimed,
    /// There may be exits that have not been taken.
    more_exits: bool,
    /// What is under way without an invocation.
    pub awaiting: Awaiting,
    pub streams: BTreeMap<u32, Streaming>,
    /// Streams that have more and gave others their turn.
    turns: BTreeSet<u32>,
    pub strays: Vec<Stray>,
    pub oom: OomWatches,
    pub timers: Timers<Timer>,
    /// Deletions that wait for the end of output, or for an unmount.
    pub deletions: BTreeMap<(String, String), ReplyTo>,
    last_number: u32,
    /// Shutdown was requested while the last invocation was under way.
    pub stop_when_unused: bool,
    stopping: bool,
}

impl Server {
    pub fn new(config: Config, listener: OwnedFd, signals: SignalFd) -> io::Result<Self> {
        let poll = Poll::new()?;
        poll.add(&listener, Source::Listener, Interest::Read)?;
        poll.add(&signals, Source::Signals, Interest::Read)?;
        let mut timers = Timers::new();
        timers.set(Instant::now().after(IDLE), Timer::Idle);
        Ok(Server {
            publisher: Publisher::new(config.events.as_deref(), &config.namespace),
            namespace: config.namespace,
            address: config.address,
            poll,
            listener: Some(listener),
            signals,
            connections: BTreeMap::new(),
            publish: false,
            containers: BTreeMap::new(),
            under_way: BTreeMap::new(),
            unclaimed: Unclaimed::default(),
            more_exits: false,
            awaiting: Awaiting::default(),
            streams: BTreeMap::new(),
            turns: BTreeSet::new(),
            strays: Vec::new(),
            oom: OomWatches::default(),
            timers,
            deletions: BTreeMap::new(),
            last_number: 0,
            stop_when_unused: false,
            stopping: false,
        })
    }

    /// Serves until a request or a signal shuts it down.
    pub fn run(&mut self) -> io::Result<()> {
        let served = self.serve();
        self.retire();
        served
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let wait = if self.turns.is_empty() && !self.more_exits {
                self.timers.wait(Instant::now())
            } else {
                Some(Duration::ZERO)
            };
            for source in self.poll.wait(wait)? {
                self.handle(source);
            }
            if self.more_exits {
                self.reap();
            }
            for number in std::mem::take(&mut self.turns) {
                self.run_stream(number);
            }
            while let Some(timer) = self.timers.pop(Instant::now()) {
                self.fire(timer);
            }
            if std::mem::take(&mut self.publish) {
                self.run_publisher();
            }
            if self.stop_when_unused {
                // A container that was being created may be there now.
                self.stop_when_unused = self.containers.is_empty();
                if self.is_unused() {
                    self.stop();
                }
            }
            if self.stopping
                && self.publisher.is_idle()
                && self.connections.values().all(Connection::is_flushed)
            {
                return Ok(());
            }
        }
    }

    fn handle(&mut self, source: Source) {
        match source {
            Source::Listener => self.accept(),
            Source::Signals => self.take_signals(),
            Source::Publisher => self.publish = true,
            Source::Connection(number) => self.serve_connection(number),
            Source::Copy(number) => self.run_stream(number),
            Source::Release(number) => self.check_release(number, false),
            Source::Sandbox(number) => self.check_sandbox(number),
            Source::MemoryEvents => {
                for container in self.oom.changed() {
                    self.publish_oom(&container);
                }
            }
            Source::OutOfMemory(number) => {
                if let Some(container) = self.oom.signalled(number) {
                    self.publish_oom(&container);
                }
            }
        }
    }

    fn fire(&mut self, timer: Timer) {
        match timer {
            Timer::Publisher => {
                self.publisher.expired();
                self.publish = true;
            }
            Timer::Stray => self.check_strays(),
            Timer::Delete { container, exec } => self.delete_now(&container, &exec),
            Timer::Unmount { container, attempt } => self.unmount(&container, attempt),
            Timer::Idle => {
                if self.connections.is_empty() && self.containers.is_empty() {
                    self.stop_when_unused = true;
                }
            }
            Timer::Stop => {
                log::error("exiting before all events were sent", "");
                // Nothing more can be done for them.
                self.publisher = Publisher::new(None, &self.namespace);
                self.connections.clear();
            }
        }
    }

    /// Whether there is no container, and none is being made.
    pub fn is_unused(&self) -> bool {
        self.containers.is_empty() && self.under_way.is_empty() && self.awaiting.sandboxes.is_empty()
    }

    /// Exits once everything has been sent.
    pub fn stop(&mut self) {
        if !self.stopping {
            self.stopping = true;
            self.retire();
            self.timers.set(Instant::now().after(FLUSH), Timer::Stop);
        }
    }

    /// From now on, `start` makes another shim.
    fn retire(&mut self) {
        if self.listener.take().is_some() {
            self.address.remove();
        }
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            match Connection::accept(listener) {
                Ok(Some(connection)) => {
                    self.last_number = self.last_number.wrapping_add(1);
                    let source = Source::Connection(self.last_number);
                    if let Err(e) = self.poll.add(connection.socket(), source, Interest::Both) {
                        log::error(format_args!("cannot serve a connection: {e}"), "");
                        continue;
                    }
                    self.connections.insert(self.last_number, connection);
                    self.timers.cancel(&Timer::Idle);
                    // containerd is there: it may be back.
                    self.publish = true;
                }
                Ok(None) => log::warn("a connection of another user is rejected", ""),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => {
                    log::error(format_args!("cannot accept a connection: {e}"), "");
                    return;
                }
            }
        }
    }

    fn serve_connection(&mut self, number: u32) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let received = connection.flush().and_then(|()| connection.receive());
        let (requests, open) = match received {
            Ok((requests, peer)) => (requests, peer == Peer::Open),
            Err(e) => {
                log::warn(format_args!("a connection of containerd: {e}"), "");
                (Vec::new(), false)
            }
        };
        for incoming in requests {
            let reply = ReplyTo {
                connection: number,
                stream: incoming.stream,
            };
            match incoming.request.and_then(|request| self.call(&request, reply)) {
                Ok(Some(payload)) => self.answer(reply, Ok(payload)),
                Ok(None) => {}
                Err(failure) => self.answer(reply, Err(failure)),
            }
        }
        if !open {
            self.close(number);
        }
    }

    fn close(&mut self, number: u32) {
        self.connections.remove(&number);
        for container in self.containers.values_mut() {
            let execs = container.execs.values_mut().map(|exec| &mut exec.process);
            for process in execs.chain([&mut container.init]) {
                process.waiting.retain(|reply| reply.connection != number);
            }
        }
        if self.connections.is_empty() && self.containers.is_empty() {
            self.timers.set(Instant::now().after(IDLE), Timer::Idle);
        }
    }

    /// Answers a request, if its connection is still there.
    pub fn answer(&mut self, reply: ReplyTo, answer: Result<Vec<u8>, Failure>) {
        let Some(connection) = self.connections.get_mut(&reply.connection) else {
            return;
        };
        if let Err(e) = connection.answer(reply.stream, answer) {
            log::warn(format_args!("cannot answer containerd: {e}"), "");
            self.close(reply.connection);
        }
    }

    /// Queues an event for containerd.
    pub fn publish(&mut self, topic: &str, kind: &str, event: &impl Message) {
        if let Err(e) = self.publisher.publish(topic, kind, event) {
            log::error(format_args!("cannot encode an event: {e}"), topic);
        }
        self.publish = true;
    }

    fn run_publisher(&mut self) {
        let next = self.publisher.run(&self.poll, Instant::now());
        self.timers.cancel(&Timer::Publisher);
        if let Some(at) = next {
            self.timers.set(at, Timer::Publisher);
        }
    }

    /// A number that no descriptor in the epoll set has, and no file of a bundle.
    pub fn next_number(&mut self) -> u32 {
        self.last_number = self.last_number.wrapping_add(1);
        self.last_number
    }

    /// Starts an invocation of the OCI runtime. [`Server::finish`](exits) is called when it has exited.
    pub fn invoke(
        &mut self,
        runtime: &Runtime,
        bundle: &Rc<Bundle>,
        container: &str,
        arguments: &[&str],
        streams: Streams,
        purpose: Purpose,
    ) -> Result<(), (RuntimeError, Purpose)> {
        let sequence = self.next_number();
        match runtime.spawn(bundle, sequence, arguments, streams) {
            Ok((pid, invocation)) => {
                let under_way = UnderWay {
                    invocation,
                    bundle: bundle.clone(),
                    container: container.to_owned(),
                    purpose,
                };
                self.under_way.insert(pid.as_raw_nonzero().get(), under_way);
                Ok(())
            }
            Err(e) => Err((e, purpose)),
        }
    }
}
