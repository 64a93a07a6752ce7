//! Packet cases that kube-proxy's nftables tests list (v1.36).

use serde_json::{Value, json};

use super::{Config, NODE, Node, OUTSIDE, POD, config};
use crate::catalog::Protocol;
use crate::proxy::frontend::Frontend;
use crate::proxy::packet::{self, Outcome, Packet, Tables};
use crate::proxy::{Family, layout};

const BLOCKED: &str = "203.0.113.130";

#[test]
fn n2_cluster_ips() {
    let mut node = Node::new(config());
    node.service(
        "svc1",
        json!({"clusterIP": "172.30.0.41", "ports": [{"name": "http", "port": 80}]}),
        &[],
    );
    let ports = json!([
        {"name": "http", "port": 80}, {"name": "https", "port": 443}, {"name": "dns-udp", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53}, {"name": "dns-sctp", "port": 53, "protocol": "SCTP"},
    ]);
    node.service("svc2", json!({"clusterIP": "172.30.0.42", "ports": ports}), &[]);
    node.slice(
        "svc1",
        json!([{"name": "http", "port": 80}]),
        json!([{"addresses": ["10.180.0.1"], "nodeName": "here"}]),
    );
    let ports = json!([
        {"name": "http", "port": 80}, {"name": "https", "port": 8443}, {"name": "dns-udp", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 5353}, {"name": "dns-sctp", "port": 53, "protocol": "SCTP"},
    ]);
    let endpoints = json!([{"addresses": ["10.180.0.1"], "nodeName": "here"}, {"addresses": ["10.180.2.1"], "nodeName": "b"}]);
    node.slice("svc2", ports, endpoints);
    use Protocol::{Sctp, Tcp, Udp};
    for (protocol, source, destination, expected) in [
        (Tcp, "10.180.0.2", "172.30.0.41:80", "10.180.0.1:80"),
        (Tcp, "10.180.0.1", "172.30.0.41:80", "10.180.0.1:80 m"),
        (
            Tcp,
            "10.180.0.2",
            "172.30.0.42:80",
            "10.180.0.1:80, 10.180.2.1:80",
        ),
        (
            Tcp,
            "10.180.0.2",
            "172.30.0.42:443",
            "10.180.0.1:8443, 10.180.2.1:8443",
        ),
        (
            Tcp,
            "10.180.0.2",
            "172.30.0.42:53",
            "10.180.0.1:5353, 10.180.2.1:5353",
        ),
        (
            Udp,
            "10.180.0.2",
            "172.30.0.42:53",
            "10.180.0.1:53, 10.180.2.1:53",
        ),
        (
            Sctp,
            "10.180.0.2",
            "172.30.0.42:53",
            "10.180.0.1:53, 10.180.2.1:53",
        ),
        (Udp, "10.180.0.2", "172.30.0.42:80", "REJECT"),
        (Tcp, "10.180.0.2", "172.30.0.41:443", "REJECT"),
        (Tcp, "10.180.0.2", "172.30.0.50:80", "DROP"),
        (Tcp, "10.180.0.2", "10.180.0.1:80", "unchanged"),
        (Tcp, OUTSIDE, "192.168.0.2:22", "unchanged"),
    ] {
        assert_eq!(
            node.flow(protocol, source, destination),
            expected,
            "{source} to {destination}"
        );
    }
}

#[test]
fn n2_no_endpoints() {
    let mut node = Node::new(config());
    let spec = json!({"type": "LoadBalancer", "clusterIP": "172.30.0.41", "externalIPs": ["192.168.99.11"],
                      "ports": [{"name": "p80", "port": 80, "nodePort": 3001}]});
    node.service("svc1", spec, &["1.2.3.4"]);
    for (source, destination) in [
        (POD, "172.30.0.41:80"),
        (OUTSIDE, "192.168.99.11:80"),
        (POD, "192.168.0.2:3001"),
        (OUTSIDE, "192.168.0.2:3001"),
        (NODE, "127.0.0.1:3001"),
        (POD, "1.2.3.4:80"),
        (OUTSIDE, "1.2.3.4:80"),
    ] {
        assert_eq!(
            node.tcp(source, destination),
            "REJECT",
            "{source} to {destination}"
        );
    }
}

#[test]
fn n2_load_balancers_and_source_ranges() {
    let mut node = Node::new(config());
    let spec = json!({"type": "LoadBalancer", "clusterIP": "172.30.0.41",
                      "loadBalancerSourceRanges": ["192.168.0.0/24", " 203.0.113.0/25"],
                      "ports": [{"name": "p80", "port": 80, "nodePort": 3001}]});
    node.service("svc1", spec, &["1.2.3.4", "5.6.7.8"]);
    node.slice(
        "svc1",
        json!([{"name": "p80", "port": 80}]),
        json!([{"addresses": ["10.180.0.1"], "nodeName": "here"}]),
    );
    let masqueraded = "10.180.0.1:80 m";
    assert_eq!(node.tcp(POD, "172.30.0.41:80"), "10.180.0.1:80");
    assert_eq!(node.tcp(OUTSIDE, "192.168.0.2:3001"), masqueraded);
    assert_eq!(
        node.tcp(BLOCKED, "192.168.0.2:3001"),
        masqueraded,
        "node ports are not subject to ranges"
    );
    for balancer in ["1.2.3.4", "5.6.7.8"] {
        let to = format!("{balancer}:80");
        assert_eq!(node.tcp(OUTSIDE, &to), masqueraded);
        assert_eq!(node.tcp(BLOCKED, &to), "DROP");
        assert_eq!(node.tcp(POD, &to), "DROP");
        assert_eq!(node.tcp(NODE, &to), masqueraded);
        assert_eq!(
            node.tcp(balancer, &to),
            masqueraded,
            "the node lets itself in from there"
        );
    }
}

fn three_policies(config: Config) -> Node {
    let mut node = Node::new(config);
    for (name, last, policy, balancer) in [
        ("svc1", 1, json!({}), "1.2.3.4"),
        ("svc2", 2, json!({"externalTrafficPolicy": "Local"}), "5.6.7.8"),
        ("svc3", 3, json!({"internalTrafficPolicy": "Local"}), "9.10.11.12"),
    ] {
        let mut spec = json!({"type": "LoadBalancer", "clusterIP": format!("172.30.0.4{last}"),
                              "ports": [{"name": "p80", "port": 80, "nodePort": 3000 + last}]});
        spec.as_object_mut()
            .unwrap()
            .extend(policy.as_object().unwrap().clone());
        node.service(name, spec, &[balancer]);
        let endpoints = json!([
            {"addresses": [format!("10.180.0.{last}")], "nodeName": "here"},
            {"addresses": [format!("10.180.1.{last}")], "nodeName": "remote"},
        ]);
        node.slice(name, json!([{"name": "p80", "port": 80}]), endpoints);
    }
    node
}

/// Source, destination, number of the Service, whether the remote endpoint is reached, and masquerading: as it is with
/// cluster CIDRs, without, and with `--masquerade-all`.
type Case = (&'static str, &'static str, u8, bool, [bool; 3]);

const CASES: [Case; 27] = [
    (POD, "172.30.0.41:80", 1, true, [false, false, true]),
    (POD, "192.168.0.2:3001", 1, true, [true, true, true]),
    (POD, "1.2.3.4:80", 1, true, [true, true, true]),
    (NODE, "172.30.0.41:80", 1, true, [true, false, true]),
    (NODE, "192.168.0.2:3001", 1, true, [true, true, true]),
    (NODE, "1.2.3.4:80", 1, true, [true, true, true]),
    (OUTSIDE, "172.30.0.41:80", 1, true, [true, false, true]),
    (OUTSIDE, "192.168.0.2:3001", 1, true, [true, true, true]),
    (OUTSIDE, "1.2.3.4:80", 1, true, [true, true, true]),
    (POD, "172.30.0.42:80", 2, true, [false, false, true]),
    (POD, "192.168.0.2:3002", 2, true, [false, false, false]),
    (POD, "5.6.7.8:80", 2, true, [false, false, false]),
    (NODE, "172.30.0.42:80", 2, true, [true, false, true]),
    (NODE, "192.168.0.2:3002", 2, true, [true, true, true]),
    (NODE, "5.6.7.8:80", 2, true, [true, true, true]),
    (OUTSIDE, "172.30.0.42:80", 2, true, [true, false, true]),
    (OUTSIDE, "192.168.0.2:3002", 2, false, [false, false, false]),
    (OUTSIDE, "5.6.7.8:80", 2, false, [false, false, false]),
    (POD, "172.30.0.43:80", 3, false, [false, false, true]),
    (POD, "192.168.0.2:3003", 3, true, [true, true, true]),
    (POD, "9.10.11.12:80", 3, true, [true, true, true]),
    (NODE, "172.30.0.43:80", 3, false, [true, false, true]),
    (NODE, "192.168.0.2:3003", 3, true, [true, true, true]),
    (NODE, "9.10.11.12:80", 3, true, [true, true, true]),
    (OUTSIDE, "172.30.0.43:80", 3, false, [true, false, true]),
    (OUTSIDE, "192.168.0.2:3003", 3, true, [true, true, true]),
    (OUTSIDE, "9.10.11.12:80", 3, true, [true, true, true]),
];

#[test]
fn n2_masquerading_by_source_destination_and_policy() {
    let unknown_pods = Config {
        cluster_cidrs: Vec::new(),
        ..config()
    };
    let all = Config {
        masquerade_all: true,
        ..config()
    };
    for (column, config) in [config(), unknown_pods, all].into_iter().enumerate() {
        let node = three_policies(config);
        for (source, destination, number, remote, masquerade) in CASES {
            // Who does not know pods has no short cut for them.
            let is_short_cut = column == 1 && source == POD && number == 2 && !destination.starts_with("172");
            let mark = if masquerade[column] { " m" } else { "" };
            let mut expected = format!("10.180.0.{number}:80{mark}");
            if remote && !is_short_cut {
                expected += &format!(", 10.180.1.{number}:80{mark}");
            }
            assert_eq!(
                node.tcp(source, destination),
                expected,
                "{column}: {source} to {destination}"
            );
        }
    }
}

#[test]
fn n2_node_ports_on_all_addresses_or_on_some() {
    let spec = json!({"type": "NodePort", "clusterIP": "172.30.0.41", "clusterIPs": ["172.30.0.41", "fd00:96::41"],
                      "ports": [{"name": "p80", "port": 80, "nodePort": 3001}]});
    let endpoints = json!([{"addresses": ["10.180.0.1"], "nodeName": "here"}]);
    let ports = json!([{"name": "p80", "port": 80}]);
    let some = Config {
        node_port_addresses: vec![
            "192.168.0.0/24".parse().unwrap(),
            "2001:db8::/64".parse().unwrap(),
        ],
        localhost_node_ports: false,
        ..config()
    };
    for (config, second, loopback) in [
        (config(), "10.180.0.1:80 m", "10.180.0.1:80 m"),
        (some, "unchanged", "unchanged"),
    ] {
        let mut node = Node::new(config);
        node.service("svc1", spec.clone(), &[]);
        node.slice("svc1", ports.clone(), endpoints.clone());
        assert_eq!(node.tcp(OUTSIDE, "192.168.0.2:3001"), "10.180.0.1:80 m");
        assert_eq!(node.tcp(OUTSIDE, "192.168.1.2:3001"), second);
        assert_eq!(node.tcp("127.0.0.1", "127.0.0.1:3001"), loopback);
        assert_eq!(node.tcp(POD, "10.180.0.9:3001"), "unchanged", "another's address");
        assert_eq!(
            node.tcp("2001:db8::9", "[2001:db8::1]:3001"),
            "REJECT",
            "no endpoint of that family"
        );
        assert_eq!(node.tcp("::1", "[::1]:3001"), "unchanged");
    }
}

#[test]
fn n2_a_balancer_of_mode_proxy_is_left_alone() {
    for (mode, expected) in [
        (json!("Proxy"), "unchanged"),
        (json!("VIP"), "10.180.0.1:80 m"),
        (json!(null), "10.180.0.1:80 m"),
    ] {
        let mut node = Node::new(config());
        let service = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "svc1"},
            "spec": {"type": "LoadBalancer", "clusterIP": "172.30.0.41", "ports": [{"name": "p80", "port": 80, "nodePort": 3001}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": mode}]}},
        }));
        node.catalog.apply_service(&service.unwrap());
        node.slice(
            "svc1",
            json!([{"name": "p80", "port": 80}]),
            json!([{"addresses": ["10.180.0.1"], "nodeName": "here"}]),
        );
        assert_eq!(node.tcp(OUTSIDE, "1.2.3.4:80"), expected);
    }
}

/// A node with one Service, which has this many endpoints.
fn one_service(config: Config, endpoints: u8) -> Node {
    let mut node = Node::new(config);
    let ports = json!([{"name": "p80", "port": 80}]);
    node.service("svc1", json!({"clusterIP": "172.30.0.41", "ports": ports}), &[]);
    let endpoints = (1..=endpoints).map(|last| json!({"addresses": [format!("10.180.0.{last}")]}));
    let endpoints: Vec<Value> = endpoints.collect();
    node.slice("svc1", ports, json!(endpoints));
    node
}

#[test]
fn n2_connections_are_lost_if_a_slot_has_no_endpoint_that_is_drawn_only_once() {
    let destination = "172.30.0.41".parse().unwrap();
    let frontend = Frontend {
        family: Family::V4,
        address: Some(destination),
        protocol: Protocol::Tcp,
        port: 80,
    };
    let packet = Packet {
        source: POD.parse().unwrap(),
        destination,
        protocol: Protocol::Tcp,
        port: 80,
        learned: None,
    };
    // 20 endpoints have 32 slots: the last draw is from the lower 16.
    for (endpoints, removed, sent) in [
        (16, 0, None),
        (16, 15, None),
        (20, 0, None),
        (20, 15, None),
        (20, 16, Some(19)),
        (20, 19, Some(19)),
        (20, 31, Some(20)),
    ] {
        let node = one_service(config(), endpoints);
        let mut elements = packet::table(&node.proxy, Family::V4);
        let slots = elements.get_mut(layout::ENDPOINTS).unwrap();
        slots.remove(&frontend.fields().number(removed).key());
        let tables = Tables {
            config: node.proxy.config(),
            local_addresses: &node.addresses,
            elements: &elements,
        };
        let found = match tables.route(&packet) {
            Outcome::Sent(hops) => Some(hops.len()),
            Outcome::Lost => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(found, sent, "slot {removed} of {endpoints}");
    }
}

#[test]
fn n2_pods_are_known_by_a_range_of_their_family() {
    for (range, expected) in [
        ("10.0.0.0/8", "10.180.0.1:80 m"),
        ("fd00:10::/64", "10.180.0.1:80"),
    ] {
        let only = Config {
            cluster_cidrs: vec![range.parse().unwrap()],
            ..config()
        };
        let node = one_service(only, 1);
        assert_eq!(node.tcp(OUTSIDE, "172.30.0.41:80"), expected, "{range}");
    }
}

#[test]
fn n2_endpoints_of_ipv6() {
    let mut node = Node::new(config());
    let ports = json!([{"name": "p80", "port": 80}]);
    let spec = json!({"clusterIP": "fd00:96::41", "clusterIPs": ["fd00:96::41"], "ports": ports});
    node.service("svc1", spec, &[]);
    let slice = json!({
        "metadata": {"namespace": "ns", "name": "svc1-v6", "labels": {"kubernetes.io/service-name": "svc1"}},
        "addressType": "IPv6", "ports": ports, "endpoints": [{"addresses": ["fd00:10::1"]}],
    });
    node.catalog.apply_slice(&serde_json::from_value(slice).unwrap());
    node.sync("svc1");
    assert_eq!(node.tcp("fd00:10::2", "[fd00:96::41]:80"), "fd00:10::1:80");
}

#[test]
fn n2_a_source_range_of_everything_is_the_same_as_none() {
    for (ranges, is_firewalled) in [
        (json!([]), false),
        (json!(["192.0.2.0/24"]), true),
        (json!(["192.0.2.0/24", "0.0.0.0/0"]), false),
    ] {
        let mut node = Node::new(config());
        let ports = json!([{"name": "p80", "port": 80}]);
        let spec = json!({"type": "LoadBalancer", "clusterIP": "172.30.0.41",
                          "loadBalancerSourceRanges": ranges, "ports": ports});
        node.service("svc1", spec, &["1.2.3.4"]);
        node.slice(
            "svc1",
            ports,
            json!([{"addresses": ["10.180.0.1"], "nodeName": "here"}]),
        );
        let table = packet::table(&node.proxy, Family::V4);
        assert_eq!(table.contains_key(layout::FIREWALLED), is_firewalled, "{ranges}");
    }
}
