//! Node ports, external IPs and load balancers.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::json;

use crate::text::socket;
use crate::world::{Addresses, Answer, FAMILIES, World, endpoints, service};

fn servers(answers: &[Answer]) -> BTreeSet<&str> {
    answers.iter().map(Answer::server).collect()
}

fn outside(a: &Addresses) -> [SocketAddr; 3] {
    [
        socket(a.node, 30080),
        socket(a.external_ip, 80),
        socket(a.balancer, 80),
    ]
}

fn external(name: &str, spec: serde_json::Value) -> serde_json::Value {
    let mut service = service(name, spec);
    service["spec"]["type"] = json!("LoadBalancer");
    service["spec"]["ports"][0]["nodePort"] = json!(30080);
    service["spec"]["ports"][1]["nodePort"] = json!(30080);
    let ips = FAMILIES.map(|(_, a)| a.external_ip);
    service["spec"]["externalIPs"] = json!(ips);
    service
}

#[test]
fn n2_node_ports_external_ips_and_balancers_lead_to_all_endpoints_and_are_masqueraded() {
    let mut world = World::new();
    world.apply(external("web", json!({})), &endpoints(&["p1", "p2", "far"]));
    for (_, a) in FAMILIES {
        for to in outside(&a) {
            for from in ["client", "p1", "node"] {
                let answers = world.many(from, to, 12);
                assert_eq!(
                    servers(&answers),
                    BTreeSet::from(["far", "p1", "p2"]),
                    "{from} to {to}"
                );
                let own = [a.client, a.p1, a.p2];
                assert!(
                    answers.iter().all(|x| !own.contains(&x.source())),
                    "{from} to {to}: {answers:?}"
                );
            }
        }
    }
    // Users type `curl localhost:30080`.
    let answers = world.many("node", socket("127.0.0.1", 30080), 12);
    assert_eq!(servers(&answers), BTreeSet::from(["far", "p1", "p2"]));
}

#[test]
fn n2_external_traffic_policy_local_keeps_the_clients_address() {
    let mut world = World::new();
    let local = external("web", json!({"externalTrafficPolicy": "Local"}));
    world.apply(local.clone(), &endpoints(&["p2", "far"]));
    for (_, a) in FAMILIES {
        for to in outside(&a) {
            let answers = world.many("client", to, 6);
            assert!(
                answers
                    .iter()
                    .all(|x| x.server() == "p2" && x.source() == a.client),
                "{answers:?}"
            );
            let answers = world.many("p1", to, 12);
            assert_eq!(
                servers(&answers),
                BTreeSet::from(["far", "p2"]),
                "pods have a short cut"
            );
            assert!(answers.iter().all(|x| x.source() == a.p1));
            assert_eq!(
                servers(&world.many("node", to, 12)),
                BTreeSet::from(["far", "p2"])
            );
        }
    }
    world.apply(local.clone(), &endpoints(&["far"]));
    for (_, a) in FAMILIES {
        for to in outside(&a) {
            assert_eq!(world.tcp("client", to), Answer::Silent);
            assert_eq!(world.tcp("p1", to).server(), "far");
            assert_eq!(world.tcp("node", to).server(), "far");
        }
    }
    world.apply(local, &[]);
    for (_, a) in FAMILIES {
        for to in outside(&a) {
            assert_eq!(world.tcp("client", to), Answer::ConnectionRefused);
        }
    }
}

#[test]
fn n2_source_ranges_keep_others_from_the_balancer_alone() {
    let mut world = World::new();
    let ranges = |ranges: [&str; 3]| external("web", json!({"loadBalancerSourceRanges": ranges}));
    world.apply(
        ranges(["192.0.2.2/32", "2001:db8:1::/64", "198.51.100.0/24"]),
        &endpoints(&["p1", "p2"]),
    );
    for (_, a) in FAMILIES {
        assert_eq!(world.tcp("p1", socket(a.balancer, 80)), Answer::Silent);
        assert_eq!(world.udp("p1", socket(a.balancer, 80)), Answer::Silent);
        for to in [
            socket(a.node, 30080),
            socket(a.external_ip, 80),
            socket(a.cluster_ip, 80),
        ] {
            servers(&[world.tcp("p1", to)]);
        }
        servers(&world.many("client", socket(a.balancer, 80), 3));
    }
    world.apply(
        ranges(["198.51.100.0/24", "198.51.0.0/16", "2001:db8:9::/64"]),
        &endpoints(&["p1"]),
    );
    for (_, a) in FAMILIES {
        assert_eq!(world.tcp("client", socket(a.balancer, 80)), Answer::Silent);
        servers(&[world.tcp("client", socket(a.node, 30080))]);
    }
    world.apply(external("web", json!({})), &endpoints(&["p1"]));
    for (_, a) in FAMILIES {
        servers(&[world.tcp("client", socket(a.balancer, 80))]);
    }
}

#[test]
fn n2_loopback_addresses_are_not_reachable_from_outside() {
    let mut world = World::new();
    world.apply(external("web", json!({})), &endpoints(&["p1"]));
    // A neighbour that routes 127.0.0.1 to the node (CVE-2020-8558).
    world.sysctl("client", "net.ipv4.conf.all.route_localnet=1\n");
    world.ip(
        "client",
        "addr del 127.0.0.1/8 dev lo\nroute add 127.0.0.1/32 via 192.0.2.1 src 192.0.2.2\n",
    );
    for port in [9999, 30080] {
        assert_eq!(world.tcp("client", socket("127.0.0.1", port)), Answer::Silent);
    }
    world.nft("flush chain ip knarr-proxy guard\n");
    let unguarded = world.tcp("client", socket("127.0.0.1", 9999));
    assert_eq!(unguarded.server(), "node", "the packets do arrive");
}
