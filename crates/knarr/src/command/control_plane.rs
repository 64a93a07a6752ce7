//! The control plane: API server, scheduler and controllers, as `up` and `server` start them.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use knarr_api::certificates::CertificateRequest;
use knarr_api::feature_gates;
use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_apiserver::audit::{self, Audit};
use knarr_apiserver::authn::StaticTokens;
use knarr_apiserver::authn::secret_token::SecretTokenSigner;
use knarr_apiserver::authn::token_key::KeyFiles;
use knarr_apiserver::identity::Identity;
use knarr_apiserver::pki::{self, Pki};
use knarr_apiserver::seams::SystemEntropy;
use knarr_apiserver::signing;
use knarr_apiserver::tls::Tls;
use knarr_apiserver::{Options, Seams, Server, ServiceRange};
use knarr_client::metrics::Registry;
use knarr_client::{Component, Conn, NodeDialer, SystemClock};
use knarr_control::certificates::serving_approver::Reserved;
use knarr_control::certificates::{Authority, Ca, SignError};
use knarr_control::{ControllersConfig, service_account_tokens, servicelb};
use knarr_node::server::InProcess;
use knarr_store::EtcdConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Failure;
use super::api_for_pods::ApiForPods;
use super::cluster::{CLUSTER_DOMAIN, cluster_domain};
use super::descriptors;
use super::kubelet_port::RemoteNodes;
use crate::allocator::AllocatorMetrics;
use crate::config::{Config, Part, StoreEngine};
use crate::private;

/// Prefix of keys in a shared etcd.
const ETCD_PREFIX: &str = "/knarr";

/// A running control plane; it stops when the cancellation token that it was started with is cancelled.
pub struct ControlPlane {
    pub server: Arc<Server>,
    pub authority: CertificateDer<'static>,
    tasks: TaskTracker,
}

impl ControlPlane {
    /// Starts API server, scheduler and controllers. The API is ready when this returns. `local` is the node of
    /// this process; all other nodes are dialled at their kubelet's port.
    pub async fn start(
        config: &Config,
        local: Arc<LocalNode>,
        cancel: &CancellationToken,
    ) -> Result<Self, Failure> {
        if !feature_gates::set(config.feature_gates) {
            return Err(Failure::new("this process has already started a control plane"));
        }
        // Before anything is written to disk, because a port that is in use is the most common error.
        let listener = TcpListener::bind(config.listen).await.map_err(|e| {
            let why = match e.kind() {
                ErrorKind::AddrInUse => {
                    "the port is in use; stop the process that uses it, or choose another port with --listen"
                }
                _ => "choose an address of this host with --listen",
            };
            Failure::new(format!("cannot listen on {}: {why}", config.listen)).because(e)
        })?;
        let listen = listener.local_addr().map_err(|e| {
            Failure::new(format!(
                "cannot read the local address of the listener on {}",
                config.listen
            ))
            .because(e)
        })?;
        let for_pods = ApiForPods::bind(config, listen).await;
        let range = ServiceRange::parse(&config.network.service_cidrs.to_string())
            .map_err(|e| Failure::new(e.to_string()))?;
        let failed = |e| Failure::new("the cluster's keys are not usable").because(e);
        private::make(&config.data_dir, &["pki"])?;
        let pki = Pki::open(&config.data_dir.join("pki"), Timestamp::now()).map_err(failed)?;
        let names = certificate_names(config, &range);
        let serving = pki.server(&names).map_err(failed)?;
        let reserved = Reserved {
            api_server: names.into_iter().collect(),
            service_ranges: range.ranges(),
        };
        // The chain includes the CA, for nodes that know only its pin when they join.
        let with_ca = Identity {
            certificate_pem: serving.certificate_pem + pki.ca_pem(),
            ..serving
        };
        let tls = Tls::with_previous_client_ca(&with_ca, pki.client_ca_pem(), pki.previous_clients())
            .map_err(|e| Failure::new(e.to_string()))?;
        let keys = service_account_keys(config, &pki)?;
        let tokens = SecretTokenSigner::new(&keys).map_err(|e| {
            Failure::new(format!(
                "the signing key of service account tokens is not usable: {e}"
            ))
        })?;
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
                .map_err(|e| Failure::new("cannot parse a CA certificate of the cluster").because(e))
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
            .map_err(|e| Failure::new("cannot start the API server").because(e))?;

        remote.set_api(server.api(&Component::ApiServer));
        server
            .let_nodes_join(
                &format!("https://{}", advertised(config, listen)),
                pki.ca_pem(),
                config.shared(&cluster_domain(config)),
            )
            .await
            .map_err(|e| {
                Failure::new("cannot publish the cluster's settings for joining nodes").because(e)
            })?;
        server
            .publish_client_authorities(pki.client_ca_pem(), pki.front_proxy_ca_pem())
            .await
            .map_err(|e| Failure::new("cannot publish the client CA").because(e))?;
        let tasks = TaskTracker::new();
        if let Some(ApiForPods {
            listener, clients, ..
        }) = for_pods
        {
            let admits = Box::new(move |peer| clients.admit(peer));
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
        server.show_metrics(move || metrics.text());
        let of_process = Registry::default();
        of_process.register(AllocatorMetrics::default());
        server.show_metrics(move || of_process.text());
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

    /// Returns when everything has stopped.
    pub async fn wait(self) {
        self.tasks.wait().await;
    }
}

/// The node of this process, once it has started.
#[derive(Default)]
pub struct LocalNode(OnceLock<InProcess>);

impl LocalNode {
    /// From now on requests to the node of this process reach it.
    pub fn set(&self, node: &Config, server: knarr_node::server::Server) {
        // Only the first counts; a process has one node.
        let _ = self.0.set(InProcess {
            node: node.node_name.clone(),
            server,
        });
    }
}

/// Dials nodes: the one of this process through a pipe, others through their kubelet's port.
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
            scale_down: config.scale_down_policy,
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
        fence_agents: Some(Arc::new(knarr_control::fencing::AgentDirectory(
            config.fence_agents_dir.clone(),
        ))),
        fence_agents_allowed: config.fence_agents_allowed.clone(),
        topology_domains: true,
        rebalancing: true,
        metrics: Default::default(),
        identity: shared.then(identity),
    }
}

/// The service account keys that flags name, else knarr's own.
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
            audit::write_to(destination, lines, Arc::new(SystemClock))
                .map_err(|e| Failure::new("cannot write the audit log, see --audit-log-path").because(e))?;
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
        event_ttl: access.event_ttl,
        connections: descriptors::api_port()?,
        ..Options::default()
    })
}

/// The cluster's CAs, as the certificate signing controllers use them.
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
    ) -> Result<String, SignError> {
        let authority = match ca {
            Ca::Client => &self.clients,
            Ca::KubeletServing => &self.kubelet_serving,
        };
        authority.sign(request, usages, seconds, now).map_err(Into::into)
    }

    fn expires(&self, certificate: &[u8]) -> Option<Timestamp> {
        signing::ends(certificate)
    }
}

/// The signing key of service account tokens, as the tokens controller uses it for token Secrets.
#[derive(Debug)]
struct TokenSigner(SecretTokenSigner);

impl service_account_tokens::TokenSigner for TokenSigner {
    fn sign(&self, namespace: &str, account: &str, uid: &str, secret: &str) -> Result<String, SignError> {
        self.0.sign(namespace, account, uid, secret).map_err(Into::into)
    }
}

/// The address at which nodes reach the API: where it listens, or, for an unspecified address, the first of --tls-sans, else
/// the node's name.
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
        .map_err(|e| Failure::new("cannot open the store").because(e))
}
