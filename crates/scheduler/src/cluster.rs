//! The dense picture of the cluster: nodes by place, the values of topology keys as columns of small numbers, and a log
//! of the places that changed, so that what is worked out from a node is worked out again only when it changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ReplicationController, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_api::selector::label::{Requirement, Selector};

use crate::dynamic_resources::{self, claims::Devices};
use crate::node_info::NodeInfo;
use crate::pod_info::{Labels, PodClass, PodInfo, Selects};
use crate::volumes::Volumes;

/// Where a node is in every column.
pub type Place = u32;

/// A node without the label.
pub const NO_VALUE: u32 = u32::MAX;

/// The values of one topology key, numbered.
#[derive(Debug, Default)]
pub struct Column {
    pub key: String,
    numbers: BTreeMap<String, u32>,
    at: Vec<u32>,
}

impl Column {
    /// The number of the node's value, or [`NO_VALUE`].
    pub fn at(&self, place: Place) -> u32 {
        self.at.get(place as usize).copied().unwrap_or(NO_VALUE)
    }

    /// The numbers of all nodes' values, by place.
    pub fn all(&self) -> &[u32] {
        &self.at
    }

    /// How many values were ever seen.
    pub fn values(&self) -> usize {
        self.numbers.len()
    }

    fn set(&mut self, place: Place, node: &NodeInfo) {
        let next = u32::try_from(self.numbers.len()).unwrap_or(NO_VALUE);
        let number = match node.label(&self.key) {
            Some(value) => match self.numbers.get(value) {
                Some(number) => *number,
                None => {
                    self.numbers.insert(value.to_string(), next);
                    next
                }
            },
            None => NO_VALUE,
        };
        let place = place as usize;
        if self.at.len() <= place {
            self.at.resize(place + 1, NO_VALUE);
        }
        self.at[place] = number;
    }
}

/// Number of a [`Column`].
pub type ColumnId = usize;

/// What is known of one image.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// As the first node said that had it.
    pub size_bytes: i64,
    nodes: BTreeSet<Place>,
}

impl Image {
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }
}

/// The places that changed, in order. Who has read it up to some point reads on from there.
#[derive(Debug, Default)]
struct Log {
    dropped: u64,
    places: Vec<Place>,
}

/// The log is cut when it is longer than this and twice the nodes: reading all nodes is cheaper then.
const SHORT_LOG: usize = 4096;

/// A disruption budget as preemption reads it.
#[derive(Clone, Debug)]
pub struct Budget {
    pub namespace: String,
    pub selector: Selector,
    pub disruptions_allowed: i32,
    /// Pods that are counted as disrupted already.
    pub disrupted: BTreeSet<String>,
}

/// What owns pods, for the default spread constraints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Of a Service or ReplicationController.
    Labels(Labels),
    /// Of a ReplicaSet or StatefulSet.
    Selector(Selects),
}

type Name = (String, String);

/// See the module.
#[derive(Debug, Default)]
pub struct Cluster {
    infos: Vec<NodeInfo>,
    places: BTreeMap<String, Place>,
    free: Vec<Place>,
    count: usize,
    columns: Vec<Column>,
    log: Log,
    images: BTreeMap<String, Image>,
    /// Grows whenever the spread of an image over the nodes changes.
    pub images_version: u64,
    namespaces: BTreeMap<String, Labels>,
    services: BTreeMap<String, BTreeMap<String, Labels>>,
    owners: BTreeMap<(&'static str, Name), Workload>,
    /// Grows whenever something changes that rules look at besides nodes and pods.
    pub surroundings_version: u64,
    budgets: BTreeMap<Name, Budget>,
    /// Grows with every change of a budget.
    pub budgets_version: u64,
    devices: Devices,
    volumes: Volumes,
    /// Nodes that carry nominations.
    nominations: BTreeSet<Place>,
}

impl Cluster {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// One more than the last place in use.
    pub fn places(&self) -> usize {
        self.infos.len()
    }

    /// All nodes that there are.
    pub fn iter(&self) -> impl Iterator<Item = (Place, &NodeInfo)> {
        let all = (0..).zip(&self.infos);
        all.filter(|(_, info)| info.node.is_some())
    }

    pub fn at(&self, place: Place) -> &NodeInfo {
        &self.infos[place as usize]
    }

    pub fn place(&self, name: &str) -> Option<Place> {
        self.places.get(name).copied()
    }

    pub fn get(&self, name: &str) -> Option<&NodeInfo> {
        self.place(name).map(|place| self.at(place))
    }

    pub fn column(&self, id: ColumnId) -> &Column {
        &self.columns[id]
    }

    pub fn columns(&self) -> usize {
        self.columns.len()
    }

    /// The column of a topology key, made if nobody asked for it before.
    pub fn column_of(&mut self, key: &str) -> ColumnId {
        if let Some(id) = self.columns.iter().position(|c| c.key == key) {
            return id;
        }
        let mut column = Column {
            key: key.to_string(),
            ..Column::default()
        };
        for (place, info) in (0..).zip(&self.infos) {
            column.set(place, info);
        }
        self.columns.push(column);
        self.columns.len() - 1
    }

    fn entry(&mut self, name: &str) -> Place {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        let mut info = NodeInfo::new(name);
        info.device_class_resources = self.devices.inventory.class_resources().clone();
        let place = match self.free.pop() {
            Some(place) => {
                self.infos[place as usize] = info;
                place
            }
            None => {
                self.infos.push(info);
                Place::try_from(self.infos.len() - 1).unwrap_or(Place::MAX)
            }
        };
        self.places.insert(name.to_string(), place);
        place
    }

    fn changed(&mut self, place: Place) {
        let log = &mut self.log;
        if log.places.len() > SHORT_LOG.max(2 * self.infos.len()) {
            log.dropped += log.places.len() as u64;
            log.places.clear();
        }
        log.places.push(place);
    }

    /// Where the log ends now.
    pub fn now(&self) -> u64 {
        self.log.dropped + self.log.places.len() as u64
    }

    /// The places that changed since; `None`: too long ago to say.
    pub fn changes_since(&self, then: u64) -> Option<&[Place]> {
        let from = usize::try_from(then.checked_sub(self.log.dropped)?).ok()?;
        self.log.places.get(from..)
    }

    pub fn set_node(&mut self, name: &str, node: Option<Shared<Node>>) {
        let there = node.is_some();
        let place = self.entry(name);
        let info = &mut self.infos[place as usize];
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
                    image.nodes.remove(&place);
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
                image.nodes.insert(place);
            }
        }
        let info = &mut self.infos[place as usize];
        info.set_node(node);
        for column in &mut self.columns {
            column.set(place, info);
        }
        self.changed(place);
        self.tidy(place);
    }

    pub fn image(&self, name: &str) -> Option<&Image> {
        self.images.get(name)
    }

    /// Whether that node has the image.
    pub fn image_on(&self, name: &str, place: Place) -> Option<&Image> {
        self.images.get(name).filter(|image| image.nodes.contains(&place))
    }

    pub fn add_pod(&mut self, node: &str, pod: &Arc<PodInfo>) {
        let place = self.entry(node);
        if self.infos[place as usize].renew_pod(pod) {
            return;
        }
        if let Some(was) = self.infos[place as usize].add_pod(pod) {
            self.volumes.count_users(&was.class, false);
        }
        self.volumes.count_users(&pod.class, true);
        self.changed(place);
    }

    /// The pod that stood there.
    pub fn remove_pod(&mut self, node: &str, uid: &str) -> Option<Arc<PodInfo>> {
        let place = self.place(node)?;
        let was = self.infos[place as usize].remove_pod(uid);
        if let Some(was) = &was {
            self.volumes.count_users(&was.class, false);
        }
        self.changed(place);
        self.tidy(place);
        was
    }

    /// Keeps room on a node for a pod that waits for its victims to go.
    pub fn nominate(&mut self, node: &str, pod: &Arc<PodInfo>) {
        let place = self.entry(node);
        self.infos[place as usize].nominated.push(pod.clone());
        self.nominations.insert(place);
        self.changed(place);
    }

    /// The pod for which room was kept.
    pub fn end_nomination(&mut self, node: &str, uid: &str) -> Option<Arc<PodInfo>> {
        let place = self.place(node)?;
        let info = &mut self.infos[place as usize];
        let at = info.nominated.iter().position(|p| p.uid() == uid)?;
        let was = info.nominated.remove(at);
        if info.nominated.is_empty() {
            self.nominations.remove(&place);
        }
        self.changed(place);
        self.tidy(place);
        Some(was)
    }

    /// Nodes to which pods are nominated.
    pub fn nominations(&self) -> &BTreeSet<Place> {
        &self.nominations
    }

    fn tidy(&mut self, place: Place) {
        let info = &mut self.infos[place as usize];
        if info.is_unused() {
            self.places.remove(&info.name);
            *info = NodeInfo::default();
            for column in &mut self.columns {
                column.set(place, info);
            }
            self.free.push(place);
        }
    }

    pub fn set_namespace(&mut self, name: &str, namespace: Option<&Namespace>) {
        let labels = namespace.map(|n| n.metadata.labels.clone().unwrap_or_default());
        let was = match labels.clone() {
            Some(labels) => self.namespaces.insert(name.to_string(), labels),
            None => self.namespaces.remove(name),
        };
        if was != labels {
            self.surroundings_version += 1;
        }
    }

    pub fn namespace_labels(&self, name: &str) -> Option<&Labels> {
        self.namespaces.get(name)
    }

    /// The namespaces that exist and whose labels are selected.
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
            self.surroundings_version += 1;
        }
    }

    fn set_owner(&mut self, kind: &'static str, namespace: &str, name: &str, workload: Option<Workload>) {
        let key = (kind, (namespace.to_string(), name.to_string()));
        let was = match workload.clone() {
            Some(workload) => self.owners.insert(key, workload),
            None => self.owners.remove(&key),
        };
        if was != workload {
            self.surroundings_version += 1;
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

    /// What the default spread constraints select for a pod: the selectors of the Services that select it and of what
    /// controls it, together. `None` where that is nothing in particular.
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

    pub fn set_budget(&mut self, namespace: &str, name: &str, budget: Option<&PodDisruptionBudget>) {
        let key = (namespace.to_string(), name.to_string());
        let read = budget.and_then(|b| {
            let selector = b.spec.as_ref()?.selector.as_ref()?;
            let status = b.status.as_ref();
            let disrupted = status.and_then(|s| s.disrupted_pods.as_ref());
            Some(Budget {
                namespace: namespace.to_string(),
                selector: Selector::from_label_selector(selector).ok()?,
                disruptions_allowed: status.and_then(|s| s.disruptions_allowed).unwrap_or(0),
                disrupted: disrupted
                    .into_iter()
                    .flatten()
                    .map(|(pod, _)| pod.clone())
                    .collect(),
            })
        });
        match read {
            Some(budget) => self.budgets.insert(key, budget),
            None => self.budgets.remove(&key),
        };
        self.budgets_version += 1;
    }

    /// Whether a budget allows no eviction of the pod at this moment. Other than in preemption, a budget with an empty
    /// selector is for all pods of its namespace.
    pub fn forbids_eviction(&self, pod: &Shared<Pod>) -> bool {
        let (namespace, name) = (pod.object().namespace(), pod.object().name());
        self.budgets.values().any(|budget| {
            budget.namespace == namespace
                && budget.disruptions_allowed <= 0
                && budget.selector.matches(pod.metadata.labels.as_ref())
                && !budget.disrupted.contains(name)
        })
    }

    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// Something of dynamic resource allocation is new, has changed or has gone.
    pub fn devices_changed(&mut self, change: &dynamic_resources::claims::Change) {
        let before = self.devices.inventory.class_resources().clone();
        self.devices.apply(change);
        let now = self.devices.inventory.class_resources().clone();
        if before == now {
            return;
        }
        let places: Vec<Place> = self.places.values().copied().collect();
        for place in places {
            self.infos[place as usize].device_class_resources = now.clone();
            self.changed(place);
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

    pub fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.budgets.values()
    }
}

const REPLICA_SET: &str = "ReplicaSet";
const STATEFUL_SET: &str = "StatefulSet";
const REPLICATION_CONTROLLER: &str = "ReplicationController";
