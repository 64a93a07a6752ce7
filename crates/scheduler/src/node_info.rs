//! Nodes as the scheduler sees them: what each has, and what stands on it, kept up with every change.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Taint};
use knarr_api::Shared;
use knarr_api::k8s_openapi;

use crate::pod_info::{HostPort, PodInfo};
use crate::resources::Resources;

struct Standing {
    requests: Resources,
    requests_filled_in: Resources,
    host_ports: Vec<HostPort>,
}

/// One node with the sums over its pods.
#[derive(Default)]
pub struct NodeInfo {
    pub name: String,
    /// `None`: pods are bound to a name that no node has (any more).
    pub node: Option<Shared<Node>>,
    pub allocatable: Resources,
    pub requested: Resources,
    /// As [`PodInfo::requests_filled_in`].
    pub requested_filled_in: Resources,
    pods: BTreeMap<String, Standing>,
}

impl NodeInfo {
    pub fn new(name: &str) -> Self {
        NodeInfo {
            name: name.to_string(),
            ..NodeInfo::default()
        }
    }

    pub fn set_node(&mut self, node: Option<Shared<Node>>) {
        let status = node.as_ref().and_then(|n| n.status.as_ref());
        let allocatable = status.and_then(|s| s.allocatable.as_ref().or(s.capacity.as_ref()));
        self.allocatable = allocatable.map(Resources::from_list).unwrap_or_default();
        self.node = node;
    }

    /// The same node without its pods.
    pub fn bare(node: Shared<Node>) -> Self {
        let mut info = NodeInfo::new(node.object().name());
        info.set_node(Some(node));
        info
    }

    pub fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.node.as_ref()?.metadata.labels.as_ref()
    }

    pub fn taints(&self) -> &[Taint] {
        let spec = self.node.as_ref().and_then(|n| n.spec.as_ref());
        spec.and_then(|s| s.taints.as_deref()).unwrap_or_default()
    }

    pub fn is_unschedulable(&self) -> bool {
        let spec = self.node.as_ref().and_then(|n| n.spec.as_ref());
        spec.and_then(|s| s.unschedulable).unwrap_or(false)
    }

    pub fn pod_count(&self) -> usize {
        self.pods.len()
    }

    pub fn host_ports(&self) -> impl Iterator<Item = &HostPort> {
        self.pods.values().flat_map(|p| &p.host_ports)
    }

    /// Puts a pod on it; one that stands there already is taken as it is now.
    pub fn add_pod(&mut self, pod: &PodInfo) {
        self.remove_pod(pod.uid());
        self.requested.add(&pod.requests);
        self.requested_filled_in.add(&pod.requests_filled_in);
        let standing = Standing {
            requests: pod.requests.clone(),
            requests_filled_in: pod.requests_filled_in.clone(),
            host_ports: pod.host_ports.clone(),
        };
        self.pods.insert(pod.uid().to_string(), standing);
    }

    pub fn remove_pod(&mut self, uid: &str) {
        if let Some(pod) = self.pods.remove(uid) {
            self.requested.subtract(&pod.requests);
            self.requested_filled_in.subtract(&pod.requests_filled_in);
        }
    }
}

/// All nodes, densely, with their places by name. A place is used again after its node has gone.
#[derive(Default)]
pub struct Nodes {
    infos: Vec<NodeInfo>,
    places: BTreeMap<String, usize>,
    free: Vec<usize>,
    /// Of which there is a node.
    count: usize,
}

impl Nodes {
    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &NodeInfo)> {
        let all = self.infos.iter().enumerate();
        all.filter(|(_, info)| info.node.is_some())
    }

    pub fn at(&self, place: usize) -> &NodeInfo {
        &self.infos[place]
    }

    pub fn get(&self, name: &str) -> Option<&NodeInfo> {
        self.places.get(name).map(|place| &self.infos[*place])
    }

    fn entry(&mut self, name: &str) -> &mut NodeInfo {
        let place = match self.places.get(name) {
            Some(place) => *place,
            None => {
                let info = NodeInfo::new(name);
                let place = match self.free.pop() {
                    Some(place) => {
                        self.infos[place] = info;
                        place
                    }
                    None => {
                        self.infos.push(info);
                        self.infos.len() - 1
                    }
                };
                self.places.insert(name.to_string(), place);
                place
            }
        };
        &mut self.infos[place]
    }

    pub fn set(&mut self, name: &str, node: Option<Shared<Node>>) {
        let there = node.is_some();
        let info = self.entry(name);
        let was = info.node.is_some();
        info.set_node(node);
        self.count = self.count + usize::from(there) - usize::from(was);
        self.tidy(name);
    }

    pub fn add_pod(&mut self, node: &str, pod: &PodInfo) {
        self.entry(node).add_pod(pod);
    }

    pub fn remove_pod(&mut self, node: &str, uid: &str) {
        if let Some(place) = self.places.get(node) {
            self.infos[*place].remove_pod(uid);
            self.tidy(node);
        }
    }

    fn tidy(&mut self, name: &str) {
        let Some(place) = self.places.get(name).copied() else {
            return;
        };
        let info = &self.infos[place];
        if info.node.is_none() && info.pods.is_empty() {
            self.places.remove(name);
            self.infos[place] = NodeInfo::default();
            self.free.push(place);
        }
    }
}
