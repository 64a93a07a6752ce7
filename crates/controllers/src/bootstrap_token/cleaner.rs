//! Deletes expired bootstrap tokens (kube-controller-manager's token-cleaner).

use k8s_openapi::api::core::v1::Secret;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use super::{Expiration, NAMESPACE, expiration, is_token};
use crate::action::{Action, Delete};
use crate::controller::{Context, Controller, ObjectChange, View};

/// See the module. Its keys are Secrets.
pub struct TokenCleaner;

impl Controller for TokenCleaner {
    fn name(&self) -> &'static str {
        "token-cleaner-controller"
    }

    fn account(&self) -> &'static str {
        "token-cleaner"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::SECRET]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let of_tokens = changed.object().filter(|o| o.namespace() == NAMESPACE);
        of_tokens.map(ObjectKey::of).into_iter().collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (namespace, name) = (&context.key.namespace, &context.key.name);
        let Some(object) = context.view.get(&registry::SECRET, namespace, name) else {
            return Vec::new();
        };
        let secret = object.get::<Secret>().filter(|s| is_token(s));
        if context.failure.is_some() || object.metadata().deletion_timestamp.is_some() {
            return Vec::new();
        }
        match secret.map(|s| expiration(s, context.now)) {
            Some(Expiration::Expired) => vec![Action::Delete(Delete::of(&object))],
            Some(Expiration::In(time)) => vec![Action::RequeueAfter(time)],
            Some(Expiration::Never) | None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{World, at, lines};
    use k8s_openapi::ByteString;

    #[test]
    fn an_expired_token_is_deleted() {
        for (type_, expiration, expected) in [
            (
                super::super::TYPE,
                at(0).to_string(),
                vec!["delete secrets kube-system/t"],
            ),
            (super::super::TYPE, at(5).to_string(), vec!["requeue after 5s"]),
            (
                super::super::TYPE,
                "soon".into(),
                vec!["delete secrets kube-system/t"],
            ),
            (super::super::TYPE, String::new(), vec![]),
            ("Opaque", at(0).to_string(), vec![]),
        ] {
            let mut secret = Secret {
                type_: Some(type_.into()),
                data: Some([("expiration".into(), ByteString(expiration.clone().into()))].into()),
                ..Secret::default()
            };
            secret.metadata.name = Some("t".into());
            secret.metadata.namespace = Some(NAMESPACE.into());
            let mut world = World::default();
            world.put(secret);
            let actions = world.run(&TokenCleaner, (NAMESPACE, "t"), at(0));
            assert_eq!(lines(&actions), expected, "{type_} {expiration:?}");
        }
    }
}
