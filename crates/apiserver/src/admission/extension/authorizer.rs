//! Answers expressions that ask whether somebody may do something.

use std::sync::Arc;

use knarr_api::admission::Attributes;
use knarr_api::cel::{Asked, Authorizes, Decision};

use crate::authz::{self, Authorizer};
use crate::user::User;

/// Asks the server's authorizer for a request's user, or for a service account.
pub(super) struct Answers {
    pub authorizer: Arc<dyn Authorizer>,
    pub user: User,
}

impl Answers {
    /// The question that `authorizer.requestResource` begins with.
    pub fn about(attributes: &Attributes) -> Asked {
        Asked {
            group: attributes.kind.group().to_string(),
            resource: attributes.kind.plural().to_string(),
            subresource: attributes.subresource.clone(),
            namespace: attributes.namespace.clone(),
            name: attributes.name.clone(),
            ..Asked::default()
        }
    }
}

impl Authorizes for Answers {
    fn decide(&self, asked: &Asked) -> Decision {
        let account = asked
            .service_account
            .as_ref()
            .map(|(namespace, name)| User::service_account(namespace, name, ""));
        let request = authz::Attributes {
            verb: &asked.verb,
            group: &asked.group,
            resource: &asked.resource,
            subresource: &asked.subresource,
            namespace: &asked.namespace,
            name: &asked.name,
            path: Some(asked.path.as_str()).filter(|path| !path.is_empty()),
            field_selector: &asked.field_selector,
            label_selector: &asked.label_selector,
        };
        Decision {
            allowed: self
                .authorizer
                .allows(account.as_ref().unwrap_or(&self.user), &request),
            reason: String::new(),
        }
    }
}
