//! How often the API server is asked.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::*;

/// Knows the token `good`, and allows `metrics` to everybody.
#[derive(Default)]
struct Counting {
    users: AtomicUsize,
    questions: AtomicUsize,
    /// Reviews wait for this where there is one.
    gate: Option<Notify>,
    fails: bool,
}

#[async_trait]
impl Reviews for Arc<Counting> {
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

    async fn allows(&self, _: &str, question: &Question) -> Result<bool, Error> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        Ok(question.subresource == "metrics")
    }
}

fn peer(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

#[tokio::test(start_paused = true)]
async fn a6_answers_are_kept_for_their_time() {
    let api = Arc::new(Counting::default());
    let access = Access::new("n", api.clone());
    for (wait, asked) in [(0, 1), (9, 1), (2, 2)] {
        tokio::time::sleep(Duration::from_secs(wait)).await;
        let user = access.user("good", peer(1)).await.unwrap();
        assert_eq!(user.map(|u| u.name).as_deref(), Some("ann"));
        assert_eq!(api.users.load(Ordering::Relaxed), asked);
    }
    let ann = User::new("ann", [""; 0]);
    for (wait, path, allowed, asked) in [
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
            (found, api.questions.load(Ordering::Relaxed)),
            (allowed, asked),
            "{path}"
        );
    }
    // Another user, or another verb, is another question.
    assert!(!access.allows(&ann, &Method::POST, "/exec/a/b/c").await.unwrap());
    let bob = User::new("bob", [""; 0]);
    assert!(!access.allows(&bob, &Method::GET, "/exec/a/b/c").await.unwrap());
    assert_eq!(api.questions.load(Ordering::Relaxed), 6);
}

#[tokio::test(start_paused = true)]
async fn a6_a_token_is_reviewed_once_for_all_who_show_it() {
    let api = Arc::new(Counting {
        gate: Some(Notify::new()),
        ..Counting::default()
    });
    let access = Access::new("n", api.clone());
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
async fn a6_a_stranger_cannot_have_any_number_of_tokens_reviewed() {
    let api = Arc::new(Counting::default());
    let access = Access::new("n", api.clone());
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
    // Others are served, and so is this one later.
    assert!(access.user("good", peer(2)).await.unwrap().is_some());
    tokio::time::sleep(UNKNOWN_WINDOW).await;
    assert!(access.user("guess-1000", peer(1)).await.unwrap().is_none());
    // What is kept has a bound, whatever is asked.
    for n in 0..3 * ANSWERS_MAX {
        let peer = Ipv4Addr::from_bits(u32::try_from(n).unwrap()).into();
        assert!(access.user(&format!("other-{n}"), peer).await.unwrap().is_none());
    }
    assert!(access.users.kept.lock().len() <= ANSWERS_MAX);
    // A token of any length is not even hashed and sent on.
    let asked = api.users.load(Ordering::Relaxed);
    let long = "x".repeat(TOKEN_MAX_BYTES + 1);
    assert!(access.user(&long, peer(3)).await.unwrap().is_none());
    assert_eq!(api.users.load(Ordering::Relaxed), asked);
}

#[tokio::test(start_paused = true)]
async fn errors_are_not_kept() {
    let api = Arc::new(Counting {
        fails: true,
        ..Counting::default()
    });
    let access = Access::new("n", api.clone());
    for asked in 1..4 {
        let (code, _) = access.user("good", peer(1)).await.unwrap_err();
        assert_eq!(code, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(api.users.load(Ordering::Relaxed), asked);
    }
    assert!(access.users.kept.lock().is_empty());
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
