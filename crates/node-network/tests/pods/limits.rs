//! What a pod may not do: send from others' addresses, reach the node's loopback, exceed its bandwidth.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use serde_json::json;

use crate::Case;
use crate::node::{NODE, NODE_V6, Node, OUTSIDE, OUTSIDE_V6, Pod};
use crate::traffic::bytes_per_second;

pub const CASES: &[Case] = &[
    (
        "n1_a_pod_cannot_send_from_an_address_that_is_not_its_own",
        spoofing,
    ),
    (
        "n6_no_packet_passes_from_an_address_of_the_node_that_no_pod_has",
        unused_source,
    ),
    ("n1_a_pod_does_not_reach_the_nodes_loopback", loopback_of_the_node),
    ("n8_bandwidth_is_limited_in_both_directions", bandwidth),
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Sends a datagram from one to the other; whether it arrives.
fn arrives(from: &Pod, source: IpAddr, to: &Pod, destination: IpAddr) -> bool {
    let receiver = to
        .namespace
        .run(move || UdpSocket::bind((destination, 0)).unwrap());
    receiver
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let target: SocketAddr = receiver.local_addr().unwrap();
    from.namespace.run(move || {
        let socket = UdpSocket::bind((source, 0)).unwrap();
        socket.send_to(b"!", target).unwrap();
    });
    receiver.recv(&mut [0; 8]).is_ok()
}

fn spoofing() {
    let node = Node::started();
    // The loosest setting that a host may have.
    node.namespace.command("sysctl -qw net.ipv4.conf.all.rp_filter=2");
    let (evil, target, victim) = (Pod::new(1), Pod::new(2), Pod::new(3));
    let own = node.add(&evil).addresses();
    let to = node.add(&target).addresses();
    let others = node.add(&victim).addresses();
    evil.namespace.command("ip link set lo up");
    for family in 0..2 {
        assert!(arrives(&evil, own[family], &target, to[family]));
        let unused = ip(["10.244.1.99", "fd00:244:0:1::99"][family]);
        for source in [others[family], unused] {
            // An IPv6 address is no source until duplicate address detection has ended.
            let form = if source.is_ipv4() { "/32" } else { "/128 nodad" };
            evil.namespace
                .command(&format!("ip address add {source}{form} dev lo"));
            assert!(!arrives(&evil, source, &target, to[family]), "{source}");
        }
    }
}

fn unused_source() {
    let node = Node::started();
    let outside = Pod {
        namespace: node.outside(),
        id: "outside".into(),
        name: "outside".into(),
    };
    let target = Pod::new(1);
    let to = node.add(&target).addresses();
    // As the routes to other nodes are made, on a host that does not check the sources of packets.
    for line in [
        "ip route add unreachable 10.244.1.0/24",
        "ip -6 route add unreachable fd00:244:0:1::/64",
        "sysctl -qw net.ipv4.conf.all.rp_filter=0",
        "sysctl -qw net.ipv4.conf.up0.rp_filter=0",
    ] {
        node.namespace.command(line);
    }
    for (family, own, unused, routes) in [
        (
            0,
            OUTSIDE,
            "10.244.1.99/32",
            format!("ip route add 10.244.1.0/24 via {NODE}"),
        ),
        (
            1,
            OUTSIDE_V6,
            "fd00:244:0:1::99/128 nodad",
            format!("ip -6 route add fd00:244:0:1::/64 via {NODE_V6}"),
        ),
    ] {
        outside.namespace.command(&routes);
        outside
            .namespace
            .command(&format!("ip address add {unused} dev lo"));
        assert!(arrives(&outside, ip(own), &target, to[family]), "{own}");
        let source = unused.split('/').next().unwrap();
        assert!(!arrives(&outside, ip(source), &target, to[family]), "{source}");
    }
}

fn loopback_of_the_node() {
    let node = Node::started();
    let pod = Pod::new(1);
    let ports = json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }] });
    node.add_with(&pod, ports).done();
    // With a host port, the kernel would route such packets.
    let name = pod.host_interface();
    let routed = node
        .namespace
        .command(&format!("sysctl -n net.ipv4.conf.{name}.route_localnet"));
    assert_eq!(routed.trim(), "1");
    let listener = node.namespace.run(|| UdpSocket::bind(("127.0.0.1", 0)).unwrap());
    listener
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let target = listener.local_addr().unwrap();
    // `lo` is down in the pod, so 127.0.0.1 follows the pod's routes.
    pod.namespace
        .command("sysctl -qw net.ipv4.conf.eth0.route_localnet=1");
    pod.namespace
        .command("ip route add 127.0.0.1/32 via 169.254.1.1 dev eth0");
    pod.namespace.run(move || {
        let socket = UdpSocket::bind(("10.244.1.2", 0)).unwrap();
        socket.send_to(b"!", target).unwrap();
    });
    assert!(listener.recv(&mut [0; 8]).is_err());
}

fn bandwidth() {
    let node = Node::started();
    let (limited, free) = (Pod::new(1), Pod::new(2));
    // 40 Mbit/s in, 24 Mbit/s out, with the burst that containerd gives to pods that name none.
    let burst = u64::from(u32::MAX);
    let limits = json!({ "bandwidth": {
        "ingressRate": 40_000_000, "ingressBurst": burst, "egressRate": 24_000_000, "egressBurst": burst,
    } });
    let address = node.add_with(&limited, limits).addresses();
    let of_free = node.add(&free).addresses();
    let within = |measured: u64, limit: u64| {
        assert!(
            measured > limit * 7 / 10 && measured < limit * 12 / 10,
            "{measured} bytes/s, expected {limit}"
        );
    };
    within(
        bytes_per_second(&free.namespace, &limited.namespace, address[0]),
        5_000_000,
    );
    within(
        bytes_per_second(&limited.namespace, &free.namespace, of_free[1]),
        3_000_000,
    );
    assert_eq!(node.links().len(), 3);
    node.delete(&limited).done();
    node.until_removed(&limited.id);
    assert_eq!(node.links().len(), 1);
}
