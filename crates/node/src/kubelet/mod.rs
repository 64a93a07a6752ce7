//! The kubelet's doing half: one task a pod, fed from the API, the runtime and the clock.
//!
//! Everything is decided by `knarr_kubelet::pod`; here it is carried out, and what came of it told back.
//! Stopping a kubelet stops no container: the next one finds and adopts what runs. What runs without a pod in the
//! API (after a full look at it) is ended.

pub mod container;
pub mod downward;
mod endpoints;
mod enforcement;
pub mod env;
mod eviction;
mod exit;
mod garbage;
pub mod labels;
mod machine;
mod manifests;
mod node;
mod own_node;
mod pull;
mod remove;
mod resize;
pub mod resources;
mod room;
pub mod sandbox;
pub mod security_context;
mod self_fencing;
pub mod shutdown;
mod static_pods;
mod status;
mod wall_clock;
mod watchdog;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::{self, Registered};
use knarr_api::{Object, k8s_openapi};
use knarr_client::informer::{self, Scope};
use knarr_client::{Api, Clock, EventRecorder, Store, TokioClock};
use knarr_kubelet::admission::{self, Rejection};
use knarr_kubelet::allocatable::allocatable;
pub use knarr_kubelet::configuration::{self, KubeletConfiguration};
use knarr_kubelet::eviction::Pressure;
use knarr_kubelet::garbage::images as garbage_images;
use knarr_kubelet::huge_pages::PageSizes;
use knarr_kubelet::pod::Event;
pub use knarr_kubelet::pod::TerminationResume;
use knarr_kubelet::runtime::{Container, Sandbox};
pub use knarr_kubelet::self_fencing::SelfFencing;
use knarr_kubelet::static_pods::mirrored;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::figures::{self, HostMeter, Meter};
use crate::probe;
use crate::runtime::{Runtime, RuntimeEvent};
use crate::teardown::remove_sandbox;
use crate::volumes::{self, Host, Volumes, host_of};
pub use machine::Machine;
use manifests::Folder;
use self_fencing::Trust;
use worker::{Msg, Origin, Worker};

/// Between looks at all that runs, while the runtime tells of exits by itself; else [`RELIST_BLIND`].
const RELIST: Duration = Duration::from_secs(10);
const RELIST_BLIND: Duration = Duration::from_secs(1);
/// Images pulled at a time, unless the administrator says otherwise: a slow registry is to hold up few.
const PULLS: u32 = 5;
/// Sandboxes and containers made at a time: more would only make each of them slower.
const STARTS: usize = 8;
/// Between looks at whether a static pod that waits for the one before it may begin.
const SUCCESSOR_LOOK: Duration = Duration::from_millis(200);
/// What an orphan is given to end by itself.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);
/// How long a new pod waits for a look at the node before it is refused by what is known.
const NODE_LOOK: Duration = Duration::from_secs(5);

/// One node's settings.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    /// Pods' directories are below it.
    pub root_dir: PathBuf,
    /// Containers' logs are below it: `<namespace>_<pod>_<uid>/<container>/<n>.log`.
    pub log_dir: PathBuf,
    pub pod_cidr: String,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// The node's addresses, the first being the one.
    pub node_ips: Vec<String>,
    /// Where the kubelet's server listens; 0 where it does not.
    pub port: u16,
    /// As `v1.36.2+knarr…`.
    pub version: String,
    /// How long TERM waits at the most for proxies to drop an ending pod's address; zero: not at all.
    pub endpoint_barrier: Duration,
    /// Images that are never thrown away, by name.
    pub pinned_images: Vec<String>,
    /// What the administrator says.
    pub configuration: KubeletConfiguration,
    /// The node's resolver settings.
    pub resolv_conf: PathBuf,
    /// For pods that were ending while no kubelet was there.
    pub termination_resume: TerminationResume,
    /// Which pods the node ends by itself when it is cut off.
    pub self_fencing: SelfFencing,
    /// Resets the machine if it is not fed.
    pub watchdog_device: Option<PathBuf>,
    pub machine: Machine,
    /// Who plays what storage and self-fencing need of the machine; `None`: it is what `machine` says.
    pub played: Option<Arc<dyn Host>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            node_name: String::new(),
            root_dir: "/var/lib/knarr/kubelet".into(),
            log_dir: "/var/lib/knarr/pods".into(),
            pod_cidr: String::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            node_ips: Vec::new(),
            port: 0,
            version: "v1.36.2+knarr".into(),
            endpoint_barrier: Duration::ZERO,
            pinned_images: Vec::new(),
            configuration: KubeletConfiguration::default(),
            resolv_conf: "/etc/resolv.conf".into(),
            termination_resume: TerminationResume::Full,
            self_fencing: SelfFencing::default(),
            watchdog_device: None,
            machine: Machine::default(),
            played: None,
        }
    }
}

/// What all of a node's pods share.
pub(crate) struct Shared {
    pub config: Config,
    pub api: Arc<dyn Api>,
    pub runtime: Arc<dyn Runtime>,
    pub clock: Arc<dyn Clock>,
    /// Begins with that one and is never set: for what is waited for.
    pub steady: TokioClock,
    pub recorder: EventRecorder,
    pub volumes: Volumes,
    pub trust: Trust,
    pub services: Arc<Store>,
    /// The pods bound to this node.
    pub pods: Arc<Store>,
    /// Whose a sandbox or container is.
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
    /// The machine goes down: no pods are taken.
    shutting_down: AtomicBool,
    /// Rings when one of the two changes.
    pub conditions_changed: Notify,
    /// Rings when nothing is left of a pod but what is told of it.
    pub pod_ended: Notify,
    /// Pods to be ended, by uid.
    pub evictions: mpsc::UnboundedSender<(String, Event)>,
    pub images: Mutex<garbage_images::Records>,
    endpoints: endpoints::Endpoints,
    /// Uids of the static pods there are.
    pub static_uids: Mutex<BTreeSet<String>>,
    pub ended_statics: Mutex<static_pods::Remembered>,
    pub portions: enforcement::Last,
    /// The pods as they are allocated, by uid: what they ask for may be more.
    pub granted: Mutex<Granted>,
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
    shutdown: shutdown::Requests,
}

/// What the node has.
struct Size {
    cpus: usize,
    memory_bytes: i64,
}

impl Size {
    fn of(machine: Machine) -> Self {
        match machine {
            Machine::Host => {
                let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
                Size {
                    cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
                    memory_bytes: container::memory_bytes(&meminfo).unwrap_or(0),
                }
            }
            Machine::Hollow { cpus, memory_bytes } => Size { cpus, memory_bytes },
        }
    }
}

impl Kubelet {
    /// Begins at once, and waits for the runtime and the API by itself. On a machine it measures what its pods use.
    pub fn start(
        config: Config,
        api: Arc<dyn Api>,
        runtime: Arc<dyn Runtime>,
        clock: Arc<dyn Clock>,
        cancel: CancellationToken,
    ) -> Self {
        let pods = Arc::new(Store::new(core::Pod::kind_of(), &[]));
        let claimed = volumes::Claimed::default();
        let meter: Option<Arc<dyn Meter>> = config.machine.is_host().then(|| {
            let parts = figures::Parts {
                node_name: config.node_name.clone(),
                root_dir: config.root_dir.clone(),
                log_dir: config.log_dir.clone(),
                memory_bytes: Size::of(config.machine).memory_bytes,
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

    /// Likewise, with somebody else who measures, or nobody: then no pod is ended for want of anything.
    pub fn start_measured(
        config: Config,
        (api, runtime, clock): (Arc<dyn Api>, Arc<dyn Runtime>, Arc<dyn Clock>),
        pods: Arc<Store>,
        meter: Option<Arc<dyn Meter>>,
        cancel: CancellationToken,
    ) -> Self {
        let known = (pods, volumes::Claimed::default());
        Self::begin(config, (api, runtime, clock), known, meter, cancel)
    }

    fn begin(
        config: Config,
        (api, runtime, clock): (Arc<dyn Api>, Arc<dyn Runtime>, Arc<dyn Clock>),
        (pods, claimed): (Arc<Store>, volumes::Claimed),
        meter: Option<Arc<dyn Meter>>,
        cancel: CancellationToken,
    ) -> Self {
        let size = Size::of(config.machine);
        let capacity = node::capacity(&config, size.cpus, size.memory_bytes);
        let pulls = config.configuration.image_pulls.unwrap_or(PULLS);
        let (evictions, evicted) = mpsc::unbounded_channel();
        let (shutdown, asked) = shutdown::channel();
        let probes = Arc::<probe::Counts>::default();
        // A hollow node whose machine nobody plays has no boot that this could be measured from.
        let counts = config.machine.is_host() || config.played.is_some();
        let renewals = counts.then(|| config.root_dir.join(self_fencing::RENEWALS));
        let host = config.played.clone().unwrap_or_else(|| host_of(config.machine));
        let shared = Arc::new(Shared {
            volumes: Volumes::new(
                config.root_dir.clone(),
                config.node_name.clone(),
                api.clone(),
                (config.machine, host.clone()),
                claimed,
            ),
            trust: Trust::new(config.self_fencing, host, renewals),
            recorder: EventRecorder::new(api.clone(), "kubelet", &config.node_name, clock.clone()),
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
            portions: enforcement::Last::default(),
            granted: Mutex::default(),
            probes: probes.clone(),
            images: Mutex::new(garbage_images::Records::new(clock.now())),
            steady: TokioClock::new(clock.now()),
            config,
            api,
            runtime,
            clock,
        });
        let pods = shared.pods.clone();
        let measuring = meter.clone();
        let task = tokio::spawn(async move {
            let running = run(shared, measuring, (evicted, asked), cancel.clone());
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
            shutdown,
        }
    }

    /// Who measures what the node and its pods use.
    pub fn meter(&self) -> Option<Arc<dyn Meter>> {
        self.meter.clone()
    }

    /// The pods bound to this node, as the API has them.
    pub fn pods(&self) -> Arc<Store> {
        self.pods.clone()
    }

    /// Where it is told that the machine goes down.
    pub fn shutdown(&self) -> shutdown::Requests {
        self.shutdown.clone()
    }

    /// How often its probes were asked.
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

/// What the runtime holds, by pod.
struct Picture {
    since: Timestamp,
    pods: BTreeMap<String, (Vec<Sandbox>, Vec<Container>)>,
}

/// What the runtime was found to hold of a pod, and since when that is so.
type Found = (Timestamp, Vec<Sandbox>, Vec<Container>);

impl Picture {
    /// What is there of a pod; it is handed out once.
    fn take(&mut self, uid: &str) -> Option<Found> {
        self.pods.remove(uid).map(|(s, c)| (self.since, s, c))
    }
}

async fn look(shared: &Shared) -> crate::runtime::Result<Picture> {
    let since = shared.clock.now();
    let sandboxes = shared.runtime.sandboxes().await?;
    let containers = shared.runtime.containers().await?;
    let mut pods: BTreeMap<String, (Vec<Sandbox>, Vec<Container>)> = BTreeMap::new();
    for sandbox in sandboxes {
        pods.entry(sandbox.pod.uid.clone()).or_default().0.push(sandbox);
    }
    for container in containers {
        pods.entry(container.pod.uid.clone())
            .or_default()
            .1
            .push(container);
    }
    Ok(Picture { since, pods })
}

async fn run(
    shared: Arc<Shared>,
    meter: Option<Arc<dyn Meter>>,
    (mut evicted, mut asked): (
        mpsc::UnboundedReceiver<(String, Event)>,
        mpsc::UnboundedReceiver<shutdown::Asked>,
    ),
    cancel: CancellationToken,
) {
    let mut tasks = tokio::task::JoinSet::new();
    let (api, services) = (shared.api.clone(), shared.services.clone());
    tasks.spawn(async move {
        informer::run(api, core::Service::kind_of(), Scope::default(), services).await;
    });
    tasks.spawn(node::run(shared.clone()));
    if shared.config.machine.is_host() {
        tasks.spawn(enforcement::run(shared.clone()));
    }
    let own = shared.clone();
    tasks.spawn(async move { own.own_node.follow(own.api.clone()).await });
    if !shared.config.endpoint_barrier.is_zero() {
        let (api, slices) = (shared.api.clone(), shared.endpoints.slices());
        tasks.spawn(async move {
            informer::run(api, EndpointSlice::kind_of(), Scope::default(), slices).await;
        });
    }
    tasks.spawn(self_fencing::run(shared.clone()));
    if let Some(device) = shared.config.watchdog_device.clone() {
        tasks.spawn(watchdog::run(shared.clone(), device));
    }
    let volumes = shared.clone();
    tasks.spawn(async move { volumes.volumes.run().await });

    // Nothing is decided about any pod before it is known what runs.
    let mut picture = loop {
        match look(&shared).await {
            Ok(picture) => break picture,
            Err(error) => {
                warn!(%error, "the container runtime does not answer yet");
                sleep(Duration::from_millis(200)).await;
            }
        }
    };
    let pods = shared.pods.clone();
    let (changed, mut changes) = mpsc::unbounded_channel();
    pods.subscribe(move |change| {
        // The receiver goes only with the whole kubelet.
        let _ = changed.send((change.before().cloned(), change.after().cloned()));
    });
    let scope = Scope {
        field_selector: format!("spec.nodeName={}", shared.config.node_name),
        ..Scope::default()
    };
    let (api, store) = (shared.api.clone(), pods.clone());
    tasks.spawn(async move { informer::run(api, core::Pod::kind_of(), scope, store).await });

    let (own_looks, mut looked) = mpsc::unbounded_channel();
    let mut workers = Workers {
        shared: shared.clone(),
        by_uid: BTreeMap::new(),
        cancel,
        admitted: BTreeSet::new(),
        looking: BTreeSet::new(),
        looks: own_looks,
        orphans: Arc::default(),
        statics: BTreeMap::new(),
        waiting: BTreeMap::new(),
    };
    let configuration = &shared.config.configuration;
    let every = configuration.file_check_frequency.unsigned_abs();
    let said = configuration.static_pod_path.as_ref();
    let mut folder = said.map(|path| Folder::new(path, &shared.config.node_name, every));
    // Before anything that runs may look as if nobody wanted it.
    if let Some(folder) = &mut folder {
        workers.run_statics(folder.look(shared.clock.now()), &mut picture);
    }
    if let Some(meter) = meter.clone() {
        tasks.spawn(eviction::run(shared.clone(), meter));
    }
    tasks.spawn(garbage::run(shared.clone(), meter));
    let (exits, mut exited) = mpsc::unbounded_channel();
    tasks.spawn(listen(shared.clone(), exits));
    let mut shutdown = shutdown::Runner::default();
    let mut hearing = false;
    let mut complete = false;
    let mut next_look = Instant::now() + RELIST_BLIND;
    loop {
        tokio::select! {
            biased;
            Some((old, new)) = changes.recv() => workers.changed(old.as_deref(), new, &mut picture),
            Some(uid) = looked.recv() => workers.looked_again(&uid, &mut picture),
            Some((uid, event)) = evicted.recv() => workers.tell(&uid, event),
            // Which pods there are must be known before any of them is left out.
            Some(asked) = asked.recv(), if complete => shutdown.asked(&shared, &workers, asked),
            () = shutdown.due(&shared) => shutdown.advance(&workers),
            Some(heard) = exited.recv() => match heard {
                Heard::Event(RuntimeEvent::Exited { id }) => workers.exited(&id),
                // What happened while nobody listened is found by looking.
                Heard::Event(RuntimeEvent::Resync) => next_look = Instant::now(),
                Heard::Begun | Heard::Ended => {
                    hearing = matches!(heard, Heard::Begun);
                    next_look = Instant::now();
                }
            },
            Some(folder) = to_look_at(&mut folder) => {
                workers.run_statics(folder.left(), &mut picture);
                if workers.run_statics(folder.look(shared.clock.now()), &mut picture) {
                    folder.look_by(Instant::now() + SUCCESSOR_LOOK);
                }
            }
            () = tokio::time::sleep_until(next_look) => {
                next_look = Instant::now() + if hearing { RELIST } else { RELIST_BLIND };
                // What the first picture showed is still to be handed to pods that come with the first list.
                match look(&shared).await {
                    Ok(now) if complete => workers.observed(&now, &pods),
                    Ok(now) => picture = now,
                    Err(error) => debug!(%error, "the container runtime does not answer"),
                }
                if !complete && pods.reached().is_some() && changes.is_empty() {
                    complete = true;
                    info!(pods = workers.by_uid.len(), "all pods of this node are known");
                    next_look = Instant::now();
                }
            }
        }
        workers.take_up_waiting(&mut picture);
        workers.by_uid.retain(|_, worker| !worker.is_finished());
        let by_uid = &workers.by_uid;
        workers.admitted.retain(|uid| by_uid.contains_key(uid));
    }
}

/// The folder of static pods, when it is to be looked at.
async fn to_look_at(folder: &mut Option<Folder>) -> Option<&mut Folder> {
    let folder = folder.as_mut()?;
    folder.happened().await;
    Some(folder)
}

/// What listening to the runtime brings.
enum Heard {
    Begun,
    Event(RuntimeEvent),
    Ended,
}

/// Hands the runtime's events on, and begins anew when they end.
async fn listen(shared: Arc<Shared>, exits: mpsc::UnboundedSender<Heard>) {
    loop {
        match shared.runtime.events().await {
            Ok(events) => {
                let began = futures::stream::once(std::future::ready(Heard::Begun));
                let ended = futures::stream::once(std::future::ready(Heard::Ended));
                let mut heard = std::pin::pin!(began.chain(events.map(Heard::Event)).chain(ended));
                while let Some(heard) = heard.next().await {
                    if exits.send(heard).is_err() {
                        return;
                    }
                }
                debug!("the container runtime's events have ended");
            }
            Err(error) => debug!(%error, "cannot hear the container runtime"),
        }
        sleep(Duration::from_millis(500)).await;
    }
}

struct Workers {
    shared: Arc<Shared>,
    by_uid: BTreeMap<String, Worker>,
    cancel: CancellationToken,
    /// Taken by this node.
    admitted: BTreeSet<String>,
    /// New pods for which the node's object is looked at once more, by uid.
    looking: BTreeSet<String>,
    /// Tells when that is done.
    looks: mpsc::UnboundedSender<String>,
    /// Being ended.
    orphans: Arc<Mutex<BTreeSet<String>>>,
    /// The static pods that have a worker, by uid; true once their file is gone.
    statics: BTreeMap<String, (core::Pod, bool)>,
    /// Critical pods that are not taken yet, by uid.
    waiting: BTreeMap<String, room::Waiting>,
}

impl Workers {
    /// Begins the static pods that are wanted and ends the others. One whose file says something else waits for the
    /// one before it to end: both have one name. The answer is whether one waits so.
    fn run_statics(&mut self, wanted: BTreeMap<String, core::Pod>, picture: &mut Picture) -> bool {
        self.static_pods_wait_no_more(&wanted);
        let by_uid = &self.by_uid;
        self.statics
            .retain(|uid, _| by_uid.get(uid).is_some_and(|worker| !worker.is_finished()));
        let mut waits = false;
        let now = self.shared.clock.now();
        for (uid, (pod, ended)) in &mut self.statics {
            if !*ended
                && !wanted.contains_key(uid)
                && let Some(worker) = self.by_uid.get(uid)
            {
                *ended = true;
                let ending = static_pods::told_to_end(pod, now);
                worker.send(Msg::Event(Event::Updated(Arc::new(ending))));
            }
        }
        for (uid, pod) in wanted {
            let name = |p: &core::Pod| (p.metadata.namespace.clone(), p.metadata.name.clone());
            let mut others = self.statics.values();
            if let Some((_, ended)) = others.find(|(other, _)| name(other) == name(&pod)) {
                waits |= ended;
                continue;
            }
            let begins = match picture.pods.contains_key(&uid) {
                true => pod.clone(),
                false => static_pods::with_memory(&self.shared, &pod),
            };
            self.take_up(uid.clone(), Arc::new(begins), Origin::File, picture);
            self.statics.insert(uid, (pod, false));
        }
        *self.shared.static_uids.lock() = self.statics.keys().cloned().collect();
        waits
    }

    /// A mirror is not run; that it goes, or is told to, is undone as long as its pod is there.
    fn mirror_changed(&self, mirror: &core::Pod, gone: bool) {
        let name = |p: &core::Pod| (p.metadata.namespace.clone(), p.metadata.name.clone());
        let stands_for = self
            .statics
            .iter()
            .find(|(_, (pod, ended))| !*ended && name(pod) == name(mirror));
        match stands_for.and_then(|(uid, _)| self.by_uid.get(uid)) {
            Some(worker) if gone || mirror.metadata.deletion_timestamp.is_some() => {
                worker.send(Msg::MirrorGone);
            }
            Some(_) => {}
            None if gone || self.statics.values().any(|(pod, _)| name(pod) == name(mirror)) => {}
            None => {
                let (shared, mirror) = (self.shared.clone(), mirror.clone());
                tokio::spawn(async move {
                    if let Err(error) = status::delete_at_once(&shared, &mirror).await {
                        warn!(%error, "cannot remove the mirror of a static pod that is gone");
                    }
                });
            }
        }
    }

    fn changed(&mut self, old: Option<&Object>, new: Option<Arc<Object>>, picture: &mut Picture) {
        let gone = old.filter(|old| new.as_ref().is_none_or(|new| new.uid() != old.uid()));
        if let Some(mirror) = gone.and_then(|old| old.to_typed::<core::Pod>())
            && mirrored(&mirror).is_some()
        {
            self.mirror_changed(&mirror, true);
        }
        if let Some(old) = gone {
            self.waiting.remove(old.uid());
            if let Some(worker) = self.by_uid.get(old.uid()) {
                worker.send(Msg::Event(Event::Removed));
            }
        }
        let Some(pod) = new.and_then(|new| new.to_typed::<core::Pod>()) else {
            return;
        };
        if mirrored(&pod).is_some() {
            return self.mirror_changed(&pod, false);
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        match self.by_uid.get(&uid) {
            Some(worker) => worker.send(Msg::Event(Event::Updated(Arc::new(pod)))),
            None if self.looking.contains(&uid) => {}
            None => self.take_up(uid, Arc::new(pod), Origin::Api, picture),
        }
    }

    /// A pod that is new here gets its worker. What the runtime has of it already is not asked whether there is room.
    fn take_up(&mut self, uid: String, pod: Arc<core::Pod>, origin: Origin, picture: &mut Picture) {
        if self.waits_for_room(&uid, &pod) {
            return;
        }
        let found = picture.take(&uid);
        let admitted = self.admit_new(&pod, &found);
        let of_labels = admitted.as_ref().is_err_and(Rejection::is_of_labels_or_taints);
        if of_labels && matches!(origin, Origin::Api) {
            // The scheduler may know of a change that is still under way to here: as in Kubernetes, what is refused for the
            // node's labels is decided on its object as it is now.
            self.looking.insert(uid.clone());
            let (shared, looks) = (self.shared.clone(), self.looks.clone());
            tokio::spawn(async move {
                match timeout(NODE_LOOK, shared.own_node.read(&*shared.api)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => debug!(%error, "cannot look at the node before a pod is refused"),
                    Err(_) => debug!("looking at the node before a pod is refused takes too long"),
                }
                // The receiver goes only with the whole kubelet.
                let _ = looks.send(uid);
            });
            return;
        }
        self.begin(uid, pod, origin, found, admitted);
    }

    /// The node is known as it is now: it takes the pod, or refuses it.
    fn looked_again(&mut self, uid: &str, picture: &mut Picture) {
        self.looking.remove(uid);
        let there = self.shared.pods.list("").into_iter().find(|pod| pod.uid() == uid);
        let Some(pod) = there.and_then(|object| object.to_typed::<core::Pod>()) else {
            return;
        };
        let found = picture.take(uid);
        let admitted = self.admit_new(&pod, &found);
        self.begin(uid.to_string(), Arc::new(pod), Origin::Api, found, admitted);
    }

    /// What runs already is not asked.
    fn admit_new(&self, pod: &core::Pod, found: &Option<Found>) -> Result<Vec<core::Pod>, Rejection> {
        match found {
            Some(_) => Ok(Vec::new()),
            None => self.admit(pod),
        }
    }

    /// Gives a pod its worker, once those have ended that have to end for it.
    fn begin(
        &mut self,
        uid: String,
        pod: Arc<core::Pod>,
        origin: Origin,
        found: Option<Found>,
        admitted: Result<Vec<core::Pod>, Rejection>,
    ) {
        let admitted = match admitted {
            Ok(victims) if !victims.is_empty() => return self.make_room(uid, pod, origin, &victims),
            Ok(_) => {
                self.admitted.insert(uid.clone());
                Ok(())
            }
            Err(rejection) => Err(rejection),
        };
        let (shared, cancel) = (self.shared.clone(), self.cancel.clone());
        let worker = Worker::start(shared, pod, found, admitted, origin, cancel);
        self.by_uid.insert(uid, worker);
    }

    /// Whether the node takes a pod that is new to it, beside those it has taken; the answer are those that are to
    /// end before it is.
    fn admit(&self, pod: &core::Pod) -> Result<Vec<core::Pod>, Rejection> {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        if !matches!(phase, None | Some("Pending")) || pod.metadata.deletion_timestamp.is_some() {
            return Ok(Vec::new());
        }
        let best_effort = resources::qos(pod) == resources::Qos::BestEffort;
        knarr_kubelet::eviction::admit(pod, best_effort, &self.shared.pressures())?;
        let sysctls = &self.shared.config.configuration.allowed_unsafe_sysctls;
        knarr_kubelet::sysctl::admit(pod, sysctls)?;
        let counts = |other: &core::Pod| {
            let phase = other.status.as_ref().and_then(|s| s.phase.as_deref());
            let uid = other.metadata.uid.as_deref().unwrap_or("");
            let taken = self.admitted.contains(uid) || phase == Some("Running");
            taken && !matches!(phase, Some("Succeeded" | "Failed"))
        };
        let known = beside(&self.shared, &self.shared.granted.lock(), pod, counts);
        let victims = match known {
            Some((node, others)) => {
                let others: Vec<&core::Pod> = others.iter().collect();
                let victims = admission::admit_before(pod, &node, &others)?;
                victims.into_iter().cloned().collect()
            }
            None => Vec::new(),
        };
        knarr_kubelet::app_armor::admit(pod, || self.shared.config.machine.has_app_armor())?;
        match self.shared.is_shutting_down() {
            true => Err(knarr_kubelet::shutdown::rejection()),
            false => Ok(victims),
        }
    }

    /// Pods of which something is left here.
    fn active_pods(&self) -> Vec<core::Pod> {
        let objects = self.shared.pods.list("");
        let of_api = objects.iter().filter_map(|o| o.to_typed::<core::Pod>());
        let of_files = self.statics.values().map(|(pod, _)| pod.clone());
        let all = of_api.filter(|pod| mirrored(pod).is_none()).chain(of_files);
        all.filter(|pod| !self.has_ended(pod.metadata.uid.as_deref().unwrap_or("")))
            .collect()
    }

    /// Whether nothing is left of a pod but what is told of it.
    fn has_ended(&self, uid: &str) -> bool {
        let worker = self.by_uid.get(uid);
        worker.is_none_or(|worker| worker.is_finished() || worker.has_ended())
    }

    /// Whether a pod's object does not show yet that it has ended.
    fn is_untold(&self, uid: &str) -> bool {
        let objects = self.shared.pods.list("");
        let object = objects.iter().find(|o| o.uid() == uid);
        object
            .and_then(|o| o.to_typed::<core::Pod>())
            .is_some_and(|pod| !shutdown::is_told(&pod))
    }

    fn tell(&self, uid: &str, event: Event) {
        // A pod that is gone needs no ending.
        if let Some(worker) = self.by_uid.get(uid) {
            worker.send(Msg::Event(event));
        }
    }

    fn exited(&self, id: &str) {
        if let Some(owner) = self.shared.owners.lock().get(id) {
            // A worker that is gone has nothing to look at.
            let _ = owner.send(Msg::Look { id: id.into() });
        }
    }

    fn observed(&mut self, now: &Picture, pods: &Store) {
        for (uid, worker) in &self.by_uid {
            let (sandboxes, containers) = now.pods.get(uid).cloned().unwrap_or_default();
            worker.send(Msg::Observed {
                since: now.since,
                sandboxes,
                containers,
            });
        }
        for (uid, (sandboxes, containers)) in &now.pods {
            let known = self.by_uid.contains_key(uid) || pods.list("").iter().any(|p| p.uid() == uid);
            if known || !self.orphans.lock().insert(uid.clone()) {
                continue;
            }
            info!(uid, "ending what runs without a pod");
            let (shared, orphans, uid) = (self.shared.clone(), self.orphans.clone(), uid.clone());
            let (sandboxes, containers) = (sandboxes.clone(), containers.clone());
            tokio::spawn(async move {
                end_orphan(&shared, &uid, &sandboxes, &containers).await;
                orphans.lock().remove(&uid);
            });
        }
    }
}

type Granted = BTreeMap<String, Arc<core::Pod>>;

/// Whether there is room for what a pod asks for now, beside what the others are allocated. If so, it has that at once:
/// of two that do not fit together one is resized.
fn admit_resize(shared: &Shared, pod: &Arc<core::Pod>) -> Result<(), Rejection> {
    let mut granted = shared.granted.lock();
    let counts = |other: &core::Pod| {
        let phase = other.status.as_ref().and_then(|s| s.phase.as_deref());
        !matches!(phase, Some("Failed" | "Succeeded"))
    };
    if let Some((node, others)) = beside(shared, &granted, pod, counts) {
        admission::admit(pod, &node, &others.iter().collect::<Vec<_>>())?;
    }
    granted.insert(pod.metadata.uid.clone().unwrap_or_default(), pod.clone());
    Ok(())
}

/// The node and its other pods that count. None until it has an object that says what there is: then nobody was asked to
/// run here.
fn beside(
    shared: &Shared,
    granted: &Granted,
    pod: &core::Pod,
    counts: impl Fn(&core::Pod) -> bool,
) -> Option<(Arc<core::Node>, Vec<core::Pod>)> {
    let says = |node: &Arc<core::Node>| node.status.as_ref().is_some_and(|s| s.allocatable.is_some());
    let node = shared.own_node.known().filter(says)?;
    let objects = shared.pods.list("");
    let others: Vec<core::Pod> = objects
        .iter()
        .filter_map(|o| o.to_typed::<core::Pod>())
        .filter(|other| other.metadata.uid != pod.metadata.uid && counts(other))
        .map(|mut other| {
            let uid = other.metadata.uid.as_deref().unwrap_or("");
            if let Some(granted) = granted.get(uid) {
                other.spec.clone_from(&granted.spec);
            }
            other
        })
        .collect();
    Some((node, others))
}

/// Ends what no pod in the API accounts for. What cannot be ended is tried again after the next look; its volumes stay
/// as they are until then, for its processes may use them. Once nothing runs nobody looks again, so these are freed here.
async fn end_orphan(shared: &Shared, uid: &str, sandboxes: &[Sandbox], containers: &[Container]) {
    let runtime = &shared.runtime;
    let stops = containers.iter().map(|c| async move {
        let stopped = runtime.stop_container(&c.id, ORPHAN_GRACE).await;
        if let Err(error) = &stopped {
            warn!(container = c.id, %error, "cannot end a container without a pod");
        }
        // If not, it ends with its sandbox below.
        stopped.is_ok() || sandboxes.iter().any(|s| s.id == c.sandbox_id)
    });
    let ended = futures::future::join_all(stops).await;
    if !ended.into_iter().all(|ended| ended) {
        return;
    }
    for sandbox in sandboxes {
        if let Err(error) = remove_sandbox(runtime.as_ref(), &sandbox.id).await {
            warn!(sandbox = sandbox.id, %error, "cannot end a sandbox without a pod");
            return;
        }
    }
    worker::until_done("free the volumes of a pod that is gone", || {
        shared.volumes.teardown(uid)
    })
    .await;
}

/// The kind of events and lookups.
pub(crate) fn pod_kind() -> &'static knarr_api::Kind {
    &registry::POD
}
