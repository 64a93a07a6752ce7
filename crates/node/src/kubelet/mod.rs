//! The kubelet's doing half: one task a pod, fed from the API, the runtime and the clock.
//!
//! Everything is decided by `knarr_kubelet::pod`; here it is carried out, and the results are returned as events.
//! Stopping a kubelet stops no container: the next one finds and adopts what runs. What runs without a pod in the API
//! (once its list of pods is complete) is terminated.

mod at_most_one;
mod config;
pub mod container;
pub mod downward;
mod endpoints;
mod enforcement;
pub mod env;
mod eviction;
mod exit;
mod garbage;
pub mod labels;
mod launch;
mod machine;
mod manifests;
mod network;
mod node;
mod own_node;
mod preemption;
mod pull;
mod remove;
mod resize;
mod resource_health;
pub mod resources;
pub mod sandbox;
pub mod security_context;
mod self_fencing;
pub mod shutdown;
mod static_pods;
mod status;
mod wall_clock;
mod watchdog;
mod worker;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_api::k8s_openapi;
use knarr_api::registry::{self, Registered};
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, Clock, EventRecorder, Store, TokioClock};
use knarr_kubelet::allocatable::allocatable;
pub use knarr_kubelet::configuration::{self, KubeletConfiguration};
use knarr_kubelet::eviction::Pressure;
use knarr_kubelet::garbage::images as garbage_images;
use knarr_kubelet::huge_pages::PageSizes;
use knarr_kubelet::pod::Event;
pub use knarr_kubelet::pod::TerminationResume;
pub use knarr_kubelet::self_fencing::SelfFencing;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::containermanager::{self, ContainerManager, reconcile};
use crate::devicemanager::{self, Devices};
use crate::dra::{self, Dra};
use crate::plugins::{Watcher, watcher};
use crate::podresources::{self, PodResourcesServer};
use crate::probe;
use crate::runtime::{Runtime, RuntimeEvent};
use crate::stats::{self, HostMeter, Meter};
use crate::volumes::{self, Volumes, host_of};
use at_most_one::StartAnnouncements;
pub use config::Config;
pub use machine::Machine;
use manifests::ManifestDirectory;
pub use network::{Availability, NodeNetwork};
use self_fencing::LeaseTrust;
use worker::Msg;
use workers::{AllocatedPods, RunningPod, RuntimeSnapshot, Workers, admit_resize, list_runtime};

/// Relist period while the runtime reports exits by itself; else [`RELIST_BLIND`].
const RELIST: Duration = Duration::from_secs(10);
const RELIST_BLIND: Duration = Duration::from_secs(1);
/// The longest pause between two attempts to watch this node's pods: pods released while the node was cut off terminate
/// soon after the API is reachable again (SPEC S5), even if one or two attempts fail.
const PODS_WATCH_RETRY: Duration = Duration::from_secs(5);
/// Images pulled at a time, unless configured otherwise (`maxParallelImagePulls`): a slow registry should delay few
/// pods.
const PULLS: u32 = 5;
/// Sandboxes and containers made at a time: more would only make each of them slower.
const STARTS: usize = 8;
/// Between attempts to start the resource managers.
const MANAGERS_RETRY: Duration = Duration::from_secs(5);
/// Poll interval of whether a static pod that waits for the one before it may start.
const SUCCESSOR_POLL: Duration = Duration::from_millis(200);

/// What all of a node's pods share.
pub(crate) struct Shared {
    pub config: Config,
    pub api: Arc<dyn Api>,
    pub runtime: Arc<dyn Runtime>,
    pub clock: Arc<dyn Clock>,
    /// Starts with `clock` and is never set: for timeouts.
    pub steady: TokioClock,
    pub recorder: EventRecorder,
    pub volumes: Volumes,
    /// The pods that have not terminated.
    pub active: Arc<podresources::ActivePods>,
    pub devices: Arc<Devices>,
    pub containers: Arc<ContainerManager>,
    pub dra: Arc<Dra>,
    pub trust: LeaseTrust,
    pub announced: StartAnnouncements,
    pub services: Arc<Store>,
    /// The pods bound to this node.
    pub pods: Arc<Store>,
    /// The worker that owns a sandbox or container.
    pub owners: Mutex<BTreeMap<String, mpsc::UnboundedSender<Msg>>>,
    pub pulls: Semaphore,
    pub starts: Semaphore,
    pub memory_bytes: i64,
    pub own_node: own_node::OwnNode,
    pub capacity: BTreeMap<String, Quantity>,
    pub huge_pages: PageSizes,
    pub allocatable: BTreeMap<String, Quantity>,
    /// What the node is short of.
    pressures: Mutex<BTreeSet<Pressure>>,
    /// A node shutdown is in progress: no pods are admitted.
    shutting_down: AtomicBool,
    /// Rings when one of the two changes.
    pub conditions_changed: Notify,
    /// Notified when only the status of a pod remains to be reported.
    pub pod_ended: Notify,
    /// Pods to evict, or whose devices' health has changed, by uid.
    pub evictions: mpsc::UnboundedSender<(String, Event)>,
    pub images: Mutex<garbage_images::Records>,
    endpoints: endpoints::Endpoints,
    /// Uids of the static pods there are.
    pub static_uids: Mutex<BTreeSet<String>>,
    pub ended_statics: Mutex<static_pods::EndedStatics>,
    pub portions: enforcement::AppliedPortions,
    /// The pods as they are allocated, by uid: their specs may request more.
    pub granted: Mutex<AllocatedPods>,
    pub probes: Arc<probe::Counts>,
}

impl Shared {
    pub fn pressures(&self) -> BTreeSet<Pressure> {
        self.pressures.lock().clone()
    }

    pub fn set_pressures(&self, new: BTreeSet<Pressure>) {
        let changed = {
            let mut pressures = self.pressures.lock();
            let changed = *pressures != new;
            *pressures = new;
            changed
        };
        if changed {
            self.conditions_changed.notify_one();
        }
    }
}

/// A running kubelet. Dropping it does not stop it; its token does.
pub struct Kubelet {
    task: JoinHandle<()>,
    pods: Arc<Store>,
    meter: Option<Arc<dyn Meter>>,
    probes: Arc<probe::Counts>,
    containers: Arc<ContainerManager>,
    shutdown: shutdown::Requests,
}

/// What the node has.
struct NodeSize {
    cpus: usize,
    memory_bytes: i64,
}

impl NodeSize {
    fn of(machine: Machine) -> Self {
        match machine {
            Machine::Host => {
                let meminfo = crate::host_fs::read_to_string("/proc/meminfo").unwrap_or_default();
                NodeSize {
                    cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
                    memory_bytes: container::memory_bytes(&meminfo).unwrap_or(0),
                }
            }
            Machine::Hollow { cpus, memory_bytes } => NodeSize { cpus, memory_bytes },
        }
    }
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
                memory_bytes: NodeSize::of(config.machine).memory_bytes,
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
        let size = NodeSize::of(config.machine);
        let capacity = node::capacity(&config, size.cpus, size.memory_bytes);
        let pulls = config.configuration.image_pulls.unwrap_or(PULLS);
        let (evictions, evicted) = mpsc::unbounded_channel();
        let (shutdown, requests) = shutdown::channel();
        let (health_changed, health) = mpsc::unbounded_channel();
        let probes = Arc::<probe::Counts>::default();
        // A hollow node without a fake host has no boot time.
        let counts = config.machine.is_host() || config.fake_host.is_some();
        let renewals = counts.then(|| config.root_dir.join(self_fencing::RENEWALS));
        let host = config
            .fake_host
            .clone()
            .unwrap_or_else(|| host_of(config.machine));
        let steady = TokioClock::new(clock.now());
        let recorder = EventRecorder::new(api.clone(), "kubelet", &config.node_name, clock.clone());
        let volumes = Volumes::new(
            config.root_dir.clone(),
            config.node_name.clone(),
            (api.clone(), recorder.clone(), clock.clone()),
            (config.machine, host.clone()),
            claimed,
        );
        let files = volumes.files().clone();
        let cluster = (api.clone(), config.node_name.clone());
        let (steadily, changed) = (Arc::new(steady), health_changed.clone());
        let dra = Dra::new(&config.root_dir, files.clone(), cluster, steadily, changed);
        let devices = Devices::new(&config.root_dir, files.clone(), Arc::new(steady), health_changed);
        let containers = ContainerManager::new(
            &config.root_dir,
            files,
            devices.clone(),
            &config.configuration,
            &capacity,
        );
        let containers = Arc::new(containers);
        let shared = Arc::new(Shared {
            volumes,
            active: Arc::default(),
            devices,
            containers: containers.clone(),
            dra: Arc::new(dra),
            trust: LeaseTrust::new(config.self_fencing, host, renewals),
            announced: StartAnnouncements::new(&config.node_name, clock.now()),
            recorder,
            services: Arc::new(Store::new(core::Service::kind_of(), &[])),
            pods,
            owners: Mutex::default(),
            pulls: Semaphore::new(
                usize::try_from(pulls)
                    .unwrap_or(Semaphore::MAX_PERMITS)
                    .min(Semaphore::MAX_PERMITS),
            ),
            starts: Semaphore::new(STARTS),
            memory_bytes: size.memory_bytes,
            own_node: own_node::OwnNode::new(&config.node_name),
            allocatable: allocatable(&capacity, &config.configuration),
            huge_pages: PageSizes::of_capacity(&capacity),
            capacity,
            pressures: Mutex::default(),
            shutting_down: AtomicBool::new(false),
            conditions_changed: Notify::new(),
            pod_ended: Notify::new(),
            evictions,
            endpoints: endpoints::Endpoints::default(),
            static_uids: Mutex::default(),
            ended_statics: Mutex::default(),
            portions: enforcement::AppliedPortions::default(),
            granted: Mutex::default(),
            probes: probes.clone(),
            images: Mutex::new(garbage_images::Records::new(clock.now())),
            steady,
            config,
            api,
            runtime,
            clock,
        });
        let pods = shared.pods.clone();
        let measuring = meter.clone();
        let task = tokio::spawn(async move {
            let running = run(shared, measuring, (evicted, requests, health), cancel.clone());
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

async fn run(
    shared: Arc<Shared>,
    meter: Option<Arc<dyn Meter>>,
    (mut evicted, mut requests, health): (
        mpsc::UnboundedReceiver<(String, Event)>,
        mpsc::UnboundedReceiver<shutdown::ShutdownRequest>,
        mpsc::UnboundedReceiver<String>,
    ),
    cancel: CancellationToken,
) {
    let mut tasks = tokio::task::JoinSet::new();
    let (api, services) = (shared.api.clone(), shared.services.clone());
    tasks.spawn(async move {
        informer::run(api, core::Service::kind_of().clone(), Scope::default(), services).await;
    });
    tasks.spawn(node::run(shared.clone()));
    if shared.config.machine.is_host() {
        tasks.spawn(enforcement::run(shared.clone()));
    }
    let own = shared.clone();
    tasks.spawn(async move { own.own_node.follow(own.api.clone()).await });
    tasks.spawn(self_fencing::run(shared.clone()));
    if let Some(device) = shared.config.watchdog_device.clone() {
        tasks.spawn(watchdog::run(shared.clone(), device));
    }
    let volumes = shared.clone();
    tasks.spawn(async move { volumes.volumes.run().await });

    if shared.config.machine.is_host() {
        shared.devices.restore().await;
        shared.dra.restore().await;
        start_containers(&shared).await;
        tasks.spawn(reconcile::run(
            shared.containers.clone(),
            shared.runtime.clone(),
            shared.active.clone(),
        ));
        let drivers = shared.dra.drivers();
        tasks.spawn(async move { drivers.run().await });
        tasks.spawn(shared.devices.clone().run());
        tasks.spawn(plugins(&shared).run());
        tasks.spawn(resource_health::run(shared.clone(), health));
        let (root, server) = (shared.config.root_dir.clone(), pod_resources(&shared));
        tasks.spawn(async move { podresources::run(server, &root).await });
    }
    let fake_host = shared.config.fake_host.as_ref();
    if !shared.config.machine.is_host() && fake_host.is_some_and(|host| host.has_fake_plugins()) {
        tasks.spawn(plugins(&shared).run());
    }
    // Nothing is decided about any pod before it is known what runs.
    let mut snapshot = loop {
        match list_runtime(&shared).await {
            Ok(snapshot) => break snapshot,
            Err(error) => {
                warn!(%error, "the container runtime does not answer yet");
                sleep(Duration::from_millis(200)).await;
            }
        }
    };
    let pods = shared.pods.clone();
    let (changed, mut changes) = mpsc::unbounded_channel();
    pods.subscribe(move |change| {
        // The receiver is dropped only with the whole kubelet.
        let _ = changed.send((change.before().cloned(), change.after().cloned()));
    });
    let scope = Scope {
        field_selector: format!("spec.nodeName={}", shared.config.node_name),
        ..Scope::default()
    };
    let (api, store) = (shared.api.clone(), pods.clone());
    tasks.spawn(async move {
        let kind = core::Pod::kind_of().clone();
        informer::run_within(PODS_WATCH_RETRY, api, kind, scope, store).await;
    });

    let (rereads, mut reread) = mpsc::unbounded_channel();
    let mut workers = Workers {
        shared: shared.clone(),
        by_uid: BTreeMap::new(),
        cancel,
        admitted: BTreeSet::new(),
        rereading: BTreeSet::new(),
        rereads,
        orphans: Arc::default(),
        statics: BTreeMap::new(),
        unreported: BTreeMap::new(),
        waiting: BTreeMap::new(),
    };
    let configuration = &shared.config.configuration;
    let every = configuration.file_check_frequency.unsigned_abs();
    let static_pod_path = configuration.static_pod_path.as_ref();
    let mut manifests =
        static_pod_path.map(|path| ManifestDirectory::new(path, &shared.config.node_name, every));
    // Before anything that runs could be taken for an orphan.
    if let Some(manifests) = &mut manifests {
        workers.run_statics(manifests.poll(shared.clock.now()), &mut snapshot);
    }
    if let Some(meter) = meter.clone() {
        tasks.spawn(eviction::run(shared.clone(), meter));
    }
    tasks.spawn(garbage::run(shared.clone(), meter));
    let (exits, mut exited) = mpsc::unbounded_channel();
    tasks.spawn(listen(shared.clone(), exits));
    let mut shutdown = shutdown::Runner::default();
    let mut listening = false;
    let mut complete = false;
    let mut next_relist = Instant::now() + RELIST_BLIND;
    loop {
        tokio::select! {
            biased;
            Some((old, new)) = changes.recv() => workers.changed(old.as_deref(), new, &mut snapshot),
            Some(uid) = reread.recv() => workers.node_reread(&uid, &mut snapshot),
            Some((uid, event)) = evicted.recv() => workers.send(&uid, event),
            // Which pods there are must be known before any of them is left out.
            Some(request) = requests.recv(), if complete => shutdown.request(&shared, &workers, request),
            () = shutdown.due(&shared) => shutdown.advance(&workers),
            Some(event) = exited.recv() => match event {
                ListenEvent::Event(RuntimeEvent::Exited { id }) => workers.exited(&id),
                // Events that were missed are found by a relist.
                ListenEvent::Event(RuntimeEvent::Resync) => next_relist = Instant::now(),
                ListenEvent::Begun | ListenEvent::Ended => {
                    listening = matches!(event, ListenEvent::Begun);
                    next_relist = Instant::now();
                }
            },
            Some(manifests) = manifests_changed(&mut manifests) => {
                workers.run_statics(manifests.take_removed(), &mut snapshot);
                if workers.run_statics(manifests.poll(shared.clock.now()), &mut snapshot) {
                    manifests.poll_by(Instant::now() + SUCCESSOR_POLL);
                }
            }
            () = tokio::time::sleep_until(next_relist) => {
                next_relist = Instant::now() + if listening { RELIST } else { RELIST_BLIND };
                // The first snapshot still has containers for pods that arrive with the first list.
                match list_runtime(&shared).await {
                    Ok(now) if complete => workers.observed(&now, &pods),
                    Ok(now) => snapshot = now,
                    Err(error) => debug!(%error, "the container runtime does not answer"),
                }
                if !complete && pods.reached().is_some() && changes.is_empty() {
                    complete = true;
                    info!(pods = workers.by_uid.len(), "all pods of this node are known");
                    workers.release_orphaned_resources();
                    next_relist = Instant::now();
                }
            }
        }
        workers.retry_waiting(&mut snapshot);
        workers.by_uid.retain(|_, worker| !worker.is_finished());
        let by_uid = &workers.by_uid;
        workers.admitted.retain(|uid| by_uid.contains_key(uid));
    }
}

/// Starts the resource managers. While they cannot, the node is not ready and nothing is decided about its pods: an
/// administrator drains it and removes the state, or corrects the configuration.
async fn start_containers(shared: &Shared) {
    while let Err(error) = shared.containers.start().await {
        let error = containermanager::shown(&error);
        error!(error, "cannot start the resource managers");
        shared.conditions_changed.notify_one();
        sleep(MANAGERS_RETRY).await;
    }
    shared.conditions_changed.notify_one();
}

fn pod_resources(shared: &Shared) -> PodResourcesServer {
    PodResourcesServer {
        pods: shared.active.clone(),
        devices: shared.devices.clone(),
        containers: shared.containers.clone(),
        dra: shared.dra.clone(),
    }
}

/// What registers the plugins of this node.
fn plugins(shared: &Shared) -> Arc<Watcher> {
    let directory = shared.config.root_dir.join(watcher::REGISTRY);
    let devices = devicemanager::Registrar(shared.devices.clone());
    let handlers: Vec<Arc<dyn crate::plugins::Handler>> = vec![
        Arc::new(shared.volumes.csi_registrar()),
        Arc::new(devices),
        Arc::new(dra::drivers::Registrar(shared.dra.drivers())),
    ];
    let fake_host = shared.config.fake_host.clone();
    let host = fake_host.unwrap_or_else(|| host_of(shared.config.machine));
    Watcher::new(directory, handlers, host)
}

/// The directory of static pods, when it has to be read.
async fn manifests_changed(manifests: &mut Option<ManifestDirectory>) -> Option<&mut ManifestDirectory> {
    let manifests = manifests.as_mut()?;
    manifests.changed().await;
    Some(manifests)
}

/// What the runtime's event stream delivers.
enum ListenEvent {
    Begun,
    Event(RuntimeEvent),
    Ended,
}

/// Forwards the runtime's events, and subscribes again when the stream ends.
async fn listen(shared: Arc<Shared>, exits: mpsc::UnboundedSender<ListenEvent>) {
    loop {
        match shared.runtime.events().await {
            Ok(events) => {
                let began = futures::stream::once(std::future::ready(ListenEvent::Begun));
                let ended = futures::stream::once(std::future::ready(ListenEvent::Ended));
                let mut events = std::pin::pin!(began.chain(events.map(ListenEvent::Event)).chain(ended));
                while let Some(event) = events.next().await {
                    if exits.send(event).is_err() {
                        return;
                    }
                }
                debug!("the container runtime's events have ended");
            }
            Err(error) => debug!(%error, "cannot subscribe to the container runtime's events"),
        }
        sleep(Duration::from_millis(500)).await;
    }
}

/// The kind of events and lookups.
pub(crate) fn pod_kind() -> &'static knarr_api::Kind {
    &registry::POD
}
