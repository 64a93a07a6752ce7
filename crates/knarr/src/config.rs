//! Configuration: one typed struct, from defaults, a file, the environment and flags, in that order of weight.
//!
//! Everything is parsed before anything is started, and every mistake is reported at once, with its place.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use knarr_api::feature_gates::FeatureGates;
use knarr_api::k8s_openapi::jiff::SignedDuration;
use knarr_control::node_lifecycle::Lifecycle;
use knarr_control::scheduler_config::KubeSchedulerConfiguration;
use knarr_node::kubelet::configuration::KubeletConfiguration;
use knarr_node::kubelet::{SelfFencing, TerminationResume};

mod access;
mod autoscaling;
mod cidr;
mod components;
mod etcd;
mod files;
pub mod heading;
mod network;
mod reader;
mod shared;

pub use access::{Access, AccessFlags};
pub use autoscaling::AutoscalingFlags;
pub use cidr::Cidrs;
pub use etcd::{Etcd, EtcdFlags};
pub use network::{Network, NetworkFlags, Part};
use reader::{Reader, absolute, list, socket};

/// What can be set by flag or environment. The same names stand in the file, in camelCase.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Configuration file (YAML); its keys are this page's flags in camelCase, such as `dataDir`.
    #[arg(long, env = "KNARR_CONFIG", value_name = "FILE", global = true, help_heading = heading::CONFIGURATION)]
    pub config: Option<PathBuf>,
    /// Where all state lives [default: /var/lib/knarr].
    #[arg(long, env = "KNARR_DATA_DIR", value_name = "DIR", global = true, help_heading = heading::CONFIGURATION)]
    pub data_dir: Option<String>,
    /// Where the admin's kubeconfig is written [default: /etc/knarr/kubeconfig].
    #[arg(long, env = "KNARR_KUBECONFIG", value_name = "FILE", global = true, help_heading = heading::CONFIGURATION)]
    pub kubeconfig: Option<String>,
    /// Address of the API [default: 127.0.0.1:6443].
    #[arg(long, env = "KNARR_LISTEN", value_name = "IP:PORT", global = true, help_heading = heading::API_SERVER)]
    pub listen: Option<String>,
    /// Further names or addresses the API's certificate is good for, separated by commas.
    #[arg(long, env = "KNARR_TLS_SANS", value_name = "NAMES", global = true, help_heading = heading::API_SERVER)]
    pub tls_sans: Option<String>,
    /// Where objects are kept: `embedded`, `memory` (forgets at the end) or `etcd` [default: embedded].
    #[arg(long, env = "KNARR_STORE", value_name = "ENGINE", global = true, help_heading = heading::STORAGE)]
    pub store: Option<String>,
    #[command(flatten)]
    pub etcd: EtcdFlags,
    /// The scheduler's settings: a KubeSchedulerConfiguration as kube-scheduler takes it.
    #[arg(long, env = "KNARR_SCHEDULER_CONFIG", value_name = "FILE", global = true, help_heading = heading::SCHEDULER)]
    pub scheduler_config: Option<String>,
    /// Silence after which a node is lost, in seconds [default: 40].
    #[arg(
        long,
        env = "KNARR_NODE_MONITOR_GRACE_PERIOD",
        value_name = "SECONDS",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub node_monitor_grace_period: Option<String>,
    /// Lost nodes a second and zone whose pods are asked to end, while most of the zone is well [default: 0.1].
    #[arg(
        long,
        env = "KNARR_NODE_EVICTION_RATE",
        value_name = "PER_SECOND",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub node_eviction_rate: Option<String>,
    /// The same while much of a large zone is lost; in a small one nobody is asked then [default: 0.01].
    #[arg(
        long,
        env = "KNARR_SECONDARY_NODE_EVICTION_RATE",
        value_name = "PER_SECOND",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub secondary_node_eviction_rate: Option<String>,
    /// A zone with more nodes is large [default: 50].
    #[arg(
        long,
        env = "KNARR_LARGE_CLUSTER_SIZE_THRESHOLD",
        value_name = "NODES",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub large_cluster_size_threshold: Option<String>,
    /// The part of a zone's nodes whose loss is much [default: 0.55].
    #[arg(
        long,
        env = "KNARR_UNHEALTHY_ZONE_THRESHOLD",
        value_name = "PART",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub unhealthy_zone_threshold: Option<String>,
    /// The longest that certificates are signed for which nodes and users ask for, such as 8760h, and how long those
    /// last that say nothing of it [default: 8760h].
    #[arg(
        long,
        env = "KNARR_CLUSTER_SIGNING_DURATION",
        value_name = "DURATION",
        global = true,
        help_heading = heading::CONTROLLERS
    )]
    pub cluster_signing_duration: Option<String>,
    /// Folder of the fence agents that FencingPolicies name [default: /usr/sbin].
    #[arg(long, env = "KNARR_FENCE_AGENTS_DIR", value_name = "DIR", global = true, help_heading = heading::CONTROLLERS)]
    pub fence_agents_dir: Option<String>,
    /// Fence agents and parameters that FencingPolicies may name besides those knarr knows, such as
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
    /// Taints that this node is registered with, such as `dedicated=db:NoSchedule`; outweigh the file's
    /// registerWithTaints.
    #[arg(
        long,
        env = "KNARR_REGISTER_WITH_TAINTS",
        value_name = "KEY=VALUE:EFFECT,…",
        global = true,
        help_heading = heading::NODE
    )]
    pub register_with_taints: Option<String>,
    /// The kubelet's settings: a KubeletConfiguration (v1beta1) as kubelets take it.
    #[arg(long, env = "KNARR_KUBELET_CONFIG", value_name = "FILE", global = true, help_heading = heading::NODE)]
    pub kubelet_config: Option<String>,
    /// Address of the kubelet's port [default: port 10250 of the node's address; with `up`, 127.0.0.1:10250].
    #[arg(long, env = "KNARR_KUBELET_LISTEN", value_name = "IP:PORT", global = true, help_heading = heading::NODE)]
    pub kubelet_listen: Option<String>,
    /// Folder of manifests of pods that this node runs by itself; outweighs the file's staticPodPath.
    #[arg(long, env = "KNARR_POD_MANIFEST_PATH", value_name = "DIR", global = true, help_heading = heading::NODE)]
    pub pod_manifest_path: Option<String>,
    /// The containerd program knarr starts and watches [default: containerd].
    #[arg(long, env = "KNARR_CONTAINERD", value_name = "PROGRAM", global = true, help_heading = heading::NODE)]
    pub containerd: Option<String>,
    /// Sandbox image; knarr makes its own unless another is named.
    #[arg(long, env = "KNARR_SANDBOX_IMAGE", value_name = "IMAGE", global = true, help_heading = heading::NODE)]
    pub sandbox_image: Option<String>,
    /// Folder of the CNI plugins [default: /usr/lib/cni, else /opt/cni/bin].
    #[arg(long, env = "KNARR_CNI_BIN_DIR", value_name = "DIR", global = true, help_heading = heading::NODE)]
    pub cni_bin_dir: Option<String>,
    /// What pods get that were ending while the kubelet was away: `Full` (their whole grace again) or `Deadline`
    /// (what is left until the deadline first set, without a second preStop) [default: Full].
    #[arg(long, env = "KNARR_TERMINATION_RESUME", value_name = "MODE", global = true, help_heading = heading::NODE)]
    pub termination_resume: Option<String>,
    /// Milliseconds that a process's TERM waits, at the most, for the proxies to send its pod no more new
    /// connections; 0 sends it at once [default: 1000].
    #[arg(long, env = "KNARR_ENDPOINT_BARRIER_MILLIS", value_name = "N", global = true, help_heading = heading::NODE)]
    pub endpoint_barrier_millis: Option<String>,
    /// Which pods this node ends by itself when it cannot renew its lease: `Annotated` (those with the annotation
    /// knarr.io/at-most-one=true) or `AtMostOne` (those of StatefulSets and users of volumes for one node, too)
    /// [default: Annotated].
    #[arg(long, env = "KNARR_SELF_FENCING", value_name = "MODE", global = true, help_heading = heading::NODE)]
    pub self_fencing: Option<String>,
    /// A watchdog of the machine's, such as /dev/watchdog0, that resets it when pods that must not run twice have not ended
    /// by themselves, or the kubelet has died; it must wait 10 s at the most [default: none].
    #[arg(long, env = "KNARR_WATCHDOG_DEVICE", value_name = "FILE", global = true, help_heading = heading::NODE)]
    pub watchdog_device: Option<String>,
    #[command(flatten)]
    pub network: NetworkFlags,
    #[command(flatten)]
    pub autoscaling: AutoscalingFlags,
    /// Features that v1.36 has off: `HPAScaleToZero=true` [default: none].
    #[arg(long, env = "KNARR_FEATURE_GATES", value_name = "NAME=BOOL,…", global = true, help_heading = heading::API_SERVER)]
    pub feature_gates: Option<String>,
    #[command(flatten)]
    pub access: AccessFlags,
    /// What is logged, such as `info` or `warn,knarr_node=debug` [default: info].
    #[arg(long, env = "KNARR_LOG", value_name = "FILTER", global = true, help_heading = heading::LOGGING)]
    pub log: Option<String>,
    /// How it is logged: `human` or `json` [default: human].
    #[arg(long, env = "KNARR_LOG_FORMAT", value_name = "FORMAT", global = true, help_heading = heading::LOGGING)]
    pub log_format: Option<String>,
}

/// Where objects are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEngine {
    Embedded,
    Memory,
    Etcd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Human,
    Json,
}

/// Everything a role needs to know, checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub data_dir: PathBuf,
    pub kubeconfig: PathBuf,
    pub listen: SocketAddr,
    pub tls_sans: Vec<String>,
    pub store: StoreEngine,
    pub etcd: Etcd,
    pub network: Network,
    pub node_name: String,
    /// `None`: the node's address, or loopback where the API server is in the same process.
    pub kubelet_listen: Option<SocketAddr>,
    pub containerd: PathBuf,
    pub cni_bin_dir: PathBuf,
    /// `None`: knarr's own.
    pub sandbox_image: Option<String>,
    pub termination_resume: TerminationResume,
    pub kubelet: KubeletConfiguration,
    pub endpoint_barrier: std::time::Duration,
    pub scheduler: KubeSchedulerConfiguration,
    pub node_lifecycle: Lifecycle,
    pub fence_agents_dir: PathBuf,
    pub fence_agents_allowed: knarr_control::fencing::Allowed,
    pub feature_gates: FeatureGates,
    pub pod_autoscaling: knarr_control::pod_autoscaling::Settings,
    pub cluster_signing_duration: SignedDuration,
    pub self_fencing: SelfFencing,
    pub watchdog_device: Option<PathBuf>,
    pub access: Access,
    pub log: String,
    pub log_format: LogFormat,
}

/// All mistakes of a configuration, one a line.
#[derive(Debug, PartialEq, Eq)]
pub struct Mistakes(Vec<String>);

impl Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = self.0.len();
        write!(
            f,
            "the configuration has {n} mistake{}:",
            if n == 1 { "" } else { "s" }
        )?;
        self.0.iter().try_for_each(|m| write!(f, "\n  {m}"))
    }
}

impl std::error::Error for Mistakes {}

impl Config {
    /// From the flags (which clap has filled from the environment too) and the file they name.
    pub fn load(flags: &Flags) -> Result<Config, Mistakes> {
        let file = match &flags.config {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|e| Mistakes(vec![format!("{}: cannot be read: {e}", path.display())]))?,
        };
        Self::parse(flags, &file)
    }

    fn parse(flags: &Flags, file: &str) -> Result<Config, Mistakes> {
        let mut reader = Reader::new(flags, file);
        let default_cni = if Path::new("/usr/lib/cni").exists() {
            "/usr/lib/cni"
        } else {
            "/opt/cni/bin"
        };
        let data_dir: PathBuf = reader.get(
            "dataDir",
            "--data-dir",
            &flags.data_dir,
            "/var/lib/knarr",
            absolute,
        );
        let store = reader.get("store", "--store", &flags.store, "embedded", |s| match s {
            "embedded" => Ok(StoreEngine::Embedded),
            "memory" => Ok(StoreEngine::Memory),
            "etcd" => Ok(StoreEngine::Etcd),
            _ => Err("expected embedded, memory or etcd".into()),
        });
        let feature_gates = reader.get("featureGates", "--feature-gates", &flags.feature_gates, "", |s| {
            s.parse::<FeatureGates>().map_err(|e| e.to_string())
        });
        let config = Config {
            kubeconfig: reader.get(
                "kubeconfig",
                "--kubeconfig",
                &flags.kubeconfig,
                "/etc/knarr/kubeconfig",
                absolute,
            ),
            listen: reader.get("listen", "--listen", &flags.listen, "127.0.0.1:6443", socket),
            tls_sans: reader.get("tlsSans", "--tls-sans", &flags.tls_sans, "", list),
            etcd: Etcd::read(&mut reader, &flags.etcd, store == StoreEngine::Etcd),
            store,
            network: Network::read(&mut reader, &flags.network, &data_dir),
            node_name: reader.get("nodeName", "--node-name", &flags.node_name, &host_name(), |s| {
                match knarr_api::names::dns1123_subdomain(s).first() {
                    None => Ok(s.to_string()),
                    Some(words) => Err(words.clone()),
                }
            }),
            kubelet_listen: reader.get(
                "kubeletListen",
                "--kubelet-listen",
                &flags.kubelet_listen,
                "",
                |s| match s {
                    "" => Ok(None),
                    _ => socket(s).map(Some),
                },
            ),
            containerd: reader.get(
                "containerd",
                "--containerd",
                &flags.containerd,
                "containerd",
                |s| Ok(PathBuf::from(s)),
            ),
            cni_bin_dir: reader.get(
                "cniBinDir",
                "--cni-bin-dir",
                &flags.cni_bin_dir,
                default_cni,
                absolute,
            ),
            sandbox_image: reader.get("sandboxImage", "--sandbox-image", &flags.sandbox_image, "", |s| {
                Ok((!s.is_empty()).then(|| s.to_string()))
            }),
            termination_resume: reader.get(
                "terminationResume",
                "--termination-resume",
                &flags.termination_resume,
                "Full",
                |s| match s {
                    "Full" => Ok(TerminationResume::Full),
                    "Deadline" => Ok(TerminationResume::Deadline),
                    _ => Err("expected Full or Deadline".into()),
                },
            ),
            kubelet: reader.kubelet(flags),
            endpoint_barrier: reader.get(
                "endpointBarrierMillis",
                "--endpoint-barrier-millis",
                &flags.endpoint_barrier_millis,
                "1000",
                barrier,
            ),
            access: Access::read(&mut reader, &flags.access, &data_dir),
            scheduler: reader.scheduler(&flags.scheduler_config),
            node_lifecycle: reader.node_lifecycle(flags),
            self_fencing: reader.get(
                "selfFencing",
                "--self-fencing",
                &flags.self_fencing,
                "Annotated",
                |s| match s {
                    "Annotated" => Ok(SelfFencing::Annotated),
                    "AtMostOne" => Ok(SelfFencing::AtMostOne),
                    _ => Err("expected Annotated or AtMostOne".into()),
                },
            ),
            watchdog_device: reader.get(
                "watchdogDevice",
                "--watchdog-device",
                &flags.watchdog_device,
                "",
                |s| match s.is_empty() || s.starts_with('/') {
                    true => Ok((!s.is_empty()).then(|| PathBuf::from(s))),
                    false => Err("expected the path of a device, such as /dev/watchdog0".into()),
                },
            ),
            fence_agents_allowed: reader.get(
                "fenceAgentsAllow",
                "--fence-agents-allow",
                &flags.fence_agents_allow,
                "",
                knarr_control::fencing::Allowed::parse,
            ),
            fence_agents_dir: reader.get(
                "fenceAgentsDir",
                "--fence-agents-dir",
                &flags.fence_agents_dir,
                knarr_control::FENCE_AGENTS,
                absolute,
            ),
            feature_gates,
            pod_autoscaling: autoscaling::read(&mut reader, &flags.autoscaling, feature_gates),
            cluster_signing_duration: reader.get(
                "clusterSigningDuration",
                "--cluster-signing-duration",
                &flags.cluster_signing_duration,
                "8760h",
                |s| {
                    let duration = knarr_api::duration::parse(s).filter(|d| d.is_positive());
                    duration.ok_or_else(|| "expected a duration longer than none, such as 8760h".to_string())
                },
            ),
            log: reader.get("log", "--log", &flags.log, "info", |s| {
                tracing_subscriber::EnvFilter::try_new(s)
                    .map(|_| s.to_string())
                    .map_err(|e| e.to_string())
            }),
            log_format: reader.get(
                "logFormat",
                "--log-format",
                &flags.log_format,
                "human",
                |s| match s {
                    "human" => Ok(LogFormat::Human),
                    "json" => Ok(LogFormat::Json),
                    _ => Err("expected human or json".into()),
                },
            ),
            data_dir,
        };
        let mut mistakes = reader.finish();
        // What could not be read has been named; it is not compared.
        if mistakes.is_empty() {
            mistakes.extend(config.network.check());
        }
        if mistakes.is_empty() {
            Ok(config)
        } else {
            Err(Mistakes(mistakes))
        }
    }
}

/// The longest that TERM may be held back: more would eat up a pod's grace without need.
const BARRIER_MAX_MILLIS: u64 = 5000;

fn barrier(s: &str) -> Result<std::time::Duration, String> {
    let millis = s.parse().ok().filter(|n| *n <= BARRIER_MAX_MILLIS);
    let millis = millis.ok_or_else(|| format!("expected milliseconds from 0 to {BARRIER_MAX_MILLIS}"))?;
    Ok(std::time::Duration::from_millis(millis))
}

fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "localhost".into(), |n| n.to_string_lossy().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Flags {
        Flags {
            config: Some("k.yaml".into()),
            node_name: Some("n1".into()),
            ..Flags::default()
        }
    }

    #[test]
    fn flags_outweigh_the_file_and_the_file_the_defaults() {
        let file = "listen: 127.0.0.1:7000\ncontainerd: c9\n";
        let set = Flags {
            listen: Some("127.0.0.1:8000".into()),
            ..flags()
        };
        let config = Config::parse(&set, file).unwrap();
        assert_eq!(config.listen.port(), 8000);
        assert_eq!(config.containerd, Path::new("c9"));
        assert_eq!(config.network.service_cidrs.to_string(), "10.96.0.0/16");
    }

    #[test]
    fn a5_the_examples_in_the_documentation_are_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
        let text = std::fs::read_to_string(path).unwrap();
        let examples: Vec<&str> = text
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert_eq!(examples.len(), 3);
        for example in examples {
            let config = Config::parse(&flags(), example);
            assert!(config.is_ok(), "{}\n{example}", config.unwrap_err());
        }
    }

    #[test]
    fn every_mistake_is_reported_with_its_place() {
        let file = "listen: here\nstore: floppy\ncolour: red\nserviceCidr: 10.96.0.1/16\n";
        let set = Flags {
            network: NetworkFlags {
                pod_cidr: Some("10.244/24".into()),
                ..NetworkFlags::default()
            },
            ..flags()
        };
        let text = Config::parse(&set, file).unwrap_err().to_string();
        for part in [
            "5 mistakes",
            "k.yaml: listen: \"here\": expected an address with a port",
            "k.yaml: store: \"floppy\": expected embedded",
            "k.yaml: colour: there is no such setting",
            "host bits are set; the network is 10.96.0.0/16",
            "--pod-cidr: \"10.244/24\": \"10.244\" is not an IP address",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn p6_a_bad_scheduler_file_is_reported_whole_and_a_good_one_is_in_force() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Config::parse(&flags(), &format!("schedulerConfig: {path}\n"))
        };
        let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        let bad = load(&format!(
            "{head}podInitialBackoffSeconds: 0\nprofiles: [{{schedulerName: a}}, {{schedulerName: a}}]\n"
        ));
        let text = bad.unwrap_err().to_string();
        for part in [
            "2 mistakes".to_string(),
            format!("{path}: podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"),
            format!("{path}: profiles[1].schedulerName: Duplicate value: \"a\""),
        ] {
            assert!(text.contains(&part), "{part:?} is missing in:\n{text}");
        }
        let good = load(&format!("{head}profiles: [{{schedulerName: mine}}]\n")).unwrap();
        assert_eq!(good.scheduler.profiles[0].scheduler_name, "mine");
    }

    #[test]
    fn t8_a_bad_kubelet_file_is_reported_whole_and_a_good_one_is_in_force() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Config::parse(&flags(), &format!("kubeletConfig: {path}\n"))
        };
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        let text = load(&format!("{head}maxPods: many\nmaxPodz: 3\n"))
            .unwrap_err()
            .to_string();
        for part in [
            "2 mistakes".to_string(),
            format!("{path}: maxPods: Invalid value: \"many\": must be a 32-bit integer"),
            format!("{path}: maxPodz: Forbidden: unknown field"),
        ] {
            assert!(text.contains(&part), "{part:?} is missing in:\n{text}");
        }
        let good = load(&format!("{head}maxPods: 7\nstaticPodPath: /a\n")).unwrap();
        assert_eq!(good.kubelet.max_pods, 7);
        let set = Flags {
            pod_manifest_path: Some("/b".into()),
            ..flags()
        };
        let said = format!(
            "kubeletConfig: {path}\nnodeLabels: [disk=ssd, rack=7]\nregisterWithTaints: a=b:NoExecute\n"
        );
        let outweighed = Config::parse(&set, &said).unwrap();
        assert_eq!(outweighed.kubelet.node_labels["rack"], "7");
        assert_eq!(outweighed.kubelet.register_with_taints[0].effect, "NoExecute");
        let text = Config::parse(&flags(), "nodeLabels: disk\nregisterWithTaints: a\n")
            .unwrap_err()
            .to_string();
        for part in ["2 mistakes", "nodeLabels: \"disk\"", "expected key=value:effect"] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert_eq!(outweighed.kubelet.static_pod_path.as_deref(), Some("/b"));
    }

    #[test]
    fn files_of_encryption_and_audit_are_read_and_their_mistakes_told() {
        use knarr_apiserver::audit::Destination;
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        std::fs::write(
            &path,
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n",
        )
        .unwrap();
        let settings = format!("auditPolicyFile: {path}\nauditLogMaxsize: 1\nmaxRequestsInflight: 7\n");
        let config = Config::parse(&flags(), &settings).unwrap();
        let Some((_, Destination::File(log))) = config.access.audit else {
            panic!("{:?}", config.access.audit)
        };
        assert_eq!((log.max_bytes, log.max_backups), (1024 * 1024, 10));
        assert!(log.path.ends_with("audit.log"));
        let shown = Config::parse(&flags(), &format!("{settings}auditLogPath: '-'\n")).unwrap();
        assert!(matches!(shown.access.audit, Some((_, Destination::Stdout))));
        assert_eq!(config.access.max_in_flight, (7, 200));
        let bad =
            format!("encryptionProviderConfig: {path}\nauditPolicyFile: /nowhere\nanonymousAuth: maybe\n");
        let text = Config::parse(&flags(), &bad).unwrap_err().to_string();
        for part in [
            path.as_str(),
            "/nowhere: cannot be read",
            "k.yaml: anonymousAuth: \"maybe\": expected true or false",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }
}
