//! Pods of one owner with the same images on one node (the descheduler's RemoveDuplicates): those beyond an even
//! distribution over the nodes that they may run on.

use std::collections::BTreeMap;

use knarr_scheduler::cluster::NodeIndex;
use knarr_scheduler::plugins::node_affinity::meets_required;
use knarr_scheduler::plugins::taint_toleration::untolerated;
use knarr_scheduler::pod_info::PodClass;
use knarr_scheduler::{Cluster, NodeInfo};

/// See the module.
#[derive(Debug)]
pub(crate) struct DuplicatesRule {
    pub owner: String,
    /// The most pods of a node in an even distribution; `None`: there are not two nodes to choose from.
    most: Option<u32>,
    counts: BTreeMap<NodeIndex, u32>,
    pods: u32,
    value: u64,
}

impl DuplicatesRule {
    pub fn new(owner: String) -> Self {
        DuplicatesRule {
            owner,
            most: None,
            counts: BTreeMap::new(),
            pods: 0,
            value: 0,
        }
    }

    /// Counts pods before [`DuplicatesRule::set_nodes`].
    pub fn count(&mut self, node: NodeIndex, pods: u32) {
        *self.counts.entry(node).or_default() += pods;
        self.pods += pods;
    }

    /// The number of nodes that the pods may run on, by their taints and the pods' node affinity.
    pub fn set_nodes(&mut self, nodes: u32) {
        self.most = (nodes > 1).then(|| self.pods.div_ceil(nodes));
        self.value = self.counts.values().map(|pods| self.over(*pods)).sum();
    }

    fn over(&self, pods: u32) -> u64 {
        self.most.map_or(0, |most| pods.saturating_sub(most)).into()
    }

    fn on(&self, node: NodeIndex) -> u32 {
        self.counts.get(&node).copied().unwrap_or(0)
    }

    pub fn add(&mut self, node: NodeIndex) {
        self.value = self.value_with(node);
        *self.counts.entry(node).or_default() += 1;
    }

    pub fn remove(&mut self, node: NodeIndex) {
        let was = self.on(node);
        let Some(pods) = was.checked_sub(1) else { return };
        self.value = self.value + self.over(pods) - self.over(was);
        if pods == 0 {
            self.counts.remove(&node);
        } else {
            self.counts.insert(node, pods);
        }
    }

    pub fn value(&self) -> u64 {
        self.value
    }

    pub fn value_with(&self, node: NodeIndex) -> u64 {
        let was = self.on(node);
        self.value + self.over(was + 1) - self.over(was)
    }

    pub fn excess(&self, node: NodeIndex) -> u64 {
        self.over(self.on(node))
    }
}

/// How many nodes pods of a class may run on, whatever room they have. Most classes agree on it.
#[derive(Debug, Default)]
pub(crate) struct PossibleNodes {
    known: BTreeMap<String, u32>,
}

impl PossibleNodes {
    pub fn of(&mut self, cluster: &Cluster, class: &PodClass) -> u32 {
        let selector = class.spec().and_then(|s| s.node_selector.as_ref());
        let key = (selector, class.required_node_affinity(), class.tolerations());
        *self.known.entry(format!("{key:?}")).or_insert_with(|| {
            let may = |node: &NodeInfo| {
                !node.is_unschedulable() && untolerated(class, node).is_none() && meets_required(class, node)
            };
            let nodes = cluster.iter().filter(|(_, node)| may(node)).count();
            u32::try_from(nodes).unwrap_or(u32::MAX)
        })
    }
}
