//! Authentication and authorization of requests to a kubelet's port, delegated to the API server.
//!
//! Concurrent requests with the same token share one TokenReview, and its result is cached, as in the kubelet. A peer has
//! only a limited number of unknown tokens reviewed, so that an unauthenticated client at the kubelet's port does not load
//! the API server (SPEC A6). Tokens are cached as hashes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use knarr_api::k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use knarr_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use knarr_apimachinery::Error;
use knarr_client::{Api, TypedApi};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use crate::user::User;

/// How long the result of a TokenReview is cached. The kubelet's default is 2 minutes; this is the API server's, so that a
/// revoked token is rejected sooner.
const TOKEN_TTL: Duration = Duration::from_secs(10);
/// How long an allowed and a denied SubjectAccessReview is cached (KubeletConfiguration
/// `authorization.webhook.cacheAuthorizedTTL` and `cacheUnauthorizedTTL`).
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// Cached results, of TokenReviews and SubjectAccessReviews each.
const CACHED_MAX: usize = 1024;
/// Concurrent TokenReviews.
const REVIEWS_MAX: usize = 16;
/// The longest token that is reviewed; the API server's have some 1 KiB.
const TOKEN_MAX_BYTES: usize = 16 * 1024;
/// Unknown tokens of one peer that are reviewed within [`UNKNOWN_WINDOW`].
const UNKNOWN_MAX: u32 = 20;
const UNKNOWN_WINDOW: Duration = Duration::from_secs(10);
/// Peers whose unknown tokens are counted.
const PEERS_MAX: usize = 4096;

/// The status code and the message with which a request is rejected.
pub type Rejection = (StatusCode, String);

/// The reviews of the API server.
#[async_trait]
pub trait Reviews: Send + Sync {
    /// The user of a token.
    async fn user(&self, token: &str) -> Result<Option<User>, Error>;
    async fn allows(&self, node: &str, review: &AccessReview) -> Result<bool, Error>;
}

/// The user, verb and node subresource of a SubjectAccessReview.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AccessReview {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
    verb: &'static str,
    subresource: &'static str,
}

#[async_trait]
impl Reviews for Arc<dyn Api> {
    async fn user(&self, token: &str) -> Result<Option<User>, Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_string(),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let created = self.create_as(review).await?;
        let status = created.status.clone();
        let Some(status) = status.filter(|s| s.authenticated == Some(true)) else {
            return Ok(None);
        };
        Ok(status.user.map(|found| {
            let mut user = User::new(
                found.username.unwrap_or_default(),
                found.groups.unwrap_or_default(),
            );
            user.uid = found.uid.unwrap_or_default();
            user.extra = found.extra.unwrap_or_default();
            user
        }))
    }

    async fn allows(&self, node: &str, review: &AccessReview) -> Result<bool, Error> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(review.user.clone()),
                uid: Some(review.uid.clone()),
                groups: Some(review.groups.clone()),
                extra: Some(review.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(review.verb.to_string()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(review.subresource.to_string()),
                    name: Some(node.to_string()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let created = self.create_as(review).await?;
        Ok(created.status.as_ref().is_some_and(|s| s.allowed))
    }
}

/// Authenticates and authorizes requests to one node's kubelet.
pub struct KubeletAccess<R> {
    node: String,
    reviews: R,
    users: ReviewCache<[u8; 32], Option<User>>,
    decisions: ReviewCache<AccessReview, bool>,
    reviewing: Semaphore,
    unknown: Mutex<HashMap<IpAddr, UnknownTokens>>,
}

/// The unknown tokens of a peer in the current window.
struct UnknownTokens {
    since: Instant,
    tokens: u32,
}

impl<R: Reviews> KubeletAccess<R> {
    pub fn new(node: &str, reviews: R) -> Self {
        KubeletAccess {
            node: node.to_string(),
            reviews,
            users: ReviewCache::default(),
            decisions: ReviewCache::default(),
            reviewing: Semaphore::new(REVIEWS_MAX),
            unknown: Mutex::default(),
        }
    }

    /// The user of a token that this peer sent.
    pub async fn user(&self, token: &str, peer: IpAddr) -> Result<Option<User>, Rejection> {
        if token.len() > TOKEN_MAX_BYTES {
            return Ok(None);
        }
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(user) = self.users.get(&key) {
            return Ok(user);
        }
        if self.has_too_many_unknown(peer) {
            let message = "Too many requests with unknown tokens, please try again later.";
            return Err((StatusCode::TOO_MANY_REQUESTS, message.into()));
        }
        let reviewing = async {
            // The semaphore is never closed, so a permit is always granted.
            let _permit = self.reviewing.acquire().await;
            let user = self.reviews.user(token).await?;
            if user.is_none() {
                self.count_unknown(peer);
            }
            Ok((user, TOKEN_TTL))
        };
        self.users
            .get_or_review(key, reviewing)
            .await
            .map_err(review_failed)
    }

    /// Whether the user has the verb on one of the subresources of this path.
    pub async fn allows(&self, user: &User, method: &Method, path: &str) -> Result<bool, Rejection> {
        for subresource in subresources(path) {
            let review = AccessReview {
                user: user.name.clone(),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra: user.extra.clone(),
                verb: verb(method),
                subresource,
            };
            let reviewing = async {
                let allowed = self.reviews.allows(&self.node, &review).await?;
                Ok((allowed, if allowed { ALLOWED_TTL } else { DENIED_TTL }))
            };
            let allowed = self.decisions.get_or_review(review.clone(), reviewing).await;
            if allowed.map_err(review_failed)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_too_many_unknown(&self, peer: IpAddr) -> bool {
        let now = Instant::now();
        let mut peers = self.unknown.lock();
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.retain(|_, unknown| now.duration_since(unknown.since) < UNKNOWN_WINDOW);
            // So many peers at once are treated as one attack.
            return peers.len() >= PEERS_MAX;
        }
        peers.get(&peer).is_some_and(|unknown| {
            unknown.tokens >= UNKNOWN_MAX && now.duration_since(unknown.since) < UNKNOWN_WINDOW
        })
    }

    fn count_unknown(&self, peer: IpAddr) {
        let now = Instant::now();
        let mut peers = self.unknown.lock();
        let unknown = peers.entry(peer).or_insert(UnknownTokens {
            since: now,
            tokens: 0,
        });
        if now.duration_since(unknown.since) >= UNKNOWN_WINDOW {
            *unknown = UnknownTokens {
                since: now,
                tokens: 0,
            };
        }
        unknown.tokens += 1;
    }
}

fn review_failed(error: Error) -> Rejection {
    tracing::warn!(%error, "cannot authenticate or authorize a request to the kubelet's port: the API server does not answer");
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        "Authorization error".to_string(),
    )
}

pub fn verb(method: &Method) -> &'static str {
    match method.as_str() {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    }
}

/// The subresources of a path: the fine-grained one first, then `proxy`, which covers every path (KEP-2862).
pub fn subresources(path: &str) -> Vec<&'static str> {
    let first = path.split('/').find(|s| !s.is_empty()).unwrap_or("");
    match first {
        "stats" => vec!["stats"],
        "metrics" => vec!["metrics"],
        "logs" => vec!["log"],
        "checkpoint" => vec!["checkpoint"],
        "healthz" => vec!["healthz", "proxy"],
        "configz" => vec!["configz", "proxy"],
        "pods" | "runningpods" => vec!["pods", "proxy"],
        _ => vec!["proxy"],
    }
}

/// Cached review results. Concurrent requests share one review; errors are not cached.
struct ReviewCache<K, V> {
    entries: Mutex<HashMap<K, Arc<CachedResult<V>>>>,
}

/// A result and its expiration; empty while the review is in flight.
type CachedResult<V> = OnceCell<(V, Instant)>;

impl<K, V> Default for ReviewCache<K, V> {
    fn default() -> Self {
        ReviewCache {
            entries: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> ReviewCache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        let (value, until) = entries.get(key)?.get()?;
        (*until > Instant::now()).then(|| value.clone())
    }

    async fn get_or_review(
        &self,
        key: K,
        reviewing: impl Future<Output = Result<(V, Duration), Error>>,
    ) -> Result<V, Error> {
        let entry = self.entry(key.clone());
        let outcome = entry
            .get_or_try_init(|| async {
                let (value, ttl) = reviewing.await?;
                Ok((value, Instant::now() + ttl))
            })
            .await;
        match outcome {
            Ok((value, _)) => Ok(value.clone()),
            Err(e) => {
                let mut entries = self.entries.lock();
                if entries
                    .get(&key)
                    .is_some_and(|k| Arc::ptr_eq(k, &entry) && k.get().is_none())
                {
                    entries.remove(&key);
                }
                Err(e)
            }
        }
    }

    /// The entry of this key; a new one if the old has expired.
    fn entry(&self, key: K) -> Arc<CachedResult<V>> {
        let now = Instant::now();
        let is_current = |entry: &Arc<CachedResult<V>>| entry.get().is_none_or(|(_, until)| *until > now);
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(&key).filter(|a| is_current(a)) {
            return entry.clone();
        }
        if entries.len() >= CACHED_MAX {
            // Entries that a request waits for have a second reference.
            entries.retain(|_, entry| {
                is_current(entry) && (entry.initialized() || Arc::strong_count(entry) > 1)
            });
        }
        let entry = Arc::new(CachedResult::new());
        // With too many unexpired entries this result is not cached.
        if entries.len() < CACHED_MAX {
            entries.insert(key, entry.clone());
        }
        entry
    }
}

#[cfg(test)]
mod tests;
