//! A pod's sandbox configuration in CRI's terms.

use std::collections::HashMap;

use k8s_cri::v1;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_kubelet::sysctl::normalized;

use super::config::Config;
use super::namespaces::{host_network, namespaces};
use super::resources;
use super::{labels, security_context};

/// The limit of Linux.
const HOSTNAME_MAX: usize = 63;
/// Bytes of a host name in Linux (utsname), without its end.
const KERNEL_HOSTNAME_MAX: usize = 64;
/// What resolv.conf(5) readers accept.
const SEARCH_DOMAINS_MAX: usize = 32;
const NAMESERVERS_MAX: usize = 3;

/// The node's own resolver settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

impl ResolvConf {
    pub fn parse(text: &str) -> Self {
        let mut conf = ResolvConf::default();
        for line in text.lines() {
            let mut words = line.split_whitespace().map(str::to_string);
            match words.next().as_deref() {
                Some("nameserver") => conf.servers.extend(words.next()),
                Some("search") => conf.searches = words.collect(),
                Some("options") => conf.options = words.collect(),
                _ => {}
            }
        }
        conf
    }
}

/// The name the pod's processes see as their host's; empty where it is the node's.
pub(super) fn hostname(pod: &core::Pod) -> String {
    if host_network(pod) {
        return String::new();
    }
    let spec = pod.spec.as_ref();
    let own = spec.and_then(|s| s.hostname_override.clone().or_else(|| s.hostname.clone()));
    let name = own
        .filter(|h| !h.is_empty())
        .or_else(|| pod.metadata.name.clone())
        .unwrap_or_default();
    let cut = name
        .char_indices()
        .nth(HOSTNAME_MAX)
        .map_or(name.len(), |(i, _)| i);
    name[..cut].trim_end_matches(['-', '.']).to_string()
}

/// Why a pod's sandbox cannot be configured; shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SandboxConfigError {
    #[error("can't set `spec.hostUsers: false`, {runtime} does not support user namespaces")]
    UserNamespaces { runtime: String },
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({max} characters is the \
         max, {} characters requested)",
        .fqdn.len(),
        max = KERNEL_HOSTNAME_MAX
    )]
    LongHostname { fqdn: String },
}

/// Rejects a pod whose sandbox cannot be configured as requested. `handler` is its runtime class', empty without one.
pub(super) fn check_supported(
    pod: &core::Pod,
    handler: &str,
    config: &Config,
) -> Result<(), SandboxConfigError> {
    if pod.spec.as_ref().is_some_and(|s| s.host_users == Some(false)) {
        // Without its own user namespace it would have more rights than requested. containerd 1.6 supports none.
        let runtime = match handler {
            "" => "runtime".to_string(),
            handler => format!("RuntimeClass handler {handler:?}"),
        };
        return Err(SandboxConfigError::UserNamespaces { runtime });
    }
    kernel_hostname(pod, config).map(drop)
}

/// The pod's host name for the kernel: the FQDN if the pod sets `setHostnameAsFQDN`.
pub(super) fn kernel_hostname(pod: &core::Pod, config: &Config) -> Result<String, SandboxConfigError> {
    let wants_fqdn = pod
        .spec
        .as_ref()
        .is_some_and(|s| s.set_hostname_as_fqdn == Some(true));
    match fqdn(pod, config).filter(|_| wants_fqdn && !host_network(pod)) {
        Some(fqdn) if fqdn.len() > KERNEL_HOSTNAME_MAX => Err(SandboxConfigError::LongHostname { fqdn }),
        Some(fqdn) => Ok(fqdn),
        None => Ok(hostname(pod)),
    }
}

/// `host.subdomain.namespace.svc.domain`, for pods that have a subdomain and do not override their name.
pub(super) fn fqdn(pod: &core::Pod, config: &Config) -> Option<String> {
    let spec = pod.spec.as_ref().filter(|s| s.hostname_override.is_none())?;
    let subdomain = spec.subdomain.as_deref().filter(|s| !s.is_empty())?;
    Some(format!(
        "{}.{subdomain}.{}.svc.{}",
        hostname(pod),
        pod.metadata.namespace.as_deref().unwrap_or(""),
        config.cluster_domain
    ))
}

/// `<namespace>_<name>_<uid>` below the log directory.
pub fn log_directory(pod: &core::Pod, log_dir: &std::path::Path) -> std::path::PathBuf {
    let meta = &pod.metadata;
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    log_dir.join(format!(
        "{}_{}_{}",
        text(&meta.namespace),
        text(&meta.name),
        text(&meta.uid)
    ))
}

pub(super) fn dns(pod: &core::Pod, node: &ResolvConf, config: &Config) -> v1::DnsConfig {
    let spec = pod.spec.as_ref();
    let policy = spec
        .and_then(|s| s.dns_policy.as_deref())
        .unwrap_or("ClusterFirst");
    let cluster = match policy {
        "ClusterFirstWithHostNet" => true,
        "ClusterFirst" => !host_network(pod),
        _ => false,
    } && !config.cluster_dns.is_empty();
    let mut conf = match policy {
        "None" => ResolvConf::default(),
        _ if cluster => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
            let domain = &config.cluster_domain;
            let mut searches = vec![
                format!("{namespace}.svc.{domain}"),
                format!("svc.{domain}"),
                domain.clone(),
            ];
            searches.extend(node.searches.iter().cloned());
            ResolvConf {
                servers: config.cluster_dns.clone(),
                searches,
                options: vec!["ndots:5".into()],
            }
        }
        _ => node.clone(),
    };
    if let Some(own) = spec.and_then(|s| s.dns_config.as_ref()) {
        conf.servers.extend(own.nameservers.iter().flatten().cloned());
        conf.searches.extend(own.searches.iter().flatten().cloned());
        for option in own.options.iter().flatten() {
            let name = option.name.clone().unwrap_or_default();
            conf.options
                .retain(|o| o.split(':').next() != Some(name.as_str()));
            conf.options.push(match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name,
            });
        }
    }
    let unique = |words: Vec<String>, max: usize| {
        let mut seen = Vec::new();
        for word in words {
            if !seen.contains(&word) && seen.len() < max {
                seen.push(word);
            }
        }
        seen
    };
    v1::DnsConfig {
        servers: unique(conf.servers, NAMESERVERS_MAX),
        searches: unique(conf.searches, SEARCH_DOMAINS_MAX),
        options: conf.options,
    }
}

/// The labels by which a pod is found again.
pub(super) fn pod_labels(pod: &core::Pod) -> HashMap<String, String> {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    HashMap::from([
        (labels::POD_NAME.to_string(), text(&pod.metadata.name)),
        (labels::POD_NAMESPACE.to_string(), text(&pod.metadata.namespace)),
        (labels::POD_UID.to_string(), text(&pod.metadata.uid)),
    ])
}

/// The sandbox of a pod.
pub fn config(pod: &core::Pod, attempt: u32, node: &ResolvConf, config: &Config) -> v1::PodSandboxConfig {
    let empty = core::PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let context = spec.security_context.as_ref();
    let mut labels: HashMap<String, String> = pod
        .metadata
        .labels
        .clone()
        .unwrap_or_default()
        .into_iter()
        .collect();
    labels.extend(pod_labels(pod));
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let privileged = containers.clone().any(|c| {
        c.security_context
            .as_ref()
            .is_some_and(|s| s.privileged == Some(true))
    });
    let ports = containers.flat_map(|c| c.ports.iter().flatten());
    let port_mappings = ports
        .filter(|p| p.host_port.is_some_and(|port| port > 0) && !host_network(pod))
        .map(|p| v1::PortMapping {
            protocol: match p.protocol.as_deref() {
                Some("UDP") => v1::Protocol::Udp,
                Some("SCTP") => v1::Protocol::Sctp,
                _ => v1::Protocol::Tcp,
            } as i32,
            container_port: p.container_port,
            host_port: p.host_port.unwrap_or(0),
            host_ip: p.host_ip.clone().unwrap_or_default(),
        })
        .collect();
    let sysctls = context.and_then(|c| c.sysctls.as_ref());
    let user = context.and_then(|c| c.run_as_user);
    let group = context.and_then(|c| c.run_as_group).filter(|_| user.is_some());
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            attempt,
        }),
        // An FQDN that is too long keeps the sandbox from being created; until then the short name is used.
        hostname: kernel_hostname(pod, config).unwrap_or_else(|_| hostname(pod)),
        log_directory: log_directory(pod, &config.log_dir).to_string_lossy().into_owned(),
        dns_config: Some(dns(pod, node, config)),
        port_mappings,
        labels,
        annotations: pod
            .metadata
            .annotations
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: resources::group(pod).path(config.configuration.cgroup_driver),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(pod)),
                run_as_user: user.map(|value| v1::Int64Value { value }),
                run_as_group: group.map(|value| v1::Int64Value { value }),
                supplemental_groups: security_context::supplemental_groups(pod),
                supplemental_groups_policy: security_context::supplemental_groups_policy(pod),
                selinux_options: context
                    .and_then(|c| c.se_linux_options.as_ref())
                    .map(security_context::selinux),
                privileged,
                // The pause process needs nothing that the default profile denies.
                seccomp: Some(v1::SecurityProfile {
                    profile_type: v1::security_profile::ProfileType::RuntimeDefault as i32,
                    localhost_ref: String::new(),
                }),
                ..v1::LinuxSandboxSecurityContext::default()
            }),
            sysctls: sysctls
                .into_iter()
                .flatten()
                .map(|s| (normalized(&s.name), s.value.clone()))
                .collect(),
            ..v1::LinuxPodSandboxConfig::default()
        }),
        windows: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: serde_json::Value) -> core::Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"app": "x"}}, "spec": spec,
        }))
        .unwrap()
    }

    fn settings() -> Config {
        Config {
            cluster_dns: vec!["10.96.0.10".into()],
            cluster_domain: "cluster.local".into(),
            ..Config::default()
        }
    }

    #[test]
    fn dns_policies_give_what_the_pod_resolves_with() {
        let node = ResolvConf::parse("# made up\nnameserver 1.1.1.1\nsearch corp\noptions timeout:2\n");
        for (spec, servers, searches, options) in [
            (
                json!({"containers": []}),
                vec!["10.96.0.10"],
                vec![
                    "n.svc.cluster.local",
                    "svc.cluster.local",
                    "cluster.local",
                    "corp",
                ],
                vec!["ndots:5"],
            ),
            (
                json!({"containers": [], "dnsPolicy": "Default"}),
                vec!["1.1.1.1"],
                vec!["corp"],
                vec!["timeout:2"],
            ),
            (
                json!({"containers": [], "hostNetwork": true}),
                vec!["1.1.1.1"],
                vec!["corp"],
                vec!["timeout:2"],
            ),
            (
                json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"nameservers": ["9.9.9.9"], "searches": ["a"], "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]}}),
                vec!["9.9.9.9"],
                vec!["a"],
                vec!["ndots:2", "edns0"],
            ),
        ] {
            let got = dns(&pod(spec), &node, &settings());
            assert_eq!(
                (got.servers, got.searches, got.options),
                (
                    servers.into_iter().map(String::from).collect(),
                    searches.into_iter().map(String::from).collect(),
                    options.into_iter().map(String::from).collect(),
                )
            );
        }
    }

    #[test]
    fn a_sandbox_carries_the_labels_it_is_found_by() {
        let spec = json!({"containers": [{"name": "c", "ports": [
            {"containerPort": 80, "hostPort": 8080}, {"containerPort": 81}]}], "shareProcessNamespace": true});
        let config = config(&pod(spec), 2, &ResolvConf::default(), &settings());
        assert_eq!(config.labels[labels::POD_UID], "u");
        assert_eq!(config.labels["app"], "x");
        assert_eq!(config.metadata.unwrap().attempt, 2);
        assert_eq!(config.port_mappings.len(), 1);
        assert_eq!(config.hostname, "p");
        let linux = config.linux.unwrap();
        assert_eq!(linux.cgroup_parent, "/kubepods/besteffort/podu");
        let shared = linux.security_context.unwrap().namespace_options.unwrap();
        assert_eq!(shared.pid, v1::NamespaceMode::Pod as i32);
    }

    #[test]
    fn a_pod_with_host_users_false_does_not_run_in_the_hosts_user_namespace() {
        let made = |spec: Value| check_supported(&pod(spec), "", &settings());
        assert_eq!(made(json!({"containers": []})), Ok(()));
        assert_eq!(made(json!({"containers": [], "hostUsers": true})), Ok(()));
        let rejected = made(json!({"containers": [], "hostUsers": false}));
        assert_eq!(
            rejected.unwrap_err().to_string(),
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
    }

    #[test]
    fn the_kernels_hostname_is_the_fqdn_where_the_pod_asks_for_it() {
        let name = |spec: Value| kernel_hostname(&pod(spec), &settings());
        let short = json!({"containers": [], "hostname": "h", "subdomain": "sub"});
        assert_eq!(name(short.clone()).as_deref(), Ok("h"));
        let mut long = short;
        long["setHostnameAsFQDN"] = json!(true);
        let fqdn = name(long.clone()).unwrap();
        assert!(fqdn.starts_with("h.sub."), "{fqdn}");
        long["subdomain"] = json!("s".repeat(63));
        let error = name(long.clone()).unwrap_err().to_string();
        assert!(error.ends_with("characters requested)"), "{error}");
        long["hostnameOverride"] = json!("my.over.ride");
        assert_eq!(name(long).as_deref(), Ok("my.over.ride"));
    }
}
