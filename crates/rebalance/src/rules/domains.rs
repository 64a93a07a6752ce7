//! The domains of topology keys over the nodes that count for a constraint. Most constraints count all nodes with their
//! keys, so the lists are shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use knarr_scheduler::Cluster;
use knarr_scheduler::cluster::{ColumnId, NO_VALUE, NodeIndex};
use knarr_scheduler::plugins::node_affinity::meets_required;
use knarr_scheduler::plugins::taint_toleration::untolerated;
use knarr_scheduler::pod_info::{PodClass, SpreadConstraint};

/// The domain of each node that counts.
#[derive(Debug)]
pub(crate) struct Domains {
    /// By node index; [`NO_VALUE`]: the node does not count.
    of: Vec<u32>,
    /// How many different ones there are.
    pub number: u32,
}

impl Domains {
    pub fn of(&self, node: NodeIndex) -> Option<u32> {
        let domain = self.of.get(node as usize).copied();
        domain.filter(|domain| *domain != NO_VALUE)
    }
}

/// Which nodes count, as far as two constraints may agree on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    column: ColumnId,
    /// All keys that a node must have.
    required: Vec<ColumnId>,
    /// The pod's own node selector, affinity and tolerations, where they count.
    pod: String,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DomainsCache {
    known: BTreeMap<Key, Arc<Domains>>,
}

impl DomainsCache {
    /// The domains of a constraint of a class; a node must have all `required` keys.
    pub fn get(
        &mut self,
        cluster: &mut Cluster,
        class: &PodClass,
        constraint: &SpreadConstraint,
        required: &[ColumnId],
    ) -> Arc<Domains> {
        let column = cluster.column_of(&constraint.topology_key);
        let key = Key {
            column,
            required: required.to_vec(),
            pod: signature(class, constraint),
        };
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let slots = NodeIndex::try_from(cluster.slots()).unwrap_or(NodeIndex::MAX);
        let mut seen = vec![false; cluster.column(column).values()];
        let of = (0..slots).map(|index| {
            let node = cluster.at(index);
            let counts = node.node.is_some()
                && required
                    .iter()
                    .all(|column| cluster.column(*column).at(index) != NO_VALUE)
                && (!constraint.honor_node_affinity || meets_required(class, node))
                && (!constraint.honor_node_taints || untolerated(class, node).is_none());
            let domain = if counts {
                cluster.column(column).at(index)
            } else {
                NO_VALUE
            };
            if let Some(seen) = seen.get_mut(domain as usize) {
                *seen = true;
            }
            domain
        });
        let of = of.collect();
        let number = seen.into_iter().map(u32::from).sum();
        let domains = Arc::new(Domains { of, number });
        self.known.insert(key, domains.clone());
        domains
    }
}

/// What of the pod decides which nodes count.
fn signature(class: &PodClass, constraint: &SpreadConstraint) -> String {
    let spec = class.spec();
    let mut text = String::new();
    if constraint.honor_node_affinity {
        let selector = spec.and_then(|s| s.node_selector.as_ref());
        if let Some(selector) = selector.filter(|s| !s.is_empty()) {
            text.push_str(&format!("{selector:?}"));
        }
        if let Some(required) = class.required_node_affinity() {
            text.push_str(&format!("{required:?}"));
        }
    }
    if constraint.honor_node_taints {
        text.push_str(&format!("taints{:?}", class.tolerations()));
    }
    text
}
