//! Which endpoints are used: the cases of v1.36's `CategorizeEndpoints`.

use serde_json::{Value, json};

use super::facts;
use crate::catalog::{Catalog, ServiceKey};
use crate::proxy::categorize::{Categories, candidates, categorize, is_external};
use crate::proxy::{Family, NodeFacts};

/// Endpoints as text: the last octet, then its properties.
fn endpoints(text: &str) -> Vec<Value> {
    let one = |part: &str| {
        let mut words = part.split_whitespace();
        let mut endpoint = json!({
            "addresses": [format!("10.1.0.{}", words.next().unwrap())], "nodeName": "other", "conditions": {"ready": true},
        });
        let mut zones = Vec::new();
        for word in words {
            match word {
                "local" => endpoint["nodeName"] = json!("here"),
                "unready" => endpoint["conditions"] = json!({"ready": false, "serving": false}),
                "ending" => {
                    endpoint["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
                }
                "ended" => {
                    endpoint["conditions"] = json!({"ready": false, "serving": false, "terminating": true});
                }
                hint if hint.starts_with("node:") => {
                    endpoint["hints"]["forNodes"] = json!([{"name": &hint[5..]}]);
                }
                hint => zones.push(json!({"name": hint.strip_prefix("zone:").unwrap()})),
            }
        }
        if !zones.is_empty() {
            endpoint["hints"]["forZones"] = json!(zones);
        }
        endpoint
    };
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(one)
        .collect()
}

fn chosen(spec: &Value, text: &str, node: &NodeFacts) -> Categories {
    let mut catalog = Catalog::default();
    let mut full =
        json!({"type": "ClusterIP", "clusterIP": "172.30.0.41", "ports": [{"name": "p", "port": 80}]});
    full.as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    let service = json!({"metadata": {"namespace": "ns", "name": "web"}, "spec": full});
    catalog.apply_service(&serde_json::from_value(service).unwrap());
    let slice = json!({
        "metadata": {"namespace": "ns", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "p", "port": 80}], "endpoints": endpoints(text),
    });
    catalog.apply_slice(&serde_json::from_value(slice).unwrap());
    let key = ServiceKey::new("ns", "web");
    let service = catalog.service(&key).unwrap();
    let port = &service.ports[0];
    let found = candidates(catalog.slices(&key), port, Family::V4, node);
    categorize(&found, service, is_external(service, port, Family::V4), node)
}

fn list(backends: &[crate::proxy::slots::Backend]) -> String {
    let last = |b: &crate::proxy::slots::Backend| b.address.to_string()["10.1.0.".len()..].to_owned();
    backends.iter().map(last).collect::<Vec<_>>().join(" ")
}

#[test]
fn n2_endpoints_are_chosen_as_v1_36_chooses_them() {
    let internal = json!({});
    let external = json!({"type": "NodePort", "externalTrafficPolicy": "Local",
                          "ports": [{"name": "p", "port": 80, "nodePort": 30080}]});
    let both = json!({"type": "NodePort", "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local",
                      "ports": [{"name": "p", "port": 80, "nodePort": 30080}]});
    let outward = json!({"type": "NodePort", "internalTrafficPolicy": "Local",
                         "ports": [{"name": "p", "port": 80, "nodePort": 30080}]});
    let local = json!({"internalTrafficPolicy": "Local"});
    let unused = json!({"externalTrafficPolicy": "Local"});
    let zones = "3 zone:a local, 4 zone:b local, 5 zone:c, 6 zone:a";
    let nodes = "3 zone:a node:here, 4 zone:b node:x, 5 zone:c node:y, 6 zone:a node:z";
    for (spec, endpoints, cluster, locals, any) in [
        (&internal, zones, "3 6", "", true),
        (&external, zones, "3 6", "3 4", true),
        (&both, zones, "3 6", "3 4", true),
        (&internal, "3 zone:b, 4 zone:c", "3 4", "", true),
        (
            &internal,
            "3 zone:a, 4 zone:b, 5 zone:c, 6 zone:a unready",
            "3",
            "",
            true,
        ),
        (
            &internal,
            "3 zone:a unready, 4 zone:b, 5 zone:c, 6 zone:a unready",
            "4 5",
            "",
            true,
        ),
        (&internal, "3 zone:a, 4 zone:b, 5, 6 zone:a", "3 4 5 6", "", true),
        (
            &internal,
            "3 zone:a, 4 zone:b zone:a, 5 zone:c, 6 zone:a zone:c",
            "3 4 6",
            "",
            true,
        ),
        (&internal, nodes, "3", "", true),
        (
            &internal,
            "3 zone:a node:here, 4 zone:b node:x, 5 zone:c, 6 zone:a node:z",
            "3 6",
            "",
            true,
        ),
        (
            &internal,
            "3 node:here, 4 node:x, 5, 6 node:z",
            "3 4 5 6",
            "",
            true,
        ),
        (
            &internal,
            "3 zone:a node:w, 4 zone:b node:x, 5 zone:c node:y, 6 zone:a node:z",
            "3 6",
            "",
            true,
        ),
        (
            &external,
            "1 zone:a local, 2 zone:b local, 3 zone:a",
            "1 3",
            "1 2",
            true,
        ),
        (&local, "", "", "", false),
        (&local, "1, 2", "", "", true),
        (&local, "1 local, 2 local", "", "1 2", true),
        (&local, "1 local, 2", "", "1", true),
        (&internal, "1 unready, 2 unready", "", "", false),
        (&internal, "1 unready, 2", "2", "", true),
        (&internal, "1 ending, 2 ending", "1 2", "", true),
        (&internal, "1 ending, 2", "2", "", true),
        (&internal, "1 ended, 2 unready", "", "", false),
        (&outward, "1 local, 2", "1 2", "1", true),
        (&external, "1 local, 2", "1 2", "1", true),
        (&both, "1 local, 2", "1 2", "1", true),
        (&both, "1, 2", "1 2", "", true),
        (&both, "1 ending, 2 ending", "1 2", "", true),
        (&external, "1, 2 ending, 3 ending local", "1", "3", true),
        (&external, "1 local ending, 2 local", "2", "2", true),
        (&unused, "1 local, 2", "1 2", "", true),
        (&local, "1 unready, 2 local", "", "2", true),
        (&local, "1 ending", "", "", true),
    ] {
        let found = chosen(spec, endpoints, &facts());
        let result = (list(&found.cluster), list(&found.local), found.any);
        assert_eq!(
            result,
            (cluster.into(), locals.into(), any),
            "{endpoints} of {spec}"
        );
    }
    // A node without a zone prefers none.
    let nowhere = NodeFacts {
        zone: None,
        ..facts()
    };
    assert_eq!(list(&chosen(&internal, zones, &nowhere).cluster), "3 4 5 6");
}

#[test]
fn n2_an_address_of_two_endpoints_is_the_one_that_is_ready() {
    // The last two: a Pod whose sandbox is gone, and the Pod that has its address now.
    for (first, second) in [
        ("1 ending", "1"),
        ("1", "1 ending"),
        ("1", "1 unready"),
        ("1 unready", "1"),
    ] {
        let mut catalog = Catalog::default();
        let service = json!({"metadata": {"namespace": "ns", "name": "web"},
                             "spec": {"clusterIP": "172.30.0.41", "ports": [{"name": "p", "port": 80}]}});
        catalog.apply_service(&serde_json::from_value(service).unwrap());
        for (name, text) in [("a", first), ("b", second)] {
            let slice = json!({
                "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4", "ports": [{"name": "p", "port": 80}], "endpoints": endpoints(text),
            });
            catalog.apply_slice(&serde_json::from_value(slice).unwrap());
        }
        let key = ServiceKey::new("ns", "web");
        let port = &catalog.service(&key).unwrap().ports[0];
        let found = candidates(catalog.slices(&key), port, Family::V4, &facts());
        assert_eq!(found.len(), 1);
        assert!(found[0].endpoint.ready);
    }
}

#[test]
fn n4_terminating_endpoints_of_this_node_are_a_fallback_where_none_of_it_is_ready() {
    let local = json!({"internalTrafficPolicy": "Local"});
    for (endpoints, is_fallback) in [
        ("1 local", false),
        ("1 local, 2 local ending", false),
        ("1 local ending, 2", true),
        ("1 ending, 2", false),
        ("", false),
    ] {
        let found = chosen(&local, endpoints, &facts());
        assert_eq!(found.local_is_fallback, is_fallback, "{endpoints}");
    }
}

#[test]
fn n2_a_port_is_external_in_the_families_of_the_services_other_addresses() {
    for (spec, expected) in [
        (json!({}), [false, false]),
        (json!({"externalIPs": ["192.0.2.1"]}), [true, false]),
        (json!({"externalIPs": ["2001:db8::7"]}), [false, true]),
        (
            json!({"type": "NodePort", "ports": [{"name": "p", "port": 80, "nodePort": 30080}]}),
            [true, true],
        ),
    ] {
        let mut full = json!({"clusterIP": "172.30.0.41", "ports": [{"name": "p", "port": 80}]});
        full.as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let service = json!({"metadata": {"namespace": "ns", "name": "web"}, "spec": full});
        let mut catalog = Catalog::default();
        catalog.apply_service(&serde_json::from_value(service).unwrap());
        let service = catalog.service(&ServiceKey::new("ns", "web")).unwrap();
        let found = Family::ALL.map(|family| is_external(service, &service.ports[0], family));
        assert_eq!(found, expected, "{spec}");
    }
}
