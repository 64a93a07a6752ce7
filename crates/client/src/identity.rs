//! The users of the cluster's components: each has one of its own, with the role that Kubernetes' bootstrap policy gives it.
//!
//! As kube-controller-manager with `--use-service-account-credentials`: caches are filled by
//! `system:kube-controller-manager`, each controller reads live objects and writes as its service account in
//! `kube-system`. A [`Component`] names a user and its groups; none of them is a member of `system:masters`, and there
//! is no way to make one that is.

use std::sync::Arc;

use crate::api::Api;
use crate::term::Term;

/// The namespace of the controllers' service accounts.
pub const CONTROLLERS: &str = "kube-system";

/// A component of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// `system:apiserver`: the API server's own reads.
    ApiServer,
    /// `system:kube-controller-manager`: the caches that controllers and scheduler share, and the leader's lease.
    ControllerManager,
    /// `system:kube-scheduler`.
    Scheduler,
    /// The service account of one controller, such as `job-controller`.
    Controller(&'static str),
    /// `system:node:<name>`: a kubelet.
    Node(String),
    /// `system:knarr:network-agent:<node>`: the service proxy, DNS server and policy enforcement of a node. They read what a kubelet
    /// may not: all Services, policies and the addresses of all pods.
    NetworkAgent(String),
}

/// The group of all network agents.
pub const NETWORK_AGENTS: &str = "system:knarr:network-agents";
/// The prefix of their user names; the node's name follows.
pub const NETWORK_AGENT_PREFIX: &str = "system:knarr:network-agent:";
/// Where each network agent keeps a Lease of its node's name, in which it reports the endpoints its kernel has.
pub const NETWORK_NAMESPACE: &str = "knarr-network";

impl Component {
    /// The user's name.
    pub fn user(&self) -> String {
        match self {
            Component::ApiServer => "system:apiserver".into(),
            Component::ControllerManager => "system:kube-controller-manager".into(),
            Component::Scheduler => "system:kube-scheduler".into(),
            Component::Controller(account) => format!("system:serviceaccount:{CONTROLLERS}:{account}"),
            Component::Node(name) => format!("system:node:{name}"),
            Component::NetworkAgent(node) => format!("{NETWORK_AGENT_PREFIX}{node}"),
        }
    }

    /// The groups of the user, without `system:authenticated`.
    pub fn groups(&self) -> Vec<String> {
        match self {
            Component::ApiServer | Component::ControllerManager | Component::Scheduler => Vec::new(),
            Component::Controller(_) => vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{CONTROLLERS}"),
            ],
            Component::Node(_) => vec!["system:nodes".into()],
            Component::NetworkAgent(_) => vec![NETWORK_AGENTS.into()],
        }
    }

    /// The field manager of its writes: the name of the Kubernetes program. `None`: the default for the user.
    pub fn field_manager(&self) -> Option<&'static str> {
        match self {
            Component::ControllerManager | Component::Controller(_) => Some("kube-controller-manager"),
            Component::Scheduler => Some("kube-scheduler"),
            Component::ApiServer | Component::Node(_) | Component::NetworkAgent(_) => None,
        }
    }
}

/// Gives each component a client that acts as its own user.
pub trait Identities: Send + Sync + 'static {
    /// The client of this component.
    fn of(&self, component: &Component) -> Arc<dyn Api>;

    /// The same identities, with every write made only while `term` lasts, see [`Api::with_term`].
    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Identities>;
}

/// One client for all components: for tests, and for benchmarks that measure something else.
pub struct SingleUser(pub Arc<dyn Api>);

impl Identities for SingleUser {
    fn of(&self, _: &Component) -> Arc<dyn Api> {
        self.0.clone()
    }

    fn with_term(self: Arc<Self>, term: Term) -> Arc<dyn Identities> {
        Arc::new(SingleUser(self.0.clone().with_term(term)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a4_no_component_is_a_member_of_system_masters() {
        let all = [
            Component::ApiServer,
            Component::ControllerManager,
            Component::Scheduler,
            Component::Controller("job-controller"),
            Component::Node("n1".into()),
            Component::NetworkAgent("n1".into()),
        ];
        for component in all {
            assert!(
                !component.groups().iter().any(|g| g == "system:masters"),
                "{component:?}"
            );
            assert!(component.user().starts_with("system:"), "{component:?}");
        }
    }
}
