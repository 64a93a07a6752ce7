//! The DNS server with real sockets, each test in a network namespace of its own.

#![allow(clippy::unwrap_used)] // a test may panic anywhere; clippy knows that only inside test functions

mod cluster;
mod elsewhere;
mod limits;
mod upstream;

use std::net::SocketAddr;

use cluster::{ADDRESS, Cluster, TIMEOUT, address, in_namespace};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use knarr_node_network::dns::addresses;
use tokio::net::UdpSocket;
use tokio::time::timeout;

#[test]
fn n5_names_of_the_cluster_are_answered_over_udp_and_tcp_while_the_api_is_away() {
    in_namespace(async {
        let cluster = Cluster::start(|_| None).await;
        cluster
            .service(
                "web",
                serde_json::json!({"clusterIPs": ["10.96.7.7"], "ports": [{"port": 80}]}),
            )
            .await;
        cluster.until("web.ns.svc.cluster.local", "10.96.7.7").await;
        cluster.api.break_watches(true);
        for ip in [address(), "fd00:96::a".parse().unwrap()] {
            let answer = cluster
                .ask_at(ip, "wEb.ns.svc.cluster.local", RecordType::A)
                .await;
            assert!(
                answer.authoritative,
                "and from the address that was asked, or the socket had not taken it"
            );
            assert_eq!(answer.answers[0].data.to_string(), "10.96.7.7");
            assert_eq!(answer.queries[0].name().to_string(), "wEb.ns.svc.cluster.local.");
        }
        let answer = cluster
            .ask_tcp("web.ns.svc.cluster.local", RecordType::AAAA)
            .await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
        let answer = cluster.ask("gone.ns.svc.cluster.local", RecordType::A).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
        assert_eq!(answer.authorities[0].ttl, 5);
        let metrics = cluster.server.metrics();
        assert!(
            metrics.contains(
                r#"coredns_dns_requests_total{family="1",proto="tcp",server="dns://:53",type="AAAA""#
            ),
            "{metrics}"
        );
        assert!(cluster.server.is_ready() && cluster.server.health() == "OK");
    });
}

#[test]
fn n5_a_long_answer_comes_over_tcp_and_its_order_changes() {
    in_namespace(async {
        let cluster = Cluster::start(|_| None).await;
        cluster
            .service(
                "many",
                serde_json::json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            )
            .await;
        cluster
            .slice("many", (0..200).map(|n| format!("10.1.0.{n}")).collect())
            .await;
        let name = "many.ns.svc.cluster.local";
        let mut first = std::collections::BTreeSet::new();
        cluster.until_truncated(name).await;
        for _ in 0..5 {
            let answer = cluster.ask_tcp(name, RecordType::A).await;
            assert_eq!(answer.answers.len(), 200);
            first.insert(answer.answers[0].data.to_string());
        }
        assert_eq!(first.len(), 5);
    });
}

#[test]
fn n5_addresses_are_put_on_the_loopback_interface_once_and_taken_away_again() {
    in_namespace(async {
        let all = [address(), "fd00:96::a".parse().unwrap()];
        for _ in 0..2 {
            addresses::add(&all).await.unwrap();
        }
        let shown = || {
            let output = std::process::Command::new("ip")
                .args(["address", "show", "lo"])
                .output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        let text = shown();
        assert!(text.contains(&format!("{ADDRESS}/32 scope host")), "{text}");
        assert!(
            text.contains("fd00:96::a/128") && !text.contains("tentative"),
            "{text}"
        );
        for _ in 0..2 {
            addresses::remove(&all).await.unwrap();
        }
        assert!(!shown().contains(ADDRESS) && !shown().contains("fd00:96::a"));
    });
}

#[test]
fn n5_a_socket_that_connects_right_after_an_address_was_added_reaches_it() {
    in_namespace(async {
        let all = [address(), "fd00:96::a".parse().unwrap()];
        // Which is first, the socket or the kernel's worker that adds the local route, differs from time to time.
        for round in 0..30 {
            addresses::add(&all).await.unwrap();
            for ip in all {
                let any: SocketAddr = if ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
                let client = UdpSocket::bind(any).await.unwrap();
                client.connect((ip, 53)).await.unwrap();
                let server = UdpSocket::bind((ip, 53)).await.unwrap();
                client.send(b"question").await.unwrap();
                let received = timeout(TIMEOUT, server.recv(&mut [0; 16])).await;
                assert!(
                    matches!(received, Ok(Ok(8))),
                    "{ip} in round {round}: {received:?}"
                );
            }
            addresses::remove(&all).await.unwrap();
        }
    });
}

#[test]
fn n5_questions_are_answered_also_after_an_error_of_the_servers_sockets() {
    in_namespace(async {
        let cluster = Cluster::start(|_| None).await;
        let name = "10-1-2-3.ns.pod.cluster.local";
        cluster.until(name, "10.1.2.3").await;
        let killed = std::process::Command::new("ss")
            .args(["--kill", "--udp", "--all", "sport = :53"])
            .output();
        assert!(killed.unwrap().status.success());
        for _ in 0..50 {
            assert_eq!(cluster.ask(name, RecordType::A).await.answers.len(), 1);
        }
    });
}

#[test]
fn n5_a_server_that_is_dropped_leaves_its_port_to_the_next_one() {
    in_namespace(async {
        for _ in 0..3 {
            let cluster = Cluster::start(|_| None).await;
            cluster.until("10-1-2-3.ns.pod.cluster.local", "10.1.2.3").await;
        }
    });
}
