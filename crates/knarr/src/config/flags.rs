//! The flags of all commands, and the environment variables of the same names.

use std::path::PathBuf;

use clap::Args;

use super::access::AccessFlags;
use super::autoscaling::AutoscalingFlags;
use super::etcd::EtcdFlags;
use super::heading;
use super::network::NetworkFlags;

/// The settings that flags and environment variables set. The file has the same names, in camelCase.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Configuration file (YAML); its keys are this page's flags in camelCase, such as `dataDir`.
    #[arg(long, env = "KNARR_CONFIG", value_name = "FILE", global = true, help_heading = heading::CONFIGURATION)]
    pub config: Option<PathBuf>,
    /// Directory of all state [default: /var/lib/knarr].
    #[arg(long, env = "KNARR_DATA_DIR", value_name = "DIR", global = true, help_heading = heading::CONFIGURATION)]
    pub data_dir: Option<String>,
    /// The admin's kubeconfig, which `up` and `server` write [default: /etc/knarr/kubeconfig].
    #[arg(long, env = "KNARR_KUBECONFIG", value_name = "FILE", global = true, help_heading = heading::CONFIGURATION)]
    pub kubeconfig: Option<String>,
    /// Address that the API server listens on [default: 127.0.0.1:6443].
    #[arg(long, env = "KNARR_LISTEN", value_name = "IP:PORT", global = true, help_heading = heading::API_SERVER)]
    pub listen: Option<String>,
    /// Additional names or addresses (SANs) of the API server's certificate, separated by commas.
    #[arg(long, env = "KNARR_TLS_SANS", value_name = "NAMES", global = true, help_heading = heading::API_SERVER)]
    pub tls_sans: Option<String>,
    /// The store of objects: `embedded`, `memory` (lost when knarr exits) or `etcd` [default: embedded].
    #[arg(long, env = "KNARR_STORE", value_name = "ENGINE", global = true, help_heading = heading::STORAGE)]
    pub store: Option<String>,
    #[command(flatten)]
    pub etcd: EtcdFlags,
    /// The scheduler's configuration: a KubeSchedulerConfiguration (v1).
    #[arg(long, env = "KNARR_SCHEDULER_CONFIG", value_name = "FILE", global = true, help_heading = heading::SCHEDULER)]
    pub scheduler_config: Option<String>,
    /// Seconds without a heartbeat of a node after which it is lost (its status is Unknown) [default: 40].
    #[arg(
        long,
        env = "KNARR_NODE_MONITOR_GRACE_PERIOD",
        value_name = "SECONDS",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub node_monitor_grace_period: Option<String>,
    /// Nodes per second and zone from which pods are evicted, while the zone is healthy [default: 0.1].
    #[arg(
        long,
        env = "KNARR_NODE_EVICTION_RATE",
        value_name = "PER_SECOND",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub node_eviction_rate: Option<String>,
    /// The same while a large zone is unhealthy; from a small unhealthy zone no pods are evicted [default: 0.01].
    #[arg(
        long,
        env = "KNARR_SECONDARY_NODE_EVICTION_RATE",
        value_name = "PER_SECOND",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub secondary_node_eviction_rate: Option<String>,
    /// Number of nodes above which a zone is large [default: 50].
    #[arg(
        long,
        env = "KNARR_LARGE_CLUSTER_SIZE_THRESHOLD",
        value_name = "NODES",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub large_cluster_size_threshold: Option<String>,
    /// Fraction of a zone's nodes that have to be not Ready for the zone to be unhealthy [default: 0.55].
    #[arg(
        long,
        env = "KNARR_UNHEALTHY_ZONE_THRESHOLD",
        value_name = "PART",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub unhealthy_zone_threshold: Option<String>,
    /// Which pods of ReplicaSets and ReplicationControllers are deleted first: `default` (v1.36's order) or `spread` (those in the
    /// fullest domains of their topology spread constraints), unless the annotation knarr.io/scale-down says it
    /// [default: default].
    #[arg(
        long,
        env = "KNARR_SCALE_DOWN_POLICY",
        value_name = "POLICY",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub scale_down_policy: Option<String>,
    /// The maximum, and the default, lifetime of the certificates that CertificateSigningRequests get, such as 8760h
    /// [default: 8760h].
    #[arg(
        long,
        env = "KNARR_CLUSTER_SIGNING_DURATION",
        value_name = "DURATION",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub cluster_signing_duration: Option<String>,
    /// Directory of the fence agents that FencingPolicies name [default: /usr/sbin].
    #[arg(long, env = "KNARR_FENCE_AGENTS_DIR", value_name = "DIR", global = true, help_heading = heading::CONTROLLERS)]
    pub fence_agents_dir: Option<String>,
    /// Fence agents and parameters that FencingPolicies may use in addition to those that knarr knows, such as
    /// `fence_own:ip,zone fence_other` [default: none].
    #[arg(
        long,
        env = "KNARR_FENCE_AGENTS_ALLOW",
        value_name = "AGENT[:PARAMETER,…] …",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub fence_agents_allow: Option<String>,
    /// This node's name [default: the host name].
    #[arg(long, env = "KNARR_NODE_NAME", value_name = "NAME", global = true, help_heading = heading::NODE)]
    pub node_name: Option<String>,
    /// Labels of this node, such as `disk=ssd,example.com/rack=7`.
    #[arg(long, env = "KNARR_NODE_LABELS", value_name = "KEY=VALUE,…", global = true, help_heading = heading::NODE)]
    pub node_labels: Option<String>,
    /// Taints that this node is registered with, such as `dedicated=db:NoSchedule`; they take precedence over
    /// registerWithTaints of the KubeletConfiguration.
    #[arg(
        long,
        env = "KNARR_REGISTER_WITH_TAINTS",
        value_name = "KEY=VALUE:EFFECT,…",
        global = true,
        help_heading = heading::NODE
    )]
    pub register_with_taints: Option<String>,
    /// The kubelet's configuration: a KubeletConfiguration (v1beta1).
    #[arg(long, env = "KNARR_KUBELET_CONFIG", value_name = "FILE", global = true, help_heading = heading::NODE)]
    pub kubelet_config: Option<String>,
    /// Address that the kubelet listens on [default: port 10250 of the node's address; with `up`, 127.0.0.1:10250].
    #[arg(long, env = "KNARR_KUBELET_LISTEN", value_name = "IP:PORT", global = true, help_heading = heading::NODE)]
    pub kubelet_listen: Option<String>,
    /// Directory of the manifests of static pods; takes precedence over staticPodPath of the KubeletConfiguration.
    #[arg(long, env = "KNARR_POD_MANIFEST_PATH", value_name = "DIR", global = true, help_heading = heading::NODE)]
    pub pod_manifest_path: Option<String>,
    /// The containerd program that knarr starts and restarts [default: containerd].
    #[arg(long, env = "KNARR_CONTAINERD", value_name = "PROGRAM", global = true, help_heading = heading::NODE)]
    pub containerd: Option<String>,
    /// Shim of new pods: `rust` (knarr's own, smaller and faster), `runc-v2` (containerd's), or `auto` (knarr's where this
    /// host can run it, else containerd's) [default: auto].
    #[arg(long, env = "KNARR_SHIM", value_name = "SHIM", global = true, help_heading = heading::NODE)]
    pub shim: Option<String>,
    /// OCI runtime of new containers: `runc`, `crun`, the path of a program with runc's command line, or `auto` (crun where it is
    /// installed and a container runs with it when the node starts, else runc) [default: auto].
    #[arg(long, env = "KNARR_OCI_RUNTIME", value_name = "PROGRAM", global = true, help_heading = heading::NODE)]
    pub oci_runtime: Option<String>,
    /// Sandbox (pause) image [default: one that knarr builds].
    #[arg(long, env = "KNARR_SANDBOX_IMAGE", value_name = "IMAGE", global = true, help_heading = heading::NODE)]
    pub sandbox_image: Option<String>,
    /// Directory of the CNI plugins [default: /usr/lib/cni, else /opt/cni/bin].
    #[arg(long, env = "KNARR_CNI_BIN_DIR", value_name = "DIR", global = true, help_heading = heading::NODE)]
    pub cni_bin_dir: Option<String>,
    /// Grace period of pods that were terminating when the kubelet stopped: `Full` (the full period again) or `Deadline`
    /// (the time until their first deadline, without a second preStop hook) [default: Full].
    #[arg(long, env = "KNARR_TERMINATION_RESUME", value_name = "MODE", global = true, help_heading = heading::NODE)]
    pub termination_resume: Option<String>,
    /// How long SIGTERM to a pod's containers is delayed, in milliseconds, until the proxies send the pod no new
    /// connections; 0 means no delay [default: 1000].
    #[arg(long, env = "KNARR_ENDPOINT_BARRIER_MILLIS", value_name = "N", global = true, help_heading = heading::NODE)]
    pub endpoint_barrier_millis: Option<String>,
    /// Which pods this node terminates when it cannot renew its Lease: `Annotated` (those with the annotation
    /// knarr.io/at-most-one=true) or `AtMostOne` (also pods of StatefulSets, and those with ReadWriteOnce or
    /// ReadWriteOncePod volumes) [default: Annotated].
    #[arg(long, env = "KNARR_SELF_FENCING", value_name = "MODE", global = true, help_heading = heading::NODE)]
    pub self_fencing: Option<String>,
    /// Watchdog device of the host, such as /dev/watchdog0, that resets it when at-most-one pods did not terminate in time, or
    /// when the kubelet has died; its timeout must be 10 s or less [default: none].
    #[arg(long, env = "KNARR_WATCHDOG_DEVICE", value_name = "FILE", global = true, help_heading = heading::NODE)]
    pub watchdog_device: Option<String>,
    #[command(flatten)]
    pub network: NetworkFlags,
    #[command(flatten)]
    pub autoscaling: AutoscalingFlags,
    /// Feature gates that are off by default in v1.36: `HPAScaleToZero=true` [default: none].
    #[arg(long, env = "KNARR_FEATURE_GATES", value_name = "NAME=BOOL,…", global = true, help_heading = heading::API_SERVER)]
    pub feature_gates: Option<String>,
    #[command(flatten)]
    pub access: AccessFlags,
    /// Log filter, such as `info` or `warn,knarr_node=debug` [default: info].
    #[arg(long, env = "KNARR_LOG", value_name = "FILTER", global = true, help_heading = heading::LOGGING)]
    pub log: Option<String>,
    /// Log format: `human` or `json` [default: human].
    #[arg(long, env = "KNARR_LOG_FORMAT", value_name = "FORMAT", global = true, help_heading = heading::LOGGING)]
    pub log_format: Option<String>,
    /// Where traces are exported to, and how many: a TracingConfiguration (v1) [default: no traces].
    #[arg(long, env = "KNARR_TRACING_CONFIG_FILE", value_name = "FILE", global = true, help_heading = heading::LOGGING)]
    pub tracing_config_file: Option<String>,
}
