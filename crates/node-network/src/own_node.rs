//! What the API says of this node: the addresses its pods may have, and where it stands.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Object, ObjectKey};
use knarr_client::Api;
use knarr_client::informer::{self, Scope, Sink};
use tokio::task::JoinSet;

use crate::signal::Signal;

const ZONE: &str = "topology.kubernetes.io/zone";

/// Nothing of it is set before the node is registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnNode {
    pub uid: String,
    /// `spec.podCIDRs`; what cannot be read is left out.
    pub pod_cidrs: Vec<IpNet>,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<Arc<str>>,
    /// Of type InternalIP.
    pub addresses: Vec<IpAddr>,
}

impl OwnNode {
    fn of(node: &Node) -> Self {
        let cidrs = node.spec.iter().flat_map(|s| s.pod_cidrs.iter().flatten());
        let labels = node.metadata.labels.as_ref();
        let addresses = node.status.iter().flat_map(|s| s.addresses.iter().flatten());
        OwnNode {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            pod_cidrs: cidrs
                .filter_map(|cidr| cidr.parse::<IpNet>().ok())
                .map(|cidr| cidr.trunc())
                .collect(),
            zone: labels.and_then(|l| l.get(ZONE)).map(|zone| zone.as_str().into()),
            addresses: addresses
                .filter(|a| a.type_ == "InternalIP")
                .filter_map(|a| a.address.parse().ok())
                .collect(),
        }
    }
}

/// Follows the Node of this name. Dropping it ends the watch.
pub struct Followed {
    node: Arc<Signal<OwnNode>>,
    _watch: JoinSet<()>,
}

impl Followed {
    pub fn start(api: Arc<dyn Api>, node_name: &str) -> Self {
        let node = Arc::new(Signal::new(OwnNode::default()));
        let scope = Scope {
            field_selector: format!("metadata.name={node_name}"),
            ..Scope::default()
        };
        let mut watch = JoinSet::new();
        watch.spawn(informer::run(
            api,
            registry::NODE.clone(),
            scope,
            Arc::new(Feed(node.clone())),
        ));
        Followed { node, _watch: watch }
    }

    /// As it was last heard of.
    pub fn node(&self) -> Arc<Signal<OwnNode>> {
        self.node.clone()
    }
}

struct Feed(Arc<Signal<OwnNode>>);

impl Sink for Feed {
    fn apply(&self, object: &Arc<Object>) {
        if let Some(node) = object.to_typed::<Node>() {
            let new = OwnNode::of(&node);
            // Heartbeats change nothing here.
            if self.0.get() != new {
                self.0.set(new);
            }
        }
    }

    // A node whose object is deleted keeps its addresses while pods may run on it.
    fn remove(&self, _: &ObjectKey, _: Option<&Arc<Object>>) {}

    fn retain(&self, _: &BTreeSet<ObjectKey>) {}

    fn advance(&self, _: u64) {}
}
