//! Service-account tokens: ES256 JWTs, bound to an account and optionally to a pod, a secret or a node.
//!
//! A token is good only as long as what it is bound to exists with the same uid.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use k8s_openapi::jiff::Timestamp;
use knarr_api::{Kind, k8s_openapi, registry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::cache::Cache;
use crate::user::User;

/// Signs and verifies.
pub struct Tokens {
    issuer: String,
    /// What a token is good for when nobody says.
    audiences: Vec<String>,
    key_id: String,
    public: (String, String),
    signing: EncodingKey,
    verifying: DecodingKey,
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
}

impl Tokens {
    /// From a P-256 private key (PKCS#8 PEM) and its public point (uncompressed, 65 bytes).
    pub fn new(issuer: &str, private_pem: &str, public_point: &[u8]) -> Result<Self, String> {
        let &[4, ref xy @ ..] = public_point else {
            return Err("the service-account key is no uncompressed P-256 point".into());
        };
        if xy.len() != 64 {
            return Err(format!(
                "the service-account key has {} bytes, expected 64",
                xy.len()
            ));
        }
        let (x, y) = (
            URL_SAFE_NO_PAD.encode(&xy[..32]),
            URL_SAFE_NO_PAD.encode(&xy[32..]),
        );
        Ok(Tokens {
            issuer: issuer.to_string(),
            audiences: vec![issuer.to_string()],
            key_id: URL_SAFE_NO_PAD.encode(Sha256::digest(public_point)),
            signing: EncodingKey::from_ec_pem(private_pem.as_bytes()).map_err(|e| e.to_string())?,
            verifying: DecodingKey::from_ec_components(&x, &y).map_err(|e| e.to_string())?,
            public: (x, y),
        })
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
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.key_id.clone());
        header.typ = None;
        let claims = Claims {
            aud: audiences,
            exp: now.as_second() + seconds,
            iat: now.as_second(),
            nbf: now.as_second(),
            iss: self.issuer.clone(),
            jti: id,
            sub: format!(
                "system:serviceaccount:{}:{}",
                bound.namespace, bound.serviceaccount.name
            ),
            bound,
        };
        jsonwebtoken::encode(&header, &claims, &self.signing).map_err(|e| e.to_string())
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
        let mut validation = Validation::new(Algorithm::ES256);
        // Times are checked below, against the clock that was handed in; audiences too.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.validate_aud = false;
        validation.set_issuer(&[&self.issuer]);
        validation.set_required_spec_claims(&["exp", "iss"]);
        let claims = jsonwebtoken::decode::<Claims>(token, &self.verifying, &validation)
            .ok()?
            .claims;
        let at = now.as_second();
        if at >= claims.exp || at < claims.nbf {
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
        let there = |kind: &'static Kind, namespace: &str, r: &Reference| {
            cache
                .get(kind, namespace, &r.name)
                .is_some_and(|o| o.uid() == r.uid)
        };
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
                .all(|r| there(&registry::SECRET, &bound.namespace, r));
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
            add("node-uid", &node.uid);
        }
        user.extra = extra;
        Some(Verified {
            user,
            audiences: good_for,
        })
    }

    /// `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.key_id, "crv": "P-256", "alg": "ES256",
            "x": self.public.0, "y": self.public.1,
        }]})
    }

    /// `/.well-known/openid-configuration`.
    pub fn discovery(&self, server: &str) -> Value {
        json!({
            "issuer": self.issuer,
            "jwks_uri": format!("{server}/openid/v1/jwks"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        })
    }
}
