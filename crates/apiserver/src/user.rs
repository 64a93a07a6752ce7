//! The user of a request.

use knarr_client::identity::{NETWORK_AGENT_PREFIX, NETWORK_AGENTS};

/// An authenticated identity, as Kubernetes' `user.Info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Further attributes, such as the pod that a service-account token is bound to.
    pub extra: std::collections::BTreeMap<String, Vec<String>>,
}

pub const MASTERS: &str = "system:masters";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
pub const NODES: &str = "system:nodes";
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

impl User {
    pub fn new(name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        User {
            name: name.into(),
            groups: groups.into_iter().map(Into::into).collect(),
            ..User::default()
        }
    }

    pub fn anonymous() -> Self {
        User::new(ANONYMOUS, [UNAUTHENTICATED])
    }

    /// Adds the group of all authenticated users.
    pub fn authenticated(mut self) -> Self {
        if !self.is_in(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.into());
        }
        self
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// The node's name, for `system:node:<name>` in group `system:nodes`.
    pub fn node(&self) -> Option<&str> {
        self.name
            .strip_prefix("system:node:")
            .filter(|_| self.is_in(NODES))
    }

    /// The node's name, for `system:knarr:network-agent:<node>` in the group of network agents.
    pub fn network_agent(&self) -> Option<&str> {
        self.name
            .strip_prefix(NETWORK_AGENT_PREFIX)
            .filter(|_| self.is_in(NETWORK_AGENTS))
    }

    /// The namespace and name of the service account.
    pub fn as_service_account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix("system:serviceaccount:")?.split_once(':')
    }

    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        User {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: uid.to_string(),
            groups: vec![
                SERVICE_ACCOUNTS.into(),
                format!("{SERVICE_ACCOUNTS}:{namespace}"),
                AUTHENTICATED.into(),
            ],
            ..User::default()
        }
    }
}
