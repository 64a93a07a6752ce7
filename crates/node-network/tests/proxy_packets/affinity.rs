//! Session affinity.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::text::socket;
use crate::world::{Answer, FAMILIES, World, endpoints, service};

fn servers(answers: &[Answer]) -> BTreeSet<String> {
    answers.iter().map(|answer| answer.server().to_owned()).collect()
}

fn sticky(seconds: u32) -> serde_json::Value {
    let config = json!({"clientIP": {"timeoutSeconds": seconds}});
    service(
        "web",
        json!({"type": "NodePort", "sessionAffinity": "ClientIP", "sessionAffinityConfig": config}),
    )
}

#[test]
fn n2_a_client_stays_with_its_endpoint_until_that_is_removed() {
    let mut world = World::new();
    for (_, a) in FAMILIES {
        for (from, to) in [
            ("p1", socket(a.cluster_ip, 80)),
            ("node", socket(a.cluster_ip, 80)),
            ("client", socket(a.node, 30080)),
        ] {
            world.apply(sticky(10_800), &endpoints(&["p1", "p2", "far"]));
            let mut left = vec!["p1", "p2", "far"];
            while !left.is_empty() {
                let answers: Vec<Answer> = (0..12).map(|_| world.tcp(from, to)).collect();
                let found = servers(&answers);
                assert_eq!(found.len(), 1, "{from} to {to}: {answers:?}");
                left.retain(|name| !found.contains(*name));
                world.apply(sticky(10_800), &endpoints(&left));
            }
            assert_eq!(world.tcp(from, to), Answer::ConnectionRefused);
        }
    }
}

#[test]
fn n2_affinity_ends_after_its_timeout_and_when_it_is_switched_off() {
    let mut world = World::new();
    world.apply(sticky(1), &endpoints(&["p1", "p2", "far"]));
    for (_, a) in FAMILIES {
        let to = socket(a.cluster_ip, 80);
        let begin = Instant::now();
        let mut found = BTreeSet::new();
        while found.len() < 2 {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "a client's affinity never expires"
            );
            found.insert(world.udp("p1", to).server().to_owned());
            // The timeout runs by the kernel's clock; no packet is sent.
            let (_open, nothing) = std::sync::mpsc::channel::<()>();
            assert!(nothing.recv_timeout(Duration::from_millis(1_100)).is_err());
        }
    }
    world.apply(
        service("web", json!({"type": "NodePort"})),
        &endpoints(&["p1", "p2", "far"]),
    );
    for (_, a) in FAMILIES {
        let answers = world.many("p1", socket(a.cluster_ip, 80), 12);
        assert_eq!(servers(&answers).len(), 3);
    }
}
