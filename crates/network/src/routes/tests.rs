//! Which way packets to each node's pods take, and which ranges are not routed.

use proptest::prelude::*;

use super::*;

fn node(addresses: &[&str], cidrs: &[&str]) -> Node {
    Node {
        addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
        pod_cidrs: cidrs.iter().map(|c| c.parse().unwrap()).collect(),
    }
}

fn cluster(nodes: &[(&str, Node)]) -> BTreeMap<String, Node> {
    nodes
        .iter()
        .map(|(name, node)| (name.to_string(), node.clone()))
        .collect()
}

fn subnets() -> Vec<Subnet> {
    ["10.0.0.1/24", "fd00::1/64"]
        .map(|net| Subnet {
            link: 2,
            net: net.parse().unwrap(),
        })
        .to_vec()
}

fn own() -> (&'static str, Node) {
    (
        "a",
        node(&["10.0.0.1", "fd00::1"], &["10.244.0.0/24", "fd01::/64"]),
    )
}

#[test]
fn n7_nodes_on_a_network_of_ours_are_routed_and_others_tunnelled() {
    let nodes = cluster(&[
        own(),
        (
            "b",
            node(&["10.0.0.2", "fd00::2"], &["10.244.1.0/24", "fd01:0:0:1::/64"]),
        ),
        ("c", node(&["10.9.0.3"], &["10.244.2.0/24", "fd01:0:0:2::/64"])),
    ]);
    let all = routes("a", &nodes, &subnets(), None);
    let hop = |cidr: &str| all.routes[&cidr.parse::<IpNet>().unwrap()];
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(
        hop("10.244.1.0/24"),
        Hop::Direct {
            via: ip("10.0.0.2"),
            link: 2
        }
    );
    assert_eq!(
        hop("fd01:0:0:1::/64"),
        Hop::Direct {
            via: ip("fd00::2"),
            link: 2
        }
    );
    assert_eq!(
        hop("10.244.2.0/24"),
        Hop::Tunnel {
            gateway: ip("10.244.2.0")
        }
    );
    // Both families go through a tunnel over the underlay's.
    assert_eq!(
        hop("fd01:0:0:2::/64"),
        Hop::Tunnel {
            gateway: ip("fd01:0:0:2::")
        }
    );
    for gateway in ["10.244.2.0", "fd01:0:0:2::"] {
        assert_eq!(
            all.tunnels[&ip(gateway)],
            Tunnel {
                mac: mac("c"),
                remote: ip("10.9.0.3")
            }
        );
    }
    assert_eq!(
        (all.routes.len(), all.tunnels.len(), all.conflicts.len()),
        (4, 2, 0)
    );
}

#[test]
fn n7_a_range_that_cannot_be_routed_is_named_and_harms_no_other() {
    for (what, cidr, message) in [
        ("own", "10.244.0.128/25", "it overlaps 10.244.0.0/24 of node a"),
        (
            "another's",
            "10.244.1.0/25",
            "it overlaps 10.244.1.0/24 of node b",
        ),
        (
            "a node's address",
            "10.7.0.0/16",
            "it contains the address 10.7.0.9 of node z",
        ),
        (
            "a network of ours",
            "10.0.0.128/25",
            "it overlaps 10.0.0.0/24, a network of this host",
        ),
    ] {
        let nodes = cluster(&[
            own(),
            ("b", node(&["10.0.0.2"], &["10.244.1.0/24"])),
            ("c", node(&["10.0.0.3"], &[cidr, "10.244.9.0/24"])),
            ("z", node(&["10.7.0.9"], &[])),
        ]);
        let all = routes("a", &nodes, &subnets(), None);
        assert_eq!(all.conflicts.len(), 1, "{what}");
        assert_eq!(
            (&*all.conflicts[0].node, &*all.conflicts[0].message),
            ("c", message),
            "{what}"
        );
        assert_eq!(all.routes.len(), 2, "{what}");
    }
    let without = cluster(&[own(), ("v6", node(&["fd99::1"], &["10.244.3.0/24"]))]);
    let all = routes("a", &without, &subnets(), None);
    assert_eq!(all.conflicts[0].message, "the node has no IPv4 address");
    assert!(
        routes("unknown", &without, &subnets(), None).routes.is_empty(),
        "before this node is known"
    );
}

#[test]
fn n7_a_range_of_this_node_that_would_cut_its_network_off_is_named_and_not_taken() {
    for (what, range, message) in [
        (
            "a part of our network",
            "10.0.0.128/25",
            Some("it is a part of 10.0.0.0/24, a network of this host"),
        ),
        (
            "our network",
            "10.0.0.0/24",
            Some("it contains the address 10.0.0.1 of node a"),
        ),
        (
            "more than that",
            "10.0.0.0/16",
            Some("it contains the address 10.0.0.1 of node a"),
        ),
        (
            "a node far away",
            "10.9.0.0/24",
            Some("it contains the address 10.9.0.3 of node c"),
        ),
        ("a range that no node has", "10.244.0.0/24", None),
    ] {
        let nodes = cluster(&[
            ("a", node(&["10.0.0.1"], &[range, "fd01::/64"])),
            ("c", node(&["10.9.0.3"], &["10.245.0.0/24"])),
        ]);
        let all = routes("a", &nodes, &subnets(), None);
        let found = all.conflicts.first().map(|c| (&*c.node, &*c.message));
        assert_eq!(found, message.map(|m| ("a", m)), "{what}");
        let own = [range, "fd01::/64"].map(|net| net.parse::<IpNet>().unwrap());
        assert_eq!(all.own, own[usize::from(message.is_some())..], "{what}");
        assert_eq!(all.routes.len(), 1, "others are routed: {what}");
    }
    // What the bridge of another pod network has left: routes to pods are longer than its.
    let bridge = [Subnet {
        link: 3,
        net: "10.244.0.1/24".parse().unwrap(),
    }];
    let all = routes("a", &cluster(&[own()]), &bridge, None);
    assert!(all.conflicts.is_empty(), "{:?}", all.conflicts);
}

#[test]
fn n7_a_node_without_addresses_is_waited_for_and_no_conflict() {
    let nodes = cluster(&[own(), ("b", node(&[], &["10.244.1.0/24"]))]);
    let all = routes("a", &nodes, &subnets(), None);
    assert!(all.routes.is_empty() && all.conflicts.is_empty(), "{all:?}");
}

#[test]
fn n7_the_tunnel_takes_what_the_link_takes_less_its_headers() {
    assert_eq!(tunnel_mtu(1500, "10.0.0.1".parse().unwrap()), 1450);
    assert_eq!(tunnel_mtu(1500, "fd00::1".parse().unwrap()), 1430);
    assert_eq!(mac("node1")[0] & 0b11, 0b10, "locally administered, of one host");
    assert_ne!(mac("node1"), mac("node2"));
}

fn published(seed: u8) -> Published {
    Published {
        key: PublicKey([seed; 32]),
        port: 51820,
    }
}

fn keys(nodes: &[(&str, u8)]) -> BTreeMap<String, Published> {
    let of = |(name, seed): &(&str, u8)| (name.to_string(), published(*seed));
    nodes.iter().map(of).collect()
}

#[test]
fn n7_encrypted_ranges_lead_to_their_own_node_and_to_no_other() {
    let nodes = cluster(&[
        own(),
        (
            "b",
            node(&["10.0.0.2", "fd00::2"], &["10.244.1.0/24", "fd01:0:0:1::/64"]),
        ),
        ("c", node(&["10.9.0.3"], &["10.244.2.0/24", "10.244.1.0/25"])),
    ]);
    let all = routes(
        "a",
        &nodes,
        &subnets(),
        Some(&keys(&[("a", 1), ("b", 2), ("c", 3)])),
    );
    assert!(all.tunnels.is_empty());
    assert_eq!(all.routes.len(), 3);
    assert!(all.routes.values().all(|hop| *hop == Hop::Encrypted));
    let peer = |seed| all.peers[&PublicKey([seed; 32])].clone();
    assert_eq!(peer(2).endpoint, "10.0.0.2:51820".parse().unwrap());
    assert_eq!(
        peer(2).allowed,
        [
            "10.244.1.0/24".parse().unwrap(),
            "fd01:0:0:1::/64".parse().unwrap()
        ]
    );
    // What it claims of another's is not its own.
    assert_eq!(peer(3).allowed, ["10.244.2.0/24".parse().unwrap()]);
    assert_eq!(all.conflicts[0].message, "it overlaps 10.244.1.0/24 of node b");
}

#[test]
fn n7_nothing_is_sent_unencrypted_if_encryption_is_configured() {
    let cidr = "10.244.1.0/24";
    for (what, address, known, message) in [
        (
            "no key",
            "10.0.0.2",
            keys(&[("a", 1)]),
            "the node has published no key",
        ),
        (
            "the key of this node",
            "10.0.0.2",
            keys(&[("a", 1), ("b", 1)]),
            "the node has published the key of another",
        ),
        (
            "no address",
            "fd77::2",
            keys(&[("a", 1), ("b", 2)]),
            "the node has no IPv4 address",
        ),
    ] {
        let nodes = cluster(&[own(), ("b", node(&[address], &[cidr]))]);
        let all = routes("a", &nodes, &subnets(), Some(&known));
        assert_eq!(all.routes[&cidr.parse().unwrap()], Hop::Unreachable, "{what}");
        assert_eq!(all.conflicts[0].message, message, "{what}");
        assert!(all.peers.is_empty() && all.tunnels.is_empty(), "{what}");
    }
    // The key of a node is not taken by one that comes later in the order of names.
    let nodes = cluster(&[
        own(),
        ("b", node(&["10.0.0.2"], &[cidr])),
        ("c", node(&["10.0.0.3"], &["10.244.2.0/24"])),
    ]);
    let all = routes("a", &nodes, &subnets(), Some(&keys(&[("b", 2), ("c", 2)])));
    assert_eq!(all.peers.len(), 1);
    assert_eq!(all.peers[&PublicKey([2; 32])].allowed, [cidr.parse().unwrap()]);
    assert_eq!(all.conflicts[0].node, "c");
}

#[test]
fn n7_a_key_is_read_as_it_was_published_and_nothing_else_is_one() {
    let own = Published {
        key: PublicKey([7; 32]),
        port: 51999,
    };
    let mut annotations = BTreeMap::from([("other".to_string(), "stays".to_string())]);
    assert!(Published::write(Some(&own), &mut annotations));
    assert!(!Published::write(Some(&own), &mut annotations), "it is there");
    assert_eq!(Published::of(&annotations), Some(own));
    for (name, value) in [
        (encryption::KEY, "AAAA"),
        (encryption::KEY, "not base64"),
        (encryption::PORT, "0"),
        (encryption::PORT, "70000"),
    ] {
        let mut wrong = annotations.clone();
        wrong.insert(name.into(), value.into());
        assert_eq!(Published::of(&wrong), None, "{name}: {value}");
    }
    assert!(Published::write(None, &mut annotations));
    assert_eq!((Published::of(&annotations), annotations.len()), (None, 1));
    assert_eq!(encryption::port(""), 51820);
    assert!(encryption::port("ffff") > 51820 && encryption::port("0000") > 51820);
    assert_eq!(encryption::mtu(1500, "10.0.0.1".parse().unwrap()), 1440);
    assert_eq!(encryption::mtu(1500, "fd00::1".parse().unwrap()), 1420);
}

proptest! {
    /// Whatever nodes say, no address is routed to two of them, none of our own is routed away, and each tunnel has its end.
    #[test]
    fn n7_no_address_has_two_ways(
        nodes in proptest::collection::btree_map(
            "[b-f]",
            (0u8..4, proptest::collection::vec((0u8..6, 22u8..27), 0..3)),
            0..5,
        ),
    ) {
        let mut all = cluster(&[own()]);
        for (name, (net, cidrs)) in nodes {
            let cidrs = cidrs.iter().map(|(third, prefix)| {
                let net: IpNet = format!("10.244.{third}.0/{prefix}").parse().unwrap();
                net.trunc()
            });
            let last = name.as_bytes()[0];
            all.insert(name, Node {
                addresses: vec![format!("10.{net}.0.{last}").parse().unwrap()],
                pod_cidrs: cidrs.collect(),
            });
        }
        let found = routes("a", &all, &subnets(), None);
        let cidrs: Vec<&IpNet> = found.routes.keys().collect();
        for (i, a) in cidrs.iter().enumerate() {
            prop_assert!(!overlap(a, &"10.244.0.0/24".parse().unwrap()));
            for b in &cidrs[i + 1..] {
                prop_assert!(!overlap(a, b));
            }
        }
        for hop in found.routes.values() {
            if let Hop::Tunnel { gateway } = hop {
                prop_assert!(found.tunnels.contains_key(gateway));
            }
        }
    }
}
