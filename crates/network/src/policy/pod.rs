//! Pods, reduced to the fields that policies need.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;
use knarr_api::kinds::pod::is_terminal;
use knarr_api::well_known::MIRROR_ANNOTATION;

use super::peers::Labels;
use crate::catalog::Protocol;

/// Namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl PodKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        PodKey {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for PodKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A container port with a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPort {
    pub name: Box<str>,
    pub protocol: Protocol,
    pub number: u16,
}

/// A sandbox of this node with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The sandbox's id.
    pub sandbox: Arc<str>,
    /// `None` for a sandbox without a pod: no policy selects it.
    pub pod: Option<PodKey>,
    /// Of the pod's object; where it is known, an object with another one is not this pod.
    pub uid: Option<Box<str>>,
    pub addresses: Vec<IpAddr>,
}

/// Namespace and labels; pods with equal ones share it, and so the results of selectors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProfileKey {
    pub namespace: Arc<str>,
    pub labels: Labels,
}

/// What is kept of a pod, besides its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub profile: Arc<ProfileKey>,
    pub uid: Box<str>,
    /// The uid that the kubelet gave a static pod, whose mirror this is.
    pub mirror_of: Option<Box<str>>,
    /// Empty for pods in the host network, and for those that have finished: their addresses may belong to other pods by now.
    pub addresses: Box<[IpAddr]>,
    pub ports: Arc<[NamedPort]>,
}

impl Pod {
    pub fn of(pod: &core::Pod, namespace: Arc<str>) -> Self {
        let spec = pod.spec.as_ref();
        let status = pod.status.as_ref();
        let has_no_address = spec.and_then(|s| s.host_network).unwrap_or(false) || is_terminal(pod);
        let mut addresses: Vec<IpAddr> = Vec::new();
        if !has_no_address {
            let all = status.and_then(|s| s.pod_ips.as_deref()).unwrap_or_default();
            let texts = all.iter().map(|ip| ip.ip.as_str());
            let first = status.and_then(|s| s.pod_ip.as_deref());
            for address in texts.chain(first).filter_map(|text| text.parse().ok()) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        let annotations = pod.metadata.annotations.as_ref();
        Pod {
            profile: Arc::new(ProfileKey {
                namespace,
                labels: pod.metadata.labels.clone().unwrap_or_default(),
            }),
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            mirror_of: annotations
                .and_then(|a| a.get(MIRROR_ANNOTATION))
                .map(|uid| uid.as_str().into()),
            addresses: addresses.into(),
            ports: named_ports(pod).into(),
        }
    }

    pub fn is(&self, uid: Option<&str>) -> bool {
        uid.is_none_or(|uid| *self.uid == *uid || self.mirror_of.as_deref() == Some(uid))
    }

    /// As with endpoints of Services, the first port of a name and protocol counts.
    pub fn port(&self, protocol: Protocol, name: &str) -> Option<u16> {
        let mut ports = self.ports.iter();
        let port = ports.find(|port| port.protocol == protocol && *port.name == *name)?;
        Some(port.number)
    }
}

/// Named ports of regular containers and sidecars; other init containers have finished when clients connect.
fn named_ports(pod: &core::Pod) -> Vec<NamedPort> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let init = spec.init_containers.iter().flatten();
    let sidecars = init.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let containers = spec.containers.iter().chain(sidecars);
    containers
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| {
            Some(NamedPort {
                name: port.name.as_deref().filter(|name| !name.is_empty())?.into(),
                protocol: Protocol::parse(port.protocol.as_deref())?,
                number: u16::try_from(port.container_port).ok()?,
            })
        })
        .collect()
}
