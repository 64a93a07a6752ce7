//! Signs the kubeconfig in `kube-public/cluster-info` with each token whose usages include signing (a detached JWS, HS256).

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use knarr_api::k8s_openapi;
use knarr_api::registry;
use knarr_api::{Kind, ObjectKey};
use sha2::Sha256;

use super::{Expiration, NAMESPACE, expiration, is_token, text};
use crate::action::Action;
use crate::controller::{Context, Controller, ObjectChange, View};

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const KUBECONFIG: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

/// See the module. Its one key is the ConfigMap.
pub struct BootstrapSigner;

impl Controller for BootstrapSigner {
    fn name(&self) -> &'static str {
        "bootstrap-signer-controller"
    }

    fn account(&self) -> &'static str {
        "bootstrap-signer"
    }

    fn watches(&self) -> Vec<&'static Kind> {
        vec![&registry::SECRET, &registry::CONFIG_MAP]
    }

    fn keys(&self, _view: &dyn View, changed: ObjectChange<'_>) -> Vec<ObjectKey> {
        let concerns = changed.states().any(|o| {
            let info = o.namespace() == PUBLIC && o.name() == CLUSTER_INFO;
            info || o.get::<Secret>().is_some_and(is_token)
        });
        concerns
            .then(|| ObjectKey::new(PUBLIC, CLUSTER_INFO))
            .into_iter()
            .collect()
    }

    fn reconcile(&self, context: &Context<'_>) -> Vec<Action> {
        let found = context.view.get_as::<ConfigMap>(PUBLIC, CLUSTER_INFO);
        let Some(info) = found.filter(|_| context.failure.is_none()) else {
            return Vec::new();
        };
        let mut data: BTreeMap<String, String> = info.data.clone().unwrap_or_default();
        let Some(content) = data.get(KUBECONFIG).cloned() else {
            return Vec::new();
        };
        data.retain(|key, _| !key.starts_with(SIGNATURE));
        for secret in context.view.list_as::<Secret>(NAMESPACE) {
            let (id, key) = (text(&secret, "token-id"), text(&secret, "token-secret"));
            let signs = is_token(&secret)
                && !id.is_empty()
                && !key.is_empty()
                && secret.metadata.name.as_deref() == Some(format!("bootstrap-token-{id}").as_str())
                && text(&secret, "usage-bootstrap-signing") == "true"
                && expiration(&secret, context.now) != Expiration::Expired;
            if signs && let Some(signature) = signature(&content, id, key) {
                data.insert(format!("{SIGNATURE}{id}"), signature);
            }
        }
        if info.data.as_ref() == Some(&data) {
            return Vec::new();
        }
        let mut new = (*info).clone();
        new.data = Some(data);
        vec![Action::update(new)]
    }
}

/// `<header>..<signature>`.
pub fn signature(content: &str, id: &str, key: &str) -> Option<String> {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).ok()?;
    mac.update(format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes());
    let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
    Some(format!("{header}..{signature}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{World, at, updated};
    use serde_json::json;

    fn secret(id: &str, change: (&str, &str)) -> Secret {
        let mut data = json!({"token-id": id, "token-secret": "0123456789abcdef",
            "usage-bootstrap-signing": "true"});
        data[change.0] = json!(change.1);
        let mut secret = Secret {
            type_: Some(super::super::TYPE.into()),
            ..Secret::default()
        };
        secret.metadata.name = Some(format!("bootstrap-token-{id}"));
        secret.metadata.namespace = Some(NAMESPACE.into());
        let pairs = data.as_object().unwrap().iter();
        let bytes = |v: &serde_json::Value| k8s_openapi::ByteString(v.as_str().unwrap().into());
        secret.data = Some(pairs.map(|(k, v)| (k.clone(), bytes(v))).collect());
        secret
    }

    #[test]
    fn each_token_that_may_sign_has_its_signature() {
        let mut world = World::default();
        let info: ConfigMap = serde_json::from_value(json!({
            "metadata": {"name": CLUSTER_INFO, "namespace": PUBLIC},
            "data": {"kubeconfig": "content", "jws-kubeconfig-gone00": "old", "other": "x"},
        }))
        .unwrap();
        world.put(info);
        world.put(secret("aaaaaa", ("x", "")));
        world.put(secret("bbbbbb", ("usage-bootstrap-signing", "false")));
        world.put(secret("cccccc", ("expiration", "1970-01-01T00:00:00Z")));
        let run = |world: &World| world.run(&BootstrapSigner, (PUBLIC, CLUSTER_INFO), at(0));
        let actions = run(&world);
        let new: ConfigMap = updated(&actions, "").unwrap();
        let data = new.data.unwrap();
        assert_eq!(
            data.keys().collect::<Vec<_>>(),
            ["jws-kubeconfig-aaaaaa", "kubeconfig", "other"]
        );
        world.take(&actions);
        assert!(run(&world).is_empty());
    }

    #[test]
    fn a_signature_is_a_detached_jws() {
        // `printf '%s' "$header.$payload" | openssl dgst -sha256 -hmac secret -binary | basenc --base64url`
        assert_eq!(
            signature("content", "abcdef", "0123456789abcdef").unwrap(),
            include_str!("../../tests/jws.txt").trim()
        );
    }
}
