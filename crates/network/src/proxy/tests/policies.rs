//! Termination, fallbacks, affinity, and Services that claim the same frontend.

use serde_json::{Value, json};

use super::{Config, NODE, Node, OUTSIDE, POD, config, text};
use crate::catalog::{Protocol, ServiceKey};
use crate::proxy::explain::{Explanation, NotProxied, PortExplanation, Usage};
use crate::proxy::frontend::FrontendKind;
use crate::proxy::packet::{Outcome, Packet};
use crate::proxy::{StaleUdp, explain};

fn port() -> Value {
    json!([{"name": "p80", "port": 80}])
}

fn ready(last: u8, node: &str) -> Value {
    json!({"addresses": [format!("10.180.0.{last}")], "nodeName": node})
}

fn terminating(last: u8, node: &str) -> Value {
    json!({"addresses": [format!("10.180.0.{last}")], "nodeName": node,
           "conditions": {"ready": false, "serving": true, "terminating": true}})
}

fn balancer(policy: &str) -> Value {
    json!({"type": "LoadBalancer", "clusterIP": "172.30.0.41", "externalTrafficPolicy": policy,
           "healthCheckNodePort": 30000, "ports": [{"name": "p80", "port": 80, "nodePort": 3001}]})
}

#[test]
fn n4_terminating_endpoints_are_a_fallback_alone() {
    let unusable = json!({"addresses": ["10.180.0.9"], "nodeName": "here",
                      "conditions": {"ready": false, "serving": false, "terminating": true}});
    // Endpoints; what a pod reaches by the cluster IP; what a client outside reaches by the balancer, Cluster and Local.
    for (endpoints, inside, cluster, local) in [
        (
            json!([
                ready(1, "here"),
                ready(2, "here"),
                terminating(3, "here"),
                unusable.clone(),
                ready(5, "there")
            ]),
            "10.180.0.1:80, 10.180.0.2:80, 10.180.0.5:80",
            "10.180.0.1:80 m, 10.180.0.2:80 m, 10.180.0.5:80 m",
            "10.180.0.1:80, 10.180.0.2:80",
        ),
        (
            json!([terminating(3, "here"), unusable.clone(), terminating(5, "there")]),
            "10.180.0.3:80, 10.180.0.5:80",
            "10.180.0.3:80 m, 10.180.0.5:80 m",
            "10.180.0.3:80",
        ),
        (
            json!([terminating(5, "there"), unusable.clone()]),
            "10.180.0.5:80",
            "10.180.0.5:80 m",
            "DROP",
        ),
        (json!([unusable.clone()]), "REJECT", "REJECT", "REJECT"),
        (json!([]), "REJECT", "REJECT", "REJECT"),
    ] {
        for (policy, outside) in [("Cluster", cluster), ("Local", local)] {
            let mut node = Node::new(config());
            node.service("svc1", balancer(policy), &["1.2.3.4"]);
            node.slice("svc1", port(), endpoints.clone());
            assert_eq!(node.tcp(POD, "172.30.0.41:80"), inside, "{policy} {endpoints}");
            assert_eq!(node.tcp(OUTSIDE, "1.2.3.4:80"), outside, "{policy} {endpoints}");
            assert_eq!(
                node.tcp(OUTSIDE, "192.168.0.2:3001"),
                outside,
                "{policy} {endpoints}"
            );
        }
    }
}

#[test]
fn n2_internal_traffic_policy() {
    for (policy, nodes, expected) in [
        (
            "Cluster",
            ["here", "there", "there"],
            "10.180.0.1:80, 10.180.0.2:80, 10.180.0.3:80",
        ),
        ("Local", ["here", "there", "there"], "10.180.0.1:80"),
        ("Local", ["here", "here", "there"], "10.180.0.1:80, 10.180.0.2:80"),
        ("Local", ["there", "there", "there"], "DROP"),
    ] {
        let mut node = Node::new(config());
        let spec = json!({"clusterIP": "172.30.0.41", "internalTrafficPolicy": policy,
                          "ports": [{"name": "p80", "port": 80}]});
        node.service("svc1", spec, &[]);
        let endpoints: Vec<Value> = (1..).zip(nodes).map(|(last, node)| ready(last, node)).collect();
        node.slice("svc1", port(), json!(endpoints));
        assert_eq!(node.tcp(POD, "172.30.0.41:80"), expected);
        node.slice("svc1", port(), json!([]));
        assert_eq!(node.tcp(POD, "172.30.0.41:80"), "REJECT");
    }
}

#[test]
fn n2_health_checks_count_ready_local_endpoints_by_address() {
    let mut node = Node::new(config());
    node.service("svc1", balancer("Local"), &["1.2.3.4"]);
    let ports = json!([{"name": "p80", "port": 80}, {"name": "other", "port": 81}]);
    node.slice(
        "svc1",
        ports,
        json!([
            ready(1, "here"),
            ready(2, "here"),
            terminating(3, "here"),
            ready(4, "there")
        ]),
    );
    let key = ServiceKey::new("ns", "svc1");
    let (owner, health) = node.proxy.health_checks().next().unwrap();
    assert_eq!(*owner, key);
    assert_eq!((health.port, health.local_v4, health.local_v6), (30000, 2, 0));
    node.slice(
        "svc1",
        port(),
        json!([terminating(1, "here"), terminating(2, "here")]),
    );
    let health: Vec<_> = node.proxy.health_checks().map(|(_, health)| health).collect();
    assert_eq!((health.len(), health[0].local_v4), (1, 0));
    node.service("svc1", balancer("Cluster"), &["1.2.3.4"]);
    assert_eq!(node.proxy.health_checks().count(), 0);
}

#[test]
fn n2_a_learned_endpoint_counts_while_it_is_one() {
    let mut node = Node::new(config());
    let mut spec = balancer("Cluster");
    spec["sessionAffinity"] = json!("ClientIP");
    node.service("svc1", spec, &["1.2.3.4"]);
    node.slice("svc1", port(), json!([ready(1, "here"), ready(2, "there")]));
    let packet = |destination: &str, port| Packet {
        source: OUTSIDE.parse().unwrap(),
        destination: destination.parse().unwrap(),
        protocol: Protocol::Tcp,
        port,
        learned: Some(("10.180.0.2".parse().unwrap(), 80)),
    };
    let frontends = [("172.30.0.41", 80), ("1.2.3.4", 80), (NODE, 3001)];
    for (destination, port) in frontends {
        assert_eq!(text(&node.route(&packet(destination, port))), "10.180.0.2:80 m");
    }
    node.slice("svc1", port(), json!([ready(1, "here"), terminating(2, "there")]));
    for (destination, port) in frontends {
        assert_eq!(
            text(&node.route(&packet(destination, port))),
            "10.180.0.1:80 m",
            "it terminates"
        );
    }
    node.service("svc1", balancer("Cluster"), &["1.2.3.4"]);
    node.slice("svc1", port(), json!([ready(1, "here"), ready(2, "there")]));
    for (destination, port) in frontends {
        let Outcome::Sent(hops) = node.route(&packet(destination, port)) else {
            panic!("{destination}")
        };
        assert_eq!(hops.len(), 2, "affinity is switched off");
    }
}

#[test]
fn n2_no_service_gets_anothers_cluster_ip_by_naming_it_as_an_external_ip() {
    let plain = |ip: &str| json!({"clusterIP": ip, "ports": [{"name": "p80", "port": 80}]});
    let mut thief = plain("172.30.0.99");
    thief["externalIPs"] = json!(["172.30.0.41", "192.0.2.7"]);
    let mut second = plain("172.30.0.98");
    second["externalIPs"] = json!(["192.0.2.7"]);
    for order in [["a-thief", "victim", "second"], ["second", "victim", "a-thief"]] {
        let mut node = Node::new(config());
        for name in order {
            let (spec, last) = match name {
                "a-thief" => (thief.clone(), 1),
                "second" => (second.clone(), 2),
                _ => (plain("172.30.0.41"), 3),
            };
            node.service(name, spec, &[]);
            node.slice(name, port(), json!([ready(last, "here")]));
        }
        assert_eq!(node.tcp(POD, "172.30.0.41:80"), "10.180.0.3:80");
        assert_eq!(node.tcp(POD, "192.0.2.7:80"), "10.180.0.1:80 m");
        node.catalog.remove_service("ns", "a-thief");
        node.sync("a-thief");
        assert_eq!(
            node.tcp(POD, "192.0.2.7:80"),
            "10.180.0.2:80 m",
            "the next has it"
        );
        node.catalog.remove_service("ns", "victim");
        node.sync("victim");
        assert_eq!(node.tcp(POD, "172.30.0.41:80"), "DROP");
    }
}

#[test]
fn n2_a_cluster_ip_that_is_reassigned_to_another_service_stays_programmed() {
    let spec = json!({"clusterIP": "172.30.0.41", "ports": [{"name": "p80", "port": 80}]});
    let mut node = Node::new(config());
    node.service("old", spec.clone(), &[]);
    node.slice("old", port(), json!([ready(1, "here")]));
    node.catalog.remove_service("ns", "old");
    // Both changes are known; the new one is applied first.
    node.service("new", spec, &[]);
    node.slice("new", port(), json!([ready(2, "here")]));
    node.sync("old");
    assert_eq!(node.tcp(POD, "172.30.0.41:80"), "10.180.0.2:80");
    assert_eq!(node.tcp(POD, "172.30.0.41:81"), "REJECT");
}

#[test]
fn n2_what_is_not_for_this_proxy_is_left_alone() {
    let dns = Config {
        dns_addresses: vec!["172.30.0.10".parse().unwrap()],
        ..config()
    };
    let mut node = Node::new(dns);
    for (name, ip) in [
        ("dns", "172.30.0.10"),
        ("headless", "None"),
        ("other", "172.30.0.11"),
    ] {
        let mut service = json!({"metadata": {"namespace": "ns", "name": name},
                                 "spec": {"clusterIP": ip, "ports": [{"name": "p80", "port": 80}]}});
        if name == "other" {
            service["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "x"});
        }
        node.catalog
            .apply_service(&serde_json::from_value(service).unwrap());
        assert!(
            node.slice(name, port(), json!([ready(1, "here")]))
                .v4
                .add
                .iter()
                .all(|e| e.set == "hairpin")
        );
    }
    assert_eq!(node.tcp(POD, "172.30.0.10:80"), "unchanged");
    assert_eq!(node.tcp(POD, "172.30.0.10:53"), "unchanged");
    let explain = |name| {
        let key = ServiceKey::new("ns", name);
        explain(
            &node.proxy,
            &node.catalog,
            &key,
            POD.parse().unwrap(),
            &node.addresses,
        )
    };
    assert_eq!(explain("other"), Explanation::NotProxied(NotProxied::OtherProxy));
    assert_eq!(explain("headless"), Explanation::NotProxied(NotProxied::Headless));
    assert_eq!(explain("nothing"), Explanation::NotFound);
}

#[test]
fn n2_stale_udp_flows_are_those_of_removed_endpoints() {
    let mut node = Node::new(config());
    let spec = json!({"type": "NodePort", "clusterIP": "172.30.0.41",
                      "ports": [{"name": "p", "port": 53, "protocol": "UDP", "nodePort": 3053}]});
    let udp = json!([{"name": "p", "port": 53, "protocol": "UDP"}]);
    assert_eq!(
        node.service("dns", spec, &[]).stale_udp,
        [],
        "without endpoints nothing is better"
    );
    let stale = |keep: &[u8]| {
        let keep: Vec<_> = keep
            .iter()
            .map(|n| (std::net::IpAddr::from([10, 180, 0, *n]), 53))
            .collect();
        [(Some("172.30.0.41".parse().unwrap()), 53), (None, 3053)].map(|(address, port)| StaleUdp {
            family: crate::proxy::Family::V4,
            address,
            port,
            keep: keep.clone(),
        })
    };
    let change = node.slice("dns", udp.clone(), json!([ready(1, "here")]));
    assert_eq!(change.stale_udp, stale(&[1]), "from none to some");
    let change = node.slice("dns", udp.clone(), json!([ready(1, "here"), ready(2, "here")]));
    assert_eq!(change.stale_udp, []);
    let change = node.slice(
        "dns",
        udp.clone(),
        json!([terminating(1, "here"), ready(2, "here")]),
    );
    assert_eq!(change.stale_udp, [], "established ones live out the grace");
    let change = node.slice("dns", udp, json!([ready(2, "here")]));
    assert_eq!(change.stale_udp, stale(&[2]));
}

#[test]
fn n2_an_explanation_names_every_endpoint_and_why() {
    let mut node = Node::new(config());
    node.service("svc1", balancer("Local"), &["1.2.3.4"]);
    let unready = json!({"addresses": ["10.180.0.4"], "conditions": {"ready": false}});
    node.slice(
        "svc1",
        port(),
        json!([
            ready(1, "here"),
            ready(2, "there"),
            terminating(3, "here"),
            unready
        ]),
    );
    let key = ServiceKey::new("ns", "svc1");
    let outside = OUTSIDE.parse().unwrap();
    let Explanation::Ports(ports) = explain(&node.proxy, &node.catalog, &key, outside, &node.addresses)
    else {
        panic!()
    };
    assert_eq!(ports.len(), 1);
    let usages: Vec<Usage> = ports[0].endpoints.iter().map(|e| e.usage).collect();
    assert_eq!(
        usages,
        [Usage::Used, Usage::Used, Usage::Terminating, Usage::NotReady]
    );
    let outcomes: Vec<String> = ports[0].frontends.iter().map(|f| text(&f.outcome)).collect();
    assert_eq!(
        outcomes,
        [
            "10.180.0.1:80 m, 10.180.0.2:80 m",
            "10.180.0.1:80",
            "10.180.0.1:80"
        ]
    );
    // The node port is that of an address of its own family: the node's others may be missing.
    let only_v4 = &node.addresses[..1];
    let Explanation::Ports(of_v4) = explain(&node.proxy, &node.catalog, &key, outside, only_v4) else {
        panic!()
    };
    assert_eq!(of_v4[0].frontends, ports[0].frontends);
}

/// The one port of a Service, for connections from a pod.
fn explained(node: &Node, name: &str) -> PortExplanation {
    let (key, source) = (ServiceKey::new("ns", name), POD.parse().unwrap());
    let Explanation::Ports(mut ports) = explain(&node.proxy, &node.catalog, &key, source, &node.addresses)
    else {
        panic!("{name} is not proxied")
    };
    ports.remove(0)
}

#[test]
fn n4_an_explanation_names_fallbacks_and_endpoints_that_others_are_preferred_to() {
    let hinted = |last: u8, zone: &str| json!({"addresses": [format!("10.180.0.{last}")], "hints": {"forZones": [{"name": zone}]}});
    let unready = json!({"addresses": ["10.180.0.9"], "conditions": {"ready": false, "serving": false}});
    for (policy, endpoints, expected) in [
        (
            "Cluster",
            json!([terminating(1, "here"), unready]),
            vec![Usage::Fallback, Usage::NotReady],
        ),
        (
            "Cluster",
            json!([hinted(1, "a"), hinted(2, "b"), unready]),
            vec![Usage::Used, Usage::Farther, Usage::NotReady],
        ),
        (
            "Local",
            json!([ready(1, "here"), ready(2, "there"), unready]),
            vec![Usage::Used, Usage::OtherNode, Usage::NotReady],
        ),
    ] {
        let mut node = Node::new(config());
        let spec = json!({"clusterIP": "172.30.0.41", "internalTrafficPolicy": policy, "ports": port()});
        node.service("svc1", spec, &[]);
        node.slice("svc1", port(), endpoints.clone());
        let usages = explained(&node, "svc1").endpoints.into_iter().map(|e| e.usage);
        assert_eq!(usages.collect::<Vec<_>>(), expected, "{policy} {endpoints}");
    }
}

#[test]
fn n2_an_explanation_names_the_service_that_has_a_frontend() {
    let mut node = Node::new(config());
    for (name, ip, last) in [("first", "172.30.0.41", 1), ("second", "172.30.0.42", 2)] {
        let spec = json!({"clusterIP": ip, "externalIPs": ["192.0.2.7"], "ports": port()});
        node.service(name, spec, &[]);
        node.slice(name, port(), json!([ready(last, "here")]));
    }
    let first = ServiceKey::new("ns", "first");
    for (name, kind, taken_by) in [
        ("first", FrontendKind::ClusterIp, None),
        ("first", FrontendKind::ExternalIp, None),
        ("second", FrontendKind::ClusterIp, None),
        ("second", FrontendKind::ExternalIp, Some(first)),
    ] {
        let frontends = explained(&node, name).frontends;
        let found = frontends.into_iter().find(|f| f.kind == kind).unwrap();
        assert_eq!(found.taken_by, taken_by, "{name} {kind:?}");
    }
}

#[test]
fn n2_clients_stay_with_their_endpoint_for_the_seconds_that_a_chain_exists_for() {
    for (affinity, expected) in [
        (json!({}), None),
        (json!({"sessionAffinity": "ClientIP"}), Some(10_800)),
        (
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 62}}}),
            Some(65),
        ),
    ] {
        let mut node = Node::new(config());
        let mut spec = json!({"clusterIP": "172.30.0.41", "ports": port()});
        spec.as_object_mut()
            .unwrap()
            .extend(affinity.as_object().unwrap().clone());
        node.service("svc1", spec, &[]);
        let key = ServiceKey::new("ns", "svc1");
        assert_eq!(node.proxy.affinity_timeout(&key), expected, "{affinity}");
    }
}
