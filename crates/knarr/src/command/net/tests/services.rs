//! Services: what they resolve to, and warnings about them.

use knarr_network::catalog::ServiceKey;
use serde_json::{Value, json};

use super::*;
use crate::command::net::service::report;
use crate::command::net::service_report::ServiceReport;
use crate::command::net::service_text;

fn report_of(objects: &NetworkObjects, node: &str, name: &str) -> ServiceReport {
    let node = objects.node(node).unwrap();
    report(objects, node, &ServiceKey::new("shop", name), None).unwrap()
}

fn ready() -> Value {
    json!({"ready": true, "serving": true, "terminating": false})
}

fn terminating() -> Value {
    json!({"ready": false, "serving": true, "terminating": true})
}

/// A Service `web` of every kind of address.
fn balancer(policy: &str) -> Value {
    let spec = json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "selector": {"app": "web"},
        "externalTrafficPolicy": policy, "internalTrafficPolicy": "Cluster",
        "loadBalancerSourceRanges": ["198.51.100.0/24"],
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "nodePort": 30080, "protocol": "TCP"}],
    });
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.200"}]}});
    with(service("web", spec), "/status", status)
}

fn plain(name: &str, more: Value) -> Value {
    let mut spec = json!({
        "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "selector": {"app": name},
        "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
    });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    service(name, spec)
}

#[test]
fn n2_a_service_is_shown_with_every_address_and_the_reasons() {
    let objects = cluster([
        node(1),
        node(2),
        namespace("shop", json!({})),
        pod("web", 2, 5),
        pod("web", 2, 6),
        balancer("Local"),
        slice(
            "web",
            "IPv4",
            json!([
                endpoint("web", 2, 5, ready()),
                endpoint("web", 2, 6, terminating())
            ]),
        ),
    ]);
    let report = report_of(&objects, "n1", "web");
    assert!(report.reachable, "pods reach it at its cluster IP");
    let expected = "\
Service shop/web (LoadBalancer) on node n1 (zone z1)
  internalTrafficPolicy: Cluster
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: 198.51.100.0/24

ADDRESS           PORT              KIND          CLIENTS                         CONNECTIONS
10.96.0.7         80/TCP (http)     ClusterIP     all                             are sent to 10.244.2.5:8080
192.0.2.200       80/TCP (http)     LoadBalancer  pods, the node, others outside  are dropped: not in loadBalancerSourceRanges
                                                  198.51.100.0/24                 are dropped: externalTrafficPolicy is Local and this node has no serving endpoint
this node (IPv4)  30080/TCP (http)  NodePort      pods, the node                  are sent to 10.244.2.5:8080
                                                  outside                         are dropped: externalTrafficPolicy is Local and this node has no serving endpoint

ENDPOINT         POD         NODE  ZONE  STATE                 FROM THIS NODE
10.244.2.5:8080  shop/web-5  n2    z2    ready                 used
10.244.2.6:8080  shop/web-6  n2    z2    terminating, serving  not used: it is terminating

NAME                                   TYPE  VALUE
web.shop.svc.cluster.local             A     10.96.0.7
_http._tcp.web.shop.svc.cluster.local  SRV   web.shop.svc.cluster.local:80

Warnings:
- externalTrafficPolicy is Local and no endpoint of port 80 is on n1: connections of clients outside that connect to this node are dropped; there are endpoints on n2
";
    assert_eq!(service_text::to_text(&report), expected);
    // On the node of the pods there is no warning, and clients outside keep their addresses.
    let report = report_of(&objects, "n2", "web");
    assert_eq!(report.warnings, Vec::<String>::new());
    let balancer = report.ports[0]
        .frontends
        .iter()
        .find(|f| f.kind == "LoadBalancer")
        .unwrap();
    let in_ranges = balancer
        .connections
        .iter()
        .find(|c| c.from == ["198.51.100.0/24"])
        .unwrap();
    assert_eq!(in_ranges.endpoints, ["10.244.2.5:8080"]);
    assert_eq!(in_ranges.masqueraded, Vec::<String>::new());
}

#[test]
fn n2_the_report_can_be_about_one_client() {
    let objects = cluster([
        node(1),
        namespace("shop", json!({})),
        pod("web", 1, 5),
        balancer("Cluster"),
        slice("web", "IPv4", json!([endpoint("web", 1, 5, ready())])),
    ]);
    for (client, outcome) in [("198.51.100.7", "Sent"), ("198.51.101.7", "Dropped")] {
        let node = objects.node("n1").unwrap();
        let report = report(
            &objects,
            node,
            &ServiceKey::new("shop", "web"),
            Some(client.parse().unwrap()),
        )
        .unwrap();
        let of_kind = report.ports[0]
            .frontends
            .iter()
            .find(|f| f.kind == "LoadBalancer");
        let connections = &of_kind.unwrap().connections;
        assert_eq!(
            (connections.len(), connections[0].outcome),
            (1, outcome),
            "{client}"
        );
    }
}

/// The warnings about the Service `web` of a cluster of `n1` and `n2`.
fn warnings(objects: impl IntoIterator<Item = Value>) -> Vec<String> {
    let all = [node(1), node(2), namespace("shop", json!({}))];
    report_of(&cluster(all.into_iter().chain(objects)), "n1", "web").warnings
}

#[test]
fn n2_warnings_name_why_a_service_has_no_endpoints() {
    let none = || slice("web", "IPv4", json!([]));
    let unready = |message: &str| {
        let conditions = json!([{"type": "Ready", "status": "False", "message": message}]);
        with(pod("web", 1, 5), "/status/conditions", conditions)
    };
    let on = |node, conditions| slice("web", "IPv4", json!([endpoint("web", node, 5, conditions)]));
    let other = with(
        with(pod("web", 1, 5), "/metadata/namespace", json!("other")),
        "/metadata/name",
        json!("far"),
    );
    let unnamed = with(pod("web", 1, 5), "/spec/containers/0/ports/0/name", json!("rest"));
    let local = json!({"internalTrafficPolicy": "Local"});
    let no_selector = |service: Value| with(service, "/spec/selector", json!({}));
    let hand_made = with(on(1, ready()), "/ports/0/name", json!("rest"));
    let both = json!({"clusterIPs": ["10.96.0.7", "fd96::7"], "ipFamilyPolicy": "PreferDualStack"});
    let v6 = json!([{"addresses": ["fd01::5"], "nodeName": "n1"}]);
    for (what, objects, expected) in [
        (
            "nothing is wrong",
            vec![pod("web", 1, 5), plain("web", json!({})), on(1, ready())],
            vec![],
        ),
        (
            "the selector matches nothing here",
            vec![plain("web", json!({})), none(), other],
            vec![
                "no pod in namespace shop matches the Service's selector app=web; pods in other namespaces do: \
                 other",
            ],
        ),
        (
            "the pod is not ready",
            vec![
                unready("containers with unready status: [c]"),
                plain("web", json!({})),
                on(1, json!({"ready": false, "serving": false})),
            ],
            vec!["the only selected pod is not ready: web-5 (Running: containers with unready status: [c])"],
        ),
        (
            "the port has another name",
            vec![unnamed, plain("web", json!({})), none()],
            vec![
                "the targetPort \"http\" of port 80 is not a TCP port of web-5; web-5 has \"rest\" 8080/TCP",
            ],
        ),
        (
            "no selector, no slice",
            vec![no_selector(plain("web", json!({})))],
            vec!["it has no selector, and no EndpointSlice has the label kubernetes.io/service-name=web"],
        ),
        (
            "a slice by hand with another port name",
            vec![no_selector(plain("web", json!({}))), hand_made],
            vec![
                "none of its EndpointSlices has a TCP port with the name \"http\" of port 80; their ports are: \
                 \"rest\"/TCP",
            ],
        ),
        (
            "endpoints of one family",
            vec![pod("web", 1, 5), plain("web", both), on(1, ready())],
            vec!["its endpoints have IPv4 addresses only: no endpoint is reached by its IPv6 address"],
        ),
        (
            "endpoints of another family",
            vec![
                pod("web", 1, 5),
                plain("web", json!({})),
                on(1, ready()),
                slice("web", "IPv6", v6),
            ],
            vec!["it has endpoints with IPv6 addresses, but no IPv6 address of its own"],
        ),
        (
            "Local, on another node",
            vec![pod("web", 2, 5), plain("web", local), on(2, ready())],
            vec![
                "internalTrafficPolicy is Local and no endpoint of port 80 is on n1: connections of pods and \
                 processes of this node are dropped; there are endpoints on n2",
            ],
        ),
        (
            "all endpoints are terminating",
            vec![pod("web", 1, 5), plain("web", json!({})), on(1, terminating())],
            vec!["no endpoint of port 80 is ready: connections are sent to its terminating endpoints (1)"],
        ),
        (
            "no load balancer yet",
            vec![
                pod("web", 1, 5),
                plain(
                    "web",
                    json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/lb"}),
                ),
                on(1, ready()),
            ],
            vec![
                "no load balancer of loadBalancerClass example.com/lb has set status.loadBalancer.ingress yet",
            ],
        ),
        (
            "an address of another Service",
            vec![
                pod("web", 1, 5),
                plain(
                    "web",
                    json!({"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8"], "externalIPs": ["10.96.0.7"]}),
                ),
                on(1, ready()),
                plain("other", json!({"selector": {"app": "web"}})),
            ],
            vec!["10.96.0.7 80/TCP belongs to Service shop/other: connections are sent to that Service"],
        ),
    ] {
        assert_eq!(warnings(objects), expected, "{what}");
    }
}

#[test]
fn n2_an_endpoint_on_a_node_that_is_lost_is_a_warning() {
    let lost = with(node(2), "/status/conditions/0/status", json!("Unknown"));
    let objects = cluster([
        node(1),
        lost,
        namespace("shop", json!({})),
        pod("web", 2, 5),
        plain("web", json!({})),
        slice("web", "IPv4", json!([endpoint("web", 2, 5, ready())])),
    ]);
    assert_eq!(
        report_of(&objects, "n1", "web").warnings,
        ["used endpoints of port 80 are on nodes that are not Ready: n2"]
    );
}

#[test]
fn n5_services_without_a_proxy_are_shown_with_their_dns_records() {
    let headless = json!({"clusterIP": "None", "clusterIPs": ["None"]});
    let alias = json!({"type": "ExternalName", "externalName": "www.example.com"});
    let slice = slice(
        "web",
        "IPv4",
        json!([
            endpoint("web", 1, 5, ready()),
            endpoint("web", 1, 6, json!({"ready": false}))
        ]),
    );
    let objects = cluster([
        node(1),
        namespace("shop", json!({})),
        pod("web", 1, 5),
        plain("web", headless),
        service("alias", alias),
        slice,
    ]);
    let web = report_of(&objects, "n1", "web");
    assert!(web.reachable && web.ports.is_empty());
    assert_eq!(web.names[0].values, ["10.244.1.5"]);
    let alias = report_of(&objects, "n1", "alias");
    assert_eq!(
        service_text::to_text(&alias),
        "Service shop/alias (ExternalName) on node n1 (zone z1)\n\n\
         No proxy serves it: it is of type ExternalName: clients connect to the host of its CNAME record.\n\n\
         NAME                          TYPE   VALUE\n\
         alias.shop.svc.cluster.local  CNAME  www.example.com\n"
    );
    let nothing = report(
        &objects,
        objects.node("n1").unwrap(),
        &ServiceKey::new("shop", "no"),
        None,
    );
    assert_eq!(nothing.unwrap_err().to_string(), "there is no Service shop/no");
}
