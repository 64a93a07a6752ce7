//! Truth tables over the grid of pods, as in upstream's sig-network netpol tests (v1.36.2, `test/e2e/network/netpol`):
//! what is expected is written down by hand, and the simulated kernel and the reference have to agree with it.

use serde_json::{Value, json};

use super::reference;
use super::simulation::Nodes;
use super::world::{Connection, TestPod, World};
use crate::catalog::Protocol;
use crate::policy::{Endpoint, Outcome, PodKey, Policies};

/// From, to, ports (`80/TCP`), whether allowed: later ones override earlier ones, and without any all is allowed. `*` is
/// all, `x/*` all of a namespace.
type Expectation<'a> = (&'a str, &'a str, &'a str, bool);

fn is_of(pattern: &str, pod: &TestPod) -> bool {
    match pattern.split_once('/') {
        None => pattern == "*",
        Some((namespace, name)) => pod.namespace == namespace && (name == "*" || name == pod.name),
    }
}

fn expected(expectations: &[Expectation<'_>], from: &TestPod, to: &TestPod, connection: &Connection) -> bool {
    if from.addresses == to.addresses {
        return true;
    }
    let port = format!("{}/{}", connection.port, connection.protocol.name());
    let of = expectations.iter().rev();
    of.filter(|(f, t, p, _)| is_of(f, from) && is_of(t, to) && (*p == "*" || *p == port))
        .map(|(_, _, _, allowed)| *allowed)
        .next()
        .unwrap_or(true)
}

/// Each end's own verdict, with and without its reasons.
fn verdicts_are_those_explained(policies: &Policies, from: &TestPod, to: &TestPod, connection: &Connection) {
    let Connection {
        from: source,
        to: destination,
        protocol,
        port,
    } = *connection;
    let ends = [source, destination].map(Endpoint::Address);
    let explained = policies.explain(&ends[0], &ends[1], protocol, port);
    let verdicts = |of: &TestPod, address, peer| {
        let of = policies.verdicts_of(&PodKey::new(&of.namespace, &of.name), address)?;
        of.with(peer, protocol, [port])
    };
    let (egress, ingress) = (
        verdicts(from, source, destination),
        verdicts(to, destination, source),
    );
    assert_eq!(
        (egress.map(|v| v.egress), ingress.map(|v| v.ingress)),
        (
            explained.egress.as_ref().map(|side| [side.is_allowed()]),
            explained.ingress.as_ref().map(|side| [side.is_allowed()])
        ),
        "{connection:?} {explained:#?}"
    );
}

fn check(policies: &[(&str, Value)], expectations: &[Expectation<'_>]) {
    check_in(World::grid(), policies, expectations);
}

fn check_in(mut world: World, policies: &[(&str, Value)], expectations: &[Expectation<'_>]) {
    for (index, (namespace, spec)) in policies.iter().enumerate() {
        world.put_policy(namespace, &format!("policy-{index}"), spec.clone());
    }
    let nodes = Nodes::of(&world);
    let mut both = world.load(0);
    for connection in world.connections() {
        let (Some(from), Some(to)) = (world.pod_at(connection.from), world.pod_at(connection.to)) else {
            continue;
        };
        let expected = expected(expectations, from, to, &connection);
        let case = format!("{}/{} to {}/{}", from.namespace, from.name, to.namespace, to.name);
        assert_eq!(nodes.pass(&world, &connection), expected, "{case} {connection:?}");
        assert_eq!(
            reference::allows(&world, &connection),
            expected,
            "reference: {case} {connection:?}"
        );
        let [source, destination] = [connection.from, connection.to].map(Endpoint::Address);
        let explained = both.explain(&source, &destination, connection.protocol, connection.port);
        let outcome = if expected {
            Outcome::Allowed
        } else {
            Outcome::Denied
        };
        assert_eq!(explained.outcome, outcome, "{case} {explained:#?}");
        verdicts_are_those_explained(&both, from, to, &connection);
    }
    both.take_change();
    nodes.check(&world);
}

fn pod(name: &str) -> Value {
    json!({"matchLabels": {"pod": name}})
}

fn ns(name: &str) -> Value {
    json!({"matchLabels": {"ns": name}})
}

#[test]
fn n6_default_deny() {
    check(&[("x", json!({"podSelector": {}}))], &[("*", "x/*", "*", false)]);
    check(
        &[("x", json!({"podSelector": {}, "ingress": []}))],
        &[("*", "x/*", "*", false)],
    );
    check(
        &[("x", json!({"podSelector": {}, "policyTypes": ["Egress"]}))],
        &[("x/*", "*", "*", false)],
    );
    check(
        &[(
            "x",
            json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
        )],
        &[("*", "x/*", "*", false), ("x/*", "*", "*", false)],
    );
    // A rule that allows everything.
    check(&[("x", json!({"podSelector": {}, "ingress": [{}]}))], &[]);
    check(
        &[(
            "x",
            json!({"podSelector": {}, "egress": [{}], "policyTypes": ["Egress"]}),
        )],
        &[],
    );
    // Egress rules count only with their type.
    check(
        &[(
            "x",
            json!({"podSelector": {}, "egress": [{"to": [{"podSelector": {}}]}], "policyTypes": ["Ingress"]}),
        )],
        &[("*", "x/*", "*", false)],
    );
    // Without types, ingress is isolated, and egress if there are egress rules.
    check(
        &[(
            "x",
            json!({"podSelector": pod("a"), "egress": [{"to": [{"podSelector": {}}]}]}),
        )],
        &[
            ("x/a", "*", "*", false),
            ("x/a", "x/*", "*", true),
            ("*", "x/a", "*", false),
        ],
    );
}

#[test]
fn n6_peers_by_pods_and_namespaces() {
    let from = |peers: Value| json!({"podSelector": pod("a"), "ingress": [{"from": peers}]});
    let to =
        |peers: Value| json!({"podSelector": pod("a"), "egress": [{"to": peers}], "policyTypes": ["Egress"]});
    let not_x = json!({"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x"]}]});
    let is_b = json!({"matchExpressions": [{"key": "pod", "operator": "In", "values": ["b"]}]});
    for (peers, allowed) in [
        (json!([{"podSelector": pod("b")}]), vec!["x/b"]),
        (json!([{"podSelector": is_b}]), vec!["x/b"]),
        (json!([{"namespaceSelector": ns("y")}]), vec!["y/*"]),
        (json!([{"namespaceSelector": {}}]), vec!["*"]),
        (json!([{"podSelector": {}}]), vec!["x/*"]),
        (json!([{"podSelector": {}, "namespaceSelector": {}}]), vec!["*"]),
        // Either, and both at once.
        (
            json!([{"namespaceSelector": not_x}, {"podSelector": pod("b")}]),
            vec!["y/*", "z/*", "x/b"],
        ),
        (
            json!([{"namespaceSelector": not_x, "podSelector": pod("b")}]),
            vec!["y/b", "z/b"],
        ),
        (
            json!([{"namespaceSelector": not_x, "podSelector": {"matchExpressions":
                [{"key": "pod", "operator": "In", "values": ["b", "c"]}]}}]),
            vec!["y/b", "z/b", "y/c", "z/c"],
        ),
        (
            json!([{"namespaceSelector": {"matchLabels": {"ns": "none"}}}]),
            vec![],
        ),
    ] {
        let mut ingress = vec![("*", "x/a", "*", false)];
        ingress.extend(allowed.iter().map(|peer| (*peer, "x/a", "*", true)));
        check(&[("x", from(peers.clone()))], &ingress);
        let mut egress = vec![("x/a", "*", "*", false)];
        egress.extend(allowed.iter().map(|peer| ("x/a", *peer, "*", true)));
        check(&[("x", to(peers))], &egress);
    }
}

#[test]
fn n6_ports_ranges_names_and_protocols() {
    let with = |ports: Value| json!({"podSelector": pod("a"), "ingress": [{"from": [{"namespaceSelector": ns("y")}], "ports": ports}]});
    let closed = ("*", "x/a", "*", false);
    for (ports, open) in [
        (json!([{"port": 81}]), vec!["81/TCP"]),
        (
            json!([{"port": 80}, {"port": 81, "protocol": "UDP"}]),
            vec!["80/TCP", "81/UDP"],
        ),
        (
            json!([{"port": 80, "endPort": 8080}]),
            vec!["80/TCP", "81/TCP", "8080/TCP"],
        ),
        (
            json!([{"port": 81, "endPort": 81, "protocol": "UDP"}]),
            vec!["81/UDP"],
        ),
        (json!([{"protocol": "UDP"}]), vec!["80/UDP", "81/UDP", "8080/UDP"]),
        (json!([]), vec!["*"]),
        (json!([{"port": "serve-81-tcp"}]), vec!["81/TCP"]),
        (
            json!([{"port": "serve-80-udp", "protocol": "UDP"}, {"port": "serve-80-tcp"}]),
            vec!["80/TCP", "80/UDP"],
        ),
        // A port's protocol is part of its name's meaning.
        (json!([{"port": "serve-80-tcp", "protocol": "UDP"}]), vec![]),
        (json!([{"port": "unknown"}]), vec![]),
        (json!([{"port": 80, "protocol": "SCTP"}]), vec![]),
    ] {
        let mut expectations = vec![closed];
        expectations.extend(open.iter().map(|port| ("y/*", "x/a", *port, true)));
        check(&[("x", with(ports.clone()))], &expectations);
        // The same from the other side: y's pods may connect to these ports of any pod of x.
        let egress = json!({"podSelector": {}, "policyTypes": ["Egress"],
            "egress": [{"to": [{"namespaceSelector": ns("x")}], "ports": ports.clone()}]});
        let mut expectations = vec![("y/*", "*", "*", false)];
        expectations.extend(open.iter().map(|port| ("y/*", "x/*", *port, true)));
        check(&[("y", egress)], &expectations);
        // And without peers, to any pod.
        let egress = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": ports}]});
        let mut expectations = vec![("y/*", "*", "*", false)];
        expectations.extend(open.iter().map(|port| ("y/*", "*", *port, true)));
        check(&[("y", egress)], &expectations);
    }
}

#[test]
fn n6_a_named_port_is_another_number_in_each_pod() {
    let mut world = World::grid();
    for (name, number) in [("a", 80), ("b", 81)] {
        let mut other = world.pod("z", name).clone();
        other.ports.push(("web".into(), Protocol::Tcp, number));
        world.put_pod(other);
    }
    let ingress = json!({"podSelector": {}, "ingress": [{"ports": [{"port": "web"}]}]});
    check_in(
        world.clone(),
        &[("z", ingress)],
        &[
            ("*", "z/*", "*", false),
            ("*", "z/a", "80/TCP", true),
            ("*", "z/b", "81/TCP", true),
        ],
    );
    let egress = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
        {"to": [{"ipBlock": {"cidr": "10.0.2.0/31"}}, {"ipBlock": {"cidr": "fd00::2:2/128"}}], "ports": [{"port": "web"}]}]});
    let mut with_block = world;
    with_block.put_policy("x", "egress", egress);
    let nodes = Nodes::of(&with_block);
    nodes.check(&with_block);
}

#[test]
fn n6_a_named_port_of_own_pods_and_of_another_namespaces() {
    let peers = json!([{"podSelector": pod("b")}, {"namespaceSelector": ns("y")}]);
    let egress = json!({"podSelector": pod("a"), "policyTypes": ["Egress"],
        "egress": [{"to": peers, "ports": [{"port": "serve-80-tcp"}]}]});
    check(
        &[("x", egress)],
        &[
            ("x/a", "*", "*", false),
            ("x/a", "x/b", "80/TCP", true),
            ("x/a", "y/*", "80/TCP", true),
        ],
    );
}

#[test]
fn n6_several_policies_and_rules_add_up() {
    check(
        &[
            (
                "x",
                json!({"podSelector": pod("a"), "ingress": [{"from": [{"namespaceSelector": ns("y")}], "ports": [{"port": 80}]}]}),
            ),
            (
                "x",
                json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": ns("y")}], "ports": [{"port": 81}]}]}),
            ),
            (
                "x",
                json!({"podSelector": pod("b"), "ingress": [
                {"from": [{"podSelector": pod("c")}]},
                {"from": [{"namespaceSelector": ns("z")}], "ports": [{"protocol": "UDP", "port": 80}]}]}),
            ),
        ],
        &[
            ("*", "x/*", "*", false),
            ("y/*", "x/*", "81/TCP", true),
            ("y/*", "x/a", "80/TCP", true),
            ("x/c", "x/b", "*", true),
            ("z/*", "x/b", "80/UDP", true),
        ],
    );
    // Both ends have to allow: egress of x/a to y only, ingress of y/b from z only.
    check(
        &[
            (
                "x",
                json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": [{"to": [{"namespaceSelector": ns("y")}]}]}),
            ),
            (
                "y",
                json!({"podSelector": pod("b"), "ingress": [{"from": [{"namespaceSelector": ns("z")}]}]}),
            ),
        ],
        &[
            ("x/a", "*", "*", false),
            ("x/a", "y/*", "*", true),
            ("*", "y/b", "*", false),
            ("z/*", "y/b", "*", true),
        ],
    );
}

#[test]
fn n6_blocks_with_exceptions() {
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let egress =
        |peers: Value| json!({"podSelector": pod("a"), "policyTypes": ["Egress"], "egress": [{"to": peers}]});
    check(
        &[(
            "x",
            egress(json!([block("10.0.2.1/32", &[]), block("fd00::2:1/128", &[])])),
        )],
        &[("x/a", "*", "*", false), ("x/a", "z/a", "*", true)],
    );
    check(
        &[(
            "x",
            egress(json!([
                block("10.0.0.0/16", &["10.0.1.0/24", "10.0.2.2/32"]),
                block("fd00::/64", &["fd00::1:0/112", "fd00::2:2/128"])
            ])),
        )],
        &[("x/a", "y/*", "*", false), ("x/a", "z/b", "*", false)],
    );
    // What one block excepts another allows.
    check(
        &[(
            "x",
            egress(json!([
                block("10.0.0.0/16", &["10.0.1.0/24"]),
                block("10.0.1.1/32", &[]),
                block("fd00::/64", &["fd00::1:0/112"]),
                block("fd00::1:1/128", &[])
            ])),
        )],
        &[("x/a", "y/*", "*", false), ("x/a", "y/a", "*", true)],
    );
    let mut world = World::grid();
    let peers = json!([block("192.0.2.0/24", &[]), block("2001:db8::/48", &[])]);
    world.put_policy(
        "x",
        "p",
        json!({"podSelector": {}, "ingress": [{"from": peers, "ports": [{"port": 80}]}]}),
    );
    Nodes::of(&world).check(&world);
}

#[test]
fn n6_pods_in_the_host_network_are_addresses() {
    let mut world = World::grid();
    let mut node = world.pod("y", "c").clone();
    node.host_network = true;
    node.addresses = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    world.put_pod(node);
    world.put_policy("y", "p", json!({"podSelector": {}}));
    world.put_policy(
        "x",
        "p",
        json!({"podSelector": {}, "ingress": [{"from": [{"namespaceSelector": {}}]}]}),
    );
    world.put_policy(
        "z",
        "p",
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]}),
    );
    Nodes::of(&world).check(&world);
}

#[test]
fn n6_dns_is_allowed_as_to_a_pod_of_cluster_dns() {
    let query = |port, protocol| {
        let pod = World::grid().pod("x", "a").addresses[0];
        Connection {
            from: pod,
            to: "10.96.0.10".parse().unwrap(),
            protocol,
            port,
        }
    };
    let dns = json!({"matchLabels": {"k8s-app": "kube-dns"}});
    let system = json!({"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}});
    for (egress, udp, tcp) in [
        (json!([]), false, false),
        (json!([{}]), true, true),
        (json!([{"ports": [{"port": 53, "protocol": "UDP"}]}]), true, false),
        (
            json!([{"ports": [{"port": "dns", "protocol": "UDP"}, {"port": "dns-tcp"}]}]),
            true,
            true,
        ),
        (
            json!([{"to": [{"namespaceSelector": {}, "podSelector": dns}]}]),
            true,
            true,
        ),
        (
            json!([{"to": [{"namespaceSelector": system, "podSelector": dns}], "ports": [{"port": 53}]}]),
            false,
            true,
        ),
        (
            json!([{"to": [{"namespaceSelector": system}], "ports": [{"port": 5353, "protocol": "UDP"}]}]),
            false,
            false,
        ),
        (json!([{"to": [{"podSelector": dns}]}]), false, false),
        (json!([{"to": [{"namespaceSelector": ns("y")}]}]), false, false),
        (
            json!([{"to": [{"ipBlock": {"cidr": "10.96.0.0/16"}}]}]),
            true,
            true,
        ),
        (
            json!([{"to": [{"ipBlock": {"cidr": "10.96.0.0/16", "except": ["10.96.0.10/32"]}}]}]),
            false,
            false,
        ),
    ] {
        let mut world = World::grid();
        let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress});
        world.put_policy("x", "p", spec.clone());
        let nodes = Nodes::of(&world);
        for (protocol, expected) in [(Protocol::Udp, udp), (Protocol::Tcp, tcp)] {
            assert_eq!(
                nodes.kernels[0].answers_dns(&query(53, protocol)),
                expected,
                "{spec}"
            );
        }
    }
}

#[test]
fn n6_an_explanation_names_the_policies_and_the_rule() {
    let mut world = World::grid();
    world.put_policy("x", "deny", json!({"podSelector": {}}));
    world.put_policy(
        "x",
        "web",
        json!({"podSelector": {}, "ingress": [
        {"from": [{"podSelector": {}}]},
        {"from": [{"namespaceSelector": ns("y")}], "ports": [{"port": 80}]}]}),
    );
    let policies = world.load(0);
    let pod = |namespace, name| Endpoint::Pod(PodKey::new(namespace, name));
    let explain = |port| policies.explain(&pod("y", "a"), &pod("x", "a"), Protocol::Tcp, port);
    let rules = |port| -> Vec<String> {
        let side = explain(port).ingress.unwrap();
        assert_eq!(side.isolated_by.len(), 2);
        side.rules
            .iter()
            .map(|(policy, rule, verdict)| format!("{policy} ingress[{rule}]: {verdict}"))
            .collect()
    };
    assert_eq!(
        rules(80),
        [
            "x/web ingress[0]: no peer matches",
            "x/web ingress[1]: allows the connection"
        ]
    );
    assert_eq!(
        rules(81),
        [
            "x/web ingress[0]: no peer matches",
            "x/web ingress[1]: no port matches"
        ]
    );
    assert_eq!(
        (explain(80).outcome, explain(81).outcome),
        (Outcome::Allowed, Outcome::Denied)
    );
    let (ingress, egress) = (explain(80).ingress.unwrap(), explain(80).egress.unwrap());
    assert!(egress.isolated_by.is_empty());
    assert_eq!(
        format!("{} of {}", ingress.direction, ingress.pod),
        "ingress of x/a"
    );
    assert_eq!(format!("{} of {}", egress.direction, egress.pod), "egress of y/a");
    let unknown = policies.explain(&pod("y", "none"), &pod("x", "a"), Protocol::Tcp, 80);
    assert_eq!(unknown.outcome, Outcome::Unknown);
}
