//! Who may ask what of a kubelet's port: authentication and authorization that a kubelet delegates to the API server.
//!
//! A token is reviewed once for everybody who shows it at the same time, and the answer is kept for a while, as the kubelet
//! does. A peer whose tokens are not known may have only so many reviewed, so that a stranger at the kubelet's port does not
//! make load for the API server (SPEC A6). Tokens are kept as hashes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use knarr_api::Error;
use knarr_api::k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use knarr_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use knarr_client::{Api, TypedApi};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use crate::user::User;

/// How long the answer to a token's review is kept. The kubelet's default is 2 minutes; this is the API server's, so that a
/// revoked token ends sooner.
const TOKEN_TTL: Duration = Duration::from_secs(10);
/// How long it is kept that something is allowed, and that it is not (KubeletConfiguration
/// `authorization.webhook.cacheAuthorizedTTL` and `cacheUnauthorizedTTL`).
const ALLOWED_TTL: Duration = Duration::from_secs(300);
const DENIED_TTL: Duration = Duration::from_secs(30);
/// Answers that are kept, of each sort.
const ANSWERS_MAX: usize = 1024;
/// Reviews of tokens at once.
const REVIEWS_MAX: usize = 16;
/// Longest token that is reviewed; the API server's are of some 1 KiB.
const TOKEN_MAX_BYTES: usize = 16 * 1024;
/// Unknown tokens of one peer that are reviewed within [`UNKNOWN_WINDOW`].
const UNKNOWN_MAX: u32 = 20;
const UNKNOWN_WINDOW: Duration = Duration::from_secs(10);
/// Peers whose unknown tokens are counted.
const PEERS_MAX: usize = 4096;

/// Why a request is rejected: with which code, and in which words.
pub type Rejection = (StatusCode, String);

/// What is asked of the API server.
#[async_trait]
pub trait Reviews: Send + Sync {
    /// Whose token it is.
    async fn user(&self, token: &str) -> Result<Option<User>, Error>;
    async fn allows(&self, node: &str, question: &Question) -> Result<bool, Error>;
}

/// Whether a user may do something with one of the node's subresources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
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
        let answer = self.create_as(review).await?;
        let status = answer.status.clone();
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

    async fn allows(&self, node: &str, question: &Question) -> Result<bool, Error> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(question.user.clone()),
                uid: Some(question.uid.clone()),
                groups: Some(question.groups.clone()),
                extra: Some(question.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(question.verb.to_string()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(question.subresource.to_string()),
                    name: Some(node.to_string()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = self.create_as(review).await?;
        Ok(answer.status.as_ref().is_some_and(|s| s.allowed))
    }
}

/// Who may ask what of one node.
pub struct Access<R> {
    node: String,
    reviews: R,
    users: Answers<[u8; 32], Option<User>>,
    decisions: Answers<Question, bool>,
    reviewing: Semaphore,
    unknown: Mutex<HashMap<IpAddr, Unknown>>,
}

/// The unknown tokens of a peer in the current window.
struct Unknown {
    since: Instant,
    tokens: u32,
}

impl<R: Reviews> Access<R> {
    pub fn new(node: &str, reviews: R) -> Self {
        Access {
            node: node.to_string(),
            reviews,
            users: Answers::default(),
            decisions: Answers::default(),
            reviewing: Semaphore::new(REVIEWS_MAX),
            unknown: Mutex::default(),
        }
    }

    /// Whose token it is, which was shown by this peer.
    pub async fn user(&self, token: &str, peer: IpAddr) -> Result<Option<User>, Rejection> {
        if token.len() > TOKEN_MAX_BYTES {
            return Ok(None);
        }
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(user) = self.users.get(&key) {
            return Ok(user);
        }
        if self.has_too_many_unknown(peer) {
            let words = "Too many requests with unknown tokens, please try again later.";
            return Err((StatusCode::TOO_MANY_REQUESTS, words.into()));
        }
        let ask = async {
            // Never closed, so there is always a permit at last.
            let _permit = self.reviewing.acquire().await;
            let user = self.reviews.user(token).await?;
            if user.is_none() {
                self.count_unknown(peer);
            }
            Ok((user, TOKEN_TTL))
        };
        self.users.get_or_ask(key, ask).await.map_err(unreachable_api)
    }

    /// Whether one of the subresources that stand for this path may be asked for.
    pub async fn allows(&self, user: &User, method: &Method, path: &str) -> Result<bool, Rejection> {
        for subresource in subresources(path) {
            let question = Question {
                user: user.name.clone(),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra: user.extra.clone(),
                verb: verb(method),
                subresource,
            };
            let ask = async {
                let allowed = self.reviews.allows(&self.node, &question).await?;
                Ok((allowed, if allowed { ALLOWED_TTL } else { DENIED_TTL }))
            };
            let answer = self.decisions.get_or_ask(question.clone(), ask).await;
            if answer.map_err(unreachable_api)? {
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
            // So many peers at once are one attack.
            return peers.len() >= PEERS_MAX;
        }
        peers.get(&peer).is_some_and(|unknown| {
            unknown.tokens >= UNKNOWN_MAX && now.duration_since(unknown.since) < UNKNOWN_WINDOW
        })
    }

    fn count_unknown(&self, peer: IpAddr) {
        let now = Instant::now();
        let mut peers = self.unknown.lock();
        let unknown = peers.entry(peer).or_insert(Unknown {
            since: now,
            tokens: 0,
        });
        if now.duration_since(unknown.since) >= UNKNOWN_WINDOW {
            *unknown = Unknown {
                since: now,
                tokens: 0,
            };
        }
        unknown.tokens += 1;
    }
}

fn unreachable_api(error: Error) -> Rejection {
    tracing::warn!(%error, "the API server cannot be asked who may use the kubelet's port");
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

/// What a path stands for: the fine-grained subresource first, then the one that stands for everything.
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

/// Answers to questions, each asked once for all who ask at the same time, and kept for a while. Errors are not kept.
struct Answers<K, V> {
    kept: Mutex<HashMap<K, Arc<Answer<V>>>>,
}

/// An answer and until when it is kept; empty while it is asked for.
type Answer<V> = OnceCell<(V, Instant)>;

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Answers {
            kept: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Answers<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let kept = self.kept.lock();
        let (value, until) = kept.get(key)?.get()?;
        (*until > Instant::now()).then(|| value.clone())
    }

    async fn get_or_ask(
        &self,
        key: K,
        ask: impl Future<Output = Result<(V, Duration), Error>>,
    ) -> Result<V, Error> {
        let answer = self.answer(key.clone());
        let asked = answer
            .get_or_try_init(|| async {
                let (value, ttl) = ask.await?;
                Ok((value, Instant::now() + ttl))
            })
            .await;
        match asked {
            Ok((value, _)) => Ok(value.clone()),
            Err(e) => {
                let mut kept = self.kept.lock();
                if kept
                    .get(&key)
                    .is_some_and(|k| Arc::ptr_eq(k, &answer) && k.get().is_none())
                {
                    kept.remove(&key);
                }
                Err(e)
            }
        }
    }

    /// The place of this answer; a new one if the old is outdated.
    fn answer(&self, key: K) -> Arc<Answer<V>> {
        let now = Instant::now();
        let is_current = |answer: &Arc<Answer<V>>| answer.get().is_none_or(|(_, until)| *until > now);
        let mut kept = self.kept.lock();
        if let Some(answer) = kept.get(&key).filter(|a| is_current(a)) {
            return answer.clone();
        }
        if kept.len() >= ANSWERS_MAX {
            // Those that somebody waits for have another holder.
            kept.retain(|_, answer| {
                is_current(answer) && (answer.initialized() || Arc::strong_count(answer) > 1)
            });
        }
        let answer = Arc::new(Answer::new());
        // When there are too many current ones, this one is asked for by itself.
        if kept.len() < ANSWERS_MAX {
            kept.insert(key, answer.clone());
        }
        answer
    }
}

#[cfg(test)]
mod tests;
