//! The network components of this node: pods' interfaces, routes to other nodes, the service proxy, the DNS server and
//! NetworkPolicies, and the kubelet's interface to them.

mod policies;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::{Object, k8s_openapi};
use knarr_client::{Api, Clock, Store};
use knarr_cni::{Install, InstallError};
use knarr_network::proxy;
use knarr_network::routes::{Node, encryption};
use knarr_node::kubelet::{Availability, NodeNetwork};
use knarr_node::network::PodNetwork;
use knarr_node::runtime::Runtime;
use knarr_node_network::catalog::Shared;
use knarr_node_network::dns;
use knarr_node_network::own_node;
use knarr_node_network::pods::{self, PodName, Pods, Sandbox};
use knarr_node_network::policy::{self, NetworkPolicies};
use knarr_node_network::propagation::EndpointPropagation;
use knarr_node_network::proxy::ServiceProxy;
use knarr_node_network::routes::{self, Router};
use knarr_node_network::signal::Signal;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Failure;
use super::cluster::cluster_domain;
use super::node_config::{cni_bin, cni_conf, resolv_conf};
use crate::config::{Config, Network, Part};

/// Port of the cluster DNS server.
const DNS_PORT: u16 = 53;
/// How often the addresses of sandboxes that the runtime no longer has are released.
const RECONCILE: Duration = Duration::from_secs(60);

/// Names of devices, tables and directories, with a suffix where several instances run on one host.
pub struct Names {
    instance: Option<String>,
    suffix: String,
    directory: PathBuf,
}

impl Names {
    pub fn of(config: &Config) -> Self {
        let instance = Some(config.network.instance.clone()).filter(|instance| !instance.is_empty());
        Names {
            suffix: instance
                .as_ref()
                .map(|instance| format!("-{instance}"))
                .unwrap_or_default(),
            instance,
            directory: config.data_dir.join("cni"),
        }
    }

    /// The configuration of the service proxy of every node.
    pub fn proxy(&self, network: &Network) -> proxy::Config {
        proxy::Config {
            table: self.proxy_table(),
            cluster_cidrs: network.cluster_cidrs.nets().to_vec(),
            service_cidrs: network.service_cidrs.nets().to_vec(),
            dns_addresses: network.served_dns_addresses(),
            ..proxy::Config::default()
        }
    }

    fn proxy_table(&self) -> String {
        format!("knarr-proxy{}", self.suffix)
    }

    fn policy_table(&self) -> String {
        format!("{}{}", policy::TABLE, self.suffix)
    }

    /// The VXLAN device.
    pub fn tunnel(&self) -> String {
        format!("knarr-vx{}", self.suffix)
    }

    fn routes(&self, config: &Config) -> routes::Config {
        routes::Config {
            node_name: config.node_name.as_str().into(),
            cluster_cidrs: config.network.cluster_cidrs.nets().to_vec(),
            device: self.tunnel(),
            table: format!("knarr-routes{}", self.suffix),
            wireguard_device: format!("knarr-wg{}", self.suffix),
            hold: routes::HOLD,
            encryption: config.network.encrypt_pod_traffic.then(|| routes::Encryption {
                port: encryption::port(&config.network.instance),
                key_file: self.directory.join("wireguard.key"),
            }),
        }
    }

    /// The directory with the records of pods' addresses.
    fn records(&self) -> PathBuf {
        self.directory.join("pods")
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("agent/cni.sock")
    }

    /// What containerd runs as the CNI plugins (`program`), and how they find the agent.
    fn install(&self, config: &Config, program: PathBuf) -> Install {
        Install {
            program,
            bin_dir: cni_bin(config),
            conf_dir: cni_conf(config),
            socket: self.socket(),
        }
    }
}

/// The running network components; they stop when this is dropped, and the kernel keeps its tables and routes.
pub struct RunningNetwork {
    pods: Option<Arc<pods::Server>>,
    proxy: Option<ServiceProxy>,
    propagation: Option<EndpointPropagation>,
    dns: Option<dns::Server>,
    policies: Option<Arc<NetworkPolicies>>,
    /// The namespaces of this node's pods with the default search list, by their addresses.
    default_search_namespaces: Arc<RwLock<HashMap<IpAddr, Arc<str>>>>,
    availability: Option<Arc<Signal<Availability>>>,
    /// What the kubelet last read.
    last_read: Mutex<Option<Availability>>,
    _catalog: Arc<Shared>,
    _router: Option<Router>,
    _own: own_node::OwnNodeWatch,
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for RunningNetwork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RunningNetwork")
    }
}

/// Starts the components that are not disabled. `api` is authenticated as the network agent of this node; `program` is what containerd
/// runs as the CNI plugins.
pub async fn start(
    config: &Config,
    api: Arc<dyn Api>,
    runtime: Arc<dyn Runtime>,
    program: PathBuf,
    node_ips: &[IpAddr],
    clock: Arc<dyn Clock>,
) -> Result<Arc<RunningNetwork>, Failure> {
    let names = Names::of(config);
    let catalog = Arc::new(Shared::start(api.clone()));
    let own = own_node::OwnNodeWatch::start(api.clone(), &config.node_name);
    let mut tasks = JoinSet::new();
    let pods = Pods::default();
    let (mut router, mut server, mut availability) = (None, None, None);
    let mut policies = None;
    if config.network.has(Part::Network) {
        let routes = Router::start(names.routes(config), api.clone(), clock.clone())
            .map_err(|e| Failure::new("cannot watch the routes of this host").because(e))?;
        let enforces = config.network.has(Part::Policy);
        let isolation = Arc::new(policies::Isolation::default());
        let before_up: Arc<dyn pods::BeforeUp> = match enforces {
            true => isolation.clone(),
            false => Arc::new(pods::NoHook),
        };
        let (started, reported) = start_pods(
            config,
            &names,
            names.install(config, program),
            &pods,
            (&own, &routes),
            (runtime, node_ips, before_up),
            &mut tasks,
        )
        .await?;
        (server, availability) = (Some(started), Some(reported));
        if enforces {
            let started = policies::start(config, &names, &pods, api.clone(), clock.clone())?;
            isolation.set(started.clone());
            tasks.spawn(policies::follow_sandboxes(pods.clone(), started.clone()));
            // Pods of the earlier network have addresses of the pod CIDR and are not attached.
            if !earlier_leases(config).exists() {
                tasks.spawn(policies::follow_unreachable(routes.status(), started.clone()));
            }
            policies = Some(started);
        }
        router = Some(routes);
    }
    let proxy = config.network.has(Part::Proxy).then(|| {
        let proxy = knarr_node_network::proxy::Config {
            proxy: names.proxy(&config.network),
            node_name: config.node_name.as_str().into(),
            conntrack_sysctls: true,
            conntrack_tcp_be_liberal: false,
            healthz_address: None,
        };
        ServiceProxy::start(proxy, api.clone(), catalog.clone(), clock.clone())
    });
    let default_search_namespaces = Arc::<RwLock<HashMap<IpAddr, Arc<str>>>>::default();
    let dns = match config.network.has(Part::Dns) {
        false => None,
        true => {
            let known = default_search_namespaces.clone();
            let server = dns::start(
                dns::Config {
                    addresses: config.network.dns_addresses(),
                    port: DNS_PORT,
                    cluster_domain: cluster_domain(config),
                    ttl_seconds: dns::TTL_SECONDS,
                    resolv_conf: resolv_conf(config),
                    namespace_of: Some(Arc::new(move |address| known.read().get(&address).cloned())),
                    serial: u32::try_from(clock.now().as_second()).unwrap_or(u32::MAX),
                },
                api.clone(),
                catalog.clone(),
            );
            Some(server.await.map_err(|e| {
                Failure::new(
                    "cannot start the cluster DNS server; with --disable dns another DNS server can be used",
                )
                .because(e)
            })?)
        }
    };
    let propagation = proxy.as_ref().map(|proxy| {
        EndpointPropagation::start(
            api.clone(),
            &config.node_name.as_str().into(),
            catalog.clone(),
            proxy.reached(),
            clock,
        )
    });
    Ok(Arc::new(RunningNetwork {
        pods: server,
        proxy,
        propagation,
        dns,
        policies,
        default_search_namespaces,
        availability,
        last_read: Mutex::default(),
        _catalog: catalog,
        _router: router,
        _own: own,
        _tasks: tasks,
    }))
}

/// Starts the pod network: pods' interfaces and addresses, once the node has a pod CIDR. Returns its server and its
/// availability.
async fn start_pods(
    config: &Config,
    names: &Names,
    install: Install,
    pods: &Pods,
    (own, router): (&own_node::OwnNodeWatch, &Router),
    (runtime, node_ips, before_up): (Arc<dyn Runtime>, &[IpAddr], Arc<dyn pods::BeforeUp>),
    tasks: &mut JoinSet<()>,
) -> Result<(Arc<pods::Server>, Arc<Signal<Availability>>), Failure> {
    let (network, known) = watch::channel(None);
    let earlier = earlier(config)
        .map_err(|e| Failure::new("cannot read the CNI configuration of the pod network").because(e))?;
    let server = pods::Server::start(pods::Config {
        directory: names.records(),
        socket: names.socket(),
        instance: names.instance.clone(),
        network: known,
        before_up,
        pods: pods.clone(),
        reserved: config.network.served_dns_addresses(),
        earlier,
    })
    .await
    .map_err(|e| Failure::new("cannot start the pod network").because(e))?;
    let server = Arc::new(server);
    install.link_plugins().map_err(cannot_link)?;
    let availability = Arc::new(Signal::new(Availability {
        is_available: false,
        reason: "NoPodCIDR",
        message: "the node has no pod CIDR yet".into(),
    }));
    let (own, status, reported) = (own.node(), router.status(), availability.clone());
    let cluster_cidrs = config.network.cluster_cidrs.nets().to_vec();
    // Pods cannot reply to a loopback address: the kernel chooses another one.
    let of_host = node_ips.iter().filter(|ip| !ip.is_loopback());
    let node_addresses: Vec<IpAddr> = of_host.copied().collect();
    let node_name = config.node_name.clone();
    tasks.spawn(async move {
        let mut seen = (Node::default(), routes::Status::default());
        loop {
            // When one of the two changes, both are read.
            tokio::select! {
                _ = own.wait_for(|node| *node != seen.0) => {}
                _ = status.wait_for(|status| *status != seen.1) => {}
            }
            seen = (own.get(), status.get());
            let (node, routes) = &seen;
            if let Some(conflict) = routes.conflicts.iter().find(|c| c.node == node_name) {
                reported.set(Availability {
                    is_available: false,
                    reason: "PodCIDRConflict",
                    message: format!(
                        "the node's pod CIDR {} cannot be used: {}; set --cluster-cidr to another range",
                        conflict.cidr, conflict.message
                    ),
                });
                continue;
            }
            if node.pod_cidrs.is_empty() || !routes.is_ready {
                continue;
            }
            network.send_replace(Some(pods::NodeNetwork {
                pod_cidrs: node.pod_cidrs.clone(),
                cluster_cidrs: cluster_cidrs.clone(),
                node_addresses: node_addresses.clone(),
                mtu: routes.mtu,
            }));
            // With the CNI configuration the runtime's network is ready.
            match install.write_configuration() {
                Ok(()) => reported.set(Availability {
                    is_available: true,
                    reason: "KnarrIsUp",
                    message: "the routes to the node's pods are set".into(),
                }),
                Err(error) => tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot write the CNI configuration"
                ),
            }
        }
    });
    let reconciled = server.clone();
    tasks.spawn(async move {
        loop {
            tokio::time::sleep(RECONCILE).await;
            let listed = async {
                let sandboxes = runtime.sandboxes().await?;
                let listed = sandboxes.into_iter().map(|sandbox| Sandbox {
                    id: sandbox.id.into(),
                    pod: Some(PodName {
                        namespace: sandbox.pod.namespace.into(),
                        name: sandbox.pod.name.into(),
                        uid: Some(String::from(sandbox.pod.uid).into()),
                    }),
                });
                Ok::<_, knarr_node::runtime::RuntimeError>(listed.collect())
            };
            match reconciled.reconcile(listed).await {
                Ok(0) => {}
                Ok(released) => tracing::info!(
                    released,
                    "released the addresses of sandboxes that no longer exist"
                ),
                Err(error) => tracing::debug!(%error, "cannot list the sandboxes"),
            }
        }
    });
    Ok((server, availability))
}

fn cannot_link(error: InstallError) -> Failure {
    Failure::new("cannot link the CNI plugins").because(error)
}

/// Where the bridge network of earlier versions has its leases.
fn earlier_leases(config: &Config) -> PathBuf {
    config.data_dir.join("cni/ipam").join(Install::NETWORK)
}

/// The bridge network of earlier versions, while it has leases.
fn earlier(config: &Config) -> std::io::Result<Option<pods::EarlierNetwork>> {
    /// The default name of its bridge, where the configuration no longer has it.
    const BRIDGE: &str = "knarr0";
    let leases = earlier_leases(config);
    if !leases.exists() {
        return Ok(None);
    }
    let configured = PodNetwork::configured_bridge(&cni_conf(config))?;
    Ok(Some(pods::EarlierNetwork {
        bridge: configured.unwrap_or_else(|| BRIDGE.into()),
        leases,
    }))
}

/// Serves the CNI plugin (`program`) while `knarr down` removes the last sandboxes, when no node runs. Stops when it is dropped.
pub async fn serve_teardown(config: &Config, program: PathBuf) -> Result<Option<pods::Server>, Failure> {
    if !config.network.has(Part::Network) {
        return Ok(None);
    }
    let names = Names::of(config);
    names
        .install(config, program)
        .link_plugins()
        .map_err(cannot_link)?;
    // Without a pod CIDR no pod is added.
    let (_, network) = watch::channel(None);
    let server = pods::Server::start(pods::Config {
        directory: names.records(),
        socket: names.socket(),
        instance: names.instance.clone(),
        network,
        before_up: Arc::new(pods::NoHook),
        pods: Pods::default(),
        reserved: Vec::new(),
        earlier: None,
    });
    let failed =
        |e| Failure::new("cannot start the pod network, which is needed to terminate the pods").because(e);
    server.await.map(Some).map_err(failed)
}

/// Removes the network of this data directory from the host. Returns what could not be removed.
pub async fn remove(config: &Config) -> Vec<String> {
    let names = Names::of(config);
    let mut faults = Vec::new();
    if let Err(error) = routes::remove_all(&names.routes(config)).await {
        faults.push(format!("routes to other nodes: {error}"));
    }
    if config.network.has(Part::Dns)
        && let Err(error) = dns::addresses::remove(&config.network.dns_addresses()).await
    {
        faults.push(format!("the cluster DNS addresses: {error}"));
    }
    let bridge = match earlier(config) {
        Ok(earlier) => earlier.map(|earlier| earlier.bridge),
        Err(error) => {
            faults.push(format!("the pod network's configuration: {error}"));
            None
        }
    };
    if let Err(error) = policy::remove_all(&names.policy_table()).await {
        faults.push(format!("the nftables table of NetworkPolicies: {error}"));
    }
    let instance = names.instance.clone();
    let blocking = tokio::task::spawn_blocking(move || {
        let mut faults = Vec::new();
        let removed = pods::remove_all(
            &names.records(),
            &names.socket(),
            instance.as_deref(),
            bridge.as_deref(),
        );
        if let Err(error) = removed {
            faults.push(format!("the pods' network: {error}"));
        }
        if let Err(error) = knarr_node_network::proxy::remove(&names.proxy_table()) {
            faults.push(format!("the service proxy's nftables tables: {error}"));
        }
        faults
    });
    match blocking.await {
        Ok(more) => faults.extend(more),
        Err(error) => faults.push(format!("the network: {error}")),
    }
    faults
}

#[async_trait]
impl NodeNetwork for RunningNetwork {
    async fn withdrawn(&self, pod: &Pod) -> bool {
        match &self.propagation {
            Some(propagation) => propagation.withdrawn(pod).await,
            // Without knarr's proxy there is no propagation.
            None => false,
        }
    }

    fn reports_endpoints(&self) -> bool {
        self.propagation.is_some()
    }

    fn metrics(&self) -> String {
        let mut text = self.proxy.as_ref().map(ServiceProxy::metrics).unwrap_or_default();
        if let Some(dns) = &self.dns {
            text.push_str(&dns.metrics());
        }
        if let Some(policies) = &self.policies {
            text.push_str(&policies.metrics());
        }
        text
    }

    fn availability(&self) -> Option<Availability> {
        let now = self.availability.as_ref().map(|availability| availability.get());
        self.last_read.lock().clone_from(&now);
        now
    }

    async fn availability_changed(&self) {
        match &self.availability {
            Some(availability) => {
                let is_new = |now: &Availability| self.last_read.lock().as_ref() != Some(now);
                availability.wait_for(is_new).await;
            }
            None => std::future::pending().await,
        }
    }
}

impl RunningNetwork {
    /// Returns when the links of all sandboxes whose DEL was answered are deleted, or after 10 seconds.
    pub async fn finish_removals(&self) {
        if let Some(server) = &self.pods {
            server.finish_removals().await;
        }
    }

    /// From now on DNS expands the search lists of these pods in one step, where they are the default ones.
    pub fn follow_pods(&self, pods: &Store) {
        let default_search_namespaces = self.default_search_namespaces.clone();
        pods.add_event_handler(move |change| {
            let mut default_search_namespaces = default_search_namespaces.write();
            for (address, _) in change
                .before()
                .and_then(|pod| default_search(pod))
                .into_iter()
                .flatten()
            {
                default_search_namespaces.remove(&address);
            }
            default_search_namespaces.extend(
                change
                    .after()
                    .and_then(|pod| default_search(pod))
                    .into_iter()
                    .flatten(),
            );
        });
    }
}

/// The addresses of a pod whose search list is the default one of its namespace, with that namespace.
fn default_search(pod: &Object) -> Option<Vec<(IpAddr, Arc<str>)>> {
    let namespace: Arc<str> = pod.namespace().into();
    let pod = pod.to_typed::<Pod>()?;
    let spec = pod.spec.as_ref()?;
    let is_default = spec
        .dns_policy
        .as_deref()
        .is_none_or(|policy| policy == "ClusterFirst")
        && spec.dns_config.is_none()
        && spec.host_network != Some(true);
    let ips = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    let addresses = ips.filter_map(|ip| Some((ip.ip.parse().ok()?, namespace.clone())));
    is_default.then(|| addresses.collect())
}
