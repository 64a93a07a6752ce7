//! Clients that take time and room: each is sent away after its time, and there is a limit for all.

use tokio::time::Instant;

use super::*;
use crate::server::{GATE_TIMEOUT, Gate, HEAD_TIMEOUT, STREAMS_MAX};

fn server() -> Server {
    let node = Arc::new(Node {
        streams: String::new(),
        log: PathBuf::new(),
    });
    Server::new(node.clone(), node, Arc::new(|| Timestamp::UNIX_EPOCH))
}

/// What comes of a connection on which this is said, and how long it took.
async fn said(server: Server, gate: impl Gate + 'static, text: &str) -> (String, std::time::Duration) {
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    let begun = Instant::now();
    tokio::spawn(async move { server.serve_behind(theirs, &gate).await });
    io.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The far side may break off.
    let _ = io.read_to_end(&mut answer).await;
    (String::from_utf8_lossy(&answer).into_owned(), begun.elapsed())
}

/// Answers every request with this code; waits for ever without one.
struct Says(Option<StatusCode>);

#[async_trait]
impl Gate for Says {
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
async fn a6_who_says_nothing_or_half_of_it_is_sent_away() {
    for text in ["", "GET /healthz HT", "GET /healthz HTTP/1.1\r\nHost: n"] {
        let (_, took) = said(server(), Says(None), text).await;
        assert!(
            took >= HEAD_TIMEOUT && took < 2 * HEAD_TIMEOUT,
            "{text:?}: {took:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a6_who_has_not_authenticated_keeps_no_connection() {
    let request = "GET /healthz HTTP/1.1\r\nHost: n\r\n\r\n";
    let (answer, took) = said(server(), Says(Some(StatusCode::UNAUTHORIZED)), request).await;
    assert!(
        answer.starts_with("HTTP/1.1 401") && took.is_zero(),
        "{answer} {took:?}"
    );
    // Who may not do this may do something else.
    let (answer, took) = said(server(), Says(Some(StatusCode::FORBIDDEN)), request).await;
    assert!(
        answer.starts_with("HTTP/1.1 403") && took >= HEAD_TIMEOUT,
        "{answer} {took:?}"
    );
    let (answer, took) = said(server(), Says(None), request).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert_eq!(took.as_secs(), GATE_TIMEOUT.as_secs());
}

#[tokio::test]
async fn a6_there_is_a_limit_of_streams() {
    let server = server();
    let room = server
        .room
        .clone()
        .try_acquire_many_owned(u32::try_from(STREAMS_MAX).unwrap());
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(theirs).await });
    let head = ask(&mut io, "GET /containerLogs/ns/p/c", &[]).await;
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    drop(room);
    let (mut io, theirs) = tokio::io::duplex(1 << 16);
    tokio::spawn(async move { server.serve(theirs).await });
    let head = ask(&mut io, "GET /containerLogs/ns/p/c", &[]).await;
    assert!(!head.starts_with("HTTP/1.1 429"), "{head}");
}
