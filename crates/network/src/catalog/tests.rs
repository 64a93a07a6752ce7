//! What the catalog keeps, and which changes it reports.

use serde_json::{Value, json};

use super::*;

fn service(spec: Value) -> core::Service {
    serde_json::from_value(json!({"metadata": {"namespace": "ns", "name": "web"}, "spec": spec})).unwrap()
}

fn slice(name: &str, service: &str, endpoints: Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    }))
    .unwrap()
}

#[test]
fn n2_a_service_changes_only_by_what_is_kept_of_it() {
    let mut catalog = Catalog::default();
    let plain = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80, "nodePort": 30080}]});
    let key = catalog.apply_service(&service(plain.clone())).unwrap();
    assert_eq!(key.to_string(), "ns/web");
    let mut same = service(plain);
    same.metadata.annotations = Some([("a".to_string(), "b".to_string())].into());
    assert_eq!(catalog.apply_service(&same), None);
    assert_eq!(catalog.by_cluster_ip("10.0.0.1".parse().unwrap()), Some(&key));
    let moved =
        service(json!({"clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"], "ports": [{"port": 80}]}));
    assert!(catalog.apply_service(&moved).is_some());
    assert_eq!(catalog.by_cluster_ip("10.0.0.1".parse().unwrap()), None);
    assert!(catalog.remove_service("ns", "web").is_some());
    assert!(catalog.remove_service("ns", "web").is_none());
    assert_eq!(catalog.by_cluster_ip("10.0.0.2".parse().unwrap()), None);
}

#[test]
fn n2_labels_keep_services_and_slices_from_the_proxy_but_not_from_dns() {
    for label in [
        "service.kubernetes.io/headless",
        "service.kubernetes.io/service-proxy-name",
    ] {
        let mut catalog = Catalog::default();
        let mut web =
            service(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}]}));
        let mut of_web = slice("web-1", "web", json!([{"addresses": ["10.1.0.1"]}]));
        let key = catalog.apply_service(&web).unwrap();
        catalog.apply_slice(&of_web);
        assert_eq!(catalog.proxied_slices(&key).count(), 1);

        let labels = of_web.metadata.labels.as_mut().unwrap();
        labels.insert(label.into(), String::new());
        assert_eq!(
            catalog.apply_slice(&of_web),
            std::slice::from_ref(&key),
            "{label}"
        );
        assert_eq!(catalog.proxied_slices(&key).count(), 0, "{label}");
        assert_eq!(catalog.slices(&key).count(), 1, "{label}");

        web.metadata.labels = Some([(label.to_string(), String::new())].into());
        catalog.apply_service(&web).unwrap();
        assert!(catalog.service(&key).unwrap().foreign_proxy, "{label}");
    }
}

#[test]
fn n2_conditions_that_are_absent_are_read_as_the_api_documents_them() {
    for (conditions, ready, serving, terminating) in [
        (json!(null), true, true, false),
        (json!({"ready": false}), false, false, false),
        (
            json!({"ready": false, "serving": true, "terminating": true}),
            false,
            true,
            true,
        ),
    ] {
        let mut catalog = Catalog::default();
        let endpoints = json!([{"addresses": ["10.1.0.1", "10.1.0.2"], "conditions": conditions}]);
        let changed = catalog.apply_slice(&slice("web-1", "web", endpoints));
        let kept: Vec<_> = catalog.slices(&changed[0]).flat_map(|s| &s.endpoints).collect();
        assert_eq!(
            kept.len(),
            1,
            "an endpoint is one backend however many addresses it has"
        );
        assert_eq!(
            (kept[0].ready, kept[0].serving, kept[0].terminating),
            (ready, serving, terminating)
        );
    }
}

#[test]
fn n2_a_slice_follows_its_label_from_one_service_to_another() {
    let mut catalog = Catalog::default();
    let endpoints = json!([{"addresses": ["10.1.0.1"]}]);
    assert_eq!(
        catalog.apply_slice(&slice("s", "web", endpoints.clone())).len(),
        1
    );
    assert_eq!(
        catalog.apply_slice(&slice("s", "web", endpoints.clone())).len(),
        0
    );
    let changed = catalog.apply_slice(&slice("s", "api", endpoints));
    let names: Vec<_> = changed.iter().map(|k| &*k.name).collect();
    assert_eq!(names, ["web", "api"]);
    assert_eq!(catalog.slices(&changed[0]).count(), 0);
    assert_eq!(catalog.slices(&changed[1]).count(), 1);
    assert_eq!(
        catalog.remove_slice("ns", "s").map(|k| k.name.to_string()),
        Some("api".into())
    );
}

#[test]
fn n2_source_ranges_and_balancer_addresses_count_for_load_balancers_only() {
    let mut catalog = Catalog::default();
    let spec = |kind: &str| {
        let mut service = service(json!({
            "type": kind, "clusterIP": "10.0.0.1",
            "loadBalancerSourceRanges": [" 10.9.1.7/8 "], "ports": [{"port": 80}],
        }));
        service.status = serde_json::from_value(json!({"loadBalancer": {"ingress": [
            {"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "x"},
        ]}}))
        .unwrap();
        service
    };
    let key = catalog.apply_service(&spec("LoadBalancer")).unwrap();
    let kept = catalog.service(&key).unwrap();
    assert_eq!(*kept.source_ranges, ["10.0.0.0/8".parse().unwrap()]);
    assert_eq!(*kept.load_balancer_ips, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    catalog.apply_service(&spec("NodePort"));
    let kept = catalog.service(&key).unwrap();
    assert!(kept.source_ranges.is_empty() && kept.load_balancer_ips.is_empty());
}

#[test]
fn b7_an_endpoint_is_withdrawn_when_new_connections_are_no_longer_sent_to_it() {
    let ip: IpAddr = "10.1.0.1".parse().unwrap();
    let endpoint = |conditions: Value| json!([{"addresses": ["10.1.0.1"], "conditions": conditions}]);
    let ready = endpoint(json!({"ready": true}));
    for (what, after, is_withdrawn, offered) in [
        ("the same", ready.clone(), false, true),
        (
            "another joins",
            json!([{"addresses": ["10.1.0.1"]}, {"addresses": ["10.1.0.2"]}]),
            false,
            true,
        ),
        ("not ready", endpoint(json!({"ready": false})), true, false),
        (
            "terminating",
            endpoint(json!({"ready": false, "serving": true, "terminating": true})),
            true,
            false,
        ),
        (
            "terminating, though published",
            endpoint(json!({"ready": true, "terminating": true})),
            true,
            false,
        ),
        ("gone", json!([]), true, false),
    ] {
        let mut catalog = Catalog::default();
        catalog.apply_slice(&slice("s", "web", ready.clone()));
        assert!(catalog.offers("ns", &[ip]) && !catalog.offers("n", &[ip]));
        catalog.apply_slice(&slice("s", "web", after));
        let withdrawn = catalog.take_withdrawn();
        assert_eq!(withdrawn.contains(&ip), is_withdrawn, "{what}");
        assert_eq!(catalog.offers("ns", &[ip]), offered, "{what}");
        catalog.remove_slice("ns", "s");
        assert_eq!(catalog.take_withdrawn().contains(&ip), !is_withdrawn, "{what}");
        assert!(!catalog.offers("ns", &[ip]));
    }
}

#[test]
fn n2_the_slices_of_a_service_are_in_the_order_of_their_names_and_replaced_by_name() {
    let mut catalog = Catalog::default();
    let endpoint = |last: u8| json!([{"addresses": [format!("10.1.0.{last}")]}]);
    let mut key = None;
    for (name, last) in [("web-2", 2), ("web-1", 1), ("web-3", 3), ("web-2", 4)] {
        key = catalog.apply_slice(&slice(name, "web", endpoint(last))).pop();
    }
    let key = key.expect("a slice with another endpoint is a change");
    let addresses = |catalog: &Catalog| {
        let endpoints = catalog.slices(&key).flat_map(|slice| &slice.endpoints);
        endpoints.map(|e| e.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(addresses(&catalog), ["10.1.0.1", "10.1.0.4", "10.1.0.3"]);
    assert_eq!(catalog.remove_slice("ns", "web-2").as_ref(), Some(&key));
    assert_eq!(catalog.remove_slice("ns", "web-2"), None);
    assert_eq!(addresses(&catalog), ["10.1.0.1", "10.1.0.3"]);
}

#[test]
fn n2_an_endpoint_has_its_names_and_hints_and_takes_little_memory_without_them() {
    let mut catalog = Catalog::default();
    let endpoints = json!([
        {"addresses": ["10.1.0.1"]},
        {"addresses": ["10.1.0.2"], "hostname": "a", "hints": {"forNodes": [{"name": "m"}]}},
        {"addresses": ["10.1.0.3"], "targetRef": {"kind": "Pod", "name": "p"}, "hints": {"forZones": [{"name": "z"}]}},
        {"addresses": ["10.1.0.4"], "targetRef": {"kind": "Node", "name": "m"}, "hints": {}},
    ]);
    let key = catalog
        .apply_slice(&slice("web-1", "web", endpoints))
        .pop()
        .unwrap();
    let endpoints = || catalog.slices(&key).flat_map(|slice| &slice.endpoints);
    let names: Vec<_> = endpoints().map(|e| (e.hostname(), e.pod())).collect();
    assert_eq!(
        names,
        [(None, None), (Some("a"), None), (None, Some("p")), (None, None)]
    );
    let hints: Vec<_> = endpoints()
        .map(|e| (e.zone_hints().len(), e.node_hints().len()))
        .collect();
    assert_eq!(hints, [(0, 0), (0, 1), (1, 0), (0, 0)]);
    assert!(size_of::<Endpoint>() <= 9 * size_of::<usize>());
}

#[test]
fn n2_nothing_is_kept_of_a_deleted_service_and_its_slices_whichever_is_deleted_first() {
    let spec = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 80}]});
    for service_first in [true, false] {
        let mut catalog = Catalog::default();
        let key = catalog.apply_service(&service(spec.clone())).unwrap();
        catalog.apply_slice(&slice("s", "web", json!([{"addresses": ["10.1.0.1"]}])));
        assert_eq!((catalog.entries.len(), catalog.owners.len()), (1, 1));
        assert!(size_of::<Entry>() <= 24 * size_of::<usize>());
        for delete_service in [service_first, !service_first] {
            let of = |catalog: &Catalog| (catalog.services().count(), catalog.slices(&key).count());
            let before = of(&catalog);
            if delete_service {
                assert_eq!(catalog.remove_service("ns", "web").as_ref(), Some(&key));
                assert_eq!(of(&catalog), (0, before.1));
                assert!(catalog.service(&key).is_none() && catalog.service_named("ns", "web").is_none());
            } else {
                assert_eq!(catalog.remove_slice("ns", "s").as_ref(), Some(&key));
                assert_eq!(of(&catalog), (before.0, 0));
            }
        }
        assert!(catalog.entries.is_empty() && catalog.owners.is_empty());
        assert!(catalog.by_cluster_ip.is_empty());
    }
}

#[test]
fn b7_a_deleted_pod_may_be_offered_later_until_each_service_has_it_as_terminating() {
    let ip: IpAddr = "10.1.0.1".parse().unwrap();
    let labels = BTreeMap::from([("app".to_string(), "web".to_string())]);
    let mut catalog = Catalog::default();
    for name in ["a", "b"] {
        let service = json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {"clusterIP": "10.96.0.1", "selector": {"app": "web"}},
        });
        catalog.apply_service(&serde_json::from_value(service).unwrap());
    }
    let may = |catalog: &Catalog, is_ready| catalog.may_offer_later("ns", &labels, is_ready, "uid-p", &[ip]);
    assert!(!may(&catalog, false), "it is not ready");
    let endpoint = |conditions: Value| json!([{"addresses": ["10.1.0.1"], "conditions": conditions}]);
    let ready = endpoint(json!({"ready": true}));
    let unready = endpoint(json!({"ready": false}));
    let terminating = endpoint(json!({"ready": false, "serving": true, "terminating": true}));
    let of_pod = |uid: &str| {
        let mut of_pod = terminating.clone();
        of_pod[0]["targetRef"] = json!({"kind": "Pod", "name": "p", "uid": uid});
        of_pod
    };
    let (own, former) = (of_pod("uid-p"), of_pod("uid-former"));
    let mut both = former.clone();
    both.as_array_mut().unwrap().push(own[0].clone());
    for (of_a, of_b, expected) in [
        (&json!([]), &json!([]), true),
        (&ready, &ready, true),
        (&unready, &unready, true),
        (&terminating, &json!([]), true),
        (&terminating, &terminating, false),
        (&own, &own, false),
        // The address was that of another pod, of the same name perhaps, which is terminating still.
        (&own, &former, true),
        (&both, &own, false),
    ] {
        catalog.apply_slice(&slice("sa", "a", of_a.clone()));
        catalog.apply_slice(&slice("sb", "b", of_b.clone()));
        assert_eq!(may(&catalog, true), expected, "{of_a} {of_b}");
    }
}
