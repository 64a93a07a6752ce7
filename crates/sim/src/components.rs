//! The components, each with its incarnations: started, crashed, started again. The real ones, on a network, a
//! runtime and a clock of the simulation's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::registry;
use knarr_client::{Api, Clock, Component, TokioClock};
use knarr_control::nodeipam;
use knarr_kubelet::self_fencing::SelfFencing;
use knarr_node::runtime::fake::{ContainerEvent, FakeRuntime, StopBehavior};
use knarr_node::{Config, Kubelet, Machine};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Mutation;
use crate::attacher;
use crate::clocks::{DriftingClock, Rate};
use crate::disks;
use crate::fence_agents;
use crate::names::Names;
use crate::network::{Identity, Network, Wire};
use crate::network_agent::{self, NetworkAgent, ProxyKernel};
use crate::observer::Observer;
use crate::pod_network::MachineNetwork;
use crate::random::{Stream, stream};
use crate::rules::{b7_endpoints, n5_names};
use crate::runtime::{Condition, Line};
use crate::servers::ApiServer;
use crate::switches::{Switch, Switches};
use crate::upgrade::Version;

/// What every container's image is called.
pub(crate) const IMAGES: [&str; 3] = ["app:v1", "app:v2", "app:v3"];

/// What all components share.
#[derive(Clone)]
pub(crate) struct Ground {
    pub seed: u64,
    pub servers: Arc<Vec<Arc<ApiServer>>>,
    pub observer: Arc<Observer>,
    /// The time as it is; no component knows it.
    pub clock: TokioClock,
    pub epoch: Timestamp,
    pub directory: PathBuf,
    pub mutation: Option<Mutation>,
    pub fence_agents: fence_agents::Handle,
    /// Which pods nodes end by themselves.
    pub self_fencing: SelfFencing,
    /// Services are proxied: each node has a network agent.
    pub proxied: bool,
    /// Nodes have ranges of addresses and a pod network that enforces policies.
    pub networked: bool,
    /// Nodes have a CSI driver.
    pub staged: bool,
    /// Names of Services are asked for on each node.
    pub named: bool,
    pub node_ipam: nodeipam::Config,
    /// What is on.
    pub on: Switches,
}

impl Ground {
    fn wire(
        &self,
        identity: Identity,
        network: &Arc<Network>,
        dead: &CancellationToken,
        version: &Version,
    ) -> Arc<Wire> {
        let wire = Wire::new(
            self.servers.clone(),
            identity,
            network.clone(),
            self.observer.clone(),
            dead.clone(),
            self.mutation,
        );
        Arc::new(wire.former(version.is_former()))
    }

    /// The clock of the machine that this runs on.
    pub fn clock_of(&self, machine: &str) -> Arc<DriftingClock> {
        let mut chance = stream(self.seed, &format!("clock/{machine}"));
        Arc::new(DriftingClock::new(self.clock, self.epoch, &mut chance))
    }

    /// The API for a client that only lists and watches, over a link without faults.
    pub fn follower(&self) -> Arc<dyn Api> {
        let network = Arc::new(Network::new("follower", stream(self.seed, "network/follower")));
        self.wire(
            Identity::Administrator,
            &network,
            &CancellationToken::new(),
            &Version::default(),
        )
    }

    /// How fast this node's machine counts, which the observer knows where it matters.
    fn rate_of(&self, node: &str) -> Rate {
        if !(self.on.has(Switch::DriftingClocks) || self.on.has(Switch::WrongClocks)) {
            return Rate::EVEN;
        }
        let rate = Rate::draw(self.on, &mut stream(self.seed, &format!("rate/{node}")));
        self.observer.set_rate(node, rate);
        rate
    }
}

/// A machine with its runtime, and a kubelet on it that comes and goes.
pub(crate) struct Node {
    pub name: String,
    address: String,
    pub network: Arc<Network>,
    pub condition: Arc<Condition>,
    pub runtime: Arc<FakeRuntime>,
    pub machine: Arc<disks::Machine>,
    proxy_kernel: Arc<ProxyKernel>,
    /// What answers names, while the agent runs.
    names: Arc<Mutex<Option<Arc<Names>>>>,
    /// Where there is one of knarr's.
    pods: Option<Arc<MachineNetwork>>,
    ground: Ground,
    clock: Arc<dyn Clock>,
    rate: Rate,
    pub version: Arc<Version>,
    /// Somebody has switched the machine off.
    off: AtomicBool,
    /// The one that runs: how to end it.
    kubelet: Mutex<Option<(CancellationToken, Kubelet)>>,
}

impl Node {
    pub fn new(ground: &Ground, number: usize) -> Arc<Self> {
        let name = format!("n{number}");
        let images = IMAGES.map(|i| format!("docker.io/library/{i}"));
        let images: Vec<&str> = images.iter().map(String::as_str).collect();
        let clock = ground.clock_of(&name);
        let rate = ground.rate_of(&name);
        let runtime = Arc::new(FakeRuntime::new(clock.clone(), &images));
        if ground.proxied {
            runtime.set_subnet(u8::try_from(number).unwrap_or(u8::MAX));
        }
        let pods = ground.networked.then(|| {
            let (observer, mutation) = (ground.observer.clone(), ground.mutation);
            Arc::new(MachineNetwork::new(&name, ground.seed, observer, mutation))
        });
        if let Some(pods) = &pods {
            runtime.set_network(pods.clone());
        }
        for (container, manners) in [
            (
                "lingers",
                StopBehavior::Lingers(std::time::Duration::from_secs(3)),
            ),
            ("ignores", StopBehavior::Ignores),
        ] {
            runtime.set_stop_behavior(container, manners);
        }
        let (observer, of) = (ground.observer.clone(), name.clone());
        let condition = Arc::new(Condition::new(stream(ground.seed, &format!("runtime/{name}"))));
        let machine = Arc::new(disks::Machine::new(
            &name,
            observer.clone(),
            condition.clone(),
            rate,
            ground.mutation,
        ));
        let disks = machine.clone();
        let chance = Mutex::new(stream(ground.seed, &format!("processes/{name}")));
        let ends = Arc::downgrade(&runtime);
        runtime.observe(move |container, happening| {
            observer.happened(&of, container, happening);
            match happening {
                ContainerEvent::Started => disks.started(&container.id, &container.pod.uid),
                ContainerEvent::Ended(_) => disks.ended(&container.id),
                ContainerEvent::TermSent => {}
            }
            if matches!(happening, ContainerEvent::Started)
                && let Some(code) = ends_by_itself(&container.name)
            {
                let after = chance.lock().millis(50, 4_000);
                let (ends, id) = (ends.clone(), container.id.clone());
                tokio::spawn(async move {
                    sleep(after).await;
                    if let Some(runtime) = ends.upgrade() {
                        runtime.exit(&id, code);
                    }
                });
            }
        });
        Arc::new(Node {
            network: Arc::new(Network::new(
                &format!("node/{name}"),
                stream(ground.seed, &format!("network/{name}")),
            )),
            condition,
            machine,
            proxy_kernel: Arc::default(),
            names: Arc::default(),
            pods,
            address: format!("192.0.2.{}", 10 + number),
            runtime,
            ground: ground.clone(),
            clock,
            rate,
            version: Arc::default(),
            off: AtomicBool::new(false),
            kubelet: Mutex::new(None),
            name,
        })
    }

    pub fn start(&self) {
        let mut running = self.kubelet.lock();
        if running.is_some() || self.is_off() {
            return;
        }
        self.ground
            .observer
            .note(&format!("kubelet of {} starts", self.name));
        let is_former = self.version.is_former();
        self.ground.observer.kubelet_starts(&self.name, is_former);
        let directory = self.ground.directory.join(&self.name);
        let dead = CancellationToken::new();
        if self.ground.staged
            && let Err(error) = self.machine.staging.register(&directory.join("kubelet"))
        {
            let what = format!("the CSI driver of {} has no socket: {error}", self.name);
            self.ground.observer.violate("S9", what);
        }
        let mut config = Config {
            node_name: self.name.clone(),
            root_dir: directory.join("kubelet"),
            log_dir: directory.join("logs"),
            node_ips: vec![self.address.clone()],
            resolv_conf: directory.join("resolv.conf"),
            machine: Machine::Hollow {
                cpus: 8,
                memory_bytes: 16 << 30,
            },
            fake_host: Some(self.machine.hands(dead.clone())),
            self_fencing: self.ground.self_fencing,
            ..Config::default()
        };
        if self.ground.proxied {
            let agent = Identity::Component(Component::NetworkAgent(self.name.clone()));
            config.endpoint_barrier = b7_endpoints::BOUND.unsigned_abs();
            config.network = Some(NetworkAgent::start(network_agent::Parts {
                node: self.name.clone(),
                api: self.ground.wire(agent, &self.network, &dead, &self.version),
                clock: self.clock.clone(),
                observer: self.ground.observer.clone(),
                chance: stream(self.ground.seed, &format!("kernel/{}", self.name)),
                mutation: self.ground.mutation,
                kernel: self.proxy_kernel.clone(),
                dead: dead.clone(),
                names: self.ground.named.then(|| self.names.clone()),
            }));
        }
        if let Some(pods) = &self.pods {
            let agent = Identity::Component(Component::NetworkAgent(self.name.clone()));
            let api = self.ground.wire(agent, &self.network, &dead, &self.version);
            pods.start(api, self.runtime.clone(), &dead);
        }
        let identity = Identity::Component(Component::Node(self.name.clone()));
        let line = Line {
            node: self.name.clone(),
            observer: self.ground.observer.clone(),
            inner: self.runtime.clone(),
            condition: self.condition.clone(),
            machine: self.machine.clone(),
            rate: self.rate,
            is_former,
            dead: dead.clone(),
            mutation: self.ground.mutation,
            recipes: Mutex::default(),
            believed_ended: Mutex::default(),
        };
        let kubelet = Kubelet::start(
            config,
            self.ground.wire(identity, &self.network, &dead, &self.version),
            Arc::new(line),
            self.clock.clone(),
            dead.clone(),
        );
        *running = Some((dead, kubelet));
    }

    /// Whether nothing keeps it from doing its work.
    pub fn is_well(&self) -> bool {
        self.kubelet.lock().is_some() && self.network.is_well() && !self.runtime.is_down()
    }

    /// Whether its kubelet can do what it decides to, heard or not.
    pub fn is_able(&self) -> bool {
        self.kubelet.lock().is_some() && !self.runtime.is_down() && self.condition.is_reliable()
    }

    /// Checks the answers to all names, where DNS runs.
    pub fn ask_names(&self) {
        let names = self.names.lock().clone();
        let Some(names) = names else { return };
        let asked = self.ground.observer.world(n5_names::questions);
        for question in asked {
            let answer = names.ask(&question, self.network.is_cut());
            self.ground.observer.resolved(&self.name, &question, &answer);
        }
    }

    /// Another machine stands in its place, of the same name and with nothing on it.
    pub fn replace(&self) -> std::io::Result<()> {
        self.crash();
        self.condition.rebooted();
        self.runtime.wipe();
        self.machine.rebooted();
        self.forget_rules();
        if let Some(pods) = &self.pods {
            pods.wiped();
        }
        match std::fs::remove_dir_all(self.ground.directory.join(&self.name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Down and up again, its kubelet not yet.
    pub fn reboot(&self) {
        self.crash();
        self.condition.rebooted();
        self.runtime.reboot();
        self.machine.rebooted();
        self.forget_rules();
    }

    /// A kernel that was started anew sends nothing anywhere.
    fn forget_rules(&self) {
        if self.ground.proxied {
            self.proxy_kernel.rebooted();
            self.ground.observer.proxied(&self.name, Default::default());
            self.ground.observer.programmed(&self.name, Default::default());
        }
        if let Some(pods) = &self.pods {
            pods.rebooted();
        }
    }

    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Nothing runs on it, and its kubelet does not come back, until it is switched on.
    pub fn switch_off(&self) {
        self.reboot();
        self.off.store(true, Ordering::Relaxed);
        self.ground.observer.switched(&self.name, true);
    }

    /// Its kubelet may be started.
    pub fn switch_on(&self) {
        self.off.store(false, Ordering::Relaxed);
        self.ground.observer.switched(&self.name, false);
    }

    /// As `kill -9`: nothing more of it is done, processes go on.
    pub fn crash(&self) {
        if let Some((dead, _)) = self.kubelet.lock().take() {
            self.ground
                .observer
                .note(&format!("kubelet of {} dies", self.name));
            dead.cancel();
            if self.names.lock().take().is_some() {
                self.ground.observer.forget_answers(&self.name);
            }
            if let Some(pods) = &self.pods {
                pods.crash();
            }
        }
    }
}

/// With which code the processes of a container of this name end by themselves.
fn ends_by_itself(container: &str) -> Option<i32> {
    match container {
        "completes" => Some(0),
        "fails" => Some(1),
        _ => None,
    }
}

/// How one incarnation is cut off, and its task.
type Running = (CancellationToken, JoinHandle<()>);

/// Controllers and scheduler of one server.
pub(crate) struct Control {
    pub network: Arc<Network>,
    pub clock: Arc<DriftingClock>,
    pub version: Arc<Version>,
    ground: Ground,
    /// Whether it competes for the lease, or takes itself for the only one.
    elected: bool,
    /// How many there were, and the one that runs.
    running: Mutex<(u64, Option<Running>)>,
}

impl Control {
    pub fn new(ground: &Ground, name: &str, elected: bool) -> Arc<Self> {
        let chance: Stream = stream(ground.seed, &format!("network/{name}"));
        Arc::new(Control {
            clock: ground.clock_of(name),
            version: Arc::default(),
            network: Arc::new(Network::new(name, chance)),
            ground: ground.clone(),
            elected,
            running: Mutex::new((0, None)),
        })
    }

    pub fn start(&self) {
        let mut running = self.running.lock();
        if running.1.is_some() {
            return;
        }
        running.0 += 1;
        let identity = format!("{}-{}", self.network.name, running.0);
        self.ground.observer.note(&format!("{identity} starts"));
        let manager = Identity::Component(Component::ControllerManager);
        let dead = CancellationToken::new();
        let mut config = knarr_control::Config::default();
        if self.ground.networked {
            config.controllers.node_ipam = Some(self.ground.node_ipam.clone());
        }
        config.controllers.root_ca = Some("the simulation's".into());
        config.fence_agents = Some(Arc::new(self.ground.fence_agents.clone()));
        config.fence_agents_allowed = fence_agents::allowed();
        config.identity = self.elected.then_some(identity);
        let wire = self.ground.wire(manager, &self.network, &dead, &self.version);
        let api: Arc<dyn Api> = Arc::new(wire.acting_as(Identity::Mistaken));
        // Its own token is never rung: a crash is no orderly stop.
        let clock = self.clock.clone();
        let run = knarr_control::run(wire, config, clock, CancellationToken::new());
        let mutation = self.ground.mutation;
        running.1 = Some((
            dead,
            tokio::spawn(async move {
                tokio::join!(run, async {
                    match mutation {
                        Some(Mutation::GcWithoutQuarantine) => release_at_once(api).await,
                        Some(Mutation::DetachByTimer) => disks::detach_by_timer(api).await,
                        Some(Mutation::DetachInUse) => attacher::detach_in_use(api).await,
                        _ => {}
                    }
                });
            }),
        ));
    }

    pub fn is_well(&self) -> bool {
        self.running.lock().1.is_some() && self.network.is_well()
    }

    pub fn crash(&self) {
        if let Some((dead, task)) = self.running.lock().1.take() {
            self.ground.observer.note(&format!("{} dies", self.network.name));
            dead.cancel();
            task.abort();
        }
    }
}

/// For [`Mutation::GcWithoutQuarantine`]: a PodGC that believes a node's absence at first sight.
async fn release_at_once(api: Arc<dyn Api>) {
    use knarr_client::{DeleteOptions, ListOptions};
    loop {
        sleep(std::time::Duration::from_secs(1)).await;
        let Ok(pods) = api.list(&registry::POD, ListOptions::default()).await else {
            continue;
        };
        for pod in pods.items {
            let node = pod.field("spec.nodeName").unwrap_or_default();
            let missing = !node.is_empty()
                && api
                    .get(&registry::NODE, "", &node)
                    .await
                    .is_err_and(|e| e.is_not_found());
            if missing {
                let mut options = DeleteOptions {
                    grace_period_seconds: Some(0),
                    ..DeleteOptions::default()
                };
                options.preconditions.uid = Some(pod.uid().to_string());
                // It tries again in a second.
                let _ = api
                    .delete(&registry::POD, pod.namespace(), pod.name(), options)
                    .await;
            }
        }
    }
}
