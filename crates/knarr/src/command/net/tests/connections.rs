//! Connections: through Services, and past the policies of both pods.

use knarr_network::catalog::{Protocol, ServiceKey};
use serde_json::{Value, json};

use super::*;
use crate::command::net::arguments::{self, Destination, Port, Source, Target};
use crate::command::net::connect::{ConnectReport, Reachability, report};
use crate::command::net::{Failure, connect_text};

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name}, "spec": spec,
    })
}

/// Pods `web-5` on n1, `api-6` on n1 and `api-7` on n2, behind the Service `api`; with these policies.
fn shop(more: impl IntoIterator<Item = Value>) -> NetworkObjects {
    let spec = json!({
        "type": "NodePort", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "selector": {"app": "api"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "nodePort": 30080, "protocol": "TCP"}],
    });
    let ready = || json!({"ready": true});
    let all = [
        node(1),
        node(2),
        namespace("shop", json!({"team": "a"})),
        namespace("kube-system", json!({})),
        pod("web", 1, 5),
        pod("api", 1, 6),
        pod("api", 2, 7),
        service("api", spec),
        slice(
            "api",
            "IPv4",
            json!([endpoint("api", 1, 6, ready()), endpoint("api", 2, 7, ready())]),
        ),
    ];
    cluster(all.into_iter().chain(more))
}

fn try_connect(objects: &NetworkObjects, from: &str, to: &str) -> Result<ConnectReport, Failure> {
    let source = arguments::source(from, "shop", objects)?;
    let destination = arguments::destination(to, "shop", objects)?;
    report(objects, &source, &destination)
}

fn connect(objects: &NetworkObjects, from: &str, to: &str) -> ConnectReport {
    try_connect(objects, from, to).unwrap()
}

fn ingress(peer: Value, ports: Value) -> Value {
    json!({"podSelector": {"matchLabels": {"app": "api"}}, "policyTypes": ["Ingress"],
           "ingress": [{"from": [peer], "ports": ports}]})
}

fn app(name: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"app": name}}})
}

#[test]
fn n6_a_connection_is_followed_through_the_service_and_the_policies_of_both_pods() {
    let egress = json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
                        "egress": [{"to": [app("api")], "ports": [{"port": "http", "protocol": "TCP"}]}]});
    let objects = shop([
        policy("allow-api", egress),
        policy(
            "api",
            ingress(app("admin"), json!([{"port": 8080, "protocol": "TCP"}])),
        ),
        policy(
            "ops",
            ingress(
                app("web"),
                json!([{"port": 9100, "endPort": 9199, "protocol": "TCP"}]),
            ),
        ),
    ]);
    let report = connect(&objects, "web-5", "svc/api:http");
    assert_eq!(report.verdict, Reachability::Denied);
    let side = "    egress of shop/web-5: allowed; isolated by shop/allow-api
      shop/allow-api egress[0] (to pods with app=api, port \"http\"/TCP): allows the connection
";
    let denied = |pod: &str| {
        format!(
            "\
{side}    ingress of shop/{pod}: DROPPED; isolated by shop/api, shop/ops
      shop/api ingress[0] (from pods with app=admin, port 8080/TCP): no peer matches
      shop/ops ingress[0] (from pods with app=web, ports 9100-9199/TCP): no port matches
      a rule from pod shop/web-5 (labels app=web) would have to allow port 8080/TCP
"
        )
    };
    let expected = format!(
        "\
From pod shop/web-5 on node n1
To Service shop/api, port 80/TCP

10.244.1.5 to 10.96.0.7:80: the proxy of node n1 sends it to one of
  10.244.1.6:8080 pod shop/api-6 on n1: NOT REACHED
{}  10.244.2.7:8080 pod shop/api-7 on n2: NOT REACHED
{}
Denied: no endpoint is reached.
",
        denied("api-6"),
        denied("api-7")
    );
    assert_eq!(connect_text::to_text(&report), expected);
}

#[test]
fn n6_verdicts_for_sources_and_destinations_of_every_kind() {
    let open = || json!([{"port": 8080, "protocol": "TCP"}]);
    let from_web = || policy("api", ingress(app("web"), open()));
    let from_node = || {
        policy(
            "api",
            ingress(json!({"ipBlock": {"cidr": "192.0.2.1/32"}}), open()),
        )
    };
    let default_deny = || {
        policy(
            "deny",
            json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        )
    };
    let host = || with(pod("web", 1, 5), "/spec/hostNetwork", json!(true));
    let host = || {
        with(
            with(host(), "/status/podIPs/0/ip", json!("192.0.2.1")),
            "/status/podIP",
            json!("192.0.2.1"),
        )
    };
    let host = || with(host(), "/metadata/name", json!("host"));
    let dns = || {
        let to = json!({"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}});
        policy(
            "dns",
            json!({"podSelector": {}, "policyTypes": ["Egress"],
                             "egress": [{"to": [to], "ports": [{"port": 53, "protocol": "UDP"}]}]}),
        )
    };
    for (what, policies, from, to, expected) in [
        (
            "no policies",
            vec![],
            "web-5",
            "svc/api:80",
            Reachability::Allowed,
        ),
        (
            "by its name in DNS",
            vec![],
            "web-5",
            "api.shop.svc.cluster.local:http",
            Reachability::Allowed,
        ),
        ("the only port", vec![], "web-5", "svc/api", Reachability::Allowed),
        (
            "no such port of the Service",
            vec![],
            "web-5",
            "svc/api:81",
            Reachability::NoEndpoint,
        ),
        (
            "an allowed pod",
            vec![from_web()],
            "web-5",
            "api-7:8080",
            Reachability::Allowed,
        ),
        (
            "a port that no rule has",
            vec![from_web()],
            "web-5",
            "api-7:8081",
            Reachability::Denied,
        ),
        (
            "a pod to itself",
            vec![default_deny()],
            "api-7",
            "api-7:8080",
            Reachability::Allowed,
        ),
        // No policy applies between a node and its pods.
        (
            "its own node",
            vec![default_deny()],
            "node/n2",
            "pod/api-7:8080",
            Reachability::Allowed,
        ),
        (
            "another node",
            vec![default_deny()],
            "node/n1",
            "pod/api-7:8080",
            Reachability::Denied,
        ),
        (
            "another node by ipBlock",
            vec![from_node()],
            "node/n1",
            "pod/api-7:8080",
            Reachability::Allowed,
        ),
        (
            "to its node",
            vec![default_deny()],
            "web-5",
            "192.0.2.1:10250",
            Reachability::Allowed,
        ),
        (
            "to another node",
            vec![default_deny()],
            "web-5",
            "192.0.2.2:10250",
            Reachability::Denied,
        ),
        (
            "in the host network",
            vec![from_node(), host()],
            "host",
            "api-7:8080",
            Reachability::Allowed,
        ),
        (
            "in the host network, as no pod",
            vec![from_web(), host()],
            "host",
            "api-7:8080",
            Reachability::Denied,
        ),
        // Policies treat the node's DNS server as the pods that run CoreDNS in other clusters.
        (
            "DNS",
            vec![dns()],
            "web-5",
            "10.96.0.10:53/udp",
            Reachability::Allowed,
        ),
        (
            "DNS over TCP",
            vec![dns()],
            "web-5",
            "10.96.0.10:53/tcp",
            Reachability::Denied,
        ),
        // At the cluster IP pods keep their address; at a node port of another node they have their own node's.
        (
            "cluster IP",
            vec![from_web()],
            "web-5",
            "10.96.0.7:80",
            Reachability::Allowed,
        ),
        (
            "node port, as the node",
            vec![from_node()],
            "web-5",
            "192.0.2.2:30080",
            Reachability::PartlyDenied,
        ),
        (
            "node port, not as the pod",
            vec![from_web()],
            "web-5",
            "192.0.2.2:30080",
            Reachability::Denied,
        ),
        (
            "an address that no Service has",
            vec![],
            "web-5",
            "10.96.9.9:80",
            Reachability::NoEndpoint,
        ),
        (
            "from outside",
            vec![from_web()],
            "203.0.113.9",
            "192.0.2.2:30080",
            Reachability::Denied,
        ),
        (
            "to outside",
            vec![],
            "web-5",
            "203.0.113.9:443",
            Reachability::Allowed,
        ),
        (
            "to outside, isolated",
            vec![default_deny()],
            "web-5",
            "203.0.113.9:443",
            Reachability::Denied,
        ),
    ] {
        let objects = shop(policies);
        let report = connect(&objects, from, to);
        assert_eq!(
            report.verdict,
            expected,
            "{what}\n{}",
            connect_text::to_text(&report)
        );
    }
}

#[test]
fn n6_some_endpoints_are_denied_and_others_are_not() {
    let only_one =
        json!({"podSelector": {"matchLabels": {"app": "api", "canary": "yes"}}, "policyTypes": ["Ingress"]});
    let canary = with(pod("api", 2, 7), "/metadata/labels/canary", json!("yes"));
    let objects = shop([policy("canary", only_one)]);
    assert_eq!(
        connect(&objects, "web-5", "svc/api:80").verdict,
        Reachability::Allowed
    );
    let only_one = policy(
        "canary",
        json!({"podSelector": {"matchLabels": {"canary": "yes"}}, "policyTypes": ["Ingress"]}),
    );
    let with_canary = with(canary, "/metadata/name", json!("api-7"));
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]});
    let ready = || json!({"ready": true});
    let objects = cluster([
        node(1),
        node(2),
        namespace("shop", json!({})),
        pod("web", 1, 5),
        pod("api", 1, 6),
        with_canary,
        service("api", spec),
        slice(
            "api",
            "IPv4",
            json!([endpoint("api", 1, 6, ready()), endpoint("api", 2, 7, ready())]),
        ),
        only_one,
    ]);
    let report = connect(&objects, "web-5", "svc/api:8080");
    assert_eq!(
        report.verdict,
        Reachability::PartlyDenied,
        "a headless Service, too"
    );
    let text = connect_text::to_text(&report);
    assert!(
        text.contains("none of them has a rule for this direction"),
        "{text}"
    );
    assert!(
        text.contains("a rule would have to allow from pod shop/web-5 (labels app=web), port 8080/TCP"),
        "{text}"
    );
}

#[test]
fn n7_an_unreachable_node_is_not_reached_even_if_policies_allow_it() {
    let objects = shop([]);
    let report = connect(&objects, "web-5", "api-7:8080");
    assert_eq!(report.verdict, Reachability::Allowed);
    let without = with(node(3), "/spec/podCIDRs", json!([]));
    let objects = shop([without, with(pod("far", 3, 9), "/metadata/labels", json!({}))]);
    let report = connect(&objects, "web-5", "far-9:80");
    assert_eq!(report.verdict, Reachability::Denied);
    assert_eq!(report.paths[0].ends[0].faults, ["node n3: it has no podCIDR"]);
}

#[test]
fn n6_pods_without_an_address_are_named() {
    let pending = with(pod("new", 1, 8), "/status", json!({"phase": "Pending"}));
    let report = connect(&shop([pending]), "new-8", "svc/api:80");
    assert_eq!(report.verdict, Reachability::NoEndpoint);
    assert_eq!(
        report.notes,
        ["pod shop/new-8 has no address yet (phase Pending)"]
    );
}

#[test]
fn n6_sources_and_destinations_are_parsed_and_errors_show_what_is_expected() {
    let objects = shop([]);
    let parse = |text: &str| arguments::destination(text, "shop", &objects);
    let address = |text: &str| Target::Address(text.parse().unwrap());
    for (text, target, port, protocol) in [
        (
            "[fd01::1]:80",
            address("fd01::1"),
            Port::Number(80),
            Protocol::Tcp,
        ),
        (
            "10.0.0.1:53/UDP",
            address("10.0.0.1"),
            Port::Number(53),
            Protocol::Udp,
        ),
        (
            "api.shop:http",
            Target::Service(ServiceKey::new("shop", "api")),
            Port::Name("http".into()),
            Protocol::Tcp,
        ),
        (
            "service/api",
            Target::Service(ServiceKey::new("shop", "api")),
            Port::Only,
            Protocol::Tcp,
        ),
    ] {
        let expected = Destination {
            target,
            port,
            protocol,
        };
        assert_eq!(parse(text).unwrap(), expected, "{text}");
    }
    for (text, expected) in [
        (
            "absent:80",
            "there is neither a pod nor a Service absent in the namespace shop",
        ),
        (
            "10.0.0.1",
            "10.0.0.1 has no port: expected a destination such as 10.0.0.1:80",
        ),
        (
            "fd01::1",
            "fd01::1 has no port: expected a destination such as [fd01::1]:80",
        ),
        (
            "web-5",
            "\"web-5\" has no port: expected a destination such as web-5:80",
        ),
        (
            "web-5:0",
            "\"0\" is not a port: expected 1 to 65535 or a port's name",
        ),
        (
            "deploy/web:80",
            "\"deploy/web\" is of the kind \"deploy\": expected a pod (pod/NAME), a Service (svc/NAME) or an address",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), expected);
    }
    assert_eq!(
        arguments::source("node/n1", "shop", &objects).unwrap(),
        Source::Node("n1".into())
    );
    let unknown = arguments::source("svc/api", "shop", &objects)
        .unwrap_err()
        .to_string();
    assert_eq!(
        unknown,
        "\"svc/api\" is not a source of connections: expected POD, pod/POD, node/NODE or an address"
    );
    let no_port = try_connect(&objects, "web-5", "svc/api:grpc")
        .unwrap_err()
        .to_string();
    assert_eq!(
        no_port,
        "expected one of the ports of Service shop/api: http 80/TCP"
    );
}
