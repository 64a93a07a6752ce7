//! How many reviews the API server gets.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::*;

/// Knows the token `good`, and allows `metrics` to every user.
#[derive(Default)]
struct CountingReviews {
    users: AtomicUsize,
    access_reviews: AtomicUsize,
    /// TokenReviews wait for this if it is set.
    gate: Option<Notify>,
    fails: bool,
}

#[async_trait]
impl Reviews for Arc<CountingReviews> {
    async fn user(&self, token: &str) -> Result<Option<User>, Error> {
        self.users.fetch_add(1, Ordering::Relaxed);
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
        if self.fails {
            return Err(Error::unavailable("no"));
        }
        Ok((token == "good").then(|| User::new("ann", [""; 0])))
    }

    async fn allows(&self, _: &str, review: &AccessReview) -> Result<bool, Error> {
        self.access_reviews.fetch_add(1, Ordering::Relaxed);
        Ok(review.subresource == "metrics")
    }
}

fn peer(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

#[tokio::test(start_paused = true)]
async fn a6_review_results_are_cached_for_their_ttl() {
    let api = Arc::new(CountingReviews::default());
    let access = KubeletAccess::new("n", api.clone());
    for (wait, reviewed) in [(0, 1), (9, 1), (2, 2)] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let user = access.user("good", peer(1)).await.unwrap();
        assert_eq!(user.map(|u| u.name).as_deref(), Some("ann"));
        assert_eq!(api.users.load(Ordering::Relaxed), reviewed);
    }
    let ann = User::new("ann", [""; 0]);
    for (wait, path, allowed, reviewed) in [
        (0, "/metrics", true, 1),
        (299, "/metrics", true, 1),
        (2, "/metrics", true, 2),
        (0, "/exec/a/b/c", false, 3),
        (29, "/exec/a/b/c", false, 3),
        (2, "/exec/a/b/c", false, 4),
    ] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let found = access.allows(&ann, &Method::GET, path).await.unwrap();
        assert_eq!(
            (found, api.access_reviews.load(Ordering::Relaxed)),
            (allowed, reviewed),
            "{path}"
        );
    }
    // Another user or another verb needs another review.
    assert!(!access.allows(&ann, &Method::POST, "/exec/a/b/c").await.unwrap());
    let bob = User::new("bob", [""; 0]);
    assert!(!access.allows(&bob, &Method::GET, "/exec/a/b/c").await.unwrap());
    assert_eq!(api.access_reviews.load(Ordering::Relaxed), 6);
}

#[tokio::test(start_paused = true)]
async fn a6_concurrent_requests_with_one_token_share_a_review() {
    let api = Arc::new(CountingReviews {
        gate: Some(Notify::new()),
        ..CountingReviews::default()
    });
    let access = KubeletAccess::new("n", api.clone());
    let all = futures::future::join_all((0..50).map(|n| access.user("good", peer(n))));
    let open = async {
        while api.users.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        api.gate.as_ref().unwrap().notify_one();
    };
    let (users, ()) = tokio::join!(all, open);
    assert!(users.into_iter().all(|user| user.unwrap().is_some()));
    assert_eq!(api.users.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a6_the_reviews_of_unknown_tokens_per_peer_are_limited() {
    let api = Arc::new(CountingReviews::default());
    let access = KubeletAccess::new("n", api.clone());
    let mut codes = Vec::new();
    for n in 0..1000 {
        match access.user(&format!("guess-{n}"), peer(1)).await {
            Ok(user) => assert!(user.is_none()),
            Err((code, _)) => codes.push(code),
        }
    }
    assert_eq!(api.users.load(Ordering::Relaxed), UNKNOWN_MAX as usize);
    assert_eq!(codes.len(), 1000 - UNKNOWN_MAX as usize);
    assert!(codes.iter().all(|code| *code == StatusCode::TOO_MANY_REQUESTS));
    // Other peers are served, and this one is again after the window.
    assert!(access.user("good", peer(2)).await.unwrap().is_some());
    tokio::time::sleep(UNKNOWN_WINDOW).await;
    assert!(access.user("guess-1000", peer(1)).await.unwrap().is_none());
    // The cache has a bound.
    for n in 0..3 * CACHED_MAX {
        let peer = Ipv4Addr::from_bits(u32::try_from(n).unwrap()).into();
        assert!(access.user(&format!("other-{n}"), peer).await.unwrap().is_none());
    }
    assert!(access.users.entries.lock().len() <= CACHED_MAX);
    // A token that is too long is not reviewed.
    let reviewed = api.users.load(Ordering::Relaxed);
    let long = "x".repeat(TOKEN_MAX_BYTES + 1);
    assert!(access.user(&long, peer(3)).await.unwrap().is_none());
    assert_eq!(api.users.load(Ordering::Relaxed), reviewed);
}

#[tokio::test(start_paused = true)]
async fn errors_are_not_cached() {
    let api = Arc::new(CountingReviews {
        fails: true,
        ..CountingReviews::default()
    });
    let access = KubeletAccess::new("n", api.clone());
    for reviewed in 1..4 {
        let (code, _) = access.user("good", peer(1)).await.unwrap_err();
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(api.users.load(Ordering::Relaxed), reviewed);
    }
    assert!(access.users.entries.lock().is_empty());
}

#[test]
fn a_path_is_a_subresource_of_the_node() {
    for (path, expected) in [
        ("/pods", vec!["pods", "proxy"]),
        ("/healthz", vec!["healthz", "proxy"]),
        ("/metrics/cadvisor", vec!["metrics"]),
        ("/stats/summary", vec!["stats"]),
        ("/logs/x", vec!["log"]),
        ("/exec/a/p/c", vec!["proxy"]),
        ("/containerLogs/a/p/c", vec!["proxy"]),
        ("//pods", vec!["pods", "proxy"]),
        ("/", vec!["proxy"]),
    ] {
        assert_eq!(subresources(path), expected, "{path}");
    }
}
