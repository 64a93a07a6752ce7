//! Single requests that are as large, or as many, as a client can make them.

use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::frames::*;
use super::{H1, H2, LARGE, connected, eventually, read_to_end, serves};
use crate::cluster::{ADMIN, Cluster, Credentials};

#[tokio::test]
async fn heads_that_are_too_large_over_http1_are_rejected() {
    let cluster = Cluster::start().await;
    let headers = |n: usize, bytes: usize| {
        let one = |i| format!("x-{i}: {}\r\n", "x".repeat(bytes));
        (0..n).map(one).collect::<String>()
    };
    let get = |path: &str, headers: &str| {
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {ADMIN}\r\n{headers}\r\n")
    };
    for (what, request, code) in [
        (
            "a long path",
            get(&format!("/api/{}", "a".repeat(70_000)), ""),
            414,
        ),
        ("a path without end", format!("GET /{}", "a".repeat(500_000)), 431),
        ("a long header", get("/api", &headers(1, 500_000)), 431),
        ("many headers", get("/api", &headers(2000, 1)), 431),
        ("no method", "\0\0\0 / HTTP/1.1\r\n\r\n".to_string(), 400),
        ("no version", "GET /api\r\n\r\n".to_string(), 400),
        (
            "two lengths",
            get("/api", "content-length: 1\r\ncontent-length: 2\r\n"),
            400,
        ),
        (
            "a length below nothing",
            get("/api", "content-length: -1\r\n"),
            400,
        ),
        ("a folded header", get("/api", "a: b\r\n c\r\n"), 400),
    ] {
        let (read, mut write) = tokio::io::split(connected(&cluster, H1).await);
        // The server may reject it before all is sent.
        let _ = write.write_all(request.as_bytes()).await;
        let answer = eventually(what, read_to_end(read)).await;
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.starts_with(&format!("HTTP/1.1 {code} ")), "{what}: {text}");
        serves(&cluster).await;
    }
}

#[tokio::test]
async fn selectors_of_ten_thousand_requirements_select() {
    let cluster = Cluster::start().await;
    for n in 0..20 {
        let map = json!({"metadata": {"name": format!("m{n}"), "labels": {"n": n.to_string(), "007": "x"}}});
        cluster.create(LARGE, map).await;
    }
    // Short names: a path has at most 64 KiB.
    let short = |n: u32| -> String {
        let digit = |n: u32| char::from_digit(n % 36, 36).unwrap();
        [digit(n / 1296), digit(n / 36), digit(n)].iter().collect()
    };
    let absent = |from: u32| {
        (from..10_000)
            .map(|n| format!("!{}", short(n)))
            .collect::<Vec<_>>()
            .join(",")
    };
    let numbers = |from: usize, join: &str| {
        (from..10_000)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(join)
    };
    for (selector, count) in [
        (format!("n+in+({})", numbers(10, ",")), 10),
        (format!("n+notin+({})", numbers(10, ",")), 10),
        (absent(8), 20),
        (absent(7), 0),
    ] {
        let (mut read, mut write) = tokio::io::split(connected(&cluster, H2).await);
        let path = format!("{LARGE}?labelSelector={selector}");
        let says = [hello(1 << 20), request(1, &head("GET", &path, ADMIN), END_STREAM)].concat();
        write.write_all(&says).await.unwrap();
        let listed = async {
            let mut body = Vec::new();
            loop {
                let frame = next(&mut read).await.unwrap();
                if frame.kind == DATA {
                    body.extend_from_slice(&frame.payload);
                }
                if matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM > 0 {
                    return body;
                }
            }
        };
        let body = eventually("a list", listed).await;
        let list: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let names = list["items"].as_array().map(Vec::len);
        assert_eq!(names, Some(count), "{}: {list}", &selector[..20]);
    }
}

#[tokio::test]
async fn a6_clients_cannot_create_series_of_metrics() {
    let cluster = Cluster::start().await;
    for n in 0..20 {
        for path in [
            format!("/api/v1/namespaces/default/pods/p/made-up-{n}"),
            format!("/api/v1/namespaces/default/made-up-{n}/x"),
            format!("/made-up-{n}"),
        ] {
            let found = cluster.ask(&Credentials::default(), "GET", &path, None).await;
            assert_eq!(found.code, 403, "{path}");
        }
    }
    let metrics = cluster
        .ask(&Credentials::token(ADMIN), "GET", "/metrics", None)
        .await;
    assert!(
        metrics.text.contains("apiserver_request_total"),
        "{}",
        metrics.text
    );
    assert!(!metrics.text.contains("made-up"), "{}", metrics.text);
}

#[tokio::test]
async fn a6_a_body_of_unknown_fields_is_warned_about_in_moderation() {
    let cluster = Cluster::start().await;
    let mut body = json!({"metadata": {"name": "m"}});
    for n in 0..20_000 {
        body[format!("f{n}")] = 0.into();
    }
    let path = "/api/v1/namespaces/default/configmaps";
    let admin = Credentials::token(ADMIN);
    let made = eventually("an answer", cluster.ask(&admin, "POST", path, Some(body))).await;
    assert_eq!(made.code, 201);
}
