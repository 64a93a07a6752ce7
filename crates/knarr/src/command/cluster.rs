//! The roles put together: what `up`, `server` and `agent` start, from the same parts.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use knarr_api::certificates::CertificateRequest;
use knarr_api::feature_gates;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_apiserver::audit::{self, Audit};
use knarr_apiserver::authn::StaticTokens;
use knarr_apiserver::authn::secret_token::SecretTokenSigner;
use knarr_apiserver::authn::token_key::KeyFiles;
use knarr_apiserver::pki::{self, Pki};
use knarr_apiserver::seams::SystemEntropy;
use knarr_apiserver::signing;
use knarr_apiserver::tls::Tls;
use knarr_apiserver::{Options, Seams, Server, ServiceRange};
use knarr_client::remote::Remote;
use knarr_client::{Api, Component, Conn, NodeDialer, SystemClock};
use knarr_control::certificates::serving_approver::Reserved;
use knarr_control::certificates::{Authority, Ca};
use knarr_control::{ControllersConfig, service_account_tokens, servicelb};
use knarr_node::containerd::{Containerd, ContainerdConfig};
use knarr_node::images;
use knarr_node::kubelet::configuration::{CgroupDriver, KubeletConfiguration, Place};
use knarr_node::kubelet::{self, Kubelet};
use knarr_node::runtime::Runtime;
use knarr_node::runtime::cri::Cri;
use knarr_node::server::{EnabledHandlers, InProcess, RuntimeContainers};
use knarr_node::{certificates, cgroup};
use knarr_store::EtcdConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::api_for_pods::ApiForPods;
use super::kubelet_port::{KubeletPort, RemoteNodes};
use super::{Failure, git_version};
use super::{client_ca, descriptors, join, network, node_address};
use crate::config::{Config, Part, StoreEngine};
use crate::node_socket;
use crate::private;

/// The kubelet's port, unless another is named.
const KUBELET_PORT: u16 = 10250;
/// Domain of the cluster's names.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// Prefix of keys in a shared etcd.
const ETCD_PREFIX: &str = "/knarr";

/// A running control plane; it ends with the token it was started with.
pub struct ControlPlane {
    pub server: Arc<Server>,
    pub authority: CertificateDer<'static>,
    tasks: TaskTracker,
}

impl ControlPlane {
    /// Starts API server, scheduler and controllers. The API is ready when this returns. `local` is the node of
    /// this process; all others are dialled at their kubelet's port.
    pub async fn start(
        config: &Config,
        local: Arc<LocalNode>,
        cancel: &CancellationToken,
    ) -> Result<Self, Failure> {
        if !feature_gates::set(config.feature_gates) {
            return Err(Failure::new("a control plane was started in this process before"));
        }
        // Before anything on disk, because a port in use is the commonest mistake and nothing has been touched yet.
        let listener = TcpListener::bind(config.listen).await.map_err(|e| {
            let why = match e.kind() {
                ErrorKind::AddrInUse => {
                    "the port is in use; end what uses it, or choose another with --listen"
                }
                _ => "choose an address of this machine with --listen",
            };
            Failure::new(format!("cannot listen on {}: {why}", config.listen)).because(e)
        })?;
        let listen = listener
            .local_addr()
            .map_err(|e| Failure::new("no local address").because(e))?;
        let for_pods = ApiForPods::bind(config, listen).await;
        let range = ServiceRange::parse(&config.network.service_cidrs.to_string()).map_err(Failure::new)?;
        let failed = |e| Failure::new("the cluster's keys are not usable").because(e);
        private::make(&config.data_dir, &["pki"])?;
        let pki = Pki::open(&config.data_dir.join("pki"), Timestamp::now()).map_err(failed)?;
        let names = certificate_names(config, &range);
        let serving = pki.server(&names).map_err(failed)?;
        let reserved = Reserved {
            api_server: names.into_iter().collect(),
            service_ranges: range.ranges(),
        };
        // The CA goes along, for those who know no more of it than its pin.
        let shown = pki::Identity {
            certificate_pem: serving.certificate_pem + pki.ca_pem(),
            ..serving
        };
        let tls = Tls::accepting_previous(&shown, pki.client_ca_pem(), pki.previous_clients())
            .map_err(Failure::new)?;
        let keys = service_account_keys(config, &pki)?;
        let tokens = SecretTokenSigner::new(&keys)
            .map_err(|e| Failure::new(format!("the key of service-account tokens is not usable: {e}")))?;
        let server_config = knarr_apiserver::Config {
            advertised: listen.to_string(),
            address: listen.ip(),
            port: listen.port(),
            service_range: range,
            static_tokens: StaticTokens::default(),
            issuer: config.access.issuer.clone(),
            service_account_key: keys,
            options: Options {
                advertise: for_pods.as_ref().map(|pods| pods.address),
                front_proxy: Some(pki.front_proxy_client().map_err(failed)?),
                ..options(config)?
            },
        };
        let kubelet_client = pki.kubelet_client().map_err(failed)?;
        let read = |pem: &str| {
            CertificateDer::from_pem_slice(pem.as_bytes())
                .map_err(|e| Failure::new("a CA of the cluster cannot be read").because(e))
        };
        let authority = read(pki.ca_pem())?;
        let serving_ca = read(pki.kubelet_serving_ca_pem())?;
        let remote = Arc::new(RemoteNodes::new(&kubelet_client, &serving_ca)?);
        let nodes = Arc::new(Nodes {
            local,
            remote: remote.clone(),
        });
        let seams = Seams {
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            nodes,
        };
        let store = open_store(config).await?;
        let server = Server::new(server_config, seams, store)
            .await
            .map_err(|e| Failure::new("the API server does not start").because(e))?;

        remote.find_by(server.api(&Component::ApiServer));
        server
            .let_nodes_join(
                &format!("https://{}", advertised(config, listen)),
                pki.ca_pem(),
                config.shared(&cluster_domain(config)),
            )
            .await
            .map_err(|e| Failure::new("the cluster cannot be made known to nodes that join").because(e))?;
        server
            .publish_client_authorities(pki.client_ca_pem(), pki.front_proxy_ca_pem())
            .await
            .map_err(|e| Failure::new("the CA of clients cannot be published").because(e))?;
        let tasks = TaskTracker::new();
        if let Some(ApiForPods {
            listener, clients, ..
        }) = for_pods
        {
            let admits = move |peer| clients.admit(peer);
            let serving = server.clone();
            tasks.spawn(serving.serve_some(listener, tls.clone(), admits, cancel.clone()));
        }
        tasks.spawn(server.clone().serve(listener, tls, cancel.clone()));
        let admin = pki.admin().map_err(failed)?;
        let kubeconfig = pki::kubeconfig(
            &format!("https://{listen}"),
            pki.ca_pem(),
            "kubernetes-admin",
            &admin,
        );
        private::write(&config.kubeconfig, &kubeconfig)?;
        let control = control_config(config, listen, &pki, tokens, reserved);
        let metrics = control.metrics.clone();
        let autoscaling = control.autoscaling_metrics.clone();
        server.show_metrics(move || metrics.text() + &autoscaling.text());
        tasks.spawn(knarr_control::run(
            server.identities(),
            control,
            Arc::new(SystemClock),
            cancel.clone(),
        ));
        tasks.close();
        tracing::info!(api = %format!("https://{listen}"), kubeconfig = %config.kubeconfig.display(), "the API is ready");
        Ok(ControlPlane {
            server,
            authority,
            tasks,
        })
    }

    /// Returns when everything has ended.
    pub async fn wait(self) {
        self.tasks.wait().await;
    }
}

/// The node of this process, once it is there.
#[derive(Default)]
pub struct LocalNode(OnceLock<InProcess>);

impl LocalNode {
    /// From now on it answers.
    pub fn set(&self, node: &Config, server: knarr_node::server::Server) {
        // Only the first counts; a process has one node.
        let _ = self.0.set(InProcess {
            node: node.node_name.clone(),
            server,
        });
    }
}

/// Where nodes are reached: the one of this process through a pipe, others through their port.
struct Nodes {
    local: Arc<LocalNode>,
    remote: Arc<RemoteNodes>,
}

#[async_trait]
impl NodeDialer for Nodes {
    async fn dial(&self, node: &str) -> std::io::Result<Box<dyn Conn>> {
        match self.local.0.get() {
            Some(local) if local.node == node => local.dial(node).await,
            _ => self.remote.dial(node).await,
        }
    }
}

fn control_config(
    config: &Config,
    listen: SocketAddr,
    pki: &Pki,
    tokens: SecretTokenSigner,
    reserved: Reserved,
) -> knarr_control::Config {
    // Only an etcd is shared by several servers, one of which leads.
    let shared = config.store == StoreEngine::Etcd;
    let identity = || {
        format!(
            "{}_{}_{}",
            config.node_name,
            std::process::id(),
            Timestamp::now().as_microsecond()
        )
    };
    for note in &config.scheduler.notes {
        tracing::warn!("scheduler configuration: {note}");
    }
    knarr_control::Config {
        scheduler: config.scheduler.clone(),
        controllers: ControllersConfig {
            root_ca: Some(pki.ca_pem().into()),
            authority: Some(Arc::new(ClusterAuthority {
                clients: pki
                    .client_authority()
                    .for_at_most(config.cluster_signing_duration),
                kubelet_serving: pki
                    .kubelet_serving_authority()
                    .for_at_most(config.cluster_signing_duration),
            })),
            token_signer: Some(Arc::new(TokenSigner(tokens))),
            reserved,
            node_lifecycle: config.node_lifecycle,
            pod_autoscaling: config.pod_autoscaling,
            node_ipam: match config.network.has(Part::Network) {
                // Checked with the configuration.
                true => config.network.node_ipam().ok(),
                false => None,
            },
            service_load_balancer: config.network.has(Part::LoadBalancer).then(|| {
                let mut load_balancer = servicelb::Config::default();
                let own = [
                    Some(listen.port()),
                    config.kubelet_listen.map(|kubelet| kubelet.port()),
                ];
                let own = own.into_iter().flatten().filter(|port| *port != 0);
                load_balancer
                    .reserved_ports
                    .extend(own.map(|port| servicelb::Port::tcp(port.into())));
                load_balancer
            }),
            cluster_dns: config.network.served_dns_addresses(),
            ..ControllersConfig::default()
        },
        fence_agents: Some(Arc::new(knarr_control::fencing::Programs(
            config.fence_agents_dir.clone(),
        ))),
        fence_agents_allowed: config.fence_agents_allowed.clone(),
        metrics: Default::default(),
        autoscaling_metrics: Default::default(),
        identity: shared.then(identity),
    }
}

/// The user's keys of service-account tokens, else knarr's own.
fn service_account_keys(config: &Config, pki: &Pki) -> Result<KeyFiles, Failure> {
    let mut keys = config.access.keys.clone();
    if keys.signing.is_empty() {
        let own = pki
            .service_account_key()
            .map_err(|e| Failure::new("the cluster's keys are not usable").because(e))?;
        keys.signing = own.signing;
    }
    Ok(keys)
}

fn options(config: &Config) -> Result<Options, Failure> {
    let access = &config.access;
    let audit = match access.audit.clone() {
        None => None,
        Some((policy, destination)) => {
            let (audit, lines) = Audit::new(policy);
            audit::write_to(destination, lines, Arc::new(SystemClock)).map_err(|e| {
                Failure::new("the audit log cannot be written, see --audit-log-path").because(e)
            })?;
            Some(audit)
        }
    };
    Ok(Options {
        anonymous: access.anonymous,
        emulation: access.emulation,
        encryption: access.encryption.clone(),
        audit,
        max_in_flight: access.max_in_flight,
        request_timeout: access.request_timeout,
        connections: descriptors::api_port()?,
        ..Options::default()
    })
}

/// The cluster's CAs as the certificate controllers use them.
#[derive(Debug)]
struct ClusterAuthority {
    clients: signing::Authority,
    kubelet_serving: signing::Authority,
}

impl Authority for ClusterAuthority {
    fn sign(
        &self,
        ca: Ca,
        request: &CertificateRequest,
        usages: &[String],
        seconds: Option<i32>,
        now: Timestamp,
    ) -> Result<String, String> {
        let authority = match ca {
            Ca::Client => &self.clients,
            Ca::KubeletServing => &self.kubelet_serving,
        };
        authority
            .sign(request, usages, seconds, now)
            .map_err(|e| e.to_string())
    }

    fn ends(&self, certificate: &[u8]) -> Option<Timestamp> {
        signing::ends(certificate)
    }
}

/// The key of service-account tokens as the controller of token Secrets uses it.
#[derive(Debug)]
struct TokenSigner(SecretTokenSigner);

impl service_account_tokens::TokenSigner for TokenSigner {
    fn sign(&self, namespace: &str, account: &str, uid: &str, secret: &str) -> Result<String, String> {
        self.0.sign(namespace, account, uid, secret)
    }
}

/// Where others find the API: where it listens, or, if that is everywhere, under the first name it is said to have.
fn advertised(config: &Config, listen: SocketAddr) -> String {
    if !listen.ip().is_unspecified() {
        return listen.to_string();
    }
    let name = config.tls_sans.first().unwrap_or(&config.node_name);
    match name.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, listen.port()).to_string(),
        Err(_) => format!("{name}:{}", listen.port()),
    }
}

fn certificate_names(config: &Config, range: &ServiceRange) -> Vec<String> {
    let mut names: Vec<String> = [
        "localhost",
        "127.0.0.1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ]
    .map(str::to_string)
    .to_vec();
    names.push(format!("kubernetes.default.svc.{CLUSTER_DOMAIN}"));
    names.push(range.first().to_string());
    names.push(config.node_name.clone());
    if !config.listen.ip().is_unspecified() {
        names.push(config.listen.ip().to_string());
    }
    names.extend(config.tls_sans.iter().cloned());
    names.sort();
    names.dedup();
    names
}

async fn open_store(config: &Config) -> Result<Arc<dyn knarr_store::Store>, Failure> {
    let engine = match config.store {
        StoreEngine::Memory => knarr_store::Config::Memory,
        StoreEngine::Embedded => knarr_store::Config::Embedded {
            dir: config.data_dir.join("store"),
        },
        StoreEngine::Etcd => knarr_store::Config::Etcd(EtcdConfig {
            endpoints: config.etcd.endpoints.clone(),
            prefix: ETCD_PREFIX.into(),
            credentials: None,
            tls: config.etcd.tls.clone(),
        }),
    };
    knarr_store::open(engine)
        .await
        .map_err(|e| Failure::new("the store does not open").because(e))
}

/// knarr's containerd for this data directory.
pub fn containerd_config(config: &Config) -> ContainerdConfig {
    ContainerdConfig {
        program: config.containerd.clone(),
        root: config.data_dir.join("containerd"),
        run: config.data_dir.join("run"),
        cni_bin: match config.network.has(Part::Network) {
            true => config.data_dir.join("cni/bin"),
            false => config.cni_bin_dir.clone(),
        },
        cni_conf: match (&config.network.cni_conf_dir, config.network.has(Part::Network)) {
            (Some(directory), _) => directory.clone(),
            (None, true) => config.data_dir.join("cni/net.d"),
            (None, false) => "/etc/cni/net.d".into(),
        },
        sandbox_image: config
            .sandbox_image
            .clone()
            .unwrap_or_else(|| images::PAUSE.into()),
        systemd_cgroup: config.kubelet.cgroup_driver == CgroupDriver::Systemd,
    }
}

/// A running node; it ends with the token it was started with, its pods go on.
pub struct RunningNode {
    containerd: Containerd,
    kubelet: Kubelet,
    _network: Arc<network::Running>,
    /// Logs, exec, attach and port-forward on this node.
    pub server: knarr_node::server::Server,
}

/// The cluster as the parts of a node see it.
pub struct NodeApis {
    pub kubelet: Arc<dyn Api>,
    pub network_agent: Arc<dyn Api>,
    /// The API server is in this process: it reaches the kubelet through a pipe.
    pub is_in_process: bool,
}

/// containerd up, images in, network configured: what a node needs before it knows of any API.
pub struct PreparedNode {
    containerd: Containerd,
    runtime: Arc<dyn Runtime>,
}

impl PreparedNode {
    pub async fn start(config: &Config, cancel: &CancellationToken) -> Result<Self, Failure> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Failure::new(
                "a node runs containers, for which it must be root; `knarr server` runs without",
            ));
        }
        check_cgroups(config)?;
        private::make(
            &config.data_dir,
            &["cni", "containerd", "containers", "kubelet", "logs", "pki", "run"],
        )?;
        let containerd = containerd_config(config);
        let failed = |e| Failure::new("containerd does not start").because(e);
        let running = Containerd::start(containerd, cancel.clone())
            .await
            .map_err(failed)?;
        let runtime = Cri::new(&format!("unix://{}", running.socket().display()));
        running.serves(&runtime).await.map_err(failed)?;
        bring_images(config, &running, &runtime).await?;
        Ok(PreparedNode {
            containerd: running,
            runtime: Arc::new(runtime),
        })
    }

    /// Joins the cluster behind these APIs, whose certificate these CAs sign.
    pub async fn join(
        self,
        config: &Config,
        apis: NodeApis,
        authorities: &[CertificateDer<'_>],
        cancel: &CancellationToken,
    ) -> Result<RunningNode, Failure> {
        let api = apis.kubelet;
        knarr_node::untrusted_fs::check_kernel()
            .map_err(|e| Failure::new("this machine cannot run pods").because(e))?;
        let node_ips = node_address::node_ips(config);
        let listen = config
            .kubelet_listen
            .unwrap_or_else(|| match (apis.is_in_process, node_ips.first()) {
                (false, Some(ip)) => SocketAddr::new(*ip, KUBELET_PORT),
                _ => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), KUBELET_PORT),
            });
        let clock = Arc::new(SystemClock);
        let network = network::start(
            config,
            apis.network_agent,
            self.runtime.clone(),
            &node_ips,
            clock.clone(),
        )
        .await?;
        // Of its addresses a node elsewhere proves the one that it connects from, which is its port's.
        let proved: Vec<String> = match apis.is_in_process {
            true => node_ips.iter().map(ToString::to_string).collect(),
            false => vec![listen.ip().to_string()],
        };
        let wanted = certificates::serving(&config.node_name, &proved);
        let mut rotation = join::open(config, wanted, "kubelet-server-current.pem")?;
        // In earlier versions the CA of the API server signed it, by which the API server knows no kubelet any more.
        if let Some(kept) = rotation.current()
            && authorities
                .iter()
                .any(|ca| pki::is_signed_by(&kept.certificate_pem, ca))
        {
            rotation.discard();
        }
        let client_ca_file = config.data_dir.join("pki/kubelet-client-ca.crt");
        let client_ca_pem = client_ca::kept(&client_ca_file)?;
        // Until the cluster has signed one, nobody takes the port for this node's.
        let identity = match rotation.current() {
            Some(kept) => identity(kept),
            None => pki::self_signed(&config.node_name)
                .map_err(|e| Failure::new("the kubelet's certificate cannot be made").because(e))?,
        };
        let port = KubeletPort::bind(
            listen,
            &config.node_name,
            client_ca_pem.as_deref(),
            &identity,
            descriptors::kubelet_port()?,
            api.clone(),
        )
        .await?;
        tokio::spawn(client_ca::follow(
            api.clone(),
            port.tls(),
            client_ca_file,
            cancel.clone(),
        ));
        let tls = port.tls();
        let take = move |renewed: &certificates::Identity| tls.renew(&self::identity(renewed));
        tokio::spawn(rotation.run(api.clone(), None, take, cancel.clone()));
        let kubelet_config = kubelet::Config {
            node_name: config.node_name.clone(),
            root_dir: config.data_dir.join("kubelet"),
            log_dir: match &config.kubelet.pod_logs_dir {
                Some(said) => said.into(),
                None => config.data_dir.join("logs"),
            },
            pod_cidrs: config
                .network
                .pod_cidrs
                .nets()
                .iter()
                .map(ToString::to_string)
                .collect(),
            cluster_dns: match config.kubelet.cluster_dns.as_slice() {
                [] => config
                    .network
                    .dns_addresses()
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
                said => said.to_vec(),
            },
            cluster_domain: cluster_domain(config),
            resolv_conf: resolv_conf(config),
            node_ips: node_ips.iter().map(ToString::to_string).collect(),
            network: Some(network.clone()),
            port: listen.port(),
            version: git_version(),
            termination_resume: config.termination_resume,
            endpoint_barrier: config.endpoint_barrier,
            pinned_images: [
                &containerd_config(config).sandbox_image,
                images::PAUSE,
                images::BUSYBOX,
            ]
            .map(str::to_string)
            .into(),
            configuration: config.kubelet.clone(),
            self_fencing: config.self_fencing,
            watchdog_device: config.watchdog_device.clone(),
            ..kubelet::Config::default()
        };
        let shown = configuration_in_force(&kubelet_config).shown(Place {
            address: &listen.ip().to_string(),
            port: listen.port(),
            runtime_endpoint: &format!("unix://{}", self.containerd.socket().display()),
        });
        let kubelet = Kubelet::start(kubelet_config, api, self.runtime.clone(), clock, cancel.clone());
        network.follow_pods(&kubelet.pods());
        let containers = Arc::new(RuntimeContainers(self.runtime));
        let server =
            knarr_node::server::Server::new(kubelet.pods(), containers.clone(), Arc::new(Timestamp::now))
                .with_meter(kubelet.meter(), kubelet.probes())
                .with_container_manager(kubelet.container_manager())
                .configured(&shown)
                .with_network(network.clone())
                .with_handlers(EnabledHandlers {
                    debugging: config.kubelet.debugging_handlers,
                    system_logs: config.kubelet.system_log_handler,
                });
        node_socket::serve(&config.data_dir, kubelet.shutdown(), cancel.clone())?;
        for note in &config.kubelet.notes {
            tracing::warn!(note, "the kubelet's configuration");
        }
        let (policy, clock) = (
            knarr_node::logs::rotate::Policy::from(config.kubelet.container_logs),
            Arc::new(Timestamp::now),
        );
        let rotation = cancel
            .clone()
            .run_until_cancelled_owned(knarr_node::logs::rotate::run(containers, policy, clock));
        tokio::spawn(rotation);
        tokio::spawn(port.serve(server.clone(), cancel.clone()));
        Ok(RunningNode {
            containerd: self.containerd,
            kubelet,
            _network: network,
            server,
        })
    }
}

/// The domain of the cluster's names.
pub fn cluster_domain(config: &Config) -> String {
    match config.kubelet.cluster_domain.as_str() {
        "" => CLUSTER_DOMAIN.into(),
        domain => domain.into(),
    }
}

/// The resolver settings of the node, which pods get beside the cluster's.
pub fn resolv_conf(config: &Config) -> PathBuf {
    let path = config.kubelet.resolv_conf.as_deref();
    path.unwrap_or("/etc/resolv.conf").into()
}

/// The file's settings, and what holds where it has none.
fn configuration_in_force(kubelet: &kubelet::Config) -> KubeletConfiguration {
    let path = |path: &Path| Some(path.display().to_string());
    KubeletConfiguration {
        cluster_dns: kubelet.cluster_dns.clone(),
        cluster_domain: kubelet.cluster_domain.clone(),
        resolv_conf: path(&kubelet.resolv_conf),
        pod_logs_dir: path(&kubelet.log_dir),
        ..kubelet.configuration.clone()
    }
}

/// What the kubelet's settings ask of this machine.
fn check_cgroups(config: &Config) -> Result<(), Failure> {
    if config.kubelet.cgroup_driver == CgroupDriver::Systemd && !cgroup::has_systemd() {
        return Err(Failure::new(
            "cgroupDriver: systemd needs a machine that systemd runs, and this one has no /run/systemd/system: \
             leave it out of the KubeletConfiguration, or set it to cgroupfs",
        ));
    }
    if config.kubelet.single_process_oom_kill == Some(false) && !cgroup::is_unified() {
        return Err(Failure::new(
            "singleProcessOOMKill: false needs version 2 of cgroups, and this machine has version 1: \
             leave it out of the KubeletConfiguration",
        ));
    }
    Ok(())
}

fn identity(of: &certificates::Identity) -> pki::Identity {
    pki::Identity {
        certificate_pem: of.certificate_pem.clone(),
        key_pem: of.key_pem.clone(),
    }
}

impl RunningNode {
    /// Returns when everything has ended.
    pub async fn wait(self) {
        self.kubelet.wait().await;
        self.containerd.wait().await;
    }
}

/// The images knarr makes, where containerd does not have them yet.
async fn bring_images(config: &Config, containerd: &Containerd, runtime: &Cri) -> Result<(), Failure> {
    let failed = |e| Failure::new("cannot make the local images").because(e);
    let work = config.data_dir.join("containerd/import");
    let mut wanted = Vec::new();
    if config.sandbox_image.is_none() {
        wanted.push(images::pause().map_err(failed)?);
    }
    match images::busybox(images::BUSYBOX) {
        Ok(image) => wanted.push(image),
        // The cluster is of use without the demo image.
        Err(e) => tracing::warn!(error = %e, "there is no demo image"),
    }
    for image in wanted {
        let present = runtime
            .image(&image.name)
            .await
            .map_err(|e| Failure::new("cannot ask for images").because(e))?;
        if present.is_none() {
            images::import(containerd.socket(), &work, &image)
                .await
                .map_err(failed)?;
        }
    }
    Ok(())
}

/// The cluster of this configuration as its admin sees it, over HTTPS, and the API's address.
pub async fn admin(config: &Config) -> Result<(Arc<dyn Api>, String), Failure> {
    let remote = remote(&config.kubeconfig).await?;
    let server = remote.server().to_string();
    Ok((Arc::new(remote), server))
}

/// The cluster of a kubeconfig, over HTTPS.
pub async fn remote(kubeconfig: &Path) -> Result<Remote, Failure> {
    Remote::from_kubeconfig(kubeconfig).await.map_err(|e| {
        Failure::new(format!("the kubeconfig {} is not usable", kubeconfig.display())).because(e)
    })
}
