//! The objects that connections depend on, and the proxies and policies that nodes compute from them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{NetworkPolicy, ServiceCIDR};
use knarr_api::kinds::pod::is_terminal;
use knarr_api::{Object, k8s_openapi, registry};
use knarr_client::NETWORK_NAMESPACE;
use knarr_network::catalog::Catalog;
use knarr_network::policy::{self, Policies};
use knarr_network::proxy::{self, Proxy};
use knarr_network::routes;

use crate::command::snapshot::ObjectSelection;

/// The objects that are read. Without the first six kinds a report would be wrong.
pub const SELECTION: ObjectSelection<'_> = ObjectSelection {
    kinds: &[
        &registry::NODE,
        &registry::SERVICE,
        &registry::ENDPOINT_SLICE,
        &registry::POD,
        &registry::NAMESPACE,
        &registry::NETWORK_POLICY,
        &registry::SERVICE_CIDR,
        &registry::LEASE,
        &registry::CONFIG_MAP,
    ],
    required: 6,
    only_in: &[
        (&registry::LEASE, NETWORK_NAMESPACE),
        (&registry::CONFIG_MAP, NETWORK_NAMESPACE),
    ],
    documents: &[],
};

/// Settings that no object has.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub proxy: proxy::Config,
    /// The addresses of the nodes' DNS server.
    pub dns_addresses: Vec<IpAddr>,
    pub cluster_domain: String,
    /// Whether knarr enforces NetworkPolicies.
    pub enforces_policies: bool,
}

/// The objects of a cluster that concern its network.
pub struct NetworkObjects {
    objects: Vec<Arc<Object>>,
    pub catalog: Catalog,
    pub settings: Settings,
}

/// The ranges of Service addresses from which the API server allocates.
pub fn service_cidrs(objects: &[Arc<Object>]) -> Option<Vec<String>> {
    /// The ServiceCIDR that the API server creates from `--service-cidr`.
    const DEFAULT: &str = "kubernetes";
    let default = objects.iter().filter(|object| object.name() == DEFAULT);
    let spec = default
        .filter_map(|object| object.get::<ServiceCIDR>())
        .find_map(|cidr| cidr.spec.as_ref())?;
    spec.cidrs.clone()
}

impl NetworkObjects {
    pub fn new(objects: Vec<Arc<Object>>, settings: Settings) -> Self {
        let mut all = NetworkObjects {
            objects,
            catalog: Catalog::default(),
            settings,
        };
        for service in all.objects.iter().filter_map(|o| o.get::<core::Service>()) {
            all.catalog.apply_service(service);
        }
        for slice in all.objects.iter().filter_map(|o| o.get::<EndpointSlice>()) {
            all.catalog.apply_slice(slice);
        }
        // The pod CIDRs of nodes are pods' addresses, even if this host is configured with another range.
        let of_nodes: Vec<IpNet> = all.nodes().flat_map(|node| routes_of(node).pod_cidrs).collect();
        for cidr in of_nodes {
            let known = &mut all.settings.proxy.cluster_cidrs;
            if !known.iter().any(|range| range.contains(&cidr)) {
                known.push(cidr);
            }
        }
        all
    }

    /// All objects of a type.
    pub fn all<T: 'static>(&self) -> impl Iterator<Item = &T> {
        self.objects.iter().filter_map(|object| object.get::<T>())
    }

    /// The object of a type with this name; the namespace is empty for cluster-scoped kinds.
    pub fn find<T: 'static>(&self, namespace: &str, name: &str) -> Option<&T> {
        let named = self
            .objects
            .iter()
            .filter(|o| o.name() == name && o.namespace() == namespace);
        named.filter_map(|object| object.get::<T>()).next()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &core::Node> {
        self.all::<core::Node>()
    }

    pub fn node(&self, name: &str) -> Option<&core::Node> {
        self.find("", name)
    }

    /// All nodes, as far as routes need them.
    pub fn routes(&self) -> BTreeMap<String, routes::Node> {
        self.nodes()
            .map(|node| (name_of(node).to_string(), routes_of(node)))
            .collect()
    }

    /// The node that has the address.
    pub fn node_at(&self, address: IpAddr) -> Option<&core::Node> {
        self.nodes().find(|node| addresses_of(node).contains(&address))
    }

    /// The pod that has the address; pods in the host network have none of their own.
    pub fn pod_at(&self, address: IpAddr) -> Option<&core::Pod> {
        self.all::<core::Pod>()
            .find(|pod| !is_host_network(pod) && !is_terminal(pod) && pod_addresses(pod).contains(&address))
    }

    /// A node's proxy with all Services.
    pub fn proxy(&self, node: &core::Node) -> Proxy {
        let facts = knarr_node_network::proxy::facts(node);
        let mut proxy = Proxy::new(self.settings.proxy.clone(), facts);
        for (key, _) in self.catalog.services() {
            proxy.apply(&self.catalog, key);
        }
        proxy
    }

    /// All NetworkPolicies with the pods that they select.
    pub fn policies(&self) -> Policies {
        let config = policy::Config {
            table: "".into(),
            dns: self.settings.dns_addresses.clone(),
        };
        let mut policies = Policies::new(config, 0);
        for namespace in self.all::<core::Namespace>() {
            policies.apply_namespace(namespace);
        }
        for pod in self.all::<core::Pod>() {
            policies.apply_pod(pod);
        }
        for policy in self.all::<NetworkPolicy>() {
            policies.apply_policy(policy);
        }
        policies
    }
}

fn routes_of(node: &core::Node) -> routes::Node {
    knarr_node_network::routes::reduced(node)
}

pub fn name_of(node: &core::Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// The InternalIPs and ExternalIPs of a Node.
pub fn addresses_of(node: &core::Node) -> Vec<IpAddr> {
    let all = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    let of_node = all.filter(|a| matches!(&*a.type_, "InternalIP" | "ExternalIP"));
    of_node.filter_map(|a| a.address.parse().ok()).collect()
}

pub fn is_host_network(pod: &core::Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.host_network).unwrap_or(false)
}

pub fn phase(pod: &core::Pod) -> &str {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    phase.unwrap_or("Pending")
}

pub fn pod_addresses(pod: &core::Pod) -> Vec<IpAddr> {
    let ips = pod.status.iter().flat_map(|s| s.pod_ips.iter().flatten());
    let mut all: Vec<IpAddr> = ips.filter_map(|ip| ip.ip.parse().ok()).collect();
    let first = pod.status.as_ref().and_then(|s| s.pod_ip.as_deref());
    if let Some(first) = first.and_then(|ip| ip.parse().ok())
        && !all.contains(&first)
    {
        all.push(first);
    }
    all
}

pub fn node_of(pod: &core::Pod) -> Option<&str> {
    let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    name.filter(|name| !name.is_empty())
}

/// `namespace/name`.
pub fn pod_name(pod: &core::Pod) -> String {
    let metadata = &pod.metadata;
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}
