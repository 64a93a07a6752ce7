//! The `authorizer` variable of CEL expressions: permission checks for a user.

use std::sync::Arc;

use knarr_admission::Attributes;
use knarr_cel as cel;
use knarr_cel::{AttributesRecord, Decision};

use crate::authz::{self, Authorizer};
use crate::user::User;

/// Asks the server's authorizer for the requesting user, or for a service account that the expression names.
pub(super) struct UserAuthorizer {
    pub authorizer: Arc<dyn Authorizer>,
    pub user: User,
}

impl UserAuthorizer {
    /// The attributes of `authorizer.requestResource`.
    pub fn request_resource(attributes: &Attributes) -> AttributesRecord {
        AttributesRecord {
            group: attributes.kind.group().to_string(),
            resource: attributes.kind.plural().to_string(),
            subresource: attributes.subresource.clone(),
            namespace: attributes.namespace.clone(),
            name: attributes.name.clone(),
            ..AttributesRecord::default()
        }
    }
}

impl cel::Authorizer for UserAuthorizer {
    fn decide(&self, attributes: &AttributesRecord) -> Decision {
        let account = attributes
            .service_account
            .as_ref()
            .map(|(namespace, name)| User::service_account(namespace, name, ""));
        let request = authz::Attributes {
            verb: &attributes.verb,
            group: &attributes.group,
            resource: &attributes.resource,
            subresource: &attributes.subresource,
            namespace: &attributes.namespace,
            name: &attributes.name,
            path: Some(attributes.path.as_str()).filter(|path| !path.is_empty()),
            field_selector: &attributes.field_selector,
            label_selector: &attributes.label_selector,
        };
        Decision {
            allowed: self
                .authorizer
                .allows(account.as_ref().unwrap_or(&self.user), &request),
            reason: String::new(),
        }
    }
}
