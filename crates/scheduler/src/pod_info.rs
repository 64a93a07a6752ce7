//! A pod as the scheduler looks at it: what it needs is worked out once, not for every node.

use k8s_openapi::api::core::v1::{NodeSelector, Pod, Toleration};
use knarr_api::k8s_openapi;
use knarr_api::{ObjectKey, Shared};

use crate::resources::{Resources, requests};

/// A port on the node itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub protocol: String,
    pub port: i32,
    /// `0.0.0.0` is every address.
    pub ip: String,
}

impl HostPort {
    /// Whether both cannot be had on one node.
    pub fn conflicts(&self, other: &HostPort) -> bool {
        const ANY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || self.ip == ANY || other.ip == ANY)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct PodInfo {
    pub pod: Shared<Pod>,
    pub priority: i32,
    pub requests: Resources,
    /// With something for what asks for nothing: for comparing nodes.
    pub requests_filled_in: Resources,
    pub host_ports: Vec<HostPort>,
}

impl PodInfo {
    pub fn new(pod: Shared<Pod>) -> Self {
        PodInfo {
            priority: pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            requests: requests(&pod, false),
            requests_filled_in: requests(&pod, true),
            host_ports: host_ports(&pod),
            pod,
        }
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::of(self.pod.object())
    }

    pub fn uid(&self) -> &str {
        self.pod.object().uid()
    }

    /// Empty while it is not bound.
    pub fn node_name(&self) -> &str {
        node_name(&self.pod)
    }

    pub fn tolerations(&self) -> &[Toleration] {
        let spec = self.pod.spec.as_ref();
        spec.and_then(|s| s.tolerations.as_deref()).unwrap_or_default()
    }

    /// The node affinity a node must meet.
    pub fn required_node_affinity(&self) -> Option<&NodeSelector> {
        let affinity = self
            .pod
            .spec
            .as_ref()?
            .affinity
            .as_ref()?
            .node_affinity
            .as_ref()?;
        affinity
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    }
}

pub fn node_name(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|s| s.node_name.as_deref())
        .unwrap_or("")
}

/// Whether its containers have ended, so that it takes no room.
pub fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec
        .containers
        .iter()
        .chain(sidecars)
        .flat_map(|c| c.ports.iter().flatten());
    let host_port = |port: &k8s_openapi::api::core::v1::ContainerPort| {
        Some(HostPort {
            port: port.host_port.filter(|p| *p > 0)?,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            ip: port
                .host_ip
                .clone()
                .filter(|ip| !ip.is_empty())
                .unwrap_or_else(|| "0.0.0.0".into()),
        })
    };
    ports.filter_map(host_port).collect()
}
