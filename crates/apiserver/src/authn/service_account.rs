//! Service-account tokens: JWTs, bound to an account and optionally to a pod, a secret or a node.
//!
//! A token is good only as long as what it is bound to exists with the same uid.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_api::{Kind, k8s_openapi, registry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::token_cache::TokenCache;
use super::token_key::{KeyFiles, SigningKey, VerifyingKey};
use super::{jws, secret_token};
use crate::cache::Cache;
use crate::user::User;

/// How long a token outlives the deletion of what it is bound to; also how far clocks may differ.
const LEEWAY: SignedDuration = SignedDuration::from_mins(1);

/// Signs and verifies.
pub struct Tokens {
    /// The first signs what is issued; tokens of all are taken.
    issuers: Vec<String>,
    /// What a token is good for when nobody says.
    audiences: Vec<String>,
    signing: SigningKey,
    verifying: Vec<VerifyingKey>,
    /// What tokens say whose signature was verified with these keys.
    verified: TokenCache<Verifiable>,
    /// Where the keys are published, if not at this server.
    jwks_uri: Option<String>,
}

/// Something with a name and a uid.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Reference {
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// The private claim `kubernetes.io`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Bound {
    pub namespace: String,
    pub serviceaccount: Reference,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
    /// From then on (seconds) its use is worth a word in the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// What tokens say.
#[derive(Deserialize)]
#[serde(untagged)]
enum Verifiable {
    Bound(Claims),
    OfSecret(secret_token::Claims),
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
    bound: Bound,
}

/// A token that holds.
pub struct Verified {
    pub user: User,
    /// Those of the asked-for audiences that it is good for.
    pub audiences: Vec<String>,
    /// For how long its bearer should have renewed it, if so.
    pub stale_seconds: Option<i64>,
}

impl Tokens {
    /// `issuers` has at least one; `audiences` may be empty and is then the first issuer.
    pub fn new(issuers: &[String], audiences: &[String], keys: &KeyFiles) -> Result<Self, String> {
        let Some(issuer) = issuers.first() else {
            return Err("there is no issuer of service-account tokens".into());
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

    /// Publishes the keys at another address.
    pub fn with_jwks_uri(mut self, uri: Option<String>) -> Self {
        self.jwks_uri = uri;
        self
    }

    pub fn default_audiences(&self) -> &[String] {
        &self.audiences
    }

    pub fn sign(
        &self,
        bound: Bound,
        audiences: Vec<String>,
        now: Timestamp,
        seconds: i64,
        id: String,
    ) -> Result<String, String> {
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

    /// `None` unless the token is ours, of this time, for one of `audiences` (empty: this server's), and all
    /// it is bound to is still there.
    pub fn verify(
        &self,
        token: &str,
        audiences: &[String],
        now: Timestamp,
        cache: &Cache,
    ) -> Option<Verified> {
        let known = self.claims(token)?;
        let claims = match &*known {
            Verifiable::Bound(claims) => claims,
            // Good for this server, and for no other audience.
            Verifiable::OfSecret(claims) => {
                let good_for: Vec<String> = match audiences {
                    [] => self.audiences.clone(),
                    wanted => wanted
                        .iter()
                        .filter(|a| self.audiences.contains(a))
                        .cloned()
                        .collect(),
                };
                let user = (!good_for.is_empty())
                    .then(|| claims.user(token, cache))
                    .flatten()?;
                return Some(Verified {
                    user,
                    audiences: good_for,
                    stale_seconds: None,
                });
            }
        };
        let at = now.as_second();
        let leeway = LEEWAY.as_secs();
        if at >= claims.exp || at + leeway < claims.nbf || at + leeway < claims.iat {
            return None;
        }
        let wanted = if audiences.is_empty() {
            &self.audiences
        } else {
            audiences
        };
        let good_for: Vec<String> = wanted
            .iter()
            .filter(|a| claims.aud.contains(a))
            .cloned()
            .collect();
        if good_for.is_empty() {
            return None;
        }
        let bound = &claims.bound;
        let there = |kind: &Kind, namespace: &str, r: &Reference| {
            cache.get(kind, namespace, &r.name).is_some_and(|o| {
                let going = o.metadata().deletion_timestamp.as_ref();
                o.uid() == r.uid && going.is_none_or(|t| t.0 + LEEWAY >= now)
            })
        };
        // Of a pod's token the node is only told; a node's own token ends with the node.
        let node = bound.node.iter().filter(|_| bound.pod.is_none());
        let all_there = there(
            &registry::SERVICE_ACCOUNT,
            &bound.namespace,
            &bound.serviceaccount,
        ) && bound
            .pod
            .iter()
            .all(|r| there(&registry::POD, &bound.namespace, r))
            && bound
                .secret
                .iter()
                .all(|r| there(&registry::SECRET, &bound.namespace, r))
            && node.into_iter().all(|r| there(&registry::NODE, "", r));
        if !all_there {
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
        Some(Verified {
            user,
            audiences: good_for,
            stale_seconds: stale.map(|after| at - after),
        })
    }

    /// What a token says that one of the keys has signed for one of the issuers; times are not looked at.
    fn claims(&self, token: &str) -> Option<Arc<Verifiable>> {
        self.verified.get_or_verify(token, || {
            let claims: Verifiable = jws::verify(token, &self.verifying)?;
            let is_ours = match &claims {
                Verifiable::Bound(claims) => self.issuers.contains(&claims.iss),
                Verifiable::OfSecret(claims) => claims.is_consistent(),
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
        let here = || format!("{server}/openid/v1/jwks");
        json!({
            "issuer": self.issuers.first(),
            "jwks_uri": self.jwks_uri.clone().unwrap_or_else(here),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }
}
