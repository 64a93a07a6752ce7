//! Authorization: whether a user may do what a request asks for.
//!
//! In this order: members of `system:masters` may do everything; the Node authorizer allows what kubelets need; RBAC allows
//! what roles and bindings grant.
//!
//! Some writes need permissions beyond the request's own, which stages of the pipeline check here: `escalation.rs` for roles and bindings,
//! `policy_params.rs` for the parameters of admission policies, `device_admin.rs` and `resource_claim.rs` for ResourceClaims.

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
use knarr_api::k8s_openapi;
use knarr_apimachinery::Error;
use knarr_apimachinery::error::ResourceRef;

pub use self::attributes::{Attributes, Selectors};
pub(crate) use self::device_admin::authorize_admin_access;
pub(crate) use self::escalation::check_escalation;
pub(crate) use self::policy_params::authorize_params;
pub(crate) use self::resource_claim::authorize_claim_status;
use crate::cache::Cache;
use crate::user::{MASTERS, User};
use cluster_bindings::ClusterBindings;

/// An authorizer's decision, with a reason that may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
}

/// The rules of a user, as far as the authorizers can list them.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub rules: Vec<PolicyRule>,
    /// Why the list is incomplete.
    pub error: Option<String>,
}

/// Decides whether a user may do something.
pub trait Authorizer: Send + Sync + 'static {
    fn allows(&self, user: &User, request: &Attributes<'_>) -> bool;

    /// Like [`Authorizer::allows`], with a reason.
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

/// The authorizers of a cluster, in the order that the module describes.
pub struct StandardAuthorizer {
    cache: Arc<Cache>,
    cluster_bindings: ClusterBindings,
}

impl StandardAuthorizer {
    pub fn new(cache: Arc<Cache>) -> Self {
        StandardAuthorizer {
            cache,
            cluster_bindings: ClusterBindings::default(),
        }
    }

    fn rbac(&self) -> rbac::RuleResolver<'_> {
        rbac::RuleResolver {
            cache: &self.cache,
            cluster: &self.cluster_bindings,
        }
    }
}

impl Authorizer for StandardAuthorizer {
    fn allows(&self, user: &User, request: &Attributes<'_>) -> bool {
        if user.is_in(MASTERS) {
            return true;
        }
        if let Some(node) = user.node()
            && node::allows(&self.cache, &node.into(), request)
        {
            return true;
        }
        rbac::allows(self.rbac(), user, request)
    }

    fn explain(&self, user: &User, request: &Attributes<'_>) -> Decision {
        let allowed = user.is_in(MASTERS)
            || user
                .node()
                .is_some_and(|node| node::allows(&self.cache, &node.into(), request));
        if allowed {
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
            rules.extend(rules::all_rules());
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

/// The error (403) of a denied request, with the authorizer's reason.
pub(crate) fn forbidden_with_reason(
    authorizer: &dyn Authorizer,
    user: &User,
    request: &Attributes<'_>,
) -> Error {
    match authorizer.explain(user, request).reason {
        none if none.is_empty() => forbidden(user, request),
        reason => forbidden_because(user, request, &format!(": {reason}")),
    }
}

/// The error (403) of a denied request, with kube-apiserver's message.
pub fn forbidden(user: &User, request: &Attributes<'_>) -> Error {
    forbidden_because(user, request, "")
}

fn forbidden_because(user: &User, request: &Attributes<'_>, reason: &str) -> Error {
    let (who, verb) = (&user.name, request.verb);
    if let Some(path) = request.path {
        let about = ResourceRef {
            group: "",
            resource: "",
            name: "",
        };
        return Error::forbidden(
            about,
            &format!("User {who:?} cannot {verb} path {path:?}{reason}"),
        );
    }
    let scope = if request.namespace.is_empty() {
        "at the cluster scope".to_string()
    } else {
        format!("in the namespace {:?}", request.namespace)
    };
    let why = format!(
        "User {who:?} cannot {verb} resource {:?} in API group {:?} {scope}{reason}",
        request.qualified_resource(),
        request.group
    );
    let about = ResourceRef {
        group: request.group,
        resource: request.resource,
        name: request.name,
    };
    Error::forbidden(about, &why)
}
