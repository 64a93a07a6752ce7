//! The kubelet's doing half: one task a pod, fed from the API, the runtime and the clock.
//!
//! Everything is decided by `knarr_kubelet::pod`; here it is carried out, and the results are returned as events.
//! Stopping a kubelet stops no container: the next one finds and adopts what runs. What runs without a pod in the API
//! (once its list of pods is complete) is terminated.
//!
//! Each part is a struct that has what it uses and its own locks. This module makes them ([`Parts`]) and runs their loops;
//! the main loop is [`sync_loop`].

mod accept_queues;
mod admission;
mod at_most_one;
mod bound_pods;
mod conditions;
mod config;
pub mod container;
pub mod downward;
mod endpoints;
mod enforcement;
pub mod env;
mod events;
mod eviction;
mod exit;
mod garbage;
mod inbox;
pub mod labels;
mod launch;
mod lease_trust;
pub(crate) mod machine;
mod manifests;
pub(crate) mod namespaces;
pub(crate) mod network;
mod node;
mod node_lease;
mod node_resources;
pub(crate) mod own_node;
mod pod_object;
mod pod_runtime;
mod preemption;
mod pull;
mod remove;
mod resize;
mod resource_managers;
pub mod resources;
mod retry;
mod runtime_events;
mod runtime_snapshot;
pub mod sandbox;
pub mod security_context;
mod self_fencing;
pub mod shutdown;
mod start_denied;
mod static_pods;
mod status;
mod sync_loop;
mod waiting_pod;
mod wall_clock;
mod watchdog;
mod worker;
mod workers;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::registry::Registered;
use knarr_apimachinery::ids::PodUid;
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, Clock, EventRecorder, Store, TokioClock};
pub use knarr_kubelet::configuration::{self, KubeletConfiguration};
use knarr_kubelet::garbage::images::ImageRecords;
use knarr_kubelet::pod::Event;
pub use knarr_kubelet::pod::TerminationResume;
pub use knarr_kubelet::self_fencing::SelfFencing;
pub use knarr_kubelet::static_pods::PodRules;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::containermanager::ContainerManager;
use crate::host::{Host, host_of};
use crate::probe;
use crate::runtime::Runtime;
use crate::stats::{self, HostMeter, Meter};
use crate::untrusted_fs::Pool;
use crate::volumes::{self, Volumes};
use admission::PodAdmission;
use at_most_one::StartAnnouncements;
use bound_pods::BoundPods;
use conditions::NodeConditions;
pub use config::Config;
use endpoints::EndpointBarrier;
use enforcement::PodCgroups;
use events::Events;
use eviction::EvictionParts;
use exit::ExitReader;
use garbage::GarbageCollector;
use inbox::PodEvents;
use launch::Launcher;
use lease_trust::LeaseTrust;
pub use machine::Machine;
use manifests::ManifestDirectory;
pub use network::{Availability, NodeNetwork};
use node::{NodeState, NodeStatusWriter};
use node_lease::LeaseRenewal;
use node_resources::NodeResources;
use own_node::OwnNode;
use pod_runtime::PodRuntime;
use resize::Resizer;
use resource_managers::ResourceManagers;
use runtime_snapshot::RuntimeSnapshot;
use self_fencing::SelfFencer;
use static_pods::{MirrorPods, TerminatedStaticPods};
use sync_loop::{Inputs, PodChange, SyncLoop};
use worker::WorkerContext;
use workers::Workers;

/// The longest pause between two attempts to watch this node's pods: pods released while the node was cut off terminate
/// soon after the API is reachable again (SPEC S5), even if one or two attempts fail.
const PODS_WATCH_RETRY: Duration = Duration::from_secs(5);
/// Between two attempts to list what the runtime has, at the start.
const FIRST_LIST_RETRY: Duration = Duration::from_millis(200);

/// A running kubelet. Dropping it does not stop it; its token does.
pub struct Kubelet {
    task: JoinHandle<()>,
    pods: Arc<Store>,
    meter: Option<Arc<dyn Meter>>,
    probes: Arc<probe::Counts>,
    containers: Arc<ContainerManager>,
    shutdown: shutdown::Requests,
}

impl Kubelet {
    /// Starts at once, and waits for the runtime and the API by itself. On a real host it measures what its pods use.
    pub fn start(
        config: Config,
        api: Arc<dyn Api>,
        runtime: Arc<dyn Runtime>,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> Self {
        let pods = Arc::new(Store::new(core::Pod::kind_of(), &[]));
        let claimed = volumes::ClaimedPaths::default();
        let meter: Option<Arc<dyn Meter>> = config.machine.is_host().then(|| {
            let parts = stats::MeterConfig {
                node_name: config.node_name.clone(),
                root_dir: config.root_dir.clone(),
                log_dir: config.log_dir.clone(),
                memory_bytes: node_resources::size(config.machine).1,
                cgroup_driver: config.configuration.cgroup_driver,
            };
            let meter = HostMeter::new(
                parts,
                runtime.clone(),
                pods.clone(),
                claimed.clone(),
                clock.clone(),
            );
            Arc::new(meter) as Arc<dyn Meter>
        });
        Self::begin(config, (api, runtime, clock), (pods, claimed), meter, cancel)
    }

    /// The same with another meter, or none: then no pod is evicted.
    pub fn start_measured(
        config: Config,
        (api, runtime, clock): (Arc<dyn Api>, Arc<dyn Runtime>, Arc<dyn Clock>),
        pods: Arc<Store>,
        meter: Option<Arc<dyn Meter>>,
        cancel: CancellationToken,
    ) -> Self {
        let known = (pods, volumes::ClaimedPaths::default());
        Self::begin(config, (api, runtime, clock), known, meter, cancel)
    }

    fn begin(
        config: Config,
        (api, runtime, clock): (Arc<dyn Api>, Arc<dyn Runtime>, Arc<dyn Clock>),
        (pods, claimed): (Arc<Store>, volumes::ClaimedPaths),
        meter: Option<Arc<dyn Meter>>,
        cancel: CancellationToken,
    ) -> Self {
        let (shutdown, requests) = shutdown::channel();
        let cluster = (api, runtime, clock);
        // Where pods are no processes, all happens in the one order that a replay has.
        let files = match config.machine {
            Machine::Host => Pool::new(),
            Machine::Hollow { .. } => Pool::inline(cancel.clone()),
        };
        let (parts, received) = Parts::new(config, cluster, files, (pods.clone(), claimed), requests);
        let probes = parts.probes.clone();
        let containers = parts.managers.containers.clone();
        let measuring = meter.clone();
        let task = crate::task::spawn(async move {
            let running = parts.run(received, measuring, cancel.clone());
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                () = running => {}
            }
        });
        Kubelet {
            task,
            pods,
            meter,
            probes,
            containers,
            shutdown,
        }
    }

    /// The meter of the node and its pods.
    pub fn meter(&self) -> Option<Arc<dyn Meter>> {
        self.meter.clone()
    }

    /// The pods bound to this node, as the API has them.
    pub fn pods(&self) -> Arc<Store> {
        self.pods.clone()
    }

    /// Accepts shutdown requests.
    pub fn shutdown(&self) -> shutdown::Requests {
        self.shutdown.clone()
    }

    /// What allocates CPUs, memory and devices of containers.
    pub fn container_manager(&self) -> Arc<ContainerManager> {
        self.containers.clone()
    }

    /// The counts of probe results.
    pub fn probes(&self) -> Arc<probe::Counts> {
        self.probes.clone()
    }

    /// Returns when it has stopped.
    pub async fn wait(self) {
        if let Err(e) = self.task.await
            && e.is_panic()
        {
            warn!("the kubelet's task panicked");
        }
    }
}

/// What is sent to the kubelet's loops.
struct Received {
    pod_events: mpsc::UnboundedReceiver<(PodUid, Event)>,
    shutdown_requests: mpsc::UnboundedReceiver<shutdown::ShutdownRequest>,
    /// Uids of pods with a device whose health has changed.
    health: mpsc::UnboundedReceiver<PodUid>,
}

/// The parts that several loops or workers use.
struct Parts {
    config: Arc<Config>,
    api: Arc<dyn Api>,
    runtime: Arc<dyn Runtime>,
    clock: Arc<dyn Clock>,
    /// Starts with `clock` and is never set: for timeouts.
    steady: TokioClock,
    host: Arc<dyn Host>,
    events: Events,
    pods: BoundPods,
    services: Arc<Store>,
    volumes: Arc<Volumes>,
    resources: Arc<NodeResources>,
    own_node: Arc<OwnNode>,
    conditions: Arc<NodeConditions>,
    managers: Arc<ResourceManagers>,
    cgroups: Arc<PodCgroups>,
    trust: Arc<LeaseTrust>,
    fencer: Arc<SelfFencer>,
    announcements: Arc<StartAnnouncements>,
    garbage: Arc<GarbageCollector>,
    pod_events: PodEvents,
    probes: Arc<probe::Counts>,
}

impl Parts {
    fn new(
        config: Config,
        (api, runtime, clock): (Arc<dyn Api>, Arc<dyn Runtime>, Arc<dyn Clock>),
        files: Pool,
        (pods, claimed): (Arc<Store>, volumes::ClaimedPaths),
        shutdown_requests: mpsc::UnboundedReceiver<shutdown::ShutdownRequest>,
    ) -> (Self, Received) {
        let config = Arc::new(config);
        let resources = Arc::new(NodeResources::of(&config));
        let (pod_events, received_events) = PodEvents::new();
        // A hollow node without a fake host has no boot time.
        let counts = config.machine.is_host() || config.fake_host.is_some();
        let renewals = counts.then(|| config.root_dir.join(lease_trust::RENEWALS));
        let host = config
            .fake_host
            .clone()
            .unwrap_or_else(|| host_of(config.machine));
        let steady = TokioClock::new(clock.now());
        let recorder = EventRecorder::new(api.clone(), "kubelet", &config.node_name, clock.clone());
        let own_node = Arc::new(OwnNode::new(api.clone(), &config.node_name, clock.now()));
        let volumes = Arc::new(Volumes::new(
            config.root_dir.clone(),
            own_node.clone(),
            (api.clone(), recorder.clone(), clock.clone()),
            (config.machine, host.clone()),
            files,
            claimed,
        ));
        let events = Events::new(recorder, &config.node_name);
        let files = volumes.files();
        let (managers, health) = ResourceManagers::new(&config, files, api.clone(), steady, &resources);
        let managers = Arc::new(managers);
        let trust = Arc::new(LeaseTrust::new(host.clone(), renewals));
        let pods = BoundPods::new(pods);
        let parts = Parts {
            announcements: Arc::new(StartAnnouncements::new(
                api.clone(),
                own_node.clone(),
                pods.clone(),
                volumes.clone(),
            )),
            fencer: Arc::new(SelfFencer {
                mode: config.self_fencing,
                trust: trust.clone(),
                api: api.clone(),
                runtime: runtime.clone(),
                pods: pods.clone(),
                volumes: volumes.clone(),
                pod_events: pod_events.clone(),
            }),
            cgroups: Arc::new(PodCgroups::new(
                config.clone(),
                resources.clone(),
                pods.clone(),
                managers.containers.clone(),
                events.clone(),
            )),
            garbage: Arc::new(GarbageCollector {
                config: config.clone(),
                runtime: runtime.clone(),
                volumes: volumes.clone(),
                pods: pods.clone(),
                events: events.clone(),
                clock: clock.clone(),
                steady,
                images: Mutex::new(ImageRecords::new(clock.now())),
            }),
            services: Arc::new(Store::new(core::Service::kind_of(), &[])),
            conditions: Arc::default(),
            probes: Arc::default(),
            config,
            api,
            runtime,
            clock,
            steady,
            host,
            events,
            pods,
            volumes,
            resources,
            own_node,
            managers,
            trust,
            pod_events,
        };
        let received = Received {
            pod_events: received_events,
            shutdown_requests,
            health,
        };
        (parts, received)
    }

    /// Never returns.
    async fn run(self, received: Received, meter: Option<Arc<dyn Meter>>, cancel: CancellationToken) {
        let mut tasks = JoinSet::new();
        self.spawn_node_loops(&mut tasks);
        self.start_managers(&mut tasks, received.health).await;
        // Nothing is decided about any pod before it is known what runs.
        let snapshot = self.first_snapshot().await;
        let changes = self.watch_pods(&mut tasks);
        let runtime = self.pod_runtime();
        let pod_terminated = Arc::<Notify>::default();
        let (rereads, reread) = mpsc::unbounded_channel();
        let context = self.worker_context(&runtime, &pod_terminated);
        let workers = Workers::new(Arc::new(context), self.pods.clone(), rereads, cancel);
        let shutdown = shutdown::Runner::new(
            self.config.clone(),
            self.events.clone(),
            self.conditions.clone(),
            self.clock.clone(),
            pod_terminated,
        );
        let sync_loop = SyncLoop::new(
            workers,
            self.manifests(),
            shutdown,
            self.pods.clone(),
            runtime,
            self.clock.clone(),
            snapshot,
        );
        self.spawn_reclaiming_loops(&mut tasks, meter);
        let (forward, runtime_events) = mpsc::unbounded_channel();
        tasks.spawn(runtime_events::run(self.runtime.clone(), forward));
        let inputs = Inputs {
            changes,
            rereads: reread,
            pod_events: received.pod_events,
            shutdown_requests: received.shutdown_requests,
            runtime_events,
        };
        sync_loop.run(inputs).await;
    }

    /// What does not depend on which pods there are.
    fn spawn_node_loops(&self, tasks: &mut JoinSet<()>) {
        let (api, services) = (self.api.clone(), self.services.clone());
        tasks.spawn(async move {
            informer::run(api, core::Service::kind_of().clone(), Scope::default(), services).await;
        });
        tasks.spawn(node::run(self.node_status(), self.lease_renewal()));
        if self.config.machine.is_host() {
            let cgroups = self.cgroups.clone();
            tasks.spawn(async move { cgroups.run().await });
        }
        let own_node = self.own_node.clone();
        tasks.spawn(async move { own_node.follow().await });
        let fencer = self.fencer.clone();
        tasks.spawn(async move { fencer.run().await });
        if let Some(device) = self.config.watchdog_device.clone() {
            tasks.spawn(watchdog::run(self.fencer.clone(), self.trust.clone(), device));
        }
        let volumes = self.volumes.clone();
        tasks.spawn(async move { volumes.run().await });
    }

    fn node_status(&self) -> NodeStatusWriter {
        NodeStatusWriter {
            config: self.config.clone(),
            api: self.api.clone(),
            runtime: self.runtime.clone(),
            clock: self.clock.clone(),
            steady: self.steady,
            own_node: self.own_node.clone(),
            announcements: self.announcements.clone(),
            conditions: self.conditions.clone(),
            resources: self.resources.clone(),
            managers: self.managers.clone(),
            volumes: self.volumes.clone(),
            events: self.events.clone(),
            state: NodeState::default(),
        }
    }

    fn lease_renewal(&self) -> LeaseRenewal {
        let (api, clock) = (self.api.clone(), self.clock.clone());
        LeaseRenewal::new(self.config.clone(), api, clock, self.trust.clone())
    }

    /// Starts the resource managers of a host, and what registers plugins.
    async fn start_managers(&self, tasks: &mut JoinSet<()>, health: mpsc::UnboundedReceiver<PodUid>) {
        let managers = &self.managers;
        let plugins = || managers.plugins(&self.config, &self.volumes, self.host.clone());
        let fake_host = self.config.fake_host.as_ref();
        if self.config.machine.is_host() {
            managers.start(&self.conditions).await;
            let (runtime, root) = (self.runtime.clone(), self.config.root_dir.clone());
            managers.spawn_loops(tasks, runtime, root, plugins(), health, self.pod_events.clone());
        } else if fake_host.is_some_and(|host| host.has_fake_plugins()) {
            tasks.spawn(plugins().run());
        }
    }

    async fn first_snapshot(&self) -> RuntimeSnapshot {
        loop {
            match RuntimeSnapshot::list(&*self.runtime, self.clock.now()).await {
                Ok(snapshot) => return snapshot,
                Err(error) => {
                    warn!(%error, "the container runtime does not answer yet");
                    sleep(FIRST_LIST_RETRY).await;
                }
            }
        }
    }

    /// Returns the changes of this node's pods.
    fn watch_pods(&self, tasks: &mut JoinSet<()>) -> mpsc::UnboundedReceiver<PodChange> {
        let (changed, changes) = mpsc::unbounded_channel();
        let store = self.pods.store().clone();
        store.add_event_handler(move |change| {
            // The receiver is dropped only with the whole kubelet.
            let _ = changed.send((change.before().cloned(), change.after().cloned()));
        });
        let scope = Scope {
            field_selector: format!("spec.nodeName={}", self.config.node_name),
            ..Scope::default()
        };
        let api = self.api.clone();
        tasks.spawn(async move {
            let kind = core::Pod::kind_of().clone();
            informer::run_with_max_backoff(PODS_WATCH_RETRY, api, kind, scope, store).await;
        });
        changes
    }

    fn pod_runtime(&self) -> Arc<PodRuntime> {
        let image_pulls = self.config.configuration.image_pulls;
        Arc::new(PodRuntime::new(self.runtime.clone(), image_pulls))
    }

    fn worker_context(&self, runtime: &Arc<PodRuntime>, pod_terminated: &Arc<Notify>) -> WorkerContext {
        let config = &self.config;
        let launcher = Launcher {
            config: config.clone(),
            api: self.api.clone(),
            clock: self.clock.clone(),
            runtime: runtime.clone(),
            volumes: self.volumes.clone(),
            managers: self.managers.clone(),
            cgroups: self.cgroups.clone(),
            node: self.resources.clone(),
            services: self.services.clone(),
            announcements: self.announcements.clone(),
            fencer: self.fencer.clone(),
        };
        let resizer = Resizer {
            config: config.clone(),
            node: self.resources.clone(),
            runtime: runtime.clone(),
            cgroups: self.cgroups.clone(),
            containers: self.managers.containers.clone(),
        };
        let admission = PodAdmission::new(
            config.clone(),
            self.own_node.clone(),
            self.pods.clone(),
            self.managers.clone(),
            self.conditions.clone(),
        );
        let (steady, log_dir) = (Arc::new(self.steady), config.log_dir.clone());
        WorkerContext {
            config: config.clone(),
            api: self.api.clone(),
            clock: self.clock.clone(),
            runtime: runtime.clone(),
            volumes: self.volumes.clone(),
            node: self.resources.clone(),
            managers: self.managers.clone(),
            admission: Arc::new(admission),
            launcher,
            resizer,
            cgroups: self.cgroups.clone(),
            exits: ExitReader::new(self.runtime.clone(), self.volumes.clone()),
            endpoints: EndpointBarrier::new(
                self.api.clone(),
                config.network.clone(),
                config.endpoint_barrier,
            ),
            announcements: self.announcements.clone(),
            mirrors: Arc::new(MirrorPods::new(self.api.clone(), self.own_node.clone())),
            terminated_static_pods: TerminatedStaticPods::new(steady, log_dir),
            events: self.events.clone(),
            probes: self.probes.clone(),
            pod_terminated: pod_terminated.clone(),
        }
    }

    fn manifests(&self) -> Option<ManifestDirectory> {
        let configuration = &self.config.configuration;
        let every = configuration.file_check_frequency.unsigned_abs();
        let path = configuration.static_pod_path.as_ref()?;
        let rules = self.config.pod_rules?;
        Some(ManifestDirectory::new(path, &self.config.node_name, rules, every))
    }

    /// Eviction, where the node is measured, and garbage collection.
    fn spawn_reclaiming_loops(&self, tasks: &mut JoinSet<()>, meter: Option<Arc<dyn Meter>>) {
        let garbage = self.garbage.clone();
        if let Some(meter) = meter.clone() {
            let parts = EvictionParts {
                settings: self.config.configuration.eviction.clone(),
                pods: self.pods.clone(),
                conditions: self.conditions.clone(),
                garbage: garbage.clone(),
                events: self.events.clone(),
                pod_events: self.pod_events.clone(),
                steady: self.steady,
            };
            tasks.spawn(eviction::run(parts, meter));
        }
        tasks.spawn(async move { garbage.run(meter).await });
    }
}
