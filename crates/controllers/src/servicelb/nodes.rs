//! Which nodes serve load balancers, and with which addresses.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, Service};
use knarr_api::k8s_openapi;

use super::MAX_ADDRESSES;
use crate::node::condition;

/// Label of a node: `false` excludes it. If any node has `true`, only nodes with `true` serve.
pub const ENABLED: &str = "knarr.io/service-lb";
/// Label of a node: its pool. Label of a Service: the pool of its addresses; without it all nodes serve.
pub const POOL: &str = "knarr.io/service-lb-pool";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// A node that may serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate<'a> {
    pub name: &'a str,
    explicitly_enabled: bool,
    pool: Option<&'a str>,
    external: Vec<IpAddr>,
    internal: Vec<IpAddr>,
}

impl Candidate<'_> {
    pub fn is_in_pool_of(&self, service: &Service) -> bool {
        let labels = service.metadata.labels.as_ref();
        let pool = labels.and_then(|l| l.get(POOL)).filter(|p| !p.is_empty());
        pool.is_none_or(|pool| self.pool == Some(pool.as_str()))
    }
}

/// The node, if it is ready and nothing excludes it.
pub fn candidate(node: &Node) -> Option<Candidate<'_>> {
    let label = |key| node.metadata.labels.as_ref().and_then(|l| l.get(key));
    let ready = condition(node, "Ready").is_some_and(|c| c.status == "True");
    let leaves = node.metadata.deletion_timestamp.is_some();
    let enabled = label(ENABLED).map(String::as_str);
    if !ready || leaves || label(EXCLUDED).is_some() || enabled == Some("false") {
        return None;
    }
    let addresses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
    let of = |type_: &str| -> Vec<IpAddr> {
        let of_type = addresses.clone().filter(|a| a.type_ == type_);
        let parsed = of_type.filter_map(|a| a.address.parse::<IpAddr>().ok());
        // Loopback and unspecified addresses are not reachable from other hosts.
        parsed
            .filter(|a| !a.is_loopback() && !a.is_unspecified())
            .collect()
    };
    Some(Candidate {
        name: node.metadata.name.as_deref().unwrap_or_default(),
        explicitly_enabled: enabled == Some("true"),
        pool: label(POOL).map(String::as_str).filter(|p| !p.is_empty()),
        external: of("ExternalIP"),
        internal: of("InternalIP"),
    })
}

/// Only the nodes that are enabled explicitly, if there are any.
pub fn enabled(mut candidates: Vec<Candidate<'_>>) -> Vec<Candidate<'_>> {
    if candidates.iter().any(|c| c.explicitly_enabled) {
        candidates.retain(|c| c.explicitly_enabled);
    }
    candidates
}

/// Addresses of these nodes, the first family's first: the external ones if there are any, else the internal ones.
pub fn addresses(nodes: &[&Candidate<'_>], families: Option<&[String]>) -> Vec<IpAddr> {
    let default = ["IPv4".to_string()];
    let families = families.filter(|f| !f.is_empty()).unwrap_or(&default);
    let is_external = nodes.iter().any(|n| !n.external.is_empty());
    let mut addresses = Vec::new();
    for family in families {
        for node in nodes {
            let of_node = if is_external {
                &node.external
            } else {
                &node.internal
            };
            let of_family = of_node.iter().filter(|a| a.is_ipv6() == (family == "IPv6"));
            for address in of_family {
                if !addresses.contains(address) && addresses.len() < MAX_ADDRESSES {
                    addresses.push(*address);
                }
            }
        }
    }
    addresses
}
