//! The node's own object: registered and kept current.
//!
//! The status is written when it changes, and every five minutes anyway; the lease, renewed every ten seconds, is the
//! node's heartbeat (SPEC S4).

mod heartbeats;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{self as core, NodeCondition};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_api::k8s_openapi;
use knarr_api::kinds::persistent_volume::LOCAL_PATH;
use knarr_api::kinds::pod::resources::is_extended;
use knarr_apimachinery::Error;
use knarr_apimachinery::time::seconds;
use knarr_client::events::EventType;
use knarr_client::{Api, Clock, TokioClock, TypedApi};
use knarr_kubelet::eviction::Pressure;
use nix::sys::utsname::uname;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use self::heartbeats::same_but_for_heartbeats;
use super::at_most_one::StartAnnouncements;
use super::conditions::NodeConditions;
use super::config::Config;
use super::events::Events;
use super::node_lease::LeaseRenewal;
use super::node_resources::NodeResources;
use super::own_node::OwnNode;
use super::resource_managers::ResourceManagers;
use crate::runtime::{Runtime, RuntimeStatus};
use crate::volumes::Volumes;
use crate::volumes::layout::local_root;

/// While the node is not ready yet, its status is computed more often.
const EAGER: Duration = Duration::from_millis(100);

/// Registers the node and keeps its status and lease.
pub(super) async fn run(mut node: NodeStatusWriter, mut lease: LeaseRenewal) {
    let configuration = &node.config.configuration;
    let update = configuration.node_status_update_frequency.unsigned_abs();
    // A quarter of the lease, as in Kubernetes.
    let duration = Duration::from_secs(u64::from(
        configuration.node_lease_duration_seconds.unsigned_abs(),
    ));
    let renewal = duration / 4;
    let (mut next_status, mut next_lease) = (Instant::now(), Instant::now());
    loop {
        tokio::select! {
            biased;
            () = sleep_until(next_status.min(next_lease)) => {}
            () = node.conditions.changed() => next_status = Instant::now(),
            () = node.managers.devices.changed() => next_status = Instant::now(),
            () = node.network_changed() => next_status = Instant::now(),
        }
        if next_status <= Instant::now() {
            match node.update().await {
                Ok(()) => next_status = Instant::now() + if node.state.ready { update } else { EAGER },
                Err(error) => {
                    node.state.reads = true;
                    warn!(%error, "cannot write the node's status yet");
                    next_status = Instant::now() + EAGER * 2;
                }
            }
        }
        if next_lease <= Instant::now() {
            match lease.renew(node.state.uid.as_deref()).await {
                // Counted from when it was sent, as the node lifecycle controller counts: a slow answer does not delay
                // the next renewal.
                Ok(since_sent) => next_lease = Instant::now() + renewal.saturating_sub(since_sent),
                Err(error) => {
                    warn!(%error, "cannot renew the node's lease yet");
                    next_lease = Instant::now() + Duration::from_secs(1);
                }
            }
        }
    }
}

/// What the status is made of, and where it is written.
pub(super) struct NodeStatusWriter {
    pub config: Arc<Config>,
    pub api: Arc<dyn Api>,
    pub runtime: Arc<dyn Runtime>,
    pub clock: Arc<dyn Clock>,
    /// Is never set.
    pub steady: TokioClock,
    pub own_node: Arc<OwnNode>,
    pub announcements: Arc<StartAnnouncements>,
    pub conditions: Arc<NodeConditions>,
    pub resources: Arc<NodeResources>,
    pub managers: Arc<ResourceManagers>,
    pub volumes: Arc<Volumes>,
    pub events: Events,
    pub state: NodeState,
}

/// What is known of the node's object.
pub(super) struct NodeState {
    uid: Option<String>,
    written: Option<Timestamp>,
    ready: bool,
    /// What is known of it may be wrong: it is read before it is written.
    reads: bool,
}

impl Default for NodeState {
    fn default() -> Self {
        NodeState {
            uid: None,
            written: None,
            ready: false,
            reads: true,
        }
    }
}

impl NodeStatusWriter {
    async fn update(&mut self) -> Result<(), Error> {
        let name = &self.config.node_name;
        let watched = self.own_node.watched().filter(|_| !self.state.reads);
        let there = match watched {
            Some(node) => Ok(node),
            None => self.own_node.read().await,
        };
        let there = match there {
            Ok(node) => node,
            Err(error) if error.is_not_found() && !self.config.configuration.register_node => {
                debug!(
                    node = name.as_str(),
                    "waiting for the node to be registered by another client"
                );
                self.state.ready = false;
                return Ok(());
            }
            Err(error) if error.is_not_found() => {
                info!(node = name.as_str(), "registering");
                match self.api.create_as(fresh(&self.config)).await {
                    Ok(node) => {
                        let node = Arc::new((*node).clone());
                        self.own_node.remember(node.clone());
                        node
                    }
                    Err(error) if error.is_already_exists() => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        self.state.reads = false;
        self.state.uid.clone_from(&there.metadata.uid);
        let there = self.relabel(there).await?;
        let runtime = match self.runtime.status().await {
            Ok(status) => status,
            Err(error) => RuntimeStatus {
                message: format!("container runtime is down: {error}"),
                ..RuntimeStatus::default()
            },
        };
        let now = self.clock.now();
        let empty = core::NodeStatus::default();
        let before = there.status.as_ref().unwrap_or(&empty);
        let status = self.status(&runtime, before, now).await;
        self.state.ready = runtime.ready && runtime.network_ready;
        let due = self.state.written.is_none_or(|at| {
            self.steady.now().duration_since(at) >= self.config.configuration.node_status_report_frequency
        });
        if !due && same_but_for_heartbeats(before, &status) {
            return Ok(());
        }
        for reason in transitions(before, &status) {
            let message = format!("Node {name} status is now: {reason}");
            self.events.of_node(EventType::Normal, &reason, message);
        }
        let node = core::Node {
            metadata: there.metadata.clone(),
            spec: Some(there.spec.clone().unwrap_or_default()),
            status: Some(status),
        };
        // A scheduler that sees it may bind a pod to this node before the answer arrives.
        self.own_node.remember(node.clone());
        match self.api.update_status_as(node).await {
            Ok(written) => {
                self.own_node.remember((*written).clone());
                self.announcements.node_written(&written);
                self.state.written = Some(self.steady.now());
                Ok(())
            }
            // A conflict: the next sync starts from the newer object.
            Err(error) if error.is_conflict() => {
                self.state.ready = false;
                self.state.reads = true;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Our labels, and the pod network that this node uses.
    async fn relabel(&self, there: Arc<core::Node>) -> Result<Arc<core::Node>, Error> {
        let desired = fresh(&self.config);
        if has_labels_and_network_of(&there, &desired) {
            return Ok(there);
        }
        let mut node = (*there).clone();
        let labels = node.metadata.labels.get_or_insert_default();
        labels.extend(desired.metadata.labels.into_iter().flatten());
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.extend(desired.metadata.annotations.into_iter().flatten());
        let spec = node.spec.get_or_insert_default();
        let desired = desired.spec.unwrap_or_default();
        // The cloud's name of the node is set once and never changed.
        if spec.provider_id.is_none() {
            spec.provider_id = desired.provider_id;
        }
        if spec.pod_cidr.is_none() && desired.pod_cidr.is_some() {
            spec.pod_cidrs = desired.pod_cidrs;
            spec.pod_cidr = desired.pod_cidr;
        }
        Ok(Arc::new((*self.api.update_as(node).await?).clone()))
    }
}

/// Whether [`NodeStatusWriter::relabel`] has nothing to change.
fn has_labels_and_network_of(node: &core::Node, desired: &core::Node) -> bool {
    type Pairs = BTreeMap<String, String>;
    let contains = |have: Option<&Pairs>, desired: Option<&Pairs>| {
        let mut desired = desired.into_iter().flatten();
        desired.all(|(key, value)| have.and_then(|have| have.get(key)) == Some(value))
    };
    let has = |of: fn(&core::NodeSpec) -> &Option<String>| {
        let is_set = |node: &core::Node| node.spec.as_ref().is_some_and(|spec| of(spec).is_some());
        is_set(node) || !is_set(desired)
    };
    let (meta, desired_meta) = (&node.metadata, &desired.metadata);
    contains(meta.labels.as_ref(), desired_meta.labels.as_ref())
        && contains(meta.annotations.as_ref(), desired_meta.annotations.as_ref())
        && has(|spec| &spec.provider_id)
        && has(|spec| &spec.pod_cidr)
}

/// Features that the scheduler and the API server may only rely on where a node declares them (KEP-5328).
const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn fresh(config: &Config) -> core::Node {
    let mut labels = config.configuration.node_labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture()),
    ] {
        labels.entry(key.into()).or_insert_with(|| value.into());
    }
    let mut annotations = BTreeMap::from([(
        "volumes.kubernetes.io/controller-managed-attach-detach".to_string(),
        "true".to_string(),
    )]);
    // A hollow node has no disk to offer.
    if config.machine.is_host() {
        let local_path = local_root(&config.root_dir).display().to_string();
        annotations.insert(LOCAL_PATH.into(), local_path);
    }
    core::Node {
        metadata: ObjectMeta {
            name: Some(config.node_name.to_string()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: Some(core::NodeSpec {
            pod_cidr: config.pod_cidrs.first().cloned(),
            pod_cidrs: Some(config.pod_cidrs.clone()).filter(|cidrs| !cidrs.is_empty()),
            provider_id: Some(config.configuration.provider_id.clone()).filter(|id| !id.is_empty()),
            taints: Some(config.configuration.register_with_taints.clone()).filter(|t| !t.is_empty()),
            ..core::NodeSpec::default()
        }),
        status: None,
    }
}

/// Extended resources that an administrator has written into the node's capacity (Kubernetes: "Advertise Extended
/// Resources for a Node"): they are kept, and all of them can be allocated. Resources of Kubernetes' own names are the
/// kubelet's.
fn extended_resources(before: &core::NodeStatus) -> BTreeMap<String, Quantity> {
    let capacity = before.capacity.iter().flatten();
    capacity
        .filter(|(name, _)| is_extended(name))
        .map(|(name, amount)| (name.clone(), amount.clone()))
        .collect()
}

impl NodeStatusWriter {
    async fn status(
        &self,
        runtime: &RuntimeStatus,
        before: &core::NodeStatus,
        now: Timestamp,
    ) -> core::NodeStatus {
        let config = &self.config;
        let address = |type_: &str, address: &str| core::NodeAddress {
            type_: type_.into(),
            address: address.into(),
        };
        let mut addresses: Vec<_> = config
            .node_ips
            .iter()
            .map(|ip| address("InternalIP", ip))
            .collect();
        addresses.push(address("Hostname", &config.node_name));
        let images = match self.runtime.images().await {
            Ok(images) => {
                let mut images: Vec<_> = images
                    .into_iter()
                    .map(|i| core::ContainerImage {
                        names: Some(i.digests.into_iter().chain(i.tags).collect()),
                        size_bytes: i64::try_from(i.size_bytes).ok().filter(|size| *size > 0),
                    })
                    .collect();
                images.sort_by(|a, b| (b.size_bytes, &a.names).cmp(&(a.size_bytes, &b.names)));
                images.truncate(config.configuration.node_status_max_images.unwrap_or(usize::MAX));
                Some(images)
            }
            Err(_) => before.images.clone(),
        };
        let extended = extended_resources(before);
        let devices = self.managers.devices.capacity();
        let with_extended = |own: &BTreeMap<String, Quantity>, devices_of: &BTreeMap<String, usize>| {
            let mut all = extended.clone();
            // It had them once: a resource that a plugin manages is not one that no node has.
            let removed = devices.removed.iter().map(|name| (name, &0));
            let devices = devices_of.iter().chain(removed);
            all.extend(devices.map(|(name, count)| (name.clone(), Quantity(count.to_string()))));
            all.extend(own.clone());
            Some(all)
        };
        core::NodeStatus {
            addresses: Some(addresses),
            allocatable: with_extended(&self.resources.allocatable, &devices.allocatable),
            capacity: with_extended(&self.resources.capacity, &devices.capacity),
            conditions: Some(self.conditions(runtime, before, now)),
            daemon_endpoints: Some(core::NodeDaemonEndpoints {
                kubelet_endpoint: Some(core::DaemonEndpoint {
                    port: i32::from(config.port),
                }),
            }),
            declared_features: Some(DECLARED_FEATURES.map(String::from).to_vec()),
            images,
            node_info: Some(node_info(config, runtime)),
            volumes_in_use: Some(self.volumes.in_use()).filter(|used| !used.is_empty()),
            config: before.config.clone(),
            features: before.features.clone(),
            phase: before.phase.clone(),
            runtime_handlers: before.runtime_handlers.clone(),
            volumes_attached: before.volumes_attached.clone(),
        }
    }
}

/// The conditions of pressure: whether they hold, their reason and message, and the event when that changes.
fn pressure_conditions(pressures: &BTreeSet<Pressure>) -> [(Pressure, bool, &'static str, &'static str); 3] {
    let pick = |pressure, [bad, good]: [(&'static str, &'static str); 2]| {
        let holds = pressures.contains(&pressure);
        let (reason, message) = if holds { bad } else { good };
        (pressure, holds, reason, message)
    };
    [
        pick(
            Pressure::Memory,
            [
                (
                    "KubeletHasInsufficientMemory",
                    "kubelet has insufficient memory available",
                ),
                (
                    "KubeletHasSufficientMemory",
                    "kubelet has sufficient memory available",
                ),
            ],
        ),
        pick(
            Pressure::Disk,
            [
                ("KubeletHasDiskPressure", "kubelet has disk pressure"),
                ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ],
        ),
        pick(
            Pressure::Pid,
            [
                (
                    "KubeletHasInsufficientPID",
                    "kubelet has insufficient PID available",
                ),
                ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ],
        ),
    ]
}

/// What changed between two statuses, as events' reasons: `NodeHasDiskPressure`, `NodeReady`.
fn transitions(before: &core::NodeStatus, after: &core::NodeStatus) -> Vec<String> {
    let status = |of: &core::NodeStatus, type_: &str| {
        let conditions = of.conditions.iter().flatten();
        conditions
            .into_iter()
            .find(|c| c.type_ == type_)
            .map(|c| c.status.clone())
    };
    let mut found = Vec::new();
    for condition in after.conditions.iter().flatten() {
        let known = status(before, &condition.type_);
        if known.as_ref() == Some(&condition.status) {
            continue;
        }
        let reason = condition.reason.as_deref().unwrap_or("");
        match condition.type_.as_str() {
            "MemoryPressure" | "DiskPressure" | "PIDPressure" => {
                found.extend(reason.strip_prefix("Kubelet").map(|rest| format!("Node{rest}")));
            }
            "Ready" if condition.status == "True" => found.push("NodeReady".into()),
            // A node that starts is not ready yet; that deserves no event.
            "Ready" if known.is_some() => found.push("NodeNotReady".into()),
            _ => {}
        }
    }
    found
}

/// All reasons why the node is not ready, joined in one message as in kubelet's `ReadyCondition`.
fn why_not_ready(runtime: &RuntimeStatus, managers: Option<String>, shutting_down: bool) -> Option<String> {
    let mut whys = Vec::new();
    if !(runtime.ready && runtime.network_ready) {
        whys.push(match runtime.message.as_str() {
            "" => "container runtime is not ready",
            reported => reported,
        });
    }
    whys.extend(managers.as_deref());
    if shutting_down {
        whys.push(knarr_kubelet::shutdown::NOT_READY);
    }
    match whys.as_slice() {
        [] => None,
        [one] => Some((*one).to_string()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

impl NodeStatusWriter {
    /// Whether other nodes reach the pods of this one, as knarr's own network reports it.
    fn network_unavailable(&self) -> Option<(&'static str, bool, &'static str, String)> {
        let network = self.config.network.as_ref()?.availability()?;
        Some((
            "NetworkUnavailable",
            !network.is_available,
            network.reason,
            network.message,
        ))
    }

    /// Returns when that has changed.
    async fn network_changed(&self) {
        match &self.config.network {
            Some(network) => network.availability_changed().await,
            None => std::future::pending().await,
        }
    }

    fn conditions(
        &self,
        runtime: &RuntimeStatus,
        before: &core::NodeStatus,
        now: Timestamp,
    ) -> Vec<NodeCondition> {
        let ready = match why_not_ready(
            runtime,
            self.managers.containers.error(),
            self.conditions.is_shutting_down(),
        ) {
            None => (
                "Ready",
                true,
                "KubeletReady",
                "kubelet is posting ready status".to_string(),
            ),
            Some(why_not) => ("Ready", false, "KubeletNotReady", why_not),
        };
        let pressures = pressure_conditions(&self.conditions.pressures());
        let desired = pressures
            .into_iter()
            .map(|(pressure, holds, reason, message)| {
                (pressure.condition(), holds, reason, message.to_string())
            })
            .chain([ready])
            .chain(self.network_unavailable());
        let old = before.conditions.as_deref().unwrap_or_default();
        let mut conditions: Vec<NodeCondition> = Vec::new();
        for (type_, holds, reason, message) in desired {
            let status = if holds { "True" } else { "False" };
            let known = old.iter().find(|c| c.type_ == type_);
            let since = known
                .filter(|c| c.status == status)
                .and_then(|c| c.last_transition_time.clone());
            conditions.push(NodeCondition {
                type_: type_.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message),
                last_heartbeat_time: Some(seconds(now)),
                last_transition_time: since.or_else(|| Some(seconds(now))),
            });
        }
        let others = old
            .iter()
            .filter(|c| !conditions.iter().any(|own| own.type_ == c.type_));
        let others: Vec<_> = others.cloned().collect();
        others.into_iter().chain(conditions).collect()
    }
}

fn node_info(config: &Config, runtime: &RuntimeStatus) -> core::NodeSystemInfo {
    let version = format!("{}://{}", runtime.name, runtime.version.trim_start_matches('v'));
    if !config.machine.is_host() {
        return core::NodeSystemInfo {
            architecture: architecture().into(),
            container_runtime_version: version,
            kubelet_version: config.version.clone(),
            operating_system: "linux".into(),
            os_image: "hollow".into(),
            ..core::NodeSystemInfo::default()
        };
    }
    let read = |path: &str| {
        crate::host_fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_string()
    };
    let os_release = read("/etc/os-release");
    let pretty = os_release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    let kernel = uname()
        .map(|u| u.release().to_string_lossy().into_owned())
        .unwrap_or_default();
    core::NodeSystemInfo {
        architecture: architecture().into(),
        boot_id: read("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: version,
        kernel_version: kernel,
        kube_proxy_version: String::new(),
        kubelet_version: config.version.clone(),
        machine_id: read("/etc/machine-id"),
        operating_system: "linux".into(),
        os_image: pretty.unwrap_or("Linux").trim_matches('"').into(),
        system_uuid: match read("/sys/class/dmi/id/product_uuid") {
            none if none.is_empty() => read("/etc/machine-id"),
            uuid => uuid,
        },
        ..core::NodeSystemInfo::default()
    }
}
