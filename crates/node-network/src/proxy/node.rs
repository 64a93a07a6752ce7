//! What the proxy has to know of its Node.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use knarr_api::k8s_openapi;
use knarr_api::registry::NODE;
use knarr_api::well_known::ZONE;
use knarr_api::{Object, ObjectKey};
use knarr_apimachinery::ids::NodeName;
use knarr_client::Api;
use knarr_client::informer::{self, ReflectorStore, Scope};
use knarr_network::proxy::{Family, NodeFacts};

use super::health::Health;
use crate::signal::Signal;

/// By the cluster autoscaler, before it takes the node away: load balancers shall send nothing more here.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Follows one Node.
pub(super) struct NodeWatch {
    name: NodeName,
    /// `None` until the first list.
    facts: Signal<Option<NodeFacts>>,
    health: Arc<Health>,
}

impl NodeWatch {
    pub fn new(name: NodeName, health: Arc<Health>) -> Arc<Self> {
        Arc::new(NodeWatch {
            name,
            facts: Signal::new(None),
            health,
        })
    }

    pub async fn run(self: Arc<Self>, api: Arc<dyn Api>) {
        let scope = Scope {
            field_selector: format!("metadata.name={}", self.name),
            ..Scope::default()
        };
        informer::run(api, NODE.clone(), scope, self).await;
    }

    /// As soon as they are known; of a Node that does not exist yet, its name.
    pub async fn first(&self) -> NodeFacts {
        self.facts.wait_for(Option::is_some).await.unwrap_or_default()
    }

    /// As soon as they are others than these.
    pub async fn changed(&self, from: &NodeFacts) -> NodeFacts {
        let is_other = |now: &Option<NodeFacts>| now.as_ref().is_some_and(|now| now != from);
        self.facts.wait_for(is_other).await.unwrap_or_default()
    }

    fn unknown(&self) -> NodeFacts {
        NodeFacts {
            name: self.name.clone(),
            ..NodeFacts::default()
        }
    }
}

/// The facts of a Node object.
pub fn facts(node: &Node) -> NodeFacts {
    let labels = node.metadata.labels.as_ref();
    NodeFacts {
        name: node.metadata.name.as_deref().unwrap_or_default().into(),
        zone: labels.and_then(|l| l.get(ZONE)).map(|zone| zone.as_str().into()),
        addresses: addresses(node),
    }
}

/// The first internal address of each family, else the first external one.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.as_ref().and_then(|s| s.addresses.as_ref());
    let of = |family: Family, type_: &str| {
        let mut of_type = all.into_iter().flatten().filter(|a| a.type_ == type_);
        of_type.find_map(|a| {
            let address = a.address.parse::<IpAddr>().ok();
            address.filter(|address| Family::of(*address) == family)
        })
    };
    let primary = |family| of(family, "InternalIP").or_else(|| of(family, "ExternalIP"));
    Family::ALL.into_iter().filter_map(primary).collect()
}

impl ReflectorStore for NodeWatch {
    fn apply(&self, object: &Arc<Object>) {
        let Some(node) = object.to_typed::<Node>().filter(|_| *object.name() == *self.name) else {
            return;
        };
        let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
        let is_being_deleted = taints.into_iter().flatten().any(|t| t.key == TO_BE_DELETED);
        self.health
            .set_eligible(!is_being_deleted && node.metadata.deletion_timestamp.is_none());
        let facts = facts(&node);
        if self.facts.get().as_ref() != Some(&facts) {
            self.facts.set(Some(facts));
        }
    }

    fn remove(&self, key: &ObjectKey, _: Option<&Arc<Object>>) {
        if *key.name == *self.name {
            self.health.set_eligible(false);
        }
    }

    fn retain(&self, _: &BTreeSet<ObjectKey>) {}

    fn advance(&self, _: u64) {
        if self.facts.get().is_none() {
            self.facts.set(Some(self.unknown()));
        }
    }
}
