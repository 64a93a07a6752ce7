//! Service-account tokens of Secrets of type `kubernetes.io/service-account-token`: they do not expire, and are accepted as
//! long as the Secret holds them and the account exists.
//!
//! The claims are kube-controller-manager's (pkg/serviceaccount/legacy.go), so that tokens of a cluster whose keys move here
//! stay valid.

use k8s_openapi::api::core::v1::Secret;
use knarr_api::{k8s_openapi, registry};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::jws;
use super::token_key::{KeyFiles, SigningKey, TokenError};
use crate::cache::Cache;
use crate::user::User;

const ISSUER: &str = "kubernetes/serviceaccount";
/// The token of a Secret with this label is rejected; set by the legacy service account token cleaner (KEP-2799).
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
const TOKEN: &str = "token";

#[derive(Serialize, Deserialize)]
pub(super) struct Claims {
    iss: String,
    sub: String,
    #[serde(rename = "kubernetes.io/serviceaccount/namespace")]
    namespace: String,
    #[serde(rename = "kubernetes.io/serviceaccount/secret.name")]
    secret: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.name")]
    account: String,
    #[serde(rename = "kubernetes.io/serviceaccount/service-account.uid")]
    account_uid: String,
}

impl Claims {
    fn new(namespace: &str, account: &str, account_uid: &str, secret: &str) -> Self {
        Claims {
            iss: ISSUER.into(),
            sub: subject(namespace, account),
            namespace: namespace.into(),
            secret: secret.into(),
            account: account.into(),
            account_uid: account_uid.into(),
        }
    }

    /// Whether it is a token of this issuer with consistent claims.
    pub fn is_consistent(&self) -> bool {
        let all = [&self.namespace, &self.secret, &self.account, &self.account_uid];
        self.iss == ISSUER
            && all.iter().all(|claim| !claim.is_empty())
            && self.sub == subject(&self.namespace, &self.account)
    }

    /// The account, if it and the Secret with this very token exist.
    pub fn user(&self, token: &str, cache: &Cache) -> Option<User> {
        let secret = cache.get(&registry::SECRET, &self.namespace, &self.secret)?;
        let meta = secret.metadata();
        if meta.deletion_timestamp.is_some()
            || meta
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key(INVALID_SINCE))
        {
            return None;
        }
        let typed = secret.get::<Secret>()?;
        let held = typed.data.as_ref()?.get(TOKEN)?;
        // Hashes are compared, so that the duration does not reveal anything about the token.
        if digest(&SHA256, &held.0).as_ref() != digest(&SHA256, token.as_bytes()).as_ref() {
            return None;
        }
        let account = cache.get(&registry::SERVICE_ACCOUNT, &self.namespace, &self.account)?;
        let is_same = account.uid() == self.account_uid && account.metadata().deletion_timestamp.is_none();
        is_same.then(|| User::service_account(&self.namespace, &self.account, &self.account_uid))
    }
}

fn subject(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// Signs tokens for Secrets, with the key that signs all service-account tokens.
pub struct SecretTokenSigner(SigningKey);

impl std::fmt::Debug for SecretTokenSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SecretTokenSigner").finish()
    }
}

impl SecretTokenSigner {
    pub fn new(keys: &KeyFiles) -> Result<Self, TokenError> {
        SigningKey::read(&keys.signing).map(|(key, _)| SecretTokenSigner(key))
    }

    /// A token for the account, valid as long as this Secret holds it.
    pub fn sign(
        &self,
        namespace: &str,
        account: &str,
        account_uid: &str,
        secret: &str,
    ) -> Result<String, TokenError> {
        jws::sign(&Claims::new(namespace, account, account_uid, secret), &self.0)
    }
}
