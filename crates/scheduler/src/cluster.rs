//! The scheduler's snapshot of the cluster, kept dense: nodes by index, the values of topology keys as columns of
//! small numbers, and a log of the nodes that changed, so that what is computed from a node is computed again only
//! when the node changed.

mod column;
mod nominated_in_domains;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::{NodeName, PodUid};
use knarr_apimachinery::labels::{Requirement, Selector};

use crate::budgets::Budgets;
use crate::dynamic_resources::{self, claims::Devices};
use crate::node_info::NodeInfo;
use crate::pod_info::{Labels, OptionalSelector, PodClass, PodInfo};
use crate::topology_domains::{DeclaredDomains, TopologyDomains};
use crate::volumes::Volumes;
pub use column::Column;
pub use nominated_in_domains::{NominatedInDomains, NominatedPod};

/// The index of a node in every column.
pub type NodeIndex = u32;

/// The value number of a node without the label.
pub const NO_VALUE: u32 = u32::MAX;

/// Number of a [`Column`].
pub type ColumnId = usize;

/// One image and the nodes that have it.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// As reported by the first node that had it.
    pub size_bytes: i64,
    nodes: BTreeSet<NodeIndex>,
}

impl Image {
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// The nodes that changed, in order. A reader remembers up to where it has read.
#[derive(Clone, Debug, Default)]
struct Log {
    dropped: u64,
    indices: Vec<NodeIndex>,
}

/// The log is cleared when it is longer than this and than twice the number of nodes: reading all nodes is cheaper
/// then.
const SHORT_LOG: usize = 4096;

/// An owner of pods, for the default topology spread constraints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// The selector of a Service or ReplicationController.
    Labels(Labels),
    /// The selector of a ReplicaSet or StatefulSet.
    Selector(OptionalSelector),
}

type Name = (String, String);

/// See the module.
#[derive(Debug, Default)]
pub struct Cluster {
    infos: Vec<NodeInfo>,
    indices: BTreeMap<NodeName, NodeIndex>,
    free: Vec<NodeIndex>,
    count: usize,
    columns: Vec<Column>,
    log: Log,
    images: BTreeMap<String, Image>,
    /// Incremented when a node gains or loses an image.
    pub images_version: u64,
    namespaces: BTreeMap<String, Labels>,
    services: BTreeMap<String, BTreeMap<String, Labels>>,
    owners: BTreeMap<(&'static str, Name), Workload>,
    topology_domains: DeclaredDomains,
    /// Incremented when an object other than a node or a pod changes that plugins read: a Namespace, an owner of pods,
    /// or the declared domains.
    pub related_objects_version: u64,
    budgets: Budgets,
    devices: Devices,
    volumes: Volumes,
    /// Nodes with nominated pods.
    nominations: BTreeSet<NodeIndex>,
    nominated_in_domains: NominatedInDomains,
}

impl Cluster {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A copy for a simulation in which pods move. It shares the objects, and has no devices: it is not for pods with
    /// resource claims.
    pub fn copy_without_devices(&self) -> Cluster {
        Cluster {
            infos: self.infos.clone(),
            indices: self.indices.clone(),
            free: self.free.clone(),
            count: self.count,
            columns: self.columns.clone(),
            log: self.log.clone(),
            images: self.images.clone(),
            images_version: self.images_version,
            namespaces: self.namespaces.clone(),
            services: self.services.clone(),
            owners: self.owners.clone(),
            topology_domains: self.topology_domains.clone(),
            related_objects_version: self.related_objects_version,
            budgets: self.budgets.clone(),
            devices: Devices::default(),
            volumes: self.volumes.clone(),
            nominations: self.nominations.clone(),
            nominated_in_domains: self.nominated_in_domains.clone(),
        }
    }

    /// One more than the highest node index in use.
    pub fn slots(&self) -> usize {
        self.infos.len()
    }

    /// All nodes that exist.
    pub fn iter(&self) -> impl Iterator<Item = (NodeIndex, &NodeInfo)> {
        let all = (0..).zip(&self.infos);
        all.filter(|(_, info)| info.node.is_some())
    }

    pub fn at(&self, index: NodeIndex) -> &NodeInfo {
        &self.infos[index as usize]
    }

    pub fn index_of(&self, name: &str) -> Option<NodeIndex> {
        self.indices.get(name).copied()
    }

    pub fn get(&self, name: &str) -> Option<&NodeInfo> {
        self.index_of(name).map(|index| self.at(index))
    }

    pub fn column(&self, id: ColumnId) -> &Column {
        &self.columns[id]
    }

    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// The column of a topology key; it is made at the first use.
    pub fn column_of(&mut self, key: &str) -> ColumnId {
        if let Some(id) = self.columns.iter().position(|c| c.key == key) {
            return id;
        }
        let mut column = Column::of_key(key);
        for (index, info) in (0..).zip(&self.infos) {
            column.set(index, info);
        }
        self.columns.push(column);
        self.columns.len() - 1
    }

    /// The number of a domain in the column of its key.
    pub fn domain_number(&mut self, id: ColumnId, domain: &str) -> u32 {
        self.columns[id].number_of(domain)
    }

    pub fn topology_domains(&self) -> &DeclaredDomains {
        &self.topology_domains
    }

    /// A TopologyDomains object was added, updated or deleted. Returns the keys whose domains have changed.
    pub fn set_topology_domains(&mut self, name: &str, object: Option<TopologyDomains>) -> Vec<String> {
        let keys = self.topology_domains.set(name, object);
        self.related_objects_version += u64::from(!keys.is_empty());
        keys
    }

    fn entry(&mut self, name: &str) -> NodeIndex {
        if let Some(index) = self.indices.get(name) {
            return *index;
        }
        let name = NodeName::from(name);
        let mut info = NodeInfo::new(name.clone());
        info.device_class_resources = self.devices.inventory.class_resources().clone();
        let index = match self.free.pop() {
            Some(index) => {
                self.infos[index as usize] = info;
                index
            }
            None => {
                self.infos.push(info);
                NodeIndex::try_from(self.infos.len() - 1).unwrap_or(NodeIndex::MAX)
            }
        };
        self.indices.insert(name, index);
        index
    }

    fn changed(&mut self, index: NodeIndex) {
        let log = &mut self.log;
        if log.indices.len() > SHORT_LOG.max(2 * self.infos.len()) {
            log.dropped += log.indices.len() as u64;
            log.indices.clear();
        }
        log.indices.push(index);
    }

    /// The position after the last entry of the log.
    pub fn now(&self) -> u64 {
        self.log.dropped + self.log.indices.len() as u64
    }

    /// The nodes that changed since a position of the log; `None`: the log does not reach back that far.
    pub fn changes_since(&self, then: u64) -> Option<&[NodeIndex]> {
        let from = usize::try_from(then.checked_sub(self.log.dropped)?).ok()?;
        self.log.indices.get(from..)
    }

    pub fn set_node(&mut self, name: &str, node: Option<Shared<Node>>) {
        let there = node.is_some();
        let index = self.entry(name);
        let info = &mut self.infos[index as usize];
        let was = info.node.take();
        let images = |node: &Option<Shared<Node>>| -> BTreeMap<String, i64> {
            let status = node.as_ref().and_then(|n| n.status.as_ref());
            let images = status.and_then(|s| s.images.as_ref()).into_iter().flatten();
            let named = images.flat_map(|i| {
                let size = i.size_bytes.unwrap_or(0);
                i.names.iter().flatten().map(move |name| (name.clone(), size))
            });
            named.collect()
        };
        let (had, has) = (images(&was), images(&node));
        self.count = self.count + usize::from(there) - usize::from(was.is_some());
        if was.is_some() != there || had != has {
            self.images_version += 1;
            for name in had.keys() {
                if let Some(image) = self.images.get_mut(name) {
                    image.nodes.remove(&index);
                    if image.nodes.is_empty() {
                        self.images.remove(name);
                    }
                }
            }
            for (name, size_bytes) in has {
                let image = self.images.entry(name).or_insert_with(|| Image {
                    size_bytes,
                    nodes: BTreeSet::new(),
                });
                image.nodes.insert(index);
            }
        }
        let info = &mut self.infos[index as usize];
        info.set_node(node);
        for column in &mut self.columns {
            column.set(index, info);
        }
        self.changed(index);
        self.tidy(index);
    }

    pub fn image(&self, name: &str) -> Option<&Image> {
        self.images.get(name)
    }

    /// The image, if that node has it.
    pub fn image_on(&self, name: &str, index: NodeIndex) -> Option<&Image> {
        self.images.get(name).filter(|image| image.nodes.contains(&index))
    }

    pub fn add_pod(&mut self, node: &str, pod: &Arc<PodInfo>) {
        let index = self.entry(node);
        if self.infos[index as usize].refresh_pod(pod) {
            return;
        }
        if let Some(was) = self.infos[index as usize].add_pod(pod) {
            self.volumes.count_users(&was.class, false);
        }
        self.volumes.count_users(&pod.class, true);
        self.changed(index);
    }

    /// The pod that was assigned to the node.
    pub fn remove_pod(&mut self, node: &NodeName, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let index = self.index_of(node)?;
        let was = self.infos[index as usize].remove_pod(uid);
        if let Some(was) = &was {
            self.volumes.count_users(&was.class, false);
        }
        self.changed(index);
        self.tidy(index);
        was
    }

    /// Adds a nominated pod to a node: it waits until its victims have terminated.
    pub fn nominate(&mut self, node: &str, pod: &Arc<PodInfo>) {
        let index = self.entry(node);
        self.infos[index as usize].nominated.push(pod.clone());
        self.nominations.insert(index);
        self.changed(index);
    }

    /// The same, and the pod keeps its place in topology domains (SPEC B5).
    pub fn nominate_in_domains(&mut self, node: &str, pod: &Arc<PodInfo>) {
        self.nominate(node, pod);
        let index = self.entry(node);
        self.nominated_in_domains.add(index, pod);
    }

    /// Removes a nominated pod from a node and returns it.
    pub fn end_nomination(&mut self, node: &NodeName, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let index = self.index_of(node)?;
        let info = &mut self.infos[index as usize];
        let at = info.nominated.iter().position(|p| p.uid() == uid)?;
        let was = info.nominated.remove(at);
        self.nominated_in_domains.remove(uid);
        if info.nominated.is_empty() {
            self.nominations.remove(&index);
        }
        self.changed(index);
        self.tidy(index);
        Some(was)
    }

    /// Nominated pods that keep their place in topology domains.
    pub fn nominated_in_domains(&self) -> &NominatedInDomains {
        &self.nominated_in_domains
    }

    /// Nodes to which pods are nominated.
    pub fn nominations(&self) -> &BTreeSet<NodeIndex> {
        &self.nominations
    }

    fn tidy(&mut self, index: NodeIndex) {
        let info = &mut self.infos[index as usize];
        if info.is_unused() {
            self.indices.remove(&info.name);
            *info = NodeInfo::default();
            for column in &mut self.columns {
                column.set(index, info);
            }
            self.free.push(index);
        }
    }

    pub fn set_namespace(&mut self, name: &str, namespace: Option<&Namespace>) {
        let labels = namespace.map(|n| n.metadata.labels.clone().unwrap_or_default());
        let was = match labels.clone() {
            Some(labels) => self.namespaces.insert(name.to_string(), labels),
            None => self.namespaces.remove(name),
        };
        if was != labels {
            self.related_objects_version += 1;
        }
    }

    pub fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    /// The namespaces whose labels the selector matches.
    pub fn namespaces<'a>(&'a self, selector: &'a Selector) -> impl Iterator<Item = &'a String> {
        let all = self.namespaces.iter();
        all.filter(|(_, labels)| selector.matches(Some(labels)))
            .map(|(name, _)| name)
    }

    pub fn set_service(&mut self, namespace: &str, name: &str, service: Option<&Service>) {
        let selector = service
            .and_then(|s| s.spec.as_ref()?.selector.clone())
            .filter(|s| !s.is_empty());
        let all = self.services.entry(namespace.to_string()).or_default();
        let was = match selector.clone() {
            Some(selector) => all.insert(name.to_string(), selector),
            None => all.remove(name),
        };
        if was != selector {
            self.related_objects_version += 1;
        }
    }

    fn set_owner(&mut self, kind: &'static str, namespace: &str, name: &str, workload: Option<Workload>) {
        let key = (kind, (namespace.to_string(), name.to_string()));
        let was = match workload.clone() {
            Some(workload) => self.owners.insert(key, workload),
            None => self.owners.remove(&key),
        };
        if was != workload {
            self.related_objects_version += 1;
        }
    }

    pub fn set_replica_set(&mut self, namespace: &str, name: &str, set: Option<&ReplicaSet>) {
        let selector = set.and_then(|s| s.spec.as_ref()).map(|s| &s.selector);
        let workload = selector.and_then(|s| Selector::from_label_selector(s).ok());
        self.set_owner(
            REPLICA_SET,
            namespace,
            name,
            workload.map(|s| Workload::Selector(Some(s))),
        );
    }

    pub fn set_stateful_set(&mut self, namespace: &str, name: &str, set: Option<&StatefulSet>) {
        let selector = set.and_then(|s| s.spec.as_ref()).map(|s| &s.selector);
        let workload = selector.and_then(|s| Selector::from_label_selector(s).ok());
        self.set_owner(
            STATEFUL_SET,
            namespace,
            name,
            workload.map(|s| Workload::Selector(Some(s))),
        );
    }

    pub fn set_replication_controller(
        &mut self,
        namespace: &str,
        name: &str,
        controller: Option<&ReplicationController>,
    ) {
        let labels = controller.map(|c| {
            c.spec
                .as_ref()
                .and_then(|s| s.selector.clone())
                .unwrap_or_default()
        });
        self.set_owner(
            REPLICATION_CONTROLLER,
            namespace,
            name,
            labels.map(Workload::Labels),
        );
    }

    /// The selector of the default topology spread constraints for a pod: the selectors of the Services that match it
    /// and of its owner, combined. `None` if that is empty.
    pub fn default_selector(&self, pod: &PodClass) -> Option<Selector> {
        let namespace = pod.namespace();
        let mut labels = Labels::new();
        for selector in self
            .services
            .get(namespace)
            .into_iter()
            .flat_map(BTreeMap::values)
        {
            if Selector::from_map(selector).matches(pod.labels()) {
                labels.extend(selector.clone());
            }
        }
        let owners = pod.example.metadata.owner_references.iter().flatten();
        let owner = owners.into_iter().find(|o| o.controller == Some(true));
        let kind = owner.and_then(|o| match (o.api_version.as_str(), o.kind.as_str()) {
            ("v1", REPLICATION_CONTROLLER) => Some(REPLICATION_CONTROLLER),
            ("apps/v1", REPLICA_SET) => Some(REPLICA_SET),
            ("apps/v1", STATEFUL_SET) => Some(STATEFUL_SET),
            _ => None,
        });
        let name = owner.map(|o| (namespace.to_string(), o.name.clone()));
        let workload = kind.zip(name).and_then(|key| self.owners.get(&key));
        let mut more: Vec<Requirement> = Vec::new();
        match workload {
            Some(Workload::Labels(of)) => labels.extend(of.clone()),
            Some(Workload::Selector(of)) => {
                more.extend(of.iter().flat_map(Selector::requirements).cloned());
            }
            None => {}
        }
        let selector = Selector::from_map(&labels).and(more);
        Some(selector).filter(|s| !s.is_everything())
    }

    /// Whether the budget may allow more evictions than before.
    pub fn set_budget(&mut self, namespace: &str, name: &str, budget: Option<&PodDisruptionBudget>) -> bool {
        self.budgets.set(namespace, name, budget)
    }

    /// Whether a PodDisruptionBudget allows no eviction of the pod now. Unlike in preemption, a budget with an empty
    /// selector matches all pods of its namespace.
    pub fn forbids_eviction(&self, pod: &Shared<Pod>) -> bool {
        self.budgets.forbid_eviction(pod)
    }

    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// An object of dynamic resource allocation was added, updated or deleted.
    pub fn devices_changed(&mut self, change: &dynamic_resources::claims::Change) {
        let before = self.devices.inventory.class_resources().clone();
        self.devices.apply(change);
        let now = self.devices.inventory.class_resources().clone();
        if before == now {
            return;
        }
        let indices: Vec<NodeIndex> = self.indices.values().copied().collect();
        for index in indices {
            self.infos[index as usize].device_class_resources = now.clone();
            self.changed(index);
        }
    }

    pub fn devices_mut(&mut self) -> &mut Devices {
        &mut self.devices
    }

    pub fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    pub fn volumes_mut(&mut self) -> &mut Volumes {
        &mut self.volumes
    }

    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    pub fn budgets_mut(&mut self) -> &mut Budgets {
        &mut self.budgets
    }
}

const REPLICA_SET: &str = "ReplicaSet";
const STATEFUL_SET: &str = "StatefulSet";
const REPLICATION_CONTROLLER: &str = "ReplicationController";
