//! Configuration: one typed struct, from defaults, a file, the environment and flags; later ones take precedence.
//!
//! Everything is parsed before anything is started, and all errors are reported at once, each with its flag or file and key.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use knarr_api::feature_gates::FeatureGates;
use knarr_api::k8s_openapi::jiff::SignedDuration;
use knarr_control::node_lifecycle::Lifecycle;
use knarr_control::scheduler_config::KubeSchedulerConfiguration;
use knarr_node::containerd::OciRuntimeChoice;
use knarr_node::kubelet::configuration::KubeletConfiguration;
use knarr_node::kubelet::{SelfFencing, TerminationResume};

mod access;
mod autoscaling;
mod choices;
mod cidr;
mod components;
mod etcd;
mod files;
mod flags;
pub mod heading;
mod network;
mod part;
mod reader;
mod shared;
mod traces;
mod value;

pub use access::Access;
pub use cidr::Cidrs;
pub use etcd::Etcd;
pub use flags::Flags;
pub use network::Network;
pub use part::Part;
use reader::{Reader, absolute, list, socket};
pub use traces::TracingConfiguration;
use value::ValueError;

/// The store of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreEngine {
    Embedded,
    Memory,
    Etcd,
}

/// The shim of new containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimChoice {
    /// knarr's where this host can run it, else containerd's.
    Auto,
    /// containerd's.
    RuncV2,
    /// knarr's.
    Rust,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Human,
    Json,
}

/// The validated configuration.
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
    pub shim: ShimChoice,
    pub oci_runtime: OciRuntimeChoice,
    pub cni_bin_dir: PathBuf,
    /// `None`: knarr's own.
    pub sandbox_image: Option<String>,
    pub termination_resume: TerminationResume,
    pub kubelet: KubeletConfiguration,
    pub endpoint_barrier: std::time::Duration,
    pub scheduler: KubeSchedulerConfiguration,
    pub node_lifecycle: Lifecycle,
    pub scale_down_policy: knarr_api::scale_down::Policy,
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
    /// `None`: no traces are exported.
    pub tracing: Option<TracingConfiguration>,
}

/// All errors of a configuration, one a line.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<String>);

impl Display for ConfigErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = self.0.len();
        write!(
            f,
            "the configuration has {n} error{}:",
            if n == 1 { "" } else { "s" }
        )?;
        self.0.iter().try_for_each(|m| write!(f, "\n  {m}"))
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    /// From the flags (which clap has filled from the environment too) and the file they name.
    pub fn load(flags: &Flags) -> Result<Config, ConfigErrors> {
        let file = match &flags.config {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .map_err(|e| ConfigErrors(vec![format!("{}: cannot be read: {e}", path.display())]))?,
        };
        Self::parse(flags, &file)
    }

    fn parse(flags: &Flags, file: &str) -> Result<Config, ConfigErrors> {
        let mut reader = Reader::new(flags.config.as_deref(), file);
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
        let store = reader.get("store", "--store", &flags.store, "embedded", choices::store);
        let feature_gates = reader.get("featureGates", "--feature-gates", &flags.feature_gates, "", |s| {
            Ok(s.parse::<FeatureGates>()?)
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
            node_name: reader.get(
                "nodeName",
                "--node-name",
                &flags.node_name,
                &host_name(),
                choices::node_name,
            ),
            kubelet_listen: reader.get(
                "kubeletListen",
                "--kubelet-listen",
                &flags.kubelet_listen,
                "",
                choices::kubelet_listen,
            ),
            containerd: reader.get(
                "containerd",
                "--containerd",
                &flags.containerd,
                "containerd",
                |s| Ok(PathBuf::from(s)),
            ),
            shim: reader.get("shim", "--shim", &flags.shim, "auto", choices::shim),
            cni_bin_dir: reader.get(
                "cniBinDir",
                "--cni-bin-dir",
                &flags.cni_bin_dir,
                default_cni,
                absolute,
            ),
            oci_runtime: reader.get(
                "ociRuntime",
                "--oci-runtime",
                &flags.oci_runtime,
                "auto",
                choices::oci_runtime,
            ),
            sandbox_image: reader.get("sandboxImage", "--sandbox-image", &flags.sandbox_image, "", |s| {
                Ok((!s.is_empty()).then(|| s.to_string()))
            }),
            termination_resume: reader.get(
                "terminationResume",
                "--termination-resume",
                &flags.termination_resume,
                "Full",
                choices::termination_resume,
            ),
            kubelet: reader.kubelet(flags),
            endpoint_barrier: reader.get(
                "endpointBarrierMillis",
                "--endpoint-barrier-millis",
                &flags.endpoint_barrier_millis,
                "1000",
                choices::barrier,
            ),
            access: Access::read(&mut reader, &flags.access, &data_dir),
            scheduler: reader.scheduler(&flags.scheduler_config),
            node_lifecycle: reader.node_lifecycle(flags),
            scale_down_policy: reader.get(
                "scaleDownPolicy",
                "--scale-down-policy",
                &flags.scale_down_policy,
                "default",
                |s| s.parse().map_err(|_| ValueError::expected("default or spread")),
            ),
            self_fencing: reader.get(
                "selfFencing",
                "--self-fencing",
                &flags.self_fencing,
                "Annotated",
                choices::self_fencing,
            ),
            watchdog_device: reader.get(
                "watchdogDevice",
                "--watchdog-device",
                &flags.watchdog_device,
                "",
                choices::watchdog_device,
            ),
            fence_agents_allowed: reader.get(
                "fenceAgentsAllow",
                "--fence-agents-allow",
                &flags.fence_agents_allow,
                "",
                |s| Ok(knarr_control::fencing::Allowed::parse(s)?),
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
                choices::signing_duration,
            ),
            log: reader.get("log", "--log", &flags.log, "info", choices::log_filter),
            log_format: reader.get(
                "logFormat",
                "--log-format",
                &flags.log_format,
                "human",
                choices::log_format,
            ),
            tracing: reader.tracing(&flags.tracing_config_file),
            data_dir,
        };
        let mut errors = reader.finish();
        // Settings are compared with each other only if all could be parsed.
        if errors.is_empty() {
            errors.extend(config.network.check());
        }
        if errors.is_empty() {
            Ok(config)
        } else {
            Err(ConfigErrors(errors))
        }
    }
}

fn host_name() -> String {
    nix::unistd::gethostname().map_or_else(|_| "localhost".into(), |n| n.to_string_lossy().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::network::NetworkFlags;
    use super::*;

    fn flags() -> Flags {
        Flags {
            config: Some("k.yaml".into()),
            node_name: Some("n1".into()),
            ..Flags::default()
        }
    }

    #[test]
    fn flags_take_precedence_over_the_file_and_the_file_over_defaults() {
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
    fn the_shim_is_chosen_by_the_host_unless_it_is_set() {
        let parse = |file: &str| Config::parse(&flags(), file);
        for (file, shim) in [
            ("", ShimChoice::Auto),
            ("shim: auto\n", ShimChoice::Auto),
            ("shim: rust\n", ShimChoice::Rust),
            ("shim: runc-v2\n", ShimChoice::RuncV2),
        ] {
            assert_eq!(parse(file).unwrap().shim, shim, "{file:?}");
        }
        let error = parse("shim: go\n").unwrap_err().to_string();
        assert!(
            error.contains("k.yaml: shim: \"go\": expected auto, rust or runc-v2"),
            "{error}"
        );
    }

    #[test]
    fn the_oci_runtime_is_chosen_by_the_host_unless_it_is_set() {
        let parse = |file: &str| Config::parse(&flags(), file);
        let set = |program: &str| OciRuntimeChoice::Program(program.into());
        for (file, runtime) in [
            ("", OciRuntimeChoice::Auto),
            ("ociRuntime: auto\n", OciRuntimeChoice::Auto),
            ("ociRuntime: runc\n", set("runc")),
            ("ociRuntime: crun\n", set("crun")),
            ("ociRuntime: /opt/youki\n", set("/opt/youki")),
        ] {
            assert_eq!(parse(file).unwrap().oci_runtime, runtime, "{file:?}");
        }
        let error = parse("ociRuntime: youki\n").unwrap_err().to_string();
        assert!(
            error.contains("k.yaml: ociRuntime: \"youki\": expected auto, runc, crun or an absolute path"),
            "{error}"
        );
    }

    #[test]
    fn every_error_is_reported_with_its_flag_or_key() {
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
            "5 errors",
            "k.yaml: listen: \"here\": expected an address with a port",
            "k.yaml: store: \"floppy\": expected embedded",
            "k.yaml: colour: unknown setting",
            "expected a CIDR without host bits, such as 10.96.0.0/16",
            "--pod-cidr: \"10.244/24\": \"10.244\" is not an IP address",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn b3_the_scale_down_policy_is_v1_36s_unless_it_is_set() {
        use knarr_api::scale_down::Policy;
        let parse = |file: &str| Config::parse(&flags(), file);
        assert_eq!(parse("").unwrap().scale_down_policy, Policy::Default);
        assert_eq!(
            parse("scaleDownPolicy: spread\n").unwrap().scale_down_policy,
            Policy::Spread
        );
        let error = parse("scaleDownPolicy: even\n").unwrap_err().to_string();
        assert!(
            error.contains("k.yaml: scaleDownPolicy: \"even\": expected default or spread"),
            "{error}"
        );
    }

    #[test]
    fn p6_all_errors_of_a_scheduler_configuration_are_reported_and_a_valid_one_is_used() {
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
            "2 errors".to_string(),
            format!("{path}: podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"),
            format!("{path}: profiles[1].schedulerName: Duplicate value: \"a\""),
        ] {
            assert!(text.contains(&part), "{part:?} is missing in:\n{text}");
        }
        let good = load(&format!("{head}profiles: [{{schedulerName: mine}}]\n")).unwrap();
        assert_eq!(good.scheduler.profiles[0].scheduler_name, "mine");
    }

    #[test]
    fn t8_all_errors_of_a_kubelet_configuration_are_reported_and_a_valid_one_is_used() {
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
            "2 errors".to_string(),
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
        let settings = format!(
            "kubeletConfig: {path}\nnodeLabels: [disk=ssd, rack=7]\nregisterWithTaints: a=b:NoExecute\n"
        );
        let overridden = Config::parse(&set, &settings).unwrap();
        assert_eq!(overridden.kubelet.node_labels["rack"], "7");
        assert_eq!(overridden.kubelet.register_with_taints[0].effect, "NoExecute");
        let text = Config::parse(&flags(), "nodeLabels: disk\nregisterWithTaints: a\n")
            .unwrap_err()
            .to_string();
        for part in ["2 errors", "nodeLabels: \"disk\"", "expected key=value:effect"] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert_eq!(overridden.kubelet.static_pod_path.as_deref(), Some("/b"));
    }

    #[test]
    fn files_of_encryption_and_audit_are_read_and_their_errors_reported() {
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
