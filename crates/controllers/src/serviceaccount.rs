//! Every namespace has a ServiceAccount `default`, for pods that name no other.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use crate::action::{Action, Create};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::namespace::is_terminating;

const NAME: &str = "default";

/// See the module. Its keys are namespaces.
pub struct ServiceAccounts;

impl Controller for ServiceAccounts {
    fn name(&self) -> &'static str {
        "serviceaccount-controller"
    }

    fn account(&self) -> &'static str {
        "service-account-controller"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::NAMESPACE, &registry::SERVICE_ACCOUNT]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        in_namespace(changed, NAME)
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let name = &context.key.name;
        let Some(namespace) = context.view.get_as::<Namespace>("", name) else {
            return Vec::new();
        };
        let there = context.view.get(&registry::SERVICE_ACCOUNT, name, NAME).is_some();
        if there || is_terminating(&namespace) || context.failure.is_some() {
            return Vec::new();
        }
        vec![Action::Create(Create {
            ignore_already_exists: true,
            ..Create::new(ServiceAccount {
                metadata: ObjectMeta {
                    namespace: Some(name.clone()),
                    name: Some(NAME.into()),
                    ..ObjectMeta::default()
                },
                ..ServiceAccount::default()
            })
        })]
    }
}

/// The key of the namespace to enqueue for a change of the namespace, or of the object of this name in it.
pub(crate) fn in_namespace(changed: ObjectChange<'_>, name: &str) -> Vec<ObjectKey> {
    if let Some(key) = changed.key_of(&registry::NAMESPACE) {
        return vec![key];
    }
    let object = changed.object().filter(|o| o.name() == name);
    object
        .map(|o| ObjectKey::new("", o.namespace()))
        .into_iter()
        .collect()
}
