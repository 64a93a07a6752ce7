//! The node: containerd, the kubelet and its port, as `up` and `agent` start them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_api::k8s_openapi::jiff::Timestamp;
use knarr_apiserver::identity::Identity;
use knarr_apiserver::pki;
use knarr_client::metrics::Registry;
use knarr_client::{Api, SystemClock};
use knarr_node::containerd::Containerd;
use knarr_node::images;
use knarr_node::kubelet::configuration::{CgroupDriver, EnvironmentSettings, KubeletConfiguration};
use knarr_node::kubelet::{self, Kubelet, PodRules};
use knarr_node::runtime::Runtime;
use knarr_node::runtime::cri::Cri;
use knarr_node::server::{EnabledHandlers, RuntimeContainers};
use knarr_node::{certificates, cgroup};
use knarr_strategy::Strategy;
use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

use super::cluster::cluster_domain;
use super::kubelet_port::KubeletPort;
use super::node_config::{
    containerd_config, oci_runtime, own_shim, pod_program, refresh_shim, resolv_conf, sandbox_image,
};
use super::{Failure, git_version};
use super::{client_ca, descriptors, join, network, node_address};
use crate::config::{Config, ShimChoice};
use crate::node_socket;
use crate::private;

/// The kubelet's port, unless --kubelet-listen names another.
const KUBELET_PORT: u16 = 10250;

/// A running node; it stops when the cancellation token that it was started with is cancelled, and its pods continue to run.
pub struct RunningNode {
    containerd: Containerd,
    kubelet: Kubelet,
    network: Arc<network::RunningNetwork>,
    /// Logs, exec, attach and port-forward on this node.
    pub server: knarr_node::server::Server,
}

impl RunningNode {
    /// Returns when everything has stopped, and the links of removed pods are deleted.
    pub async fn wait(self) {
        self.kubelet.wait().await;
        self.containerd.wait().await;
        // Now, as no DEL comes without containerd. The next start of the node would delete them, but there may be none.
        self.network.finish_removals().await;
    }
}

/// The API, as the components of a node are authenticated to it.
pub struct NodeApis {
    pub kubelet: Arc<dyn Api>,
    pub network_agent: Arc<dyn Api>,
    /// The API server is in this process: it reaches the kubelet through a pipe.
    pub is_in_process: bool,
    /// Those of the clients.
    pub metrics: Registry,
}

/// containerd has started and the local images are imported: what a node needs before it connects to an API server.
pub struct PreparedNode {
    containerd: Containerd,
    runtime: Arc<dyn Runtime>,
    /// What containerd runs for each pod: [`pod_program`].
    program: PathBuf,
}

impl PreparedNode {
    pub async fn start(config: &Config, cancel: &CancellationToken) -> Result<Self, Failure> {
        if !nix::unistd::geteuid().is_root() {
            return Err(Failure::new(
                "a node runs containers, for which knarr must be root; `knarr server` runs as any user",
            ));
        }
        check_cgroups(config)?;
        private::make(
            &config.data_dir,
            &["cni", "containerd", "containers", "kubelet", "logs", "pki", "run"],
        )?;
        // Both run programs; neither waits for the other.
        let (program, oci_runtime) = tokio::join!(pod_program(), oci_runtime(config));
        if config.shim == ShimChoice::Auto
            && let Err(error) = own_shim(&program)
        {
            tracing::warn!(%error, "new pods get containerd's shim, because this host cannot run knarr's");
        }
        let containerd = containerd_config(config, &program, oci_runtime);
        let failed = |e| Failure::new("cannot start containerd").because(e);
        refresh_shim(&containerd, &program).map_err(failed)?;
        let running = Containerd::start(containerd, cancel.clone())
            .await
            .map_err(failed)?;
        let runtime = Cri::new(&format!("unix://{}", running.socket().display()));
        running.serves(&runtime).await.map_err(failed)?;
        import_images(config, &running, &runtime).await?;
        Ok(PreparedNode {
            containerd: running,
            runtime: Arc::new(runtime),
            program,
        })
    }

    /// Joins the cluster of these APIs; these CAs sign the API server's certificate.
    pub async fn join(
        self,
        config: &Config,
        apis: NodeApis,
        authorities: &[CertificateDer<'_>],
        cancel: &CancellationToken,
    ) -> Result<RunningNode, Failure> {
        let api = apis.kubelet;
        knarr_node::untrusted_fs::check_kernel()
            .map_err(|e| Failure::new("the kernel of this host cannot run pods").because(e))?;
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
            self.program,
            &node_ips,
            clock.clone(),
        )
        .await?;
        // A node of another process can prove only the address that it connects from, which is the address of its kubelet's port.
        let proved: Vec<String> = match apis.is_in_process {
            true => node_ips.iter().map(ToString::to_string).collect(),
            false => vec![listen.ip().to_string()],
        };
        let requested = certificates::serving(&config.node_name, &proved);
        let mut rotation = join::open(config, requested, "kubelet-server-current.pem")?;
        // In earlier versions the API server's CA signed it; the API server no longer accepts such a certificate of a kubelet.
        if let Some(stored) = rotation.current()
            && authorities
                .iter()
                .any(|ca| pki::is_signed_by(&stored.certificate_pem, ca))
        {
            rotation.discard();
        }
        let client_ca_file = config.data_dir.join("pki/kubelet-client-ca.crt");
        let client_ca_pem = client_ca::stored(&client_ca_file)?;
        // Until the cluster has signed a serving certificate, clients that verify it do not accept this port.
        let identity = match rotation.current() {
            Some(stored) => identity(stored),
            None => pki::self_signed(&config.node_name).map_err(|e| {
                Failure::new("cannot make a self-signed certificate for the kubelet's port").because(e)
            })?,
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
        let replace = move |renewed: &certificates::Identity| tls.renew(&self::identity(renewed));
        tokio::spawn(rotation.run(api.clone(), None, replace, cancel.clone()));
        let kubelet_config = kubelet::Config {
            node_name: config.node_name.as_str().into(),
            root_dir: config.data_dir.join("kubelet"),
            log_dir: match &config.kubelet.pod_logs_dir {
                Some(dir) => dir.into(),
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
                configured => configured.to_vec(),
            },
            cluster_domain: cluster_domain(config),
            resolv_conf: resolv_conf(config),
            node_ips: node_ips.iter().map(ToString::to_string).collect(),
            network: Some(network.clone()),
            port: listen.port(),
            version: git_version(),
            termination_resume: config.termination_resume,
            endpoint_barrier: config.endpoint_barrier,
            pinned_images: [sandbox_image(config), images::PAUSE, images::BUSYBOX]
                .map(str::to_string)
                .into(),
            configuration: config.kubelet.clone(),
            pod_rules: Some(PodRules {
                set_defaults: Strategy::set_defaults,
                validate: Strategy::validate,
            }),
            self_fencing: config.self_fencing,
            watchdog_device: config.watchdog_device.clone(),
            ..kubelet::Config::default()
        };
        let shown = effective_configuration(&kubelet_config).effective(EnvironmentSettings {
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
                .with_metrics(apis.metrics)
                .with_handlers(EnabledHandlers {
                    debugging: config.kubelet.debugging_handlers,
                    system_logs: config.kubelet.system_log_handler,
                });
        node_socket::serve(&config.data_dir, kubelet.shutdown(), cancel.clone())?;
        for note in &config.kubelet.notes {
            tracing::warn!("kubelet configuration: {note}");
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
            network,
            server,
        })
    }
}

/// The KubeletConfiguration with its defaults filled in.
fn effective_configuration(kubelet: &kubelet::Config) -> KubeletConfiguration {
    let path = |path: &Path| Some(path.display().to_string());
    KubeletConfiguration {
        cluster_dns: kubelet.cluster_dns.clone(),
        cluster_domain: kubelet.cluster_domain.clone(),
        resolv_conf: path(&kubelet.resolv_conf),
        pod_logs_dir: path(&kubelet.log_dir),
        ..kubelet.configuration.clone()
    }
}

/// Checks that this host supports what the KubeletConfiguration requires.
fn check_cgroups(config: &Config) -> Result<(), Failure> {
    if config.kubelet.cgroup_driver == CgroupDriver::Systemd && !cgroup::has_systemd() {
        return Err(Failure::new(
            "cgroupDriver: systemd needs a host that systemd runs, and this host has no /run/systemd/system: \
             leave it out of the KubeletConfiguration, or set it to cgroupfs",
        ));
    }
    if config.kubelet.single_process_oom_kill == Some(false) && !cgroup::is_unified() {
        return Err(Failure::new(
            "singleProcessOOMKill: false needs cgroup v2, and this host has cgroup v1: \
             leave it out of the KubeletConfiguration",
        ));
    }
    Ok(())
}

fn identity(stored: &certificates::Identity) -> Identity {
    Identity {
        certificate_pem: stored.certificate_pem.clone(),
        key_pem: stored.key_pem.clone(),
    }
}

/// Imports the images that knarr builds, where containerd does not have them yet.
async fn import_images(config: &Config, containerd: &Containerd, runtime: &Cri) -> Result<(), Failure> {
    let failed = |e| Failure::new("cannot import the local images").because(e);
    let work = config.data_dir.join("containerd/import");
    let mut images_to_import = Vec::new();
    if config.sandbox_image.is_none() {
        images_to_import.push(images::pause().map_err(failed)?);
    }
    match images::busybox(images::BUSYBOX) {
        Ok(image) => images_to_import.push(image),
        // The cluster works without the demo image.
        Err(e) => tracing::warn!(error = %e, "the demo image cannot be built"),
    }
    for image in images_to_import {
        let present = runtime
            .image(&image.name)
            .await
            .map_err(|e| Failure::new(format!("cannot get the status of image {}", image.name)).because(e))?;
        if present.is_none() {
            images::import(containerd.socket(), &work, &image)
                .await
                .map_err(failed)?;
        }
    }
    Ok(())
}
