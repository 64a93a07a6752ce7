//! The components and their incarnations: started, crashed, started again. They are the real ones, on a network, a
//! runtime and a clock of the simulation.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_api::registry;
use knarr_client::{Api, Clock, Component};
use knarr_control::fencing::{Allowed, FenceAgents};
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
use crate::component_api::{ComponentApi, Identity};
use crate::condition::Condition;
use crate::disks;
use crate::later::later;
use crate::names::Names;
use crate::network::Network;
use crate::network_agent::{self, NetworkAgent, ProxyKernel};
use crate::observer::Observer;
use crate::placement;
use crate::pod_network::NodePodNetwork;
use crate::progress::Progress;
use crate::random::{Stream, stream};
use crate::rules::{b7_endpoints, n5_names};
use crate::runtime::RuntimeAccess;
use crate::servers::ApiServer;
use crate::switches::{Switch, Switches};
use crate::upgrade::Version;

/// The image of every container.
pub(crate) const IMAGES: [&str; 3] = ["app:v1", "app:v2", "app:v3"];

/// What all components share.
#[derive(Clone)]
pub(crate) struct Environment {
    pub seed: u64,
    pub servers: Arc<Vec<Arc<ApiServer>>>,
    pub observer: Arc<Observer>,
    /// The true time; no component knows it.
    pub clock: Arc<Progress>,
    pub epoch: Timestamp,
    pub directory: PathBuf,
    pub mutation: Option<Mutation>,
    pub fence_agents: Arc<dyn FenceAgents>,
    pub fence_agents_allowed: Allowed,
    /// Which pods self-fencing terminates.
    pub self_fencing: SelfFencing,
    /// Services are enabled: each node has a network agent.
    pub proxied: bool,
    /// Nodes have a podCIDR and a pod network that enforces NetworkPolicies.
    pub networked: bool,
    /// Nodes have a CSI driver.
    pub staged: bool,
    /// Names of Services are resolved on each node.
    pub named: bool,
    pub node_ipam: nodeipam::Config,
    /// The switches that are on.
    pub on: Switches,
}

impl Environment {
    fn component_api(
        &self,
        identity: Identity,
        network: &Arc<Network>,
        dead: &CancellationToken,
        version: &Version,
    ) -> Arc<ComponentApi> {
        let component_api = ComponentApi::new(
            self.servers.clone(),
            identity,
            network.clone(),
            self.observer.clone(),
            dead.clone(),
            self.mutation,
        );
        Arc::new(component_api.former(version.is_former()))
    }

    /// The clock of the host that the component runs on.
    pub fn clock_of(&self, host: &str) -> Arc<DriftingClock> {
        let mut chance = stream(self.seed, &format!("clock/{host}"));
        Arc::new(DriftingClock::new(self.clock.clone(), self.epoch, &mut chance))
    }

    /// The API for a client that only lists and watches, over a link without faults.
    pub fn follower(&self) -> Arc<dyn Api> {
        let network = Arc::new(Network::new("follower", stream(self.seed, "network/follower")));
        self.component_api(
            Identity::Administrator,
            &network,
            &CancellationToken::new(),
            &Version::default(),
        )
    }

    /// The rate of this node's clock; the observer records it where it matters.
    fn rate_of(&self, node: &str) -> Rate {
        if !(self.on.has(Switch::DriftingClocks) || self.on.has(Switch::WrongClocks)) {
            return Rate::EVEN;
        }
        let rate = Rate::draw(self.on, &mut stream(self.seed, &format!("rate/{node}")));
        self.observer.set_rate(node, rate);
        rate
    }
}

/// A host with its container runtime, and a kubelet on it that starts and stops.
pub(crate) struct Node {
    pub name: String,
    number: usize,
    address: String,
    pub network: Arc<Network>,
    pub condition: Arc<Condition>,
    pub runtime: Arc<FakeRuntime>,
    pub host: Arc<disks::NodeHost>,
    proxy_kernel: Arc<ProxyKernel>,
    /// The DNS zone, while the agent runs.
    names: Arc<Mutex<Option<Arc<Names>>>>,
    /// The pod network, if it is knarr's own.
    pods: Option<Arc<NodePodNetwork>>,
    environment: Environment,
    clock: Arc<dyn Clock>,
    rate: Rate,
    pub version: Arc<Version>,
    /// The host is switched off.
    off: AtomicBool,
    /// The running kubelet, with the token that ends it.
    kubelet: Mutex<Option<(CancellationToken, Kubelet)>>,
}

impl Node {
    pub fn new(environment: &Environment, number: usize) -> Arc<Self> {
        let name = format!("n{number}");
        let images = IMAGES.map(|i| format!("docker.io/library/{i}"));
        let images: Vec<&str> = images.iter().map(String::as_str).collect();
        let clock = environment.clock_of(&name);
        let rate = environment.rate_of(&name);
        let runtime = Arc::new(FakeRuntime::new(clock.clone(), &images));
        if environment.proxied {
            runtime.set_subnet(u8::try_from(number).unwrap_or(u8::MAX));
        }
        let pods = environment.networked.then(|| {
            let (observer, mutation) = (environment.observer.clone(), environment.mutation);
            Arc::new(NodePodNetwork::new(&name, environment.seed, observer, mutation))
        });
        if let Some(pods) = &pods {
            runtime.set_network(pods.clone());
        }
        for (container, exit_behavior) in [
            (
                "lingers",
                StopBehavior::Lingers(std::time::Duration::from_secs(3)),
            ),
            ("ignores", StopBehavior::Ignores),
        ] {
            runtime.set_stop_behavior(container, exit_behavior);
        }
        let (observer, of) = (environment.observer.clone(), name.clone());
        let condition = Arc::new(Condition::new(stream(
            environment.seed,
            &format!("runtime/{name}"),
        )));
        let host = Arc::new(disks::NodeHost::new(
            &name,
            observer.clone(),
            condition.clone(),
            rate,
            environment.mutation,
        ));
        let disks = host.clone();
        let chance = Mutex::new(stream(environment.seed, &format!("processes/{name}")));
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
                later(after, move || {
                    if let Some(runtime) = ends.upgrade() {
                        runtime.exit(&id, code);
                    }
                });
            }
        });
        Arc::new(Node {
            network: Arc::new(Network::new(
                &format!("node/{name}"),
                stream(environment.seed, &format!("network/{name}")),
            )),
            condition,
            host,
            proxy_kernel: Arc::default(),
            names: Arc::default(),
            pods,
            number,
            address: format!("192.0.2.{}", 10 + number),
            runtime,
            environment: environment.clone(),
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
        self.environment
            .observer
            .note(&format!("kubelet of {} starts", self.name));
        let is_former = self.version.is_former();
        self.environment.observer.kubelet_starts(&self.name, is_former);
        let directory = self.environment.directory.join(&self.name);
        let dead = CancellationToken::new();
        if self.environment.staged
            && let Err(error) = self.host.staging.register(&directory.join("kubelet"))
        {
            let what = format!("the CSI driver of {} has no socket: {error}", self.name);
            self.environment.observer.violate("S9", what);
        }
        let mut config = Config {
            node_name: self.name.as_str().into(),
            root_dir: directory.join("kubelet"),
            log_dir: directory.join("logs"),
            node_ips: vec![self.address.clone()],
            resolv_conf: directory.join("resolv.conf"),
            machine: Machine::Hollow {
                cpus: 8,
                memory_bytes: 16 << 30,
            },
            fake_host: Some(self.host.host_access(dead.clone())),
            self_fencing: self.environment.self_fencing,
            ..Config::default()
        };
        if self.environment.on.has_placement() {
            let zone = placement::zone_of(self.number);
            config
                .configuration
                .node_labels
                .insert(placement::ZONE.into(), zone.into());
        }
        if self.environment.proxied {
            let agent = Identity::Component(Component::NetworkAgent(self.name.clone()));
            config.endpoint_barrier = b7_endpoints::BOUND.unsigned_abs();
            config.network = Some(NetworkAgent::start(network_agent::AgentConfig {
                node: self.name.clone(),
                api: self
                    .environment
                    .component_api(agent, &self.network, &dead, &self.version),
                clock: self.clock.clone(),
                observer: self.environment.observer.clone(),
                chance: stream(self.environment.seed, &format!("kernel/{}", self.name)),
                mutation: self.environment.mutation,
                kernel: self.proxy_kernel.clone(),
                dead: dead.clone(),
                names: self.environment.named.then(|| self.names.clone()),
            }));
        }
        if let Some(pods) = &self.pods {
            let agent = Identity::Component(Component::NetworkAgent(self.name.clone()));
            let api = self
                .environment
                .component_api(agent, &self.network, &dead, &self.version);
            pods.start(api, self.runtime.clone(), &dead);
        }
        let identity = Identity::Component(Component::Node(self.name.clone()));
        let runtime_access = RuntimeAccess {
            node: self.name.clone(),
            observer: self.environment.observer.clone(),
            inner: self.runtime.clone(),
            condition: self.condition.clone(),
            host: self.host.clone(),
            rate: self.rate,
            is_former,
            dead: dead.clone(),
            mutation: self.environment.mutation,
            recipes: Mutex::default(),
            believed_ended: Mutex::default(),
        };
        let kubelet = Kubelet::start(
            config,
            self.environment
                .component_api(identity, &self.network, &dead, &self.version),
            Arc::new(runtime_access),
            self.clock.clone(),
            dead.clone(),
        );
        *running = Some((dead, kubelet));
    }

    /// Whether no fault keeps it from working.
    pub fn is_well(&self) -> bool {
        self.kubelet.lock().is_some() && self.network.is_well() && !self.runtime.is_down()
    }

    /// Whether its kubelet can carry out what it decides, whether it reaches the API or not.
    pub fn is_able(&self) -> bool {
        self.kubelet.lock().is_some() && !self.runtime.is_down() && self.condition.is_reliable()
    }

    /// Checks the answers for all names, if DNS runs.
    pub fn ask_names(&self) {
        let names = self.names.lock().clone();
        let Some(names) = names else { return };
        let asked = self.environment.observer.world(n5_names::questions);
        for question in asked {
            let answer = names.ask(&question, self.network.is_cut());
            self.environment.observer.resolved(&self.name, &question, &answer);
        }
    }

    /// Replaces the host by an empty one of the same name.
    pub fn replace(&self) -> std::io::Result<()> {
        self.crash();
        self.condition.rebooted();
        self.runtime.wipe();
        self.host.rebooted();
        self.forget_rules();
        if let Some(pods) = &self.pods {
            pods.wiped();
        }
        match std::fs::remove_dir_all(self.environment.directory.join(&self.name)) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Reboots the host; its kubelet is not started yet.
    pub fn reboot(&self) {
        self.crash();
        self.condition.rebooted();
        self.runtime.reboot();
        self.host.rebooted();
        self.forget_rules();
    }

    /// After a reboot the kernel has no Services.
    fn forget_rules(&self) {
        if self.environment.proxied {
            self.proxy_kernel.rebooted();
            self.environment.observer.proxied(&self.name, Default::default());
            self.environment
                .observer
                .programmed(&self.name, Default::default());
        }
        if let Some(pods) = &self.pods {
            pods.rebooted();
        }
    }

    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Powers the host off: nothing runs on it, and its kubelet does not start, until it is switched on.
    pub fn switch_off(&self) {
        self.reboot();
        self.off.store(true, Ordering::Relaxed);
        self.environment.observer.switched(&self.name, true);
    }

    /// Powers the host on: its kubelet may be started.
    pub fn switch_on(&self) {
        self.off.store(false, Ordering::Relaxed);
        self.environment.observer.switched(&self.name, false);
    }

    /// As `kill -9`: the kubelet stops in the middle of its work, processes continue.
    pub fn crash(&self) {
        if let Some((dead, _)) = self.kubelet.lock().take() {
            self.environment
                .observer
                .note(&format!("kubelet of {} dies", self.name));
            dead.cancel();
            if self.names.lock().take().is_some() {
                self.environment.observer.forget_answers(&self.name);
            }
            if let Some(pods) = &self.pods {
                pods.crash();
            }
        }
    }
}

/// The exit code of the containers of this name that exit by themselves.
fn ends_by_itself(container: &str) -> Option<i32> {
    match container {
        "completes" => Some(0),
        "fails" => Some(1),
        _ => None,
    }
}

/// The token that ends an incarnation, and its task.
type Running = (CancellationToken, JoinHandle<()>);

/// Controllers and scheduler of one server.
pub(crate) struct Control {
    pub network: Arc<Network>,
    pub clock: Arc<DriftingClock>,
    pub version: Arc<Version>,
    environment: Environment,
    /// Whether it takes part in leader election, or acts as the only one.
    elected: bool,
    /// How many incarnations there were, and the one that runs.
    running: Mutex<(u64, Option<Running>)>,
}

impl Control {
    pub fn new(environment: &Environment, name: &str, elected: bool) -> Arc<Self> {
        let chance: Stream = stream(environment.seed, &format!("network/{name}"));
        Arc::new(Control {
            clock: environment.clock_of(name),
            version: Arc::default(),
            network: Arc::new(Network::new(name, chance)),
            environment: environment.clone(),
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
        self.environment.observer.note(&format!("{identity} starts"));
        let manager = Identity::Component(Component::ControllerManager);
        let dead = CancellationToken::new();
        let mut config = knarr_control::Config::default();
        if self.environment.networked {
            config.controllers.node_ipam = Some(self.environment.node_ipam.clone());
        }
        config.controllers.root_ca = Some("the simulation's".into());
        config.fence_agents = Some(self.environment.fence_agents.clone());
        config.fence_agents_allowed = self.environment.fence_agents_allowed.clone();
        let on = self.environment.on;
        config.topology_domains = on.has(Switch::TopologyDomains);
        config.rebalancing = on.has(Switch::Rebalancing);
        for profile in &mut config.scheduler.profiles {
            profile.args.preemption.cross_node = on.has(Switch::CrossNodePreemption);
        }
        config.identity = self.elected.then_some(identity);
        let component_api = self
            .environment
            .component_api(manager, &self.network, &dead, &self.version);
        let api: Arc<dyn Api> = Arc::new(component_api.acting_as(Identity::Mutant));
        let rebalancer = Identity::Component(Component::Controller(knarr_control::rebalancing::ACCOUNT));
        let rebalancer: Arc<dyn Api> = Arc::new(component_api.acting_as(rebalancer));
        // It gets a token that is never cancelled: a crash is not an orderly stop.
        let clock = self.clock.clone();
        let run = knarr_control::run(component_api, config, clock, CancellationToken::new());
        let mutation = self.environment.mutation;
        running.1 = Some((
            dead,
            tokio::spawn(async move {
                tokio::join!(run, async {
                    match mutation {
                        Some(Mutation::GcWithoutQuarantine) => release_at_once(api).await,
                        Some(Mutation::DetachByTimer) => disks::detach_by_timer(api).await,
                        Some(Mutation::MoveWithoutEnd) => placement::move_without_end(api, rebalancer).await,
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
            self.environment
                .observer
                .note(&format!("{} dies", self.network.name));
            dead.cancel();
            task.abort();
        }
    }
}

/// For [`Mutation::GcWithoutQuarantine`]: a PodGC that deletes the pods of a missing node at once.
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
