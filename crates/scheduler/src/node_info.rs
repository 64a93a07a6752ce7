//! NodeInfo: one node with the pods that are assigned to it, updated with every change.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use knarr_api::Shared;
use knarr_api::k8s_openapi;
use knarr_apimachinery::ids::NodeName;

use crate::pod_info::{HostPort, Labels, PodClass, PodInfo};
use crate::resources::{NonZeroRequests, Resources};

/// Pods of one class on one node.
#[derive(Clone, Debug)]
pub struct Group {
    pub class: Arc<PodClass>,
    pub count: u32,
    /// How many of them are terminating.
    pub terminating: u32,
}

/// One node with the sums over its pods.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    pub name: NodeName,
    /// `None`: pods are assigned to a node name that has no Node object (any more).
    pub node: Option<Shared<Node>>,
    pub allocatable: Resources,
    /// The extended resources that DeviceClasses provide, in the whole cluster (KEP-5004).
    pub device_class_resources: Arc<BTreeSet<String>>,
    pub requested: Resources,
    /// Like `requested`, with a default for containers without requests; used for scoring.
    pub non_zero_requested: NonZeroRequests,
    /// Nominated pods, which come here once their victims have terminated.
    pub nominated: Vec<Arc<PodInfo>>,
    /// In the order in which they were added.
    pods: Vec<Arc<PodInfo>>,
    groups: Vec<Group>,
    /// One entry for each pod with host ports and port.
    host_ports: Vec<HostPort>,
}

impl NodeInfo {
    pub fn new(name: impl Into<NodeName>) -> Self {
        NodeInfo {
            name: name.into(),
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

    /// Whether pods get this resource here as devices of a DeviceClass: a class provides it, and no device plugin of
    /// the node does.
    pub fn allocates_devices_for(&self, resource: &str) -> bool {
        self.allocatable.get(resource) == 0 && self.device_class_resources.contains(resource)
    }

    pub fn labels(&self) -> Option<&Labels> {
        self.node.as_ref()?.metadata.labels.as_ref()
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels()?.get(key).map(String::as_str)
    }

    pub fn taints(&self) -> &[Taint] {
        let spec = self.node.as_ref().and_then(|n| n.spec.as_ref());
        spec.and_then(|s| s.taints.as_deref()).unwrap_or_default()
    }

    pub fn is_unschedulable(&self) -> bool {
        let spec = self.node.as_ref().and_then(|n| n.spec.as_ref());
        spec.and_then(|s| s.unschedulable).unwrap_or(false)
    }

    pub fn pods(&self) -> &[Arc<PodInfo>] {
        &self.pods
    }

    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn host_ports(&self) -> &[HostPort] {
        &self.host_ports
    }

    pub fn is_unused(&self) -> bool {
        self.node.is_none() && self.pods.is_empty() && self.nominated.is_empty()
    }

    /// Adds a pod; one that is assigned already is replaced, and returned as it was.
    pub fn add_pod(&mut self, pod: &Arc<PodInfo>) -> Option<Arc<PodInfo>> {
        let was = self.remove_pod(pod.uid());
        let requests = pod.requests();
        self.requested.add(&requests.resources);
        self.non_zero_requested.add(requests.assigned);
        self.host_ports.extend(pod.class.host_ports.iter().cloned());
        let terminating = u32::from(pod.is_terminating());
        match self.groups.iter_mut().find(|g| g.class.id == pod.class.id) {
            Some(group) => {
                group.count += 1;
                group.terminating += terminating;
            }
            None => self.groups.push(Group {
                class: pod.class.clone(),
                count: 1,
                terminating,
            }),
        }
        self.pods.push(pod.clone());
        was
    }

    /// Replaces an assigned pod where no plugin sees a difference: nothing else of the node changes.
    pub fn refresh_pod(&mut self, pod: &Arc<PodInfo>) -> bool {
        let known = self.pods.iter_mut().find(|p| p.uid() == pod.uid());
        let Some(known) = known.filter(|known| known.is_equivalent(pod)) else {
            return false;
        };
        *known = pod.clone();
        true
    }

    /// Computes the sums from the beginning.
    fn add_up(&mut self) {
        self.requested = Resources::default();
        self.non_zero_requested = NonZeroRequests::default();
        for pod in &self.pods {
            let requests = pod.requests();
            self.requested.add(&requests.resources);
            self.non_zero_requested.add(requests.assigned);
        }
    }

    /// Removes a pod, if it is assigned here.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let at = self.pods.iter().position(|p| p.uid() == uid)?;
        let pod = self.pods.remove(at);
        if self.requested.is_saturated() || self.non_zero_requested.is_saturated() {
            self.add_up();
        } else {
            let requests = pod.requests();
            self.requested.subtract(&requests.resources);
            self.non_zero_requested.subtract(requests.assigned);
        }
        for port in &pod.class.host_ports {
            if let Some(at) = self.host_ports.iter().position(|p| p == port) {
                self.host_ports.swap_remove(at);
            }
        }
        if let Some(at) = self.groups.iter().position(|g| g.class.id == pod.class.id) {
            let group = &mut self.groups[at];
            group.count -= 1;
            group.terminating -= u32::from(pod.is_terminating());
            if group.count == 0 {
                self.groups.swap_remove(at);
            }
        }
        Some(pod)
    }
}
