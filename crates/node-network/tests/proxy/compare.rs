//! Reports to users about the kernel's tables.

use knarr_network::catalog::{Catalog, Protocol};
use knarr_network::proxy::frontend::Frontend;
use knarr_network::proxy::{Config, Family, NodeFacts};
use knarr_nftables::script;
use knarr_node_network::catalog::Shared;
use knarr_node_network::proxy::{TableDifference, compare};
use serde_json::json;

use crate::world::{NODE, TABLE, in_namespace, in_world, run, settled};

fn node() -> NodeFacts {
    NodeFacts {
        name: NODE.into(),
        addresses: vec!["10.1.0.1".parse().unwrap()],
        ..NodeFacts::default()
    }
}

fn config() -> Config {
    Config {
        table: TABLE.into(),
        ..Config::default()
    }
}

fn now(catalog: &Shared) -> TableDifference {
    compare(&config(), &node(), &catalog.read(), &[])
        .unwrap()
        .unwrap()
}

#[test]
fn n3_tables_match_until_another_program_changes_them() {
    in_world(|world| async move {
        let ports = json!([{"port": 80, "nodePort": 30080}]);
        world
            .create("web", json!({"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
                                  "sessionAffinity": "ClientIP", "externalIPs": ["10.9.9.9"], "ports": ports}))
            .await;
        let (catalog, proxy) = world.start();
        let all: Vec<String> = (1..60).map(|last| format!("10.1.1.{last}")).collect();
        // Slots depend on the history of changes.
        for count in [59, 3, 40] {
            let some: Vec<&str> = all[59 - count..].iter().map(String::as_str).collect();
            world.set_endpoints("web", "IPv4", 8080, &some).await;
            settled(&catalog, &proxy, &world).await;
        }
        // Another timeout needs another chain.
        let spec = json!({"clusterIP": "10.96.0.2", "clusterIPs": ["10.96.0.2"], "sessionAffinity": "ClientIP",
                          "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 45}}, "ports": [{"port": 80}]});
        world.create("later", spec).await;
        world.set_endpoints("later", "IPv4", 8080, &["10.1.1.1"]).await;
        settled(&catalog, &proxy, &world).await;
        let chains = run(&format!("nft -t list table ip {TABLE}"));
        assert!(
            chains.contains("chain learn-45 ") && chains.contains("chain learn-10800 "),
            "{chains}"
        );
        let before = now(&catalog);
        assert!(before.is_in_step() && before.elements > 80, "{before:?}");
        // Ended, so that it does not mend the tables.
        drop(proxy);
        script::run(&format!(
            "delete element ip {TABLE} services {{ 10.96.0.1 . tcp . 80 }}"
        ))
        .unwrap();
        let frontend = Frontend {
            family: Family::V4,
            address: Some("10.96.0.1".parse().unwrap()),
            protocol: Protocol::Tcp,
            port: 80,
        };
        let after = compare(&config(), &node(), &catalog.read(), &[frontend])
            .unwrap()
            .unwrap();
        assert_eq!((after.missing, after.unexpected, after.of_frontends), (1, 0, 1));
        script::run(&format!(
            "add element ip {TABLE} hairpin {{ 10.7.7.7 . 10.7.7.7 }}"
        ))
        .unwrap();
        let after = compare(&config(), &node(), &catalog.read(), &[frontend])
            .unwrap()
            .unwrap();
        assert_eq!((after.missing, after.unexpected, after.of_frontends), (1, 1, 1));
    });
}

#[test]
fn n3_without_tables_nothing_is_reported() {
    in_namespace(|| {
        let compared = compare(&config(), &node(), &Catalog::default(), &[]).unwrap();
        assert_eq!(compared, None);
    });
}
