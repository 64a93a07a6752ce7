//! Every namespace has a ConfigMap `kube-root-ca.crt` with the CA bundle by which pods verify the API server.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};

use crate::action::{Action, Create};
use crate::controller::{Context, Controller, ObjectChange, View};
use crate::namespace::is_terminating;
use crate::serviceaccount::in_namespace;

const NAME: &str = "kube-root-ca.crt";
const FILE: &str = "ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the \
     internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes \
     clusters.",
);

/// See the module. Its keys are namespaces.
pub struct RootCa {
    /// PEM.
    pub bundle: String,
}

impl Controller for RootCa {
    fn name(&self) -> &'static str {
        "root-ca-certificate-publisher-controller"
    }

    fn account(&self) -> &'static str {
        "root-ca-cert-publisher"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::NAMESPACE, &registry::CONFIG_MAP]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        in_namespace(changed, NAME)
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let name = &context.key.name;
        let Some(namespace) = context.view.get_as::<Namespace>("", name) else {
            return Vec::new();
        };
        if is_terminating(&namespace) || context.failure.is_some() {
            return Vec::new();
        }
        let data = Some([(FILE.to_string(), self.bundle.clone())].into());
        let Some(old) = context.view.get_as::<ConfigMap>(name, NAME) else {
            return vec![Action::Create(Create {
                ignore_already_exists: true,
                ..Create::new(ConfigMap {
                    metadata: ObjectMeta {
                        namespace: Some(name.clone()),
                        name: Some(NAME.into()),
                        annotations: Some([(DESCRIPTION.0.to_string(), DESCRIPTION.1.to_string())].into()),
                        ..ObjectMeta::default()
                    },
                    data,
                    ..ConfigMap::default()
                })
            })];
        };
        let described = old
            .metadata
            .annotations
            .as_ref()
            .and_then(|a| a.get(DESCRIPTION.0));
        if old.data == data && described.map(String::as_str) == Some(DESCRIPTION.1) {
            return Vec::new();
        }
        let mut new = (*old).clone();
        new.data = data;
        new.metadata
            .annotations
            .get_or_insert_default()
            .insert(DESCRIPTION.0.into(), DESCRIPTION.1.into());
        vec![Action::update(new)]
    }
}
