//! [`Runtime`](super::Runtime) in memory, for tests and the simulation: containers that exist only as records.
//!
//! Time is tokio's, which a test can pause. A container runs until it is stopped, or until the test ends it; images are
//! those that were added. Used by tests and the simulation only.

mod runtime_service;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{ContainerId, SandboxId};
use knarr_client::Clock;
use knarr_kubelet::runtime::{Container, ContainerState, Exit, Sandbox};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::{ContainerConfig, Result, RuntimeEvent};

/// How a container's process reacts to TERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopBehavior {
    Obeys,
    /// It exits this long after TERM.
    Lingers(Duration),
    /// Only KILL terminates it.
    Ignores,
    /// It exits by itself this long after its start, with code 0.
    Finishes(Duration),
}

/// Why a process exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    ByItself,
    Asked,
    Killed,
}

/// An event of a container's process, reported at the moment it happens.
#[derive(Clone, Debug)]
pub enum ContainerEvent {
    Started,
    /// TERM was sent.
    TermSent,
    Ended(End),
}

type Observer = Box<dyn Fn(&Container, &ContainerEvent) + Send + Sync>;

/// What gives sandboxes their addresses, as a CNI plugin does.
#[async_trait]
pub trait PodNetwork: Send + Sync {
    /// ADD: the sandbox's addresses. If it fails there is no sandbox, and DEL follows.
    async fn add(&self, sandbox: &Sandbox) -> Result<Vec<String>>;

    /// DEL, perhaps repeated. Nothing runs in the sandbox any more.
    async fn delete(&self, sandbox: &str) -> Result<()>;
}

struct Record {
    container: Container,
    config: ContainerConfig,
    stop_behavior: StopBehavior,
    /// Notified when it exits.
    ended: Arc<Notify>,
    log_path: String,
}

#[derive(Default)]
struct State {
    made: u64,
    /// The second number of pods' addresses; the last two count.
    subnet: u8,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Those that wait for their addresses.
    made_now: BTreeMap<SandboxId, Sandbox>,
    network: Option<Arc<dyn PodNetwork>>,
    /// Counts reboots: a sandbox under way does not outlive one.
    boots: u64,
    containers: BTreeMap<ContainerId, Record>,
    images: BTreeSet<String>,
    listeners: Vec<mpsc::UnboundedSender<RuntimeEvent>>,
    /// By container name; the others obey.
    stop_behavior: BTreeMap<String, StopBehavior>,
    observer: Option<Observer>,
    /// Every start there ever was: container id and name with its pod's uid.
    starts: Vec<(String, String)>,
    down: bool,
    /// Incremented when the runtime stops: calls in flight fail then.
    outages: u64,
}

/// See the module.
pub struct FakeRuntime {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

impl FakeRuntime {
    pub fn new(clock: Arc<dyn Clock>, images: &[&str]) -> Self {
        let state = State {
            images: images.iter().map(|i| (*i).to_string()).collect(),
            ..State::default()
        };
        FakeRuntime {
            clock,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Pods get addresses of `10.<subnet>.0.0/16` from now on, so that nodes have different ones.
    pub fn set_subnet(&self, subnet: u8) {
        self.state.lock().subnet = subnet;
    }

    /// From now on sandboxes get their addresses from there.
    pub fn set_network(&self, network: Arc<dyn PodNetwork>) {
        self.state.lock().network = Some(network);
    }

    /// Containers of this name do not listen to TERM from now on.
    pub fn ignore_term(&self, container: &str) {
        self.set_stop_behavior(container, StopBehavior::Ignores);
    }

    /// How containers of this name react to TERM from now on.
    pub fn set_stop_behavior(&self, container: &str, stop_behavior: StopBehavior) {
        self.state
            .lock()
            .stop_behavior
            .insert(container.into(), stop_behavior);
    }

    /// `observer` is called with every event. It must not call back.
    pub fn observe(&self, observer: impl Fn(&Container, &ContainerEvent) + Send + Sync + 'static) {
        self.state.lock().observer = Some(Box::new(observer));
    }

    pub fn add_image(&self, name: &str) {
        self.state.lock().images.insert(name.into());
    }

    /// Calls fail with `Unavailable` while it is down; containers keep running.
    pub fn set_down(&self, down: bool) {
        let mut state = self.state.lock();
        state.down = down;
        if down {
            state.outages += 1;
            state.listeners.clear();
        }
    }

    pub fn is_down(&self) -> bool {
        self.state.lock().down
    }

    /// The host reboots: no process survives, the records stay.
    pub fn reboot(&self) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.boots += 1;
        state.made_now.clear();
        let ids: Vec<ContainerId> = state.containers.keys().cloned().collect();
        for id in ids {
            state.exit(&id, 255, End::ByItself, now);
        }
        for sandbox in state.sandboxes.values_mut() {
            sandbox.ready = false;
            sandbox.ips.clear();
        }
    }

    /// As [`FakeRuntime::reboot`], and its disk is another's: nothing is known of what was there.
    pub fn wipe(&self) {
        self.reboot();
        let mut state = self.state.lock();
        state.containers.clear();
        state.sandboxes.clear();
    }

    /// The process that holds a sandbox's network dies; its containers keep running. False if there is none.
    pub fn break_sandbox(&self, id: &str) -> bool {
        let mut state = self.state.lock();
        let sandbox = state.sandboxes.get_mut(id).filter(|s| s.ready);
        let broken = sandbox.map(|sandbox| sandbox.ready = false);
        broken.is_some()
    }

    /// The ids of the sandboxes that are ready.
    pub fn ready_sandboxes(&self) -> Vec<SandboxId> {
        let state = self.state.lock();
        let ready = state.sandboxes.values().filter(|s| s.ready);
        ready.map(|s| s.id.clone()).collect()
    }

    /// The process exits by itself. False if it does not run.
    pub fn exit(&self, id: &str, code: i32) -> bool {
        let now = self.clock.now();
        self.state.lock().exit(id, code, End::ByItself, now)
    }

    /// Every start there ever was: the container's id, and `<pod uid>/<container name>`.
    pub fn starts(&self) -> Vec<(String, String)> {
        self.state.lock().starts.clone()
    }

    /// The configuration of the newest container of this name.
    pub fn config_of(&self, container: &str) -> Option<ContainerConfig> {
        let state = self.state.lock();
        let records = state.containers.values();
        let named = records.filter(|record| record.container.name == container);
        named
            .max_by_key(|record| record.container.attempt)
            .map(|r| r.config.clone())
    }

    /// What runs: container ids with `<pod uid>/<container name>`.
    pub fn running(&self) -> Vec<(ContainerId, String)> {
        let state = self.state.lock();
        let running = state.containers.values().filter(|r| is_running(&r.container));
        running
            .map(|r| (r.container.id.clone(), key(&r.container)))
            .collect()
    }
}

fn key(container: &Container) -> String {
    format!("{}/{}", container.pod.uid, container.name)
}

fn is_running(container: &Container) -> bool {
    matches!(container.state, ContainerState::Running { .. })
}

impl State {
    fn id(&mut self, what: &str) -> String {
        self.made += 1;
        format!("{what}{}", self.made)
    }

    fn notify(&self, container: &Container, event: &ContainerEvent) {
        if let Some(observer) = &self.observer {
            observer(container, event);
        }
    }

    fn exit(&mut self, id: &str, code: i32, end: End, now: Timestamp) -> bool {
        let Some(record) = self.containers.get_mut(id) else {
            return false;
        };
        let ContainerState::Running { started_at } = record.container.state else {
            return false;
        };
        record.container.state = ContainerState::Exited(Exit {
            code,
            reason: if code == 0 { "Completed" } else { "Error" }.into(),
            message: String::new(),
            started_at: Some(started_at),
            finished_at: Some(now),
        });
        record.ended.notify_waiters();
        let container = record.container.clone();
        self.notify(&container, &ContainerEvent::Ended(end));
        let event = RuntimeEvent::Exited { id: id.into() };
        self.listeners
            .retain(|listener| listener.send(event.clone()).is_ok());
        true
    }
}
