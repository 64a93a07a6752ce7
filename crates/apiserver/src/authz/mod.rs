//! Authorization: who may do what.
//!
//! In order: members of `system:masters` may everything; nodes what kubelets need; everybody else what RBAC's
//! roles and bindings say.

mod attributes;
mod cluster_bindings;
pub mod default_roles;
mod device_admin;
mod escalation;
pub(crate) mod node;
mod policy_params;
mod rbac;
mod resource_claim;
mod rules;

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::rbac::v1::PolicyRule;
use knarr_api::error::About;
use knarr_api::{Error, k8s_openapi};

pub use self::attributes::{Attributes, Selectors};
use crate::cache::Cache;
use crate::user::{MASTERS, User};
use cluster_bindings::ClusterBindings;

/// What was decided, and why: empty where there is nothing to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
}

/// What somebody may do, as far as it can be listed.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub rules: Vec<PolicyRule>,
    /// Why that is not all.
    pub error: Option<String>,
}

/// Says who may do what.
pub trait Authorizer: Send + Sync + 'static {
    fn allows(&self, user: &User, request: &Attributes<'_>) -> bool;

    /// The same with words for it.
    fn explain(&self, user: &User, request: &Attributes<'_>) -> Decision {
        Decision {
            allowed: self.allows(user, request),
            reason: String::new(),
        }
    }

    fn rules_for(&self, _user: &User, _namespace: &str) -> Rules {
        Rules {
            rules: Vec::new(),
            error: Some("this authorizer does not list rules".into()),
        }
    }
}

impl fmt::Debug for dyn Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorizer")
    }
}

/// The order of the module's documentation.
pub struct Standard {
    cache: Arc<Cache>,
    cluster_bindings: ClusterBindings,
}

impl Standard {
    pub fn new(cache: Arc<Cache>) -> Self {
        Standard {
            cache,
            cluster_bindings: ClusterBindings::default(),
        }
    }

    fn rbac(&self) -> rbac::Policy<'_> {
        rbac::Policy {
            cache: &self.cache,
            cluster: &self.cluster_bindings,
        }
    }
}

impl Authorizer for Standard {
    fn allows(&self, user: &User, request: &Attributes<'_>) -> bool {
        if user.is_in(MASTERS) {
            return true;
        }
        if let Some(node) = user.node()
            && node::allows(&self.cache, node, request)
        {
            return true;
        }
        rbac::allows(self.rbac(), user, request)
    }

    fn explain(&self, user: &User, request: &Attributes<'_>) -> Decision {
        let before = user.is_in(MASTERS)
            || user
                .node()
                .is_some_and(|node| node::allows(&self.cache, node, request));
        if before {
            return Decision {
                allowed: true,
                reason: String::new(),
            };
        }
        rbac::explain(self.rbac(), user, request)
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Rules {
        let mut rules = Vec::new();
        if user.is_in(MASTERS) {
            rules.extend(rules::full_authority());
        }
        rules.extend(rbac::rules_for(self.rbac(), user, namespace));
        Rules {
            rules,
            error: user
                .node()
                .map(|_| "node authorizer does not support user rule resolution".to_string()),
        }
    }
}

/// The refusal with what the authorizer has to say about it.
pub(crate) fn refused(authorizer: &dyn Authorizer, user: &User, request: &Attributes<'_>) -> Error {
    match authorizer.explain(user, request).reason {
        none if none.is_empty() => forbidden(user, request),
        reason => because(user, request, &format!(": {reason}")),
    }
}

/// The refusal, in Kubernetes' words.
pub fn forbidden(user: &User, request: &Attributes<'_>) -> Error {
    because(user, request, "")
}

fn because(user: &User, request: &Attributes<'_>, reason: &str) -> Error {
    let (who, verb) = (&user.name, request.verb);
    if let Some(path) = request.path {
        let about = About {
            group: "",
            resource: "",
            name: "",
        };
        return Error::forbidden(
            about,
            &format!("User {who:?} cannot {verb} path {path:?}{reason}"),
        );
    }
    let place = if request.namespace.is_empty() {
        "at the cluster scope".to_string()
    } else {
        format!("in the namespace {:?}", request.namespace)
    };
    let why = format!(
        "User {who:?} cannot {verb} resource {:?} in API group {:?} {place}{reason}",
        request.qualified_resource(),
        request.group
    );
    let about = About {
        group: request.group,
        resource: request.resource,
        name: request.name,
    };
    Error::forbidden(about, &why)
}
