//! Authorization: who may do what.
//!
//! In order: members of `system:masters` may everything; nodes what kubelets need; everybody else what RBAC's
//! roles and bindings say.

pub mod default_roles;
mod node;
mod rbac;

use std::sync::Arc;

use knarr_api::Error;
use knarr_api::error::About;

use crate::cache::Cache;
use crate::request::RequestInfo;
use crate::user::{MASTERS, User};

/// One question. `resource` is empty for paths that are no resource's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: &'a str,
    /// What a list, watch or deletecollection is limited to, in the query string's syntax.
    pub field_selector: &'a str,
}

impl<'a> Attributes<'a> {
    pub fn of(info: &'a RequestInfo) -> Self {
        Attributes {
            verb: info.verb,
            group: &info.group,
            resource: &info.resource,
            subresource: &info.subresource,
            namespace: &info.namespace,
            name: &info.name,
            path: &info.path,
            field_selector: "",
        }
    }

    /// The value that the field selector requires of a field; `None` if any will do.
    pub fn required_field(&self, field: &str) -> Option<&'a str> {
        self.field_selector.split(',').find_map(|term| {
            let (name, value) = term.split_once('=')?;
            let value = value.strip_prefix('=').unwrap_or(value);
            // `!=`, and values that hold escapes, require nothing that is asked about here.
            (name == field && !value.contains('\\')).then_some(value)
        })
    }

    fn qualified_resource(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.to_string()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }
}

/// Says who may do what.
pub trait Authorizer: Send + Sync + 'static {
    fn allows(&self, user: &User, request: &Attributes<'_>) -> bool;
}

/// The order of the module's documentation.
pub struct Standard {
    pub cache: Arc<Cache>,
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
        rbac::allows(&self.cache, user, request)
    }
}

/// The refusal, in Kubernetes' words.
pub fn forbidden(user: &User, request: &Attributes<'_>) -> Error {
    let (who, verb) = (&user.name, request.verb);
    if request.resource.is_empty() {
        let about = About {
            group: "",
            resource: "",
            name: "",
        };
        return Error::forbidden(
            about,
            &format!("User {who:?} cannot {verb} path {:?}", request.path),
        );
    }
    let place = if request.namespace.is_empty() || request.resource == "namespaces" {
        "at the cluster scope".to_string()
    } else {
        format!("in the namespace {:?}", request.namespace)
    };
    let why = format!(
        "User {who:?} cannot {verb} resource {:?} in API group {:?} {place}",
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
