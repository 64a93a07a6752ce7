//! Secrets of type `kubernetes.io/service-account-token`: each gets a token of its account, the CA bundle and its namespace, and is
//! deleted with the account.
//!
//! Facts from kube-controller-manager's serviceaccount-token-controller. Nothing creates such Secrets by itself; users do who need a
//! token without an end. The token is signed by what is handed in, and is good as long as the Secret holds it.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, Object, ObjectKey, Shared};

use crate::action::{Action, Delete, Fact, reference};
use crate::controller::{Changed, Context, Controller, View};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const TOKEN: &str = "token";

/// Signs tokens.
pub trait TokenSigner: Debug + Send + Sync {
    /// A token for the account, good as long as this Secret holds it.
    fn sign(&self, namespace: &str, account: &str, account_uid: &str, secret: &str)
    -> Result<String, String>;
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

    fn keys(&self, view: &dyn View, changed: Changed<'_>) -> Vec<ObjectKey> {
        if let Some(key) = changed.key_of(&registry::SECRET) {
            let is_token = changed.states().any(|o| o.get::<Secret>().is_some_and(is_token));
            return is_token.then_some(key).into_iter().collect();
        }
        // An account that comes gives its tokens what they lack, one that goes takes them along.
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
    /// The Secret with what it lacks; `None` if that is nothing.
    fn completed(&self, secret: &Shared<Secret>, account: &Object) -> Result<Option<Secret>, String> {
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
        annotations.insert(ACCOUNT_NAME.into(), account.name().into());
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
    annotation(secret, ACCOUNT_NAME)
}

/// Whether the Secret is this account's and not that of one of the same name before it.
fn is_of(secret: &Secret, account: &Object) -> bool {
    annotation(secret, ACCOUNT_UID).is_none_or(|uid| uid == account.uid())
}

/// A token whose account does not exist is deleted, once the API server says the same.
fn orphaned(secret: &Shared<Secret>, account: &ObjectKey) -> Vec<Action> {
    let (kind, key) = (registry::SERVICE_ACCOUNT.clone(), account.clone());
    let fact = match annotation(secret, ACCOUNT_UID) {
        Some(uid) => Fact::Gone {
            kind,
            key,
            uid: uid.to_string(),
        },
        None => Fact::Absent { kind, key },
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
        fn sign(&self, namespace: &str, account: &str, uid: &str, secret: &str) -> Result<String, String> {
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
            "metadata": {"namespace": "d", "name": "t", "annotations": {ACCOUNT_NAME: "robot", ACCOUNT_UID: uid.unwrap_or("")}},
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
        // Other Secrets are left alone.
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
    fn a1_an_account_that_comes_or_goes_concerns_its_tokens() {
        let mut world = World::default();
        world.put(secret(TYPE, None));
        let account = world.put(account());
        let changed = |old, new| Changed {
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
