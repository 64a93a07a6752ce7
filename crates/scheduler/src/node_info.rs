//! One node as the scheduler sees it: what it has, and what stands on it, kept up with every change.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};
use knarr_api::Shared;
use knarr_api::k8s_openapi;

use crate::pod_info::{HostPort, Labels, PodClass, PodInfo};
use crate::resources::{Compared, Resources};

/// Pods of one class on one node.
#[derive(Clone, Debug)]
pub struct Group {
    pub class: Arc<PodClass>,
    pub count: u32,
    /// Of which are being deleted.
    pub terminating: u32,
}

/// One node with the sums over its pods.
#[derive(Clone, Debug, Default)]
pub struct NodeInfo {
    pub name: String,
    /// `None`: pods are bound to a name that no node has (any more).
    pub node: Option<Shared<Node>>,
    pub allocatable: Resources,
    /// Extended resources that a DeviceClass stands for, of the whole cluster (KEP-5004).
    pub device_class_resources: Arc<BTreeSet<String>>,
    pub requested: Resources,
    /// With something for what asks for nothing, for comparing nodes.
    pub requested_filled_in: Compared,
    /// Those that are to come here once their victims have gone.
    pub nominated: Vec<Arc<PodInfo>>,
    /// In the order in which they came.
    pods: Vec<Arc<PodInfo>>,
    groups: Vec<Group>,
    /// One entry for each pod with host ports and port.
    host_ports: Vec<HostPort>,
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

    /// Whether pods get this resource here as devices of a DeviceClass: one stands for it, and no device plugin of the
    /// node provides it.
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

    /// Puts a pod on it; one that stands there already is taken as it is now. As what it stood there.
    pub fn add_pod(&mut self, pod: &Arc<PodInfo>) -> Option<Arc<PodInfo>> {
        let was = self.remove_pod(pod.uid());
        let requests = pod.requests();
        self.requested.add(&requests.room);
        self.requested_filled_in.add(requests.standing);
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

    /// Takes a pod that stands here as it is now, where that is no news to any rule: nothing else of the node changes.
    pub fn renew_pod(&mut self, pod: &Arc<PodInfo>) -> bool {
        let known = self.pods.iter_mut().find(|p| p.uid() == pod.uid());
        let Some(known) = known.filter(|known| known.is_alike(pod)) else {
            return false;
        };
        *known = pod.clone();
        true
    }

    /// The sums from the beginning.
    fn add_up(&mut self) {
        self.requested = Resources::default();
        self.requested_filled_in = Compared::default();
        for pod in &self.pods {
            let requests = pod.requests();
            self.requested.add(&requests.room);
            self.requested_filled_in.add(requests.standing);
        }
    }

    /// Takes a pod off it, if it is there.
    pub fn remove_pod(&mut self, uid: &str) -> Option<Arc<PodInfo>> {
        let at = self.pods.iter().position(|p| p.uid() == uid)?;
        let pod = self.pods.remove(at);
        if self.requested.is_saturated() || self.requested_filled_in.is_saturated() {
            self.add_up();
        } else {
            let requests = pod.requests();
            self.requested.subtract(&requests.room);
            self.requested_filled_in.subtract(requests.standing);
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
