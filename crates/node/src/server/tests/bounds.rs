//! Slow and excessive clients: each is disconnected after its timeout, and the total is limited.

use tokio::time::Instant;

use super::*;
use crate::server::{GATE_TIMEOUT, HEAD_TIMEOUT, RequestAuthorizer, STREAMS_MAX};

fn server() -> Server {
    let node = Arc::new(Node {
        streams: String::new(),
        log: PathBuf::new(),
    });
    Server::new(node.clone(), node, Arc::new(|| Timestamp::UNIX_EPOCH))
}

/// The answer to this text on a new connection, and how long it took.
async fn exchange(
    server: Server,
    gate: impl RequestAuthorizer + 'static,
    text: &str,
) -> (String, std::time::Duration) {
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    let begun = Instant::now();
    tokio::spawn(async move { server.serve_authorized(theirs, &gate).await });
    io.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The far side may break off.
    let _ = io.read_to_end(&mut answer).await;
    (String::from_utf8_lossy(&answer).into_owned(), begun.elapsed())
}

/// Answers every request with this code; waits for ever without one.
struct FixedAnswer(Option<StatusCode>);

#[async_trait]
impl RequestAuthorizer for FixedAnswer {
    async fn pass(
        &self,
        _: &Method,
        _: &str,
        _: &HeaderMap,
    ) -> std::result::Result<(), (StatusCode, String)> {
        match self.0 {
            Some(code) => Err((code, code.to_string())),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a6_a_client_that_sends_no_complete_head_is_disconnected() {
    for text in ["", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nHost: n"] {
        let (_, took) = exchange(server(), FixedAnswer(None), text).await;
        assert!(
            took >= HEAD_TIMEOUT && took < 2 * HEAD_TIMEOUT,
            "{text:?}: {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a6_an_unauthenticated_client_keeps_no_connection() {
    let request = "GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n";
    let (answer, took) = exchange(server(), FixedAnswer(Some(StatusCode::UNAUTHORIZED)), request).await;
    assert!(
        answer.starts_with("HTTP/1.1 401") && took.is_zero(),
        "{answer} {took:?}"
    );
    // A client without this permission may have others.
    let (answer, took) = exchange(server(), FixedAnswer(Some(StatusCode::FORBIDDEN)), request).await;
    assert!(
        answer.starts_with("HTTP/1.1 403") && took >= HEAD_TIMEOUT,
        "{answer} {took:?}"
    );
    let (answer, took) = exchange(server(), FixedAnswer(None), request).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert_eq!(took.as_secs(), GATE_TIMEOUT.as_secs());
}

#[tokio::test]
async fn a6_the_number_of_streams_is_limited() {
    let server = server();
    let stream_permits = server
        .stream_permits
        .clone()
        .try_acquire_many_owned(u32::try_from(STREAMS_MAX).unwrap());
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(theirs).await });
    let head = ask(&mut io, "GET /containerLogs/ns/p/c", &[]).await;
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    drop(stream_permits);
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { server.serve(theirs).await });
    let head = ask(&mut io, "GET /containerLogs/ns/p/c", &[]).await;
    assert!(!head.starts_with("HTTP/1.1 429"), "{head}");
}
