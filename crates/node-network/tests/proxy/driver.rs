//! What the driver promises: changes reach the kernel, a restart changes nothing, what others break is made again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use knarr_api::registry::EVENT;
use knarr_client::{Api, ListOptions};
use knarr_network::proxy::Family;
use knarr_nftables::{Conntrack, Nftables, script};
use knarr_node_network::proxy::remove;
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::world::{TABLE, in_kernel, in_world, run, settled};

fn spec(cluster_ip: &str) -> serde_json::Value {
    json!({"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ports": [{"port": 80}]})
}

fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// Accepts and closes, so long as the process lives.
fn listen(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
        }
    });
}

/// In a thread of the namespace.
async fn can_connect(to: &'static str) -> bool {
    let connect = move || TcpStream::connect_timeout(&to.parse().unwrap(), Duration::from_secs(2));
    spawn_blocking(connect).await.unwrap().is_ok()
}

#[test]
fn n3_changes_of_both_families_reach_the_kernel_and_connections_their_endpoints() {
    in_world(|world| async move {
        listen("10.1.0.1:8080");
        listen("[fd00:1::1]:8080");
        let mut both = spec("10.96.0.1");
        both["clusterIPs"] = json!(["10.96.0.1", "fd00:96::1"]);
        world.create("web", both).await;
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        assert!(
            !can_connect("10.96.0.1:80").await,
            "a Service without endpoints rejects"
        );
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.1"]).await;
        world.set_endpoints("web", "IPv6", 8080, &["fd00:1::1"]).await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), addresses(&["10.1.0.1:8080"]));
        assert_eq!(in_kernel(Family::V6), addresses(&["[fd00:1::1]:8080"]));
        assert!(can_connect("10.96.0.1:80").await);
        assert!(can_connect("[fd00:96::1]:80").await);
        world
            .set_endpoints("web", "IPv4", 8080, &["10.1.0.2", "10.1.0.3"])
            .await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(
            in_kernel(Family::V4),
            addresses(&["10.1.0.2:8080", "10.1.0.3:8080"])
        );
        world.delete("web").await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), []);
        assert!(proxy.is_healthy());
        let metrics = proxy.metrics();
        assert!(
            metrics
                .contains("kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1\n"),
            "{metrics}"
        );
        assert!(
            metrics.contains("kubeproxy_sync_proxy_rules_service_changes_pending 0\n"),
            "{metrics}"
        );
        drop(proxy);
        remove(TABLE).unwrap();
        assert_eq!(Nftables::open().unwrap().tables().unwrap(), []);
        remove(TABLE).unwrap();
    });
}

#[test]
fn n3_a_restart_commits_nothing_but_rules_and_no_connection_fails_meanwhile() {
    in_world(|world| async move {
        listen("10.1.0.1:8080");
        listen("10.1.0.2:8080");
        for n in 0..40 {
            world
                .create(&format!("s{n}"), spec(&format!("10.96.1.{n}")))
                .await;
            let all: Vec<String> = (1..=n).map(|last| format!("10.2.{n}.{last}")).collect();
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            world.set_endpoints(&format!("s{n}"), "IPv4", 8080, &all).await;
        }
        world.create("web", spec("10.96.0.1")).await;
        world
            .set_endpoints("web", "IPv4", 8080, &["10.1.0.1", "10.1.0.2"])
            .await;
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        drop((catalog, proxy));
        let before = run(&format!("nft list table ip {TABLE}"));
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (stop.clone(), count.clone());
        let client = spawn_blocking(move || {
            let mut failures = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let to = "10.96.0.1:80".parse().unwrap();
                failures.extend(TcpStream::connect_timeout(&to, Duration::from_secs(2)).err());
                counted.fetch_add(1, Ordering::Relaxed);
            }
            failures
        });
        for round in 0..5 {
            let begun = count.load(Ordering::Relaxed);
            let generation = Nftables::open().unwrap().generation().unwrap();
            let (catalog, proxy) = world.start();
            settled(&catalog, &proxy, &world).await;
            let now = Nftables::open().unwrap().generation().unwrap();
            assert_eq!(
                now,
                generation + 1,
                "round {round}: the skeleton is a commit, and the only one"
            );
            while count.load(Ordering::Relaxed) < begun + 20 {
                tokio::task::yield_now().await;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let failures = client.await.unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        assert_eq!(run(&format!("nft list table ip {TABLE}")), before);
        // Changes during a restart are applied afterwards.
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.2"]).await;
        for n in 0..40 {
            let name = format!("s{n}");
            world.delete(&name).await;
        }
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), addresses(&["10.1.0.2:8080"]));
    });
}

#[test]
fn n3_what_others_remove_is_made_again() {
    in_world(|world| async move {
        world.create("web", spec("10.96.0.1")).await;
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.1"]).await;
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        // The next commit finds out …
        script::run("flush ruleset").unwrap();
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.2"]).await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), addresses(&["10.1.0.2:8080"]));
        script::run(&format!("flush map ip {TABLE} endpoints")).unwrap();
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.1"]).await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), addresses(&["10.1.0.1:8080"]));
        // … and if none is made, the proxy does by itself, soon.
        script::run("flush ruleset").unwrap();
        timeout(Duration::from_secs(15), async {
            while Nftables::open().unwrap().tables().unwrap().is_empty() {
                sleep(Duration::from_millis(100)).await;
            }
        })
        .await
        .unwrap();
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.2"]).await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), addresses(&["10.1.0.2:8080"]));
    });
}

#[test]
fn n3_tables_of_another_version_are_replaced_and_others_left_alone() {
    in_world(|world| async move {
        script::run(&format!(
            "table ip {TABLE} {{\nmap endpoints {{ type ipv4_addr : verdict; }}\nchain old {{ }}\n}}\ntable ip other {{\nchain c {{ }}\n}}\n"
        ))
        .unwrap();
        world.create("web", spec("10.96.0.1")).await;
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.1"]).await;
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), addresses(&["10.1.0.1:8080"]));
        assert!(!run(&format!("nft list table ip {TABLE}")).contains("chain old"));
        assert!(run("nft list table ip other").contains("chain c"));
    });
}

#[test]
fn n3_an_element_that_the_kernel_rejects_keeps_no_other_out() {
    in_world(|world| async move {
        listen("10.1.0.1:8080");
        // Room for two of three cluster IPs.
        let full = "set cluster-ips { type ipv4_addr; size 2; }";
        script::run(&format!("table ip {TABLE} {{\n{full}\n}}\n")).unwrap();
        for n in 1..=3 {
            world
                .create(&format!("s{n}"), spec(&format!("10.96.0.{n}")))
                .await;
        }
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        for n in 1..=3 {
            world
                .set_endpoints(&format!("s{n}"), "IPv4", 8080, &["10.1.0.1"])
                .await;
        }
        settled(&catalog, &proxy, &world).await;
        for to in ["10.96.0.1:80", "10.96.0.2:80", "10.96.0.3:80"] {
            assert!(can_connect(to).await, "{to}");
        }
        let listed = run(&format!("nft list set ip {TABLE} cluster-ips"));
        assert_eq!(listed.matches("10.96.0.").count(), 2, "{listed}");
        world.delete("s1").await;
        world.delete("s2").await;
        world.delete("s3").await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), []);
    });
}

#[test]
fn n3_udp_clients_of_a_removed_endpoint_get_another() {
    udp_clients_of_a_removed_endpoint(false);
}

#[test]
fn n3_udp_clients_of_a_removed_endpoint_get_another_also_when_the_first_commit_fails() {
    udp_clients_of_a_removed_endpoint(true);
}

fn udp_clients_of_a_removed_endpoint(is_first_commit_invalid: bool) {
    in_world(move |world| async move {
        let first = UdpSocket::bind("10.1.0.1:53").unwrap();
        let second = UdpSocket::bind("10.1.0.2:53").unwrap();
        for server in [&first, &second] {
            server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        }
        let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 53, "protocol": "UDP"}]});
        world.create("dns", spec).await;
        world.set_endpoints("dns", "IPv4", 53, &["10.1.0.1"]).await;
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        client.connect("10.96.0.1:53").unwrap();
        let mut buffer = [0; 16];
        client.send(b"one").unwrap();
        assert_eq!(first.recv(&mut buffer).unwrap(), 3);
        // A flow of the same port that is none of the Service's.
        let stranger = UdpSocket::bind("0.0.0.0:0").unwrap();
        stranger.send_to(b"x", "10.1.0.2:53").unwrap();
        assert_eq!(second.recv(&mut buffer).unwrap(), 1);
        if is_first_commit_invalid {
            // The commit removes an element that is not there any more.
            script::run(&format!("flush map ip {TABLE} endpoints")).unwrap();
        }
        world.set_endpoints("dns", "IPv4", 53, &["10.1.0.2"]).await;
        settled(&catalog, &proxy, &world).await;
        let mut conntrack = Conntrack::open().unwrap();
        let mut flows = || {
            let mut destinations = Vec::new();
            let seen = conntrack.delete(knarr_nftables::Family::Ip, 17, |flow| {
                destinations.push(flow.original.destination.to_string());
                false
            });
            seen.unwrap();
            destinations
        };
        timeout(Duration::from_secs(5), async {
            while flows().len() > 1 {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
        assert_eq!(flows(), ["10.1.0.2:53"]);
        client.send(b"two").unwrap();
        assert_eq!(second.recv(&mut buffer).unwrap(), 3);
    });
}

/// Status line and headers, and body.
async fn get(address: &'static str, path: &'static str) -> Option<(String, String)> {
    let get = move || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.to_string(), body.to_string()))
    };
    spawn_blocking(get).await.unwrap()
}

#[test]
fn n2_health_check_node_ports_say_whether_this_node_has_endpoints() {
    in_world(|world| async move {
        // Another program has the port when the Service is created.
        let squatter = TcpListener::bind("0.0.0.0:32000").unwrap();
        let mut spec = spec("10.96.0.1");
        spec["type"] = "LoadBalancer".into();
        spec["externalTrafficPolicy"] = "Local".into();
        spec["healthCheckNodePort"] = 32000.into();
        world.create("web", spec).await;
        let (catalog, proxy) = world.start();
        settled(&catalog, &proxy, &world).await;
        let events = async || {
            let list = world.api.list(&EVENT, ListOptions::default()).await.unwrap();
            let events = list.items.iter().filter_map(|e| e.to_typed::<Event>());
            events
                .map(|e| e.message.clone().unwrap_or_default())
                .collect::<Vec<_>>()
        };
        timeout(Duration::from_secs(5), async {
            while events().await.is_empty() {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
        let message = events().await.remove(0);
        assert!(
            message.starts_with(
                "node n1 failed to start healthcheck \"ns/web\" on port 32000: Address already in use"
            ),
            "{message}"
        );
        drop(squatter);
        let answer = timeout(Duration::from_secs(15), async {
            loop {
                match get("127.0.0.1:32000", "/").await {
                    Some(answer) => return answer,
                    None => sleep(Duration::from_millis(50)).await,
                }
            }
        });
        let (head, body) = answer.await.unwrap();
        assert!(head.starts_with("HTTP/1.1 503"), "{head}");
        assert_eq!(
            body,
            "{\n\t\"service\": {\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 0,\n\t\"serviceProxyHealthy\": true\n}"
        );
        world
            .set_endpoints("web", "IPv4", 8080, &["10.1.0.1", "10.1.0.2"])
            .await;
        settled(&catalog, &proxy, &world).await;
        let (head, body) = get("127.0.0.1:32000", "/anything").await.unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("x-load-balancing-endpoint-weight: 2"), "{head}");
        assert!(body.contains("\"localEndpoints\": 2"), "{body}");
        let (head, body) = get("127.0.0.1:10256", "/healthz").await.unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200") && body.contains("\"nodeEligible\": true"),
            "{head} {body}"
        );
        world.delete("web").await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(get("127.0.0.1:32000", "/").await, None);
    });
}

#[test]
fn n3_a_slice_that_comes_before_its_service_is_programmed_with_it() {
    in_world(|world| async move {
        let (catalog, proxy) = world.start();
        world.set_endpoints("web", "IPv4", 8080, &["10.1.0.1"]).await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), []);
        world.create("web", spec("10.96.0.1")).await;
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), addresses(&["10.1.0.1:8080"]));
        let edited = world.api.edit::<EndpointSlice>("ns", "web-ipv4", "", |slice| {
            slice.metadata.labels = None;
        });
        world.note(&edited.await.unwrap());
        settled(&catalog, &proxy, &world).await;
        assert_eq!(in_kernel(Family::V4), []);
    });
}
