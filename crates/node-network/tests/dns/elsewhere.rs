//! Names that upstream servers answer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use super::cluster::{Cluster, in_namespace};
use super::upstream::{UPSTREAM, Upstream};

/// A cluster whose configuration has arrived: a name of its hosts is known.
async fn configured(upstreams: &str) -> Cluster {
    let cluster = Cluster::start(|ip| (ip.is_ipv4()).then(|| "ns".into())).await;
    cluster
        .configure(json!({"upstreams": upstreams, "hosts": "192.0.2.99 here.example"}))
        .await;
    cluster.until("here.example", "192.0.2.99").await;
    cluster.until("10-1-2-3.ns.pod.cluster.local", "10.1.2.3").await;
    cluster
}

#[test]
fn n5_other_names_are_queried_once_and_cached() {
    in_namespace(async {
        let upstream = Upstream::start().await;
        let cluster = configured(UPSTREAM).await;
        let queries = join_all((0..50).map(|_| cluster.ask("www.example.com", RecordType::A))).await;
        for answer in queries {
            assert_eq!(answer.answers[0].data.to_string(), "192.0.2.80");
            assert!(!answer.authoritative && answer.metadata.recursion_available);
        }
        // Questions that arrived while the configuration was read may have been forwarded again.
        assert!(upstream.queries() <= 2, "{}", upstream.queries());
        let before = upstream.queries();
        assert_eq!(
            cluster.ask("WWW.example.com", RecordType::A).await.answers.len(),
            1
        );
        assert!(upstream.queries() <= before.max(1) + 1);
        let missing = cluster.ask("missing.example.com", RecordType::A).await;
        assert_eq!(missing.metadata.response_code, ResponseCode::NXDomain);
    });
}

#[test]
fn n5_truncated_answers_are_fetched_over_tcp_and_truncated_for_clients_over_udp() {
    in_namespace(async {
        let upstream = Upstream::start().await;
        let cluster = configured(UPSTREAM).await;
        let answer = cluster.ask("long.example.com", RecordType::TXT).await;
        assert!(answer.metadata.truncation && answer.answers.is_empty());
        let answer = cluster.ask_tcp("long.example.com", RecordType::TXT).await;
        assert_eq!(answer.answers.len(), 30);
        assert!((1..=2).contains(&upstream.over_tcp.load(Ordering::SeqCst)));
    });
}

#[test]
fn n5_external_names_and_search_lists_lead_to_other_servers_in_one_step() {
    in_namespace(async {
        let upstream = Upstream::start().await;
        let cluster = configured(UPSTREAM).await;
        cluster
            .service(
                "ext",
                json!({"type": "ExternalName", "externalName": "www.example.com"}),
            )
            .await;
        cluster.until("ext.ns.svc.cluster.local", "192.0.2.80").await;
        let answer = cluster.ask("Ext.ns.svc.cluster.local", RecordType::A).await;
        let records: Vec<_> = answer
            .answers
            .iter()
            .map(|r| format!("{} {}", r.name, r.data))
            .collect();
        assert_eq!(
            records,
            [
                "Ext.ns.svc.cluster.local. www.example.com.",
                "www.example.com. 192.0.2.80"
            ]
        );
        let before = upstream.queries();
        let answer = cluster
            .ask("www.example.com.ns.svc.cluster.local", RecordType::A)
            .await;
        let records: Vec<_> = answer.answers.iter().map(|r| r.data.to_string()).collect();
        assert_eq!(records, ["www.example.com.", "192.0.2.80"]);
        assert_eq!(upstream.queries(), before, "it is known from before");
        let answer = cluster
            .ask("missing.example.com.ns.svc.cluster.local", RecordType::A)
            .await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        assert_eq!(
            answer.queries[0].name().to_string(),
            "missing.example.com.ns.svc.cluster.local."
        );
        // A client whose search list is not known tries its names itself.
        let v6 = "fd00:96::a".parse().unwrap();
        let answer = cluster
            .ask_at(v6, "www.example.com.ns.svc.cluster.local", RecordType::A)
            .await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    });
}

#[test]
fn n5_a_silent_server_affects_its_own_names_only() {
    in_namespace(async {
        let silent = UdpSocket::bind("127.0.0.54:53").await.unwrap();
        let cluster = configured("127.0.0.54").await;
        let begun = Instant::now();
        let all = join_all((0..200).map(|n| {
            let cluster = &cluster;
            async move {
                cluster
                    .ask(&format!("n{n}.example.com"), RecordType::A)
                    .await
                    .metadata
                    .response_code
            }
        }));
        let meanwhile = async {
            for _ in 0..100 {
                let answer = cluster.ask("10-1-2-3.ns.pod.cluster.local", RecordType::A).await;
                assert_eq!(answer.answers.len(), 1);
            }
            begun.elapsed()
        };
        let (codes, meanwhile) = tokio::join!(all, meanwhile);
        assert!(codes.iter().all(|code| *code == ResponseCode::ServFail));
        assert!(meanwhile < Duration::from_secs(2), "{meanwhile:?}");
        assert!(begun.elapsed() < Duration::from_secs(8));
        drop(silent);
    });
}

#[test]
fn n5_a_server_that_forwards_back_to_this_one_is_not_queried_again() {
    in_namespace(async {
        // Passes everything on to the server under test, and its answers back.
        let relay = UdpSocket::bind("127.0.0.55:53").await.unwrap();
        let passed = tokio::spawn(async move {
            let back = UdpSocket::bind("0.0.0.0:0").await.unwrap();
            let server = "10.96.0.10:53";
            let (mut bytes, mut count, mut last) = (vec![0; 4096], 0usize, None);
            let mut answer = vec![0; 4096];
            loop {
                tokio::select! {
                    Ok((length, client)) = relay.recv_from(&mut bytes) => {
                        count += 1;
                        assert!(count < 1000, "a storm");
                        last = Some(client);
                        // The server may not be there yet.
                        if back.send_to(&bytes[..length], server).await.is_err() { continue }
                    }
                    Ok((length, _)) = back.recv_from(&mut answer) => {
                        if let Some(client) = last {
                            relay.send_to(&answer[..length], client).await.unwrap();
                        }
                    }
                }
            }
        });
        let cluster = configured("127.0.0.55").await;
        let wait = async {
            loop {
                let begun = Instant::now();
                let answer = cluster.ask("www.example.com", RecordType::A).await;
                assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
                if begun.elapsed() < Duration::from_millis(200) {
                    break;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .expect("the loop is found");
        assert!(!passed.is_finished());
        passed.abort();
    });
}
