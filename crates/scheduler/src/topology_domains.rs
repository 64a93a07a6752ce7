//! Declared domains of topology keys (SPEC B3): what PodTopologySpread reads of TopologyDomains objects.
//!
//! Only their status is read: the controller in `knarr-controllers` decides which domains count, and which are lost. A
//! declared domain without nodes has templates, the nodes that would be added there; the plugin validates a pod's
//! requirements against them as against nodes. Without such objects nothing here is used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use knarr_api::registry::Registered;
use knarr_api::well_known::HOSTNAME;
use knarr_api::{Kind, Object, Shared, k8s_openapi};
use serde::Deserialize;

use crate::node_info::NodeInfo;
use crate::pod_info::Labels;

pub const GROUP: &str = "placement.knarr.io";
pub const KIND: &str = "TopologyDomains";

/// The most domains of one object that are read, as in its schema.
const DOMAINS_MAX: usize = 64;
/// The most templates of one domain that are read, as the controller writes.
const TEMPLATES_MAX: usize = 64;

const OS: &str = "kubernetes.io/os";
/// The hostname of a node that does not exist: no label can have this value.
const NO_HOSTNAME: &str = "<new node>";

/// Whether objects of the kind are TopologyDomains.
pub fn is_kind(kind: &Kind) -> bool {
    kind.group() == GROUP && kind.kind() == KIND
}

/// A node that would be added to a domain.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct Template {
    labels: Labels,
    taints: Vec<Taint>,
    capacity: BTreeMap<String, Quantity>,
}

impl Template {
    /// As a node of the domain. It has a hostname, as each node has, and knarr's nodes run Linux.
    fn node(&self, topology_key: &str, domain: &str) -> Option<NodeInfo> {
        let mut labels = self.labels.clone();
        labels.insert(topology_key.to_string(), domain.to_string());
        labels
            .entry(HOSTNAME.into())
            .or_insert_with(|| NO_HOSTNAME.into());
        labels.entry(OS.into()).or_insert_with(|| "linux".into());
        let node = Node {
            metadata: ObjectMeta {
                // No node has this name, so that no pod that names its nodes matches.
                name: Some(String::new()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                taints: Some(self.taints.clone()),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                allocatable: (!self.capacity.is_empty()).then(|| self.capacity.clone()),
                ..NodeStatus::default()
            }),
        };
        let object = Object::from_typed(Node::kind_of(), node.into_object());
        Shared::new(Arc::new(object)).ok().map(NodeInfo::bare)
    }
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", default)]
struct DomainStatus {
    name: String,
    counted: bool,
    without_ready_nodes_since: Option<Time>,
    node_templates: Vec<Template>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    topology_key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    domains: Vec<DomainStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Document {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

/// One domain of a key.
#[derive(Clone, Debug)]
pub struct Domain {
    status: DomainStatus,
    /// The nodes that would be added here; none for a domain that is only known by its nodes.
    templates: Vec<NodeInfo>,
}

impl Domain {
    pub fn name(&self) -> &str {
        &self.status.name
    }

    /// Whether the domain is lost: its pods do not count for the global minimum.
    pub fn is_lost(&self) -> bool {
        !self.status.counted
    }

    /// Since when none of its nodes is Ready, if it is lost.
    pub fn lost_since(&self) -> Option<&Time> {
        self.status.without_ready_nodes_since.as_ref()
    }

    pub fn templates(&self) -> &[NodeInfo] {
        &self.templates
    }
}

/// The domains of one topology key.
#[derive(Clone, Debug)]
pub struct TopologyDomains {
    /// The object's name.
    pub name: String,
    pub topology_key: String,
    created: Option<Time>,
    pub domains: Vec<Domain>,
}

impl TopologyDomains {
    /// Parses an object; `None` if it is of another kind or invalid, or has no domains that count or are lost.
    pub fn of(object: &Object) -> Option<Self> {
        if !is_kind(object.kind()) {
            return None;
        }
        let document: Document = serde_json::from_slice(object.json()).ok()?;
        let topology_key = document.spec.topology_key;
        let domains = document.status.domains.into_iter().take(DOMAINS_MAX);
        let mut names = BTreeSet::new();
        let domains: Vec<Domain> = domains
            .filter(|status| names.insert(status.name.clone()))
            .map(|mut status| {
                status.node_templates.truncate(TEMPLATES_MAX);
                if status.counted {
                    // A time that no verdict depends on is no change.
                    status.without_ready_nodes_since = None;
                }
                let templates = status.node_templates.iter();
                let templates = templates.filter_map(|t| t.node(&topology_key, &status.name));
                Domain {
                    templates: templates.collect(),
                    status,
                }
            })
            .filter(|d| d.is_lost() || !d.templates.is_empty())
            .collect();
        (!domains.is_empty()).then(|| TopologyDomains {
            name: object.name().to_string(),
            topology_key,
            created: document.metadata.creation_timestamp,
            domains,
        })
    }

    /// The order of objects: the oldest first, then by name.
    fn age(&self) -> (Option<Timestamp>, &str) {
        (self.created.as_ref().map(|t| t.0), &self.name)
    }

    /// Whether PodTopologySpread finds no difference.
    fn is_equivalent(&self, other: &Self) -> bool {
        let (statuses, of_other) = (
            self.domains.iter().map(|d| &d.status),
            other.domains.iter().map(|d| &d.status),
        );
        self.topology_key == other.topology_key && self.created == other.created && statuses.eq(of_other)
    }
}

/// All TopologyDomains objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct DeclaredDomains {
    /// By name.
    objects: BTreeMap<String, Arc<TopologyDomains>>,
}

impl DeclaredDomains {
    /// Adds, replaces or removes (`None`) the object of this name. Returns the keys of the domains that have changed.
    pub fn set(&mut self, name: &str, object: Option<TopologyDomains>) -> Vec<String> {
        let before = self.objects.get(name);
        let same = match (before, &object) {
            (Some(before), Some(after)) => before.is_equivalent(after),
            (None, None) => true,
            _ => false,
        };
        if same {
            return Vec::new();
        }
        let key = |domains: &TopologyDomains| domains.topology_key.clone();
        let mut keys: Vec<String> = before.map(|b| key(b)).into_iter().collect();
        keys.extend(object.as_ref().map(key));
        match object {
            Some(object) => self.objects.insert(name.to_string(), Arc::new(object)),
            None => self.objects.remove(name),
        };
        keys
    }

    /// Those of this key. Of several objects the oldest declares it, as in their conditions.
    pub fn of(&self, topology_key: &str) -> Option<&Arc<TopologyDomains>> {
        let all = self.objects.values().filter(|d| d.topology_key == topology_key);
        all.min_by(|one, other| one.age().cmp(&other.age()))
    }
}

#[cfg(test)]
mod tests;
