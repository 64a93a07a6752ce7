//! Service-account tokens: JWTs, bound to an account and optionally to a pod, a secret or a node.
//!
//! A token is valid only as long as the objects it is bound to exist with the same UID.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::{Kind, k8s_openapi, registry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::token_cache::TokenCache;
use super::token_key::{KeyFiles, SigningKey, TokenError, VerifyingKey};
use super::{jws, secret_token};
use crate::cache::Cache;
use crate::user::User;

/// How long a token stays valid after the deletionTimestamp of an object it is bound to; also the accepted clock skew.
const LEEWAY: SignedDuration = SignedDuration::from_mins(1);

/// Signs and verifies service-account tokens.
pub struct Tokens {
    /// The first is the issuer of new tokens; tokens of all are accepted.
    issuers: Vec<String>,
    /// The audiences of a token whose request names none.
    audiences: Vec<String>,
    signing: SigningKey,
    verifying: Vec<VerifyingKey>,
    /// Claims whose signature was verified with these keys.
    verified: TokenCache<TokenClaims>,
    /// The URL at which the keys are published, if it is not this server's.
    jwks_uri: Option<String>,
}

/// The name and UID of an object in a claim.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ObjectReference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The private claim `kubernetes.io`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct KubernetesClaims {
    pub namespace: String,
    pub serviceaccount: ObjectReference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<ObjectReference>,
    /// From this time on (Unix seconds) a use of the token is logged as stale: the client should have renewed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// The claims of a token.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenClaims {
    Bound(Claims),
    Secret(secret_token::Claims),
}

#[derive(Serialize, Deserialize)]
struct Claims {
    aud: Vec<String>,
    exp: i64,
    iat: i64,
    nbf: i64,
    iss: String,
    jti: String,
    sub: String,
    #[serde(rename = "kubernetes.io")]
    bound: KubernetesClaims,
}

/// A verified token.
pub struct VerifiedToken {
    pub user: User,
    /// The requested audiences that it is valid for.
    pub audiences: Vec<String>,
    /// How long ago the client should have renewed it, if so.
    pub stale_seconds: Option<i64>,
}

impl Tokens {
    /// `issuers` has at least one; `audiences` may be empty and is then the first issuer.
    pub fn new(issuers: &[String], audiences: &[String], keys: &KeyFiles) -> Result<Self, TokenError> {
        let Some(issuer) = issuers.first() else {
            return Err(TokenError::NoIssuer);
        };
        let (signing, own) = SigningKey::read(&keys.signing)?;
        let mut verifying = vec![own];
        for pem in &keys.verifying {
            for key in VerifyingKey::read_all(pem)? {
                if verifying.iter().all(|k| k.id != key.id) {
                    verifying.push(key);
                }
            }
        }
        Ok(Tokens {
            issuers: issuers.to_vec(),
            audiences: match audiences {
                [] => vec![issuer.clone()],
                given => given.to_vec(),
            },
            signing,
            verifying,
            verified: TokenCache::default(),
            jwks_uri: None,
        })
    }

    /// Publishes the keys at another URL.
    pub fn with_jwks_uri(mut self, uri: Option<String>) -> Self {
        self.jwks_uri = uri;
        self
    }

    pub fn default_audiences(&self) -> &[String] {
        &self.audiences
    }

    pub fn sign(
        &self,
        bound: KubernetesClaims,
        audiences: Vec<String>,
        now: Timestamp,
        seconds: i64,
        id: String,
    ) -> Result<String, TokenError> {
        let claims = Claims {
            aud: audiences,
            exp: now.as_second() + seconds,
            iat: now.as_second(),
            nbf: now.as_second(),
            iss: self.issuers.first().cloned().unwrap_or_default(),
            jti: id,
            sub: format!(
                "system:serviceaccount:{}:{}",
                bound.namespace, bound.serviceaccount.name
            ),
            bound,
        };
        jws::sign(&claims, &self.signing)
    }

    /// `None` unless the token is of one of the issuers, valid at this time and for one of `audiences` (empty: this server's),
    /// and every object it is bound to exists.
    pub fn verify(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        cache: &Cache,
    ) -> Option<VerifiedToken> {
        let known = self.claims(token)?;
        let claims = match &*known {
            TokenClaims::Bound(claims) => claims,
            // Valid for this server's audiences only.
            TokenClaims::Secret(claims) => {
                let accepted: Vec<String> = match audiences {
                    [] => self.audiences.clone(),
                    requested => requested
                        .iter()
                        .filter(|a| self.audiences.contains(a))
                        .cloned()
                        .collect(),
                };
                let user = (!accepted.is_empty())
                    .then(|| claims.user(token, cache))
                    .flatten()?;
                return Some(VerifiedToken {
                    user,
                    audiences: accepted,
                    stale_seconds: None,
                });
            }
        };
        let at = now.as_second();
        let leeway = LEEWAY.as_secs();
        if at >= claims.exp || at + leeway < claims.nbf || at + leeway < claims.iat {
            return None;
        }
        let requested = if audiences.is_empty() {
            &self.audiences
        } else {
            audiences
        };
        let accepted: Vec<String> = requested
            .iter()
            .filter(|a| claims.aud.contains(a))
            .cloned()
            .collect();
        if accepted.is_empty() {
            return None;
        }
        let bound = &claims.bound;
        let exists = |kind: &Kind, namespace: &str, r: &ObjectReference| {
            cache.get(kind, namespace, &r.name).is_some_and(|o| {
                let deleted = o.metadata().deletion_timestamp.as_ref();
                o.uid() == r.uid && deleted.is_none_or(|t| t.0 + LEEWAY >= now)
            })
        };
        // The node of a pod's token is only information; a token bound to a node is valid only as long as the node exists.
        let node = bound.node.iter().filter(|_| bound.pod.is_none());
        let all_exist = exists(
            &registry::SERVICE_ACCOUNT,
            &bound.namespace,
            &bound.serviceaccount,
        ) && bound
            .pod
            .iter()
            .all(|r| exists(&registry::POD, &bound.namespace, r))
            && bound
                .secret
                .iter()
                .all(|r| exists(&registry::SECRET, &bound.namespace, r))
            && node.into_iter().all(|r| exists(&registry::NODE, "", r));
        if !all_exist {
            return None;
        }
        let account = &bound.serviceaccount;
        let mut user = User::service_account(&bound.namespace, &account.name, &account.uid);
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut add = |key: &str, value: &str| {
            extra.insert(
                format!("authentication.kubernetes.io/{key}"),
                vec![value.to_string()],
            );
        };
        add("credential-id", &format!("JTI={}", claims.jti));
        if let Some(pod) = &bound.pod {
            add("pod-name", &pod.name);
            add("pod-uid", &pod.uid);
        }
        if let Some(node) = &bound.node {
            add("node-name", &node.name);
            if !node.uid.is_empty() {
                add("node-uid", &node.uid);
            }
        }
        user.extra = extra;
        let stale = bound.warnafter.filter(|after| *after != 0 && at > *after);
        Some(VerifiedToken {
            user,
            audiences: accepted,
            stale_seconds: stale.map(|after| at - after),
        })
    }

    /// The claims of a token that one of the keys has signed for one of the issuers. Times are not checked here.
    fn claims(&self, token: &str) -> Option<Arc<TokenClaims>> {
        self.verified.get_or_verify(token, || {
            let claims: TokenClaims = jws::verify(token, &self.verifying)?;
            let is_ours = match &claims {
                TokenClaims::Bound(claims) => self.issuers.contains(&claims.iss),
                TokenClaims::Secret(claims) => claims.is_consistent(),
            };
            is_ours.then_some(claims)
        })
    }

    /// `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        let keys: Vec<&Value> = self.verifying.iter().map(|k| &k.published).collect();
        json!({"keys": keys})
    }

    /// `/.well-known/openid-configuration`.
    pub fn discovery(&self, server: &str) -> Value {
        let mut algorithms: Vec<&Value> = self.verifying.iter().map(|k| &k.published["alg"]).collect();
        algorithms.sort_by_key(|a| a.as_str());
        algorithms.dedup();
        let own_uri = || format!("{server}/openid/v1/jwks");
        json!({
            "issuer": self.issuers.first(),
            "jwks_uri": self.jwks_uri.clone().unwrap_or_else(own_uri),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }
}
