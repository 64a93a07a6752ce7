//! Host ports (SPEC N8): from other hosts, from the node, from pods, from the pod itself; both families and UDP.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::Case;
use crate::node::{NODE, NODE_V6, Node, OUTSIDE, OUTSIDE_V6, Pod};
use crate::traffic::{is_silent, serve, tcp, udp};

pub const CASES: &[Case] = &[
    (
        "n8_a_host_port_is_reached_from_everywhere_in_both_families",
        from_everywhere,
    ),
    (
        "n8_pods_share_a_port_number_by_protocol_and_address",
        shared_numbers,
    ),
    (
        "n8_a_udp_flow_follows_a_host_port_that_is_added_and_removed",
        udp_flows,
    ),
    (
        "n8_host_ports_survive_a_restart_and_are_never_on_the_dns_address",
        restart,
    ),
    ("n8_a_host_port_that_is_in_use_is_an_error_and_undone", in_use),
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn ports(mappings: &[(&str, u16, &str)]) -> Value {
    let all: Vec<Value> = mappings
        .iter()
        .map(|(protocol, port, ip)| {
            json!({ "hostPort": port, "containerPort": 80, "protocol": protocol, "hostIP": ip })
        })
        .collect();
    json!({ "portMappings": all })
}

fn from_everywhere() {
    let node = Node::started();
    let outside = node.outside();
    let (pod, other) = (Pod::new(1), Pod::new(2));
    node.add_with(&pod, ports(&[("tcp", 8080, ""), ("udp", 8080, "")]))
        .done();
    let of_other = node.add(&other).addresses();
    serve(&pod.namespace, "pod", 80);
    for (family, (address, client)) in [(NODE, OUTSIDE), (NODE_V6, OUTSIDE_V6)].into_iter().enumerate() {
        let address = ip(address);
        // From another host, whose address is kept.
        assert_eq!(tcp(&outside, address, 8080).unwrap(), format!("pod {client}"));
        assert_eq!(udp(&outside, address, 8080, 0).unwrap(), format!("pod {client}"));
        // From the node itself and from another pod.
        assert_eq!(
            tcp(&node.namespace, address, 8080).unwrap(),
            format!("pod {address}")
        );
        assert_eq!(
            tcp(&other.namespace, address, 8080).unwrap(),
            format!("pod {}", of_other[family])
        );
        // From the pod to itself.
        assert_eq!(
            tcp(&pod.namespace, address, 8080).unwrap(),
            format!("pod {address}")
        );
        assert_eq!(
            udp(&pod.namespace, address, 8080, 0).unwrap(),
            format!("pod {address}")
        );
    }
    // The kernel has this for IPv4 only, and so has the reference plugin.
    assert_eq!(
        tcp(&node.namespace, ip("127.0.0.1"), 8080).unwrap(),
        format!("pod {NODE}")
    );
    node.delete(&pod).done();
    assert!(is_silent(&outside, ip(NODE), 8080));
    assert!(is_silent(&node.namespace, ip("127.0.0.1"), 8080));
}

fn shared_numbers() {
    let node = Node::started();
    let outside = node.outside();
    node.namespace.command("ip address add 192.0.2.77/24 dev up0");
    let pods: Vec<Pod> = (1..4).map(Pod::new).collect();
    for (pod, mapping) in
        pods.iter()
            .zip([("tcp", 53, ""), ("udp", 53, "0.0.0.0"), ("tcp", 53, "192.0.2.77")])
    {
        node.add_with(pod, ports(&[mapping])).done();
        serve(&pod.namespace, &pod.name, 80);
    }
    let name = |answer: std::io::Result<String>| answer.unwrap().split(' ').next().unwrap().to_string();
    assert_eq!(name(tcp(&outside, ip(NODE), 53)), "pod-1");
    assert_eq!(name(tcp(&outside, ip(NODE_V6), 53)), "pod-1");
    assert_eq!(name(udp(&outside, ip(NODE), 53, 0)), "pod-2");
    assert!(udp(&outside, ip(NODE_V6), 53, 0).is_err(), "0.0.0.0 is IPv4 only");
    assert_eq!(name(tcp(&outside, ip("192.0.2.77"), 53)), "pod-3");
    // An address that is not the node's is not translated.
    serve(&outside, "outside", 53);
    assert_eq!(name(tcp(&pods[0].namespace, ip(OUTSIDE), 53)), "outside");
}

fn udp_flows() {
    let node = Node::started();
    let outside = node.outside();
    serve(&node.namespace, "node", 5353);
    let ask = || udp(&outside, ip(NODE), 5353, 4000).unwrap();
    assert_eq!(ask(), format!("node {OUTSIDE}"));
    for number in 1..3 {
        let pod = Pod::new(number);
        node.add_with(&pod, ports(&[("udp", 5353, "")])).done();
        serve(&pod.namespace, &pod.name, 80);
        assert_eq!(ask(), format!("pod-{number} {OUTSIDE}"));
        node.delete(&pod).done();
        assert_eq!(ask(), format!("node {OUTSIDE}"));
    }
}

fn restart() {
    let mut node = Node::started();
    let dns = "10.96.0.10";
    node.reserved = vec![ip(dns)];
    node.kill();
    node.start();
    node.namespace.command(&format!("ip address add {dns}/32 dev lo"));
    let outside = node.outside();
    outside.command(&format!("ip route add {dns}/32 via {NODE}"));
    let pod = Pod::new(1);
    node.add_with(&pod, ports(&[("tcp", 53, "")])).done();
    serve(&pod.namespace, "pod", 80);
    serve(&node.namespace, "node", 53);
    node.kill();
    node.namespace.command("nft flush map inet knarr-pods any4");
    node.namespace
        .command("nft add element inet knarr-pods any4 { tcp . 99 : 10.244.1.9 . 99 }");
    node.start();
    assert_eq!(tcp(&outside, ip(NODE), 53).unwrap(), format!("pod {OUTSIDE}"));
    assert_eq!(tcp(&outside, ip(dns), 53).unwrap(), format!("node {OUTSIDE}"));
    let map = node.namespace.command("nft list map inet knarr-pods any4");
    assert!(!map.contains("10.244.1.9"), "{map}");
}

fn in_use() {
    let node = Node::started();
    let (a, b) = (Pod::new(1), Pod::new(2));
    node.add_with(&a, ports(&[("tcp", 80, "")])).done();
    let (code, message) = node.add_with(&b, ports(&[("tcp", 80, "")])).failure();
    assert_eq!(code, 102);
    assert_eq!(message, format!("host port 80/TCP is used by sandbox {}", a.id));
    assert_eq!(node.links(), [a.host_interface()]);
    node.delete(&a).done();
    node.add_with(&b, ports(&[("tcp", 80, "")])).done();
}
