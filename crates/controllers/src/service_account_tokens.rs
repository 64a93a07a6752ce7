//! Secrets of type `kubernetes.io/service-account-token`: each gets a token of its account, the CA bundle and its namespace, and is
//! deleted with the account.
//!
//! It follows kube-controller-manager's serviceaccount-token-controller. Only users create such Secrets, if they need a token that does
//! not expire. The [`TokenSigner`] of the configuration signs the token, which is valid as long as the Secret has it.

use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::well_known::SERVICE_ACCOUNT_NAME;
use knarr_api::{Kind, Object, ObjectKey, Shared};

use crate::action::{Action, Delete, LiveCheck, reference};
use crate::controller::{Context, Controller, ObjectChange, View};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const TOKEN: &str = "token";

/// Why a [`TokenSigner`] did not sign.
pub type SignError = Box<dyn Error + Send + Sync>;

/// Signs tokens.
pub trait TokenSigner: Debug + Send + Sync {
    /// A token for the account, valid as long as this Secret has it.
    fn sign(
        &self,
        namespace: &str,
        account: &str,
        account_uid: &str,
        secret: &str,
    ) -> Result<String, SignError>;
}

/// See the module. Its keys are Secrets.
#[derive(Debug)]
pub struct ServiceAccountTokens {
    /// PEM.
    pub root_ca: Option<String>,
    pub signer: Arc<dyn TokenSigner>,
}

impl Controller for ServiceAccountTokens {
    fn name(&self) -> &'static str {
        "serviceaccount-token-controller"
    }

    fn account(&self) -> &'static str {
        "knarr-service-account-tokens"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::SECRET, &registry::SERVICE_ACCOUNT]
    }

    fn keys(&self, view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::SECRET) {
            let is_token = changed.states().any(|o| o.get::<Secret>().is_some_and(is_token));
            return is_token.then_some(key).into_iter().collect();
        }
        // A created account completes its Secrets, a deleted one deletes them.
        if changed.old.is_some() && changed.new.is_some() {
            return Vec::new();
        }
        let Some(account) = changed.object() else {
            return Vec::new();
        };
        let secrets = view.list_as::<Secret>(account.namespace()).into_iter();
        let secrets = secrets.filter(|s| is_token(s) && account_of(s) == Some(account.name()));
        secrets.map(|s| ObjectKey::of(s.object())).collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let (view, key) = (context.view, context.key);
        let Some(secret) = view.get_as::<Secret>(&key.namespace, &key.name) else {
            return Vec::new();
        };
        if !is_token(&secret) || context.failure.is_some() || secret.metadata.deletion_timestamp.is_some() {
            return Vec::new();
        }
        let Some(account_name) = account_of(&secret) else {
            return Vec::new();
        };
        let account = view.get_as::<ServiceAccount>(&key.namespace, account_name);
        let Some(account) = account.filter(|a| is_of(&secret, a.object())) else {
            return orphaned(&secret, &ObjectKey::new(&key.namespace, account_name));
        };
        match self.completed(&secret, account.object()) {
            Ok(new) => new.map(Action::update).into_iter().collect(),
            Err(error) => {
                let message = format!("Error creating token: {error}");
                vec![Action::warning(
                    &reference(secret.object()),
                    "FailedToCreateToken",
                    message,
                )]
            }
        }
    }
}

impl ServiceAccountTokens {
    /// The completed Secret; `None` if it is complete.
    fn completed(&self, secret: &Shared<Secret>, account: &Object) -> Result<Option<Secret>, SignError> {
        let mut new = (**secret).clone();
        let data = new.data.get_or_insert_default();
        if let Some(ca) = &self.root_ca {
            data.insert(CA.into(), ByteString(ca.clone().into_bytes()));
        }
        if data.get(NAMESPACE).is_none_or(|n| n.0.is_empty()) {
            data.insert(NAMESPACE.into(), ByteString(account.namespace().into()));
        }
        if data.get(TOKEN).is_none_or(|t| t.0.is_empty()) {
            let name = secret.object().name();
            let token = self
                .signer
                .sign(account.namespace(), account.name(), account.uid(), name)?;
            data.insert(TOKEN.into(), ByteString(token.into_bytes()));
        }
        if new.data == secret.data {
            return Ok(None);
        }
        let annotations = new.metadata.annotations.get_or_insert_default();
        annotations.insert(SERVICE_ACCOUNT_NAME.into(), account.name().into());
        annotations.insert(ACCOUNT_UID.into(), account.uid().into());
        Ok(Some(new))
    }
}

fn is_token(secret: &Secret) -> bool {
    secret.type_.as_deref() == Some(TYPE)
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    let annotations = secret.metadata.annotations.as_ref()?;
    annotations
        .get(key)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

fn account_of(secret: &Secret) -> Option<&str> {
    annotation(secret, SERVICE_ACCOUNT_NAME)
}

/// Whether the Secret belongs to this account and not to a former one of the same name.
fn is_of(secret: &Secret, account: &Object) -> bool {
    annotation(secret, ACCOUNT_UID).is_none_or(|uid| uid == account.uid())
}

/// A Secret whose account does not exist is deleted, once a live read confirms that.
fn orphaned(secret: &Shared<Secret>, account: &ObjectKey) -> Vec<Action> {
    let (kind, key) = (registry::SERVICE_ACCOUNT.clone(), account.clone());
    let fact = match annotation(secret, ACCOUNT_UID) {
        Some(uid) => LiveCheck::AbsentUid {
            kind,
            key,
            uid: uid.to_string(),
        },
        None => LiveCheck::Absent { kind, key },
    };
    vec![Action::Require(fact), Action::Delete(Delete::of(secret.object()))]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::world::{World, at, lines, updated};

    #[derive(Debug)]
    struct Plain;

    impl TokenSigner for Plain {
        fn sign(&self, namespace: &str, account: &str, uid: &str, secret: &str) -> Result<String, SignError> {
            Ok(format!("{namespace}/{account}/{uid}/{secret}"))
        }
    }

    fn controller() -> ServiceAccountTokens {
        ServiceAccountTokens {
            root_ca: Some("PEM".into()),
            signer: Arc::new(Plain),
        }
    }

    fn secret(type_: &str, uid: Option<&str>) -> Secret {
        serde_json::from_value(json!({
            "metadata": {"namespace": "d", "name": "t", "annotations": {SERVICE_ACCOUNT_NAME: "robot", ACCOUNT_UID: uid.unwrap_or("")}},
            "type": type_,
        }))
        .unwrap()
    }

    fn account() -> ServiceAccount {
        serde_json::from_value(json!({"metadata": {"namespace": "d", "name": "robot"}})).unwrap()
    }

    fn run(world: &World) -> Vec<Action> {
        world.run(&controller(), ("d", "t"), at(0))
    }

    #[test]
    fn a1_a_token_secret_gets_token_certificates_and_namespace() {
        let mut world = World::default();
        world.put(account());
        world.put(secret(TYPE, None));
        let actions = run(&world);
        let new = updated::<Secret>(&actions, "").unwrap();
        let data: Vec<(String, Vec<u8>)> = new.data.unwrap().into_iter().map(|(k, v)| (k, v.0)).collect();
        let expected = [
            ("ca.crt", "PEM"),
            ("namespace", "d"),
            ("token", "d/robot/uid-robot/t"),
        ];
        assert_eq!(
            data,
            expected.map(|(k, v)| (k.to_string(), v.as_bytes().to_vec()))
        );
        assert_eq!(new.metadata.annotations.unwrap()[ACCOUNT_UID], "uid-robot");
        world.take(&actions);
        assert_eq!(lines(&run(&world)), [""; 0]);
        // Other Secrets are not changed.
        world.put(secret("Opaque", None));
        assert_eq!(lines(&run(&world)), [""; 0]);
    }

    #[test]
    fn a1_a_token_secret_is_deleted_with_its_account() {
        let mut world = World::default();
        world.put(secret(TYPE, None));
        assert_eq!(
            lines(&run(&world)),
            ["require no serviceaccounts d/robot", "delete secrets d/t"]
        );
        // One of the same name is another account.
        world.put(account());
        world.put(secret(TYPE, Some("uid-before")));
        assert_eq!(
            lines(&run(&world)),
            ["require serviceaccounts d/robot gone", "delete secrets d/t"]
        );
    }

    #[test]
    fn a1_a_created_or_deleted_account_enqueues_its_secrets() {
        let mut world = World::default();
        world.put(secret(TYPE, None));
        let account = world.put(account());
        let changed = |old, new| ObjectChange {
            kind: &registry::SERVICE_ACCOUNT,
            old,
            new,
        };
        let token = [ObjectKey::new("d", "t")];
        assert_eq!(controller().keys(&world, changed(Some(&account), None)), token);
        assert_eq!(controller().keys(&world, changed(None, Some(&account))), token);
        assert_eq!(
            controller().keys(&world, changed(Some(&account), Some(&account))),
            []
        );
    }
}
