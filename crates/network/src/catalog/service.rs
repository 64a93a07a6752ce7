//! A Service as proxy and DNS know it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;

use super::{Interner, Protocol, endpoints};

/// `spec.type`; a Service without a cluster IP is headless whatever its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServiceType {
    ClusterIp,
    NodePort,
    LoadBalancer,
    /// With `spec.externalName`.
    ExternalName(Box<str>),
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    #[default]
    Cluster,
    Local,
}

impl TrafficPolicy {
    fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Local") => TrafficPolicy::Local,
            _ => TrafficPolicy::Cluster,
        }
    }
}

/// One of a Service's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Empty where the only port has no name. Slices' ports are matched by it.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    /// 0 if none is allocated.
    pub node_port: u16,
}

/// A Service, reduced. Addresses and ranges that do not parse, which validation rejects, are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub service_type: ServiceType,
    /// Empty for headless Services and external names; the primary family first.
    pub cluster_ips: Vec<IpAddr>,
    pub headless: bool,
    pub ports: Vec<ServicePort>,
    pub external_ips: Box<[IpAddr]>,
    /// `status.loadBalancer.ingress` addresses whose `ipMode` is `VIP` (or absent).
    pub load_balancer_ips: Box<[IpAddr]>,
    /// `loadBalancerSourceRanges`; empty: all sources.
    pub source_ranges: Box<[IpNet]>,
    /// Seconds that a client stays with its endpoint; `None` without ClientIP affinity.
    pub affinity_seconds: Option<u32>,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    /// 0 if there is none.
    pub health_check_node_port: u16,
    pub publish_not_ready: bool,
    /// Of pods, in the order of the keys; empty: none.
    pub selector: Box<[(Arc<str>, Arc<str>)]>,
    /// Its labels exclude it from this proxy: `service.kubernetes.io/service-proxy-name` or `…/headless`.
    pub foreign_proxy: bool,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
}

/// v1.36's default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: u32 = 10_800;

/// Without spare capacity: a collected Vec has room for four elements, and most Services have one.
fn fitted<T>(elements: impl Iterator<Item = T>) -> Vec<T> {
    let mut fitted: Vec<T> = elements.collect();
    fitted.shrink_to_fit();
    fitted
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a String>) -> Vec<IpAddr> {
    fitted(texts.into_iter().filter_map(|text| text.parse().ok()))
}

fn pairs<'a>(
    labels: impl Iterator<Item = (&'a String, &'a String)>,
    interner: &mut Interner,
) -> Box<[(Arc<str>, Arc<str>)]> {
    labels
        .map(|(key, value)| (interner.get(key), interner.get(value)))
        .collect()
}

fn port(number: i32) -> u16 {
    u16::try_from(number).unwrap_or(0)
}

impl Service {
    pub(super) fn of(service: &core::Service, interner: &mut Interner) -> Self {
        let empty = core::ServiceSpec::default();
        let spec = service.spec.as_ref().unwrap_or(&empty);
        let service_type = match spec.type_.as_deref() {
            Some("NodePort") => ServiceType::NodePort,
            Some("LoadBalancer") => ServiceType::LoadBalancer,
            Some("ExternalName") => {
                ServiceType::ExternalName(spec.external_name.as_deref().unwrap_or_default().into())
            }
            _ => ServiceType::ClusterIp,
        };
        let cluster_ips = match spec.cluster_ips.as_deref() {
            None | Some([]) => addresses(&spec.cluster_ip),
            Some(all) => addresses(all),
        };
        let is_external_name = matches!(service_type, ServiceType::ExternalName(_));
        let ports = spec.ports.iter().flatten().filter_map(|p| {
            Some(ServicePort {
                name: interner.get(p.name.as_deref().unwrap_or_default()),
                protocol: Protocol::parse(p.protocol.as_deref())?,
                port: port(p.port),
                node_port: port(p.node_port.unwrap_or(0)),
            })
        });
        let ingress = service
            .status
            .iter()
            .flat_map(|s| s.load_balancer.iter())
            .flat_map(|l| l.ingress.iter().flatten());
        let vip = ingress.filter(|i| i.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"));
        let client_ip = spec
            .session_affinity_config
            .as_ref()
            .and_then(|c| c.client_ip.as_ref());
        let timeout = client_ip
            .and_then(|c| c.timeout_seconds)
            .and_then(|s| u32::try_from(s).ok());
        let has_affinity = spec.session_affinity.as_deref() == Some("ClientIP");
        let labels = service.metadata.labels.as_ref();
        Service {
            headless: cluster_ips.is_empty() && !is_external_name,
            ports: fitted(ports),
            external_ips: addresses(spec.external_ips.iter().flatten()).into(),
            load_balancer_ips: match service_type {
                ServiceType::LoadBalancer => addresses(vip.filter_map(|i| i.ip.as_ref())).into(),
                _ => Box::default(),
            },
            source_ranges: match service_type {
                ServiceType::LoadBalancer => spec
                    .load_balancer_source_ranges
                    .iter()
                    .flatten()
                    .filter_map(|range| range.trim().parse::<IpNet>().ok())
                    .map(|range| range.trunc())
                    .collect(),
                _ => Box::default(),
            },
            affinity_seconds: has_affinity.then(|| timeout.unwrap_or(AFFINITY_SECONDS)),
            internal_policy: TrafficPolicy::parse(spec.internal_traffic_policy.as_deref()),
            external_policy: TrafficPolicy::parse(spec.external_traffic_policy.as_deref()),
            health_check_node_port: port(spec.health_check_node_port.unwrap_or(0)),
            publish_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
            foreign_proxy: endpoints::is_not_proxied(labels),
            selector: match is_external_name {
                true => Box::default(),
                false => pairs(spec.selector.iter().flatten(), interner),
            },
            traffic_distribution: spec.traffic_distribution.as_deref().map(|t| interner.get(t)),
            service_type,
            cluster_ips,
        }
    }

    /// Whether its endpoints are the pods with these labels.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): &(Arc<str>, Arc<str>)| labels.get(&**key).is_some_and(|v| **v == **value);
        !self.selector.is_empty() && self.selector.iter().all(has)
    }
}
