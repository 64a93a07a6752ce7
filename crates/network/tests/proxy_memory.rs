//! What the service proxy keeps of 10 000 Services with 5 endpoints each (SPEC N2). A process of its own, as memory is
//! the process's.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use knarr_api::k8s_openapi;
use knarr_network::catalog::{Catalog, ServiceKey};
use knarr_network::proxy::{Config, Family, NodeFacts, Proxy};
use serde_json::json;

const SERVICES: usize = 10_000;
const ENDPOINTS: usize = 5;
const LIMIT_BYTES: u64 = 15 << 20;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn n2_ten_thousand_services_take_less_than_15_mb() {
    let mut catalog = Catalog::default();
    for n in 0..SERVICES {
        let (high, low) = (n / 250, n % 250);
        let name = format!("service-{n}");
        let service = json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"clusterIP": format!("10.96.{high}.{low}"), "ports": [{"name": "http", "port": 80}]},
        });
        let service: Service = serde_json::from_value(service).unwrap();
        catalog.apply_service(&service);
        let endpoints: Vec<_> = (0..ENDPOINTS)
            .map(|e| json!({"addresses": [format!("10.{}.{high}.{low}", 200 + e)], "nodeName": format!("node-{e}")}))
            .collect();
        let slice = json!({
            "metadata": {"namespace": "default", "name": format!("{name}-1"),
                         "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
        });
        let slice: EndpointSlice = serde_json::from_value(slice).unwrap();
        catalog.apply_slice(&slice);
    }
    let keys: Vec<ServiceKey> = catalog.services().map(|(key, _)| key.clone()).collect();
    let node = NodeFacts {
        name: "node-0".into(),
        ..NodeFacts::default()
    };
    let mut proxy = Proxy::new(Config::default(), node);
    let before = resident_bytes();
    let mut elements = 0;
    for key in &keys {
        elements += proxy.apply(&catalog, key).v4.len();
    }
    let used = resident_bytes().saturating_sub(before);
    println!("{used} bytes for {elements} elements");
    // A verdict, a cluster IP and the slots of each, and hairpins of this node's.
    assert_eq!(elements, SERVICES * (2 + ENDPOINTS + 1));
    assert!(used <= LIMIT_BYTES, "{used} bytes");
    let mut visited = 0;
    proxy.visit(Family::V4, &mut |_| visited += 1);
    assert_eq!(visited, elements);
}
