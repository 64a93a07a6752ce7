//! One node's settings, as its kubelet is given them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_apimachinery::ids::NodeName;
use knarr_kubelet::configuration::KubeletConfiguration;
use knarr_kubelet::pod::TerminationResume;
use knarr_kubelet::self_fencing::SelfFencing;
use knarr_kubelet::static_pods::PodRules;

use super::machine::Machine;
use super::network::NodeNetwork;
use crate::host::Host;

/// One node's settings.
#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: NodeName,
    /// Pods' directories are below it.
    pub root_dir: PathBuf,
    /// Containers' logs are below it: `<namespace>_<pod>_<uid>/<container>/<n>.log`.
    pub log_dir: PathBuf,
    /// What the node registers with; empty where the cluster allocates them.
    pub pod_cidrs: Vec<String>,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    /// The node's addresses, the first being the one.
    pub node_ips: Vec<String>,
    /// Where the kubelet's server listens; 0 where it does not.
    pub port: u16,
    /// As `v1.36.2+knarr…`.
    pub version: String,
    /// How long TERM is delayed at the most for proxies to remove a terminating pod's address; zero: not at all.
    pub endpoint_barrier: Duration,
    /// Images that are never deleted, by name.
    pub pinned_images: Vec<String>,
    /// The administrator's KubeletConfiguration.
    pub configuration: KubeletConfiguration,
    /// The API server's rules for static pods; `None`: the node runs no static pods.
    pub pod_rules: Option<PodRules>,
    /// The node's resolver settings.
    pub resolv_conf: PathBuf,
    /// For pods that were terminating while no kubelet was running.
    pub termination_resume: TerminationResume,
    /// Which pods the node terminates by itself when it is cut off.
    pub self_fencing: SelfFencing,
    /// Resets the host if it is not fed.
    pub watchdog_device: Option<PathBuf>,
    /// The network of this node; `None`: not knarr's.
    pub network: Option<Arc<dyn NodeNetwork>>,
    pub machine: Machine,
    /// Replaces what storage and self-fencing use of the host; `None`: what `machine` implies.
    pub fake_host: Option<Arc<dyn Host>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            node_name: NodeName::default(),
            root_dir: "/var/lib/knarr/kubelet".into(),
            log_dir: "/var/lib/knarr/pods".into(),
            pod_cidrs: Vec::new(),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            node_ips: Vec::new(),
            port: 0,
            version: "v1.36.2+knarr".into(),
            endpoint_barrier: Duration::ZERO,
            pinned_images: Vec::new(),
            configuration: KubeletConfiguration::default(),
            pod_rules: None,
            resolv_conf: "/etc/resolv.conf".into(),
            termination_resume: TerminationResume::Full,
            self_fencing: SelfFencing::default(),
            watchdog_device: None,
            network: None,
            machine: Machine::default(),
            fake_host: None,
        }
    }
}
