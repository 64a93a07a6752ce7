//! Cluster IPs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use crate::text::socket;
use crate::world::{Answer, FAMILIES, World, endpoints, service};

fn servers(answers: &[Answer]) -> BTreeSet<&str> {
    answers.iter().map(Answer::server).collect()
}

fn sources(answers: &[Answer]) -> BTreeSet<&str> {
    answers.iter().map(Answer::source).collect()
}

#[test]
fn n2_a_cluster_ip_leads_to_all_endpoints_and_pods_keep_their_address() {
    let mut world = World::new();
    world.apply(service("web", json!({})), &endpoints(&["p1", "p2", "far"]));
    for (_, a) in FAMILIES {
        let to = socket(a.cluster_ip, 80);
        let answers = world.many("p1", to, 20);
        assert_eq!(servers(&answers), BTreeSet::from(["far", "p1", "p2"]));
        for answer in &answers {
            let is_own = answer.server() == "p1";
            assert_eq!(
                answer.source() != a.p1,
                is_own,
                "{answer:?}: hairpins alone are masqueraded"
            );
        }
        let answers = world.many("node", to, 10);
        assert_eq!(servers(&answers), BTreeSet::from(["far", "p1", "p2"]));
        let answers = world.many("client", to, 10);
        assert_eq!(servers(&answers), BTreeSet::from(["far", "p1", "p2"]));
        assert!(
            !sources(&answers).contains(a.client),
            "clients from outside are masqueraded"
        );
    }
}

#[test]
fn n2_a_service_without_endpoints_rejects_at_once() {
    let mut world = World::new();
    world.apply(service("empty", json!({"type": "NodePort"})), &[]);
    for (_, a) in FAMILIES {
        for from in ["p1", "node", "client"] {
            for to in [
                socket(a.cluster_ip, 80),
                socket(a.cluster_ip, 81),
                socket(a.node, 30080),
            ] {
                assert_eq!(world.tcp(from, to), Answer::ConnectionRefused, "{from} to {to}");
                assert_eq!(world.udp(from, to), Answer::ConnectionRefused, "{from} to {to}");
            }
            let to = socket(a.unallocated, 80);
            assert_eq!(world.tcp(from, to), Answer::Silent, "{from} to {to}");
        }
        // Other destinations are not affected.
        assert_eq!(world.tcp("client", socket(a.node, 9999)).server(), "node");
        assert_eq!(world.tcp("p1", socket(a.p2, 8080)).source(), a.p1);
    }
    world.apply(service("empty", json!({"type": "NodePort"})), &endpoints(&["p2"]));
    for (_, a) in FAMILIES {
        assert_eq!(world.tcp("client", socket(a.node, 30080)).server(), "p2");
        assert_eq!(
            world.tcp("p1", socket(a.cluster_ip, 81)),
            Answer::ConnectionRefused
        );
    }
}

#[test]
fn n2_internal_traffic_policy_local_stays_on_the_node_or_is_dropped() {
    let mut world = World::new();
    let local = service("web", json!({"internalTrafficPolicy": "Local"}));
    world.apply(local.clone(), &endpoints(&["p2", "far"]));
    for (_, a) in FAMILIES {
        let answers = world.many("p1", socket(a.cluster_ip, 80), 8);
        assert_eq!(
            (servers(&answers), sources(&answers)),
            (["p2"].into(), [a.p1].into())
        );
    }
    world.apply(local.clone(), &endpoints(&["far"]));
    for (_, a) in FAMILIES {
        assert_eq!(world.tcp("p1", socket(a.cluster_ip, 80)), Answer::Silent);
        assert_eq!(world.tcp("node", socket(a.cluster_ip, 80)), Answer::Silent);
    }
    world.apply(local, &[]);
    for (_, a) in FAMILIES {
        assert_eq!(
            world.tcp("p1", socket(a.cluster_ip, 80)),
            Answer::ConnectionRefused
        );
    }
}

#[test]
fn n2_connections_spread_evenly_where_slots_are_drawn_again() {
    // 33 endpoints have a chain of 64 slots: nearly half of the draws are for nothing.
    const ENDPOINTS: u16 = 33;
    const CONNECTIONS: usize = 1650;
    let mut world = World::new();
    let mut spec = service("wide", json!({}));
    spec["spec"]["ports"] = json!([{"name": "tcp", "port": 80}]);
    for port in 0..ENDPOINTS {
        world.serve_on("p2", &port.to_string(), 20_000 + port);
    }
    let typed: k8s_openapi::api::core::v1::Service = serde_json::from_value(spec).unwrap();
    world.catalog.apply_service(&typed);
    for (family, kind) in FAMILIES.iter().zip(["IPv4", "IPv6"]) {
        for port in 0..ENDPOINTS {
            let slice = json!({
                "metadata": {"namespace": "ns", "name": format!("wide-{kind}-{port}"),
                             "labels": {"kubernetes.io/service-name": "wide"}},
                "addressType": kind, "endpoints": [{"addresses": [family.1.p2], "nodeName": "here"}],
                "ports": [{"name": "tcp", "port": 20_000 + port}],
            });
            world.catalog.apply_slice(&serde_json::from_value(slice).unwrap());
        }
    }
    world.sync("wide");
    for (_, a) in FAMILIES {
        let to = socket(a.cluster_ip, 80);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for server in world.inside("p1", || world.connect_often(to, CONNECTIONS)) {
            *counts.entry(server).or_default() += 1;
        }
        // Expected 50 each, standard deviation 7: one that has none of the second half's draws would have twice that.
        assert_eq!(counts.len(), usize::from(ENDPOINTS));
        assert!(counts.values().all(|n| (15..=95).contains(n)), "{counts:?}");
        let chi: f64 = counts.values().map(|n| (*n as f64 - 50.0).powi(2) / 50.0).sum();
        assert!(chi < 80.0, "{chi}: {counts:?}");
    }
}

#[test]
fn n3_the_skeleton_may_run_again_and_elements_stay() {
    let mut world = World::new();
    world.apply(service("web", json!({})), &endpoints(&["p1", "p2", "far"]));
    let before: Vec<String> = FAMILIES.iter().map(|(family, _)| world.list(*family)).collect();
    world.run_skeleton();
    let after: Vec<String> = FAMILIES.iter().map(|(family, _)| world.list(*family)).collect();
    assert!(before == after);
    for (_, a) in FAMILIES {
        assert_eq!(servers(&world.many("p1", socket(a.cluster_ip, 80), 15)).len(), 3);
    }
}
