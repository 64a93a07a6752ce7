//! The components of the network that `--disable` names.

/// A component of the network that can be disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The service proxy.
    Proxy,
    /// The cluster DNS server of each node.
    Dns,
    /// Pods' interfaces and addresses, and routes between nodes.
    Network,
    /// NetworkPolicies.
    Policy,
    /// Addresses of Services of type LoadBalancer.
    LoadBalancer,
}
