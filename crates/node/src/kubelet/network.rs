//! What the kubelet needs of its node's network, where that is knarr's.

use std::fmt::Debug;

use async_trait::async_trait;
use k8s_openapi::api::core::v1 as core;
use knarr_api::k8s_openapi;

/// The agent of the node's network.
#[async_trait]
pub trait NodeNetwork: Debug + Send + Sync + 'static {
    /// Returns when no service proxy of the cluster sends new connections to this pod (SPEC B7), which has the
    /// resourceVersion at which its deletion became known; at once if no Service can have offered it. The result is whether
    /// one has offered it. The caller bounds the wait.
    async fn withdrawn(&self, pod: &core::Pod) -> bool;

    /// Whether [`NodeNetwork::withdrawn`] works: the service proxy is knarr's. Otherwise the kubelet watches
    /// EndpointSlices.
    fn reports_endpoints(&self) -> bool;

    /// Whether pods of this node can be reached from other nodes; `None` where another network reports it.
    fn availability(&self) -> Option<Availability>;

    /// Prometheus' text, under the names of kube-proxy and CoreDNS.
    fn metrics(&self) -> String;

    /// Returns when [`NodeNetwork::availability`] has changed since the last call.
    async fn availability_changed(&self);
}

/// The content of the node's condition `NetworkUnavailable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    pub is_available: bool,
    pub reason: &'static str,
    pub message: String,
}
