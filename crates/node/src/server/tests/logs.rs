//! Logs as HTTP answers; what is in them is tested in `logs`.

use super::*;

#[tokio::test]
async fn l13_logs_come_as_plain_text() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("0.log");
    let lines: String = (0..20_000)
        .map(|n| format!("2026-01-01T00:00:00Z stdout F line {n}\n"))
        .collect();
    std::fs::write(&log, lines).unwrap();
    for (query, first, count) in [
        ("", 0, 20_000),
        ("?tailLines=3", 19_997, 3),
        ("?follow=true&tailLines=1", 19_999, 1),
    ] {
        let mut io = dial(String::new(), log.clone()).await;
        let request = format!("GET /containerLogs/ns/p/c{query}");
        let head = ask(&mut io, &request, &[("Connection", "close")]).await;
        assert!(
            head.starts_with("HTTP/1.1 200") && head.contains("content-type: text/plain\r\n"),
            "{head}"
        );
        assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
        let mut body = String::new();
        io.read_to_string(&mut body).await.unwrap();
        let shown: Vec<&str> = body.lines().filter(|line| line.starts_with("line ")).collect();
        assert_eq!(shown.len(), count, "{query}");
        assert_eq!(shown[0], format!("line {first}"), "{query}");
    }
}

#[tokio::test]
async fn a_missing_log_file_is_reported() {
    let (code, text) = error_of("GET /containerLogs/ns/p/c", &[]).await;
    assert_eq!(code, 400);
    assert!(
        text.starts_with("failed to open log file \"/nowhere\": "),
        "{text}"
    );
}

#[tokio::test]
async fn a_follower_that_hangs_up_is_not_served_on() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("endless.log");
    std::fs::write(&log, "2026-01-01T00:00:00Z stdout F first\n").unwrap();
    for half in [false, true] {
        let node = Arc::new(Node {
            streams: String::new(),
            log: log.clone(),
        });
        let server = Server::new(node.clone(), node, Arc::new(|| Timestamp::UNIX_EPOCH));
        let (mut io, theirs) = tokio::io::duplex(1 << 16);
        let serving = server.clone();
        let connection = tokio::spawn(async move { serving.serve(theirs).await });
        let head = ask(&mut io, "GET /containerLogs/ns/p/c?follow=true", &[]).await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let mut first = [0; "6\r\nfirst\n\r\n".len()];
        io.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"6\r\nfirst\n\r\n");
        // Nothing more is written to the log: only the client's disconnect can be noticed.
        let still_there = match half {
            true => {
                io.shutdown().await.unwrap();
                Some(io)
            }
            false => {
                drop(io);
                None
            }
        };
        server.streams.close();
        let limit = std::time::Duration::from_secs(5);
        tokio::time::timeout(limit, server.streams.wait())
            .await
            .expect("the log is still followed");
        tokio::time::timeout(limit, connection)
            .await
            .expect("the connection is still there")
            .unwrap();
        drop(still_there);
    }
}
